"""The one place where it is decided who may do what over HTTP and WebSocket.

Every route has a ``Rule``: the permission that a role needs, on the tenant, namespace, topic or
subscription that the path names. The rules are a table of path templates here and not notes at the
routes, so that they can be read, and tested, as a whole (``rule_of``; a test walks all routes).
``authorize`` applies them before a route runs, as a dependency of the whole application; WebSocket
endpoints call ``authorize_websocket``.

Authentication doesn't exist yet (``authenticationEnabled=true`` is refused at start): every role is
``anonymous``, and the decision, ``everyone``, says yes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from fastapi import Request

from broker.http.audit import ANONYMOUS
from broker.http.errors import ApiError

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.websockets import WebSocket

__all__ = [
    "Decision",
    "Permission",
    "Rule",
    "authorize",
    "authorize_websocket",
    "everyone",
    "rule_of",
]


class Permission(Enum):
    """What a role must be allowed, from nothing to everything (Pulsar's default provider)."""

    NOTHING = "nothing"  # not even a role: liveness, metrics, documentation
    LOOKUP = "lookup"  # to produce or to consume
    PRODUCE = "produce"
    CONSUME = "consume"
    TENANT_ADMIN = "tenant admin"  # administrator of the path's tenant
    SUPERUSER = "superuser"


@dataclass(frozen=True, slots=True)
class Rule:
    permission: Permission
    changes: bool  # the request may change something
    status: int  # of the refusal: 403 for namespaces and policies, else 401 (http-api 9, 23)


Decision: TypeAlias = Callable[[str, Rule, Mapping[str, str]], Awaitable[bool]]
"""(role, rule, raw path parameters: see form_decode) -> whether it may."""


async def everyone(role: str, rule: Rule, resource: Mapping[str, str]) -> bool:
    """The decision while there is no authorization."""
    return True


_NAMESPACE = r"/admin/v2/namespaces/\{tenant\}/\{namespace\}"
_DOMAIN = r"/admin/v2/(\{domain\}|persistent|non-persistent)/\{tenant\}/\{namespace\}"
_TOPIC = rf"{_DOMAIN}/\{{topic\}}"
_STATS = (
    "stats|partitioned-stats|internalStats|partitioned-internalStats|internal-info|partitions"
    "|properties|lastMessageId|backlogSize|backlog"
)
_MESSAGES = (
    "subscriptions|subscription/.*|all_subscription/.*|messageid/.*|ledger/.*|examinemessage"
    "|getMessageIdByIndex"
)
_GET, _ANY, _WRITE = "GET", "GET|PUT|POST|DELETE|PATCH", "PUT|POST|DELETE|PATCH"

# Methods, template (as a regular expression, to be matched whole), permission. The first one holds.
_TABLE: Final = tuple(
    (frozenset(methods.split("|")), re.compile(template), permission)
    for methods, template, permission in (
        (_GET, r"/(metrics|status\.html|ready|openapi\.json|docs.*|)", Permission.NOTHING),
        (_GET, r"/admin/v2/brokers/(ready|version|health)", Permission.NOTHING),
        (_GET, r"/admin/v2/clusters", Permission.NOTHING),
        ("POST", r"/topics/.*/\{topic\}(/partitions/\{partition\})?", Permission.PRODUCE),
        (_ANY, r"/topics/.*/\{topic\}/subscription/.*", Permission.CONSUME),
        (_GET, r"/lookup/v2/topic/.*", Permission.LOOKUP),
        ("WEBSOCKET", r"/ws/v[23]/producer/.*", Permission.PRODUCE),
        ("WEBSOCKET", r"/ws/v[23]/(consumer|reader)/.*", Permission.CONSUME),
        (_ANY, r"/admin/v2/tenants(/.*)?", Permission.SUPERUSER),
        (_ANY, r"/admin/v2/clusters(/.*)?", Permission.SUPERUSER),
        (_ANY, r"/admin/v2/(brokers|broker-stats|bookies)(/.*)?", Permission.SUPERUSER),
        (_ANY, r"/admin/v2/(resource-quotas|resourcegroups)(/.*)?", Permission.SUPERUSER),
        (_GET, r"/admin/v2/namespaces/\{tenant\}", Permission.TENANT_ADMIN),
        (_GET, r"/admin/v2/namespaces/\{cluster\}/antiAffinity/\{group\}", Permission.SUPERUSER),
        (_ANY, rf"{_NAMESPACE}(/.*)?", Permission.TENANT_ADMIN),
        (_GET, rf"{_DOMAIN}(/partitioned|/\{{bundle\}})?", Permission.TENANT_ADMIN),
        (_GET, rf"{_TOPIC}/({_STATS})", Permission.LOOKUP),
        ("PUT", rf"{_TOPIC}/backlogSize", Permission.LOOKUP),
        (_ANY, rf"{_TOPIC}/({_MESSAGES})", Permission.CONSUME),
        (_ANY, rf"{_TOPIC}(/.*)?", Permission.TENANT_ADMIN),
        (_GET, r"/admin/v2/schemas/.*", Permission.LOOKUP),
        ("POST", r"/admin/v2/schemas/.*", Permission.PRODUCE),
        ("DELETE", r"/admin/v2/schemas/.*", Permission.TENANT_ADMIN),
    )
)  # fmt: skip
_UNKNOWN: Final = Rule(Permission.SUPERUSER, True, 401)
"""Of a route that the table doesn't name: closed to all but superusers."""


@functools.lru_cache(maxsize=4096)  # bounded: paths of WebSockets are what clients say
def rule_of(method: str, template: str) -> Rule | None:
    """The rule of a route; None: the table lacks one.

    Args:
        method: of HTTP, or ``WEBSOCKET``.
        template: the route's path as it was declared; convertors (``{domain:domain}``) don't count.
    """
    method = "GET" if method == "HEAD" else method
    plain = re.sub(r":[a-z]+\}", "}", template)
    status = 403 if plain.startswith("/admin/v2/namespaces/") else 401
    for methods, pattern, permission in _TABLE:
        if method in methods and pattern.fullmatch(plain):
            return Rule(permission, method in _WRITE.split("|"), status)
    return None


async def authorize(request: Request) -> None:
    """Dependency of every route.

    Raises:
        ApiError: 401 or 403, the role may not do this.
    """
    scope = request.scope
    await _check(request, rule_of(scope["method"], scope["route"].path))


async def authorize_websocket(websocket: WebSocket) -> None:
    """As ``authorize``, by the path itself: its words come before its names."""
    await _check(websocket, rule_of("WEBSOCKET", websocket.scope["path"]))


async def _check(connection: HTTPConnection, rule: Rule | None) -> None:
    scope = connection.scope
    decide: Decision = scope["app"].state.may
    role: str = scope["state"].get("role", ANONYMOUS)
    rule = rule or _UNKNOWN
    if not await decide(role, rule, scope["path_params"]):
        raise ApiError(rule.status, f"{role} lacks the permission: {rule.permission.value}")
