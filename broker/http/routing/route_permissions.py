"""The one place where it is decided who may do what over HTTP and WebSocket.

Every route has a ``AccessRule``: the permission that a role needs, on the tenant, namespace, topic
or subscription that the path names. The rules are a table of path templates here and not notes at
the routes, so that they can be read, and tested, as a whole (``rule_of``; a test walks all routes).
``authorize`` applies them before a route runs, as a dependency of the whole application; WebSocket
endpoints call ``authorize_websocket``. Both do nothing while authorization is off.

Permissions and statuses are those of Apache Pulsar 4.2.4, asked route by route and role by role.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request

from magnetar.broker.auth.authorization import EVERY_SUBSCRIPTION, Caller, Permission, Resource
from magnetar.broker.errors import AuthorizationError, BrokerMetadataError
from magnetar.broker.http.dependencies import make_namespace, make_topic_name
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.middleware.raw_path import form_decode
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import HTTPConnection
    from starlette.types import Scope
    from starlette.websockets import WebSocket

    from magnetar.broker.service.access_control import AccessControl, Right


@dataclass(frozen=True, slots=True)
class AccessRule:
    permission: Permission
    status: int  # of the refusal


_NAMESPACE = r"/admin/v2/namespaces/\{tenant\}/\{namespace\}"
_DOMAIN = r"/admin/v2/(\{domain\}|persistent|non-persistent)/\{tenant\}/\{namespace\}"
_TOPIC = rf"{_DOMAIN}/\{{topic\}}"
_SCHEMAS = r"/admin/v2/schemas/\{tenant\}/\{namespace\}/\{topic\}"
_REST = r"/topics/\{domain\}/\{tenant\}/\{namespace\}/\{topic\}"
_CLEAR = r"(clearBacklog(/\{subscription\})?|unsubscribe/\{subscription\})"
_STATS = (
    "stats|partitioned-stats|internalStats|partitioned-internalStats|internal-info|partitions"
    "|properties"
)
_MESSAGES = (
    "subscriptions|subscription/.*|all_subscription/.*|messageid/.*|ledger/.*|examinemessage"
    "|getMessageIdByIndex|lastMessageId|backlog|backlogSize|segments"
)
_KEEPING = (
    "unload|terminate(/partitions)?|truncate|trim|compaction|offload|properties|permissions(/.*)?"
    "|createMissedPartitions|maxMessageSize"
)
_OF_ALL: Final = re.compile(r".*/(all_subscription/.*|clearBacklog)")
"""Templates of what is done to every subscription at once."""
_GET, _ANY, _WRITE = "GET", "GET|PUT|POST|DELETE|PATCH", "PUT|POST|DELETE|PATCH"
_ABSENT = "functions|sources?|sinks?|worker|worker-stats|packages|transactions"
_FREE, _LOOKUP, _SUPERUSER = Permission.NOTHING, Permission.LOOKUP, Permission.SUPERUSER
_PRODUCE, _CONSUME, _ADMIN = Permission.PRODUCE, Permission.CONSUME, Permission.TENANT_ADMIN

# Methods, template (as a regular expression, to be matched whole), permission, status of the
# refusal. The first one holds. 403 is Pulsar's for what concerns namespaces and policies.
_TABLE: Final = tuple(
    (frozenset(methods.split("|")), re.compile(template), AccessRule(permission, status))
    for methods, template, permission, status in (
        (_GET, r"/(metrics|status\.html|ready|livez|readyz|openapi\.json|docs.*|)", _FREE, 401),
        (_GET, r"/admin/v2/brokers/(ready|version)", _FREE, 401),
        (_GET, r"/admin/v2/clusters", _FREE, 401),
        (_ANY, rf"/admin/v[23]/({_ABSENT})(/.*)?", _FREE, 401),  # there is nothing behind them
        ("POST", rf"{_REST}(/partitions/\{{partition\}})?", _PRODUCE, 401),
        (_ANY, rf"{_REST}/subscription/.*", _CONSUME, 401),
        (_GET, r"/lookup/v2/(topic|destination)/.*/\{topic\}/bundle", _LOOKUP, 403),
        (_GET, r"/lookup/v2/(topic|destination)/.*/\{topic\}", _LOOKUP, 401),
        ("WEBSOCKET", r"/ws/v2/producer/.*", _PRODUCE, 403),
        ("WEBSOCKET", r"/ws/v[23]/consumer/.*", _CONSUME, 403),
        ("WEBSOCKET", r"/ws/v2/reader/.*", _CONSUME, 403),
        (_ANY, r"/admin/v2/tenants", _SUPERUSER, 401),
        (_ANY, r"/admin/v2/tenants/\{tenant\}", _ADMIN, 401),
        (_ANY, r"/admin/v2/clusters(/.*)?", _SUPERUSER, 401),
        (_ANY, r"/admin/v2/(brokers|broker-stats|bookies)(/.*)?", _SUPERUSER, 401),
        (_ANY, r"/admin/v2/(resource-quotas|resourcegroups|metadata)(/.*)?", _SUPERUSER, 401),
        ("POST", r"/admin/v2/namespaces/(grant|revoke)PermissionsOnTopics", _SUPERUSER, 401),
        (_GET, r"/admin/v2/namespaces/\{tenant\}", _ADMIN, 401),
        (_GET, r"/admin/v2/namespaces/\{cluster\}/antiAffinity/\{group\}", _SUPERUSER, 401),
        (_GET, rf"{_NAMESPACE}/(topics|bundles)", _LOOKUP, 403),
        ("PUT|DELETE", _NAMESPACE, _ADMIN, 401),
        (_ANY, rf"{_NAMESPACE}/propert(ies|y/.*)", _ADMIN, 401),
        ("PUT", rf"{_NAMESPACE}/(\{{bundle\}}/)?(unload|split)", _SUPERUSER, 401),
        (_ANY, rf"{_NAMESPACE}/persistence/bookieAffinity", _SUPERUSER, 401),
        ("POST", rf"{_NAMESPACE}/migration", _SUPERUSER, 401),
        (_WRITE, rf"{_NAMESPACE}/delayedDelivery", _SUPERUSER, 401),
        ("POST", rf"{_NAMESPACE}/(\{{bundle\}}/)?{_CLEAR}", _CONSUME, 403),
        (_ANY, rf"{_NAMESPACE}(/.*)?", _ADMIN, 403),
        (_GET, rf"{_DOMAIN}(/partitioned|/\{{bundle\}})?", _LOOKUP, 403),
        (_GET, rf"{_TOPIC}/({_STATS})", _LOOKUP, 401),
        (_ANY, rf"{_TOPIC}/({_MESSAGES})", _CONSUME, 401),
        (_ANY, rf"{_TOPIC}/({_KEEPING})", _ADMIN, 401),
        (_ANY, rf"{_TOPIC}(/.*)?", _ADMIN, 403),  # life and death, policies
        (_GET, rf"{_SCHEMAS}/.*", _LOOKUP, 401),
        ("POST", rf"{_SCHEMAS}/version", _LOOKUP, 401),  # asks which one it is
        ("POST", rf"{_SCHEMAS}/schema", _PRODUCE, 401),
        (_ANY, rf"{_SCHEMAS}/.*", _ADMIN, 401),
    )
)  # fmt: skip
_UNKNOWN: Final = AccessRule(_SUPERUSER, 401)
"""Of a route that the table doesn't name: closed to all but superusers."""


@functools.lru_cache(maxsize=4096)  # bounded: paths of WebSockets are what clients say
def rule_of(method: str, template: str) -> AccessRule | None:
    """The rule of a route; None: the table lacks one.

    Args:
        method: of HTTP, or ``WEBSOCKET``.
        template: the route's path as it was declared; convertors (``{domain:domain}``) don't count.
    """
    method = "GET" if method == "HEAD" else method
    plain = re.sub(r":[a-z]+\}", "}", template)
    for methods, pattern, rule in _TABLE:
        if method in methods and pattern.fullmatch(plain):
            return rule
    return None


async def authorize(request: Request) -> None:
    """Dependency of every route.

    Raises:
        ApiError: 401 or 403, the role may not do this; 404, there is no such tenant; 412, the path
            names nothing.
    """
    scope = request.scope
    access: AccessControl | None = scope["app"].state.access
    if access is None:
        return
    template = scope["route"].path
    rule = rule_of(scope["method"], template) or _UNKNOWN
    if rule.permission is _FREE:
        return
    right = (caller_of(scope), rule.permission, _resource_of(rule, template, scope["path_params"]))
    scope["state"]["right"] = right
    try:
        await require(access, scope, (right,), rule.status)
    except ApiError:
        # Pulsar looks at the tenant first, except where tenants themselves are meant.
        if template.startswith(("/admin/v2/tenants", "/topics/")) or right[2].tenant == "":
            raise
        if await access.has_tenant(right[2].tenant):
            raise
        raise ApiError(404, "Tenant does not exist") from None


async def authorize_websocket(websocket: WebSocket, resources: Iterable[Resource]) -> list[Right]:
    """The rights that a socket lives on; the rule is that of the path itself, whose words come
    before its names. Empty while authorization is off.

    Raises:
        ApiError: 403.
    """
    scope = websocket.scope
    access: AccessControl | None = scope["app"].state.access
    if access is None:
        return []
    rule = rule_of("WEBSOCKET", scope["path"]) or _UNKNOWN
    caller = caller_of(scope)
    rights = [(caller, rule.permission, resource) for resource in resources]
    if not rights:  # nothing that could be asked about
        rights = [(caller, _SUPERUSER, Resource())]
    await require(access, scope, rights, rule.status)
    return rights


async def require(
    access: AccessControl, scope: Scope, rights: Iterable[Right], status: int
) -> None:
    """Raises ApiError: with ``status``, one of them is not given; BrokerMetadataError."""
    client = scope.get("client")
    remote = f"{client[0]}:{client[1]}" if client else "unknown"
    try:
        for right in rights:
            await access.require(*right, scope["type"], remote)
    except AuthorizationError as error:
        raise ApiError(status, f"Unauthorized: {error}") from error
    except MetadataError as error:
        raise BrokerMetadataError(str(error)) from error


def caller_of(scope: Scope) -> Caller:
    """As authentication has found out (authentication.py)."""
    state = scope["state"]
    return Caller(state.get("role"), state.get("original_role"))


def right_of(connection: HTTPConnection) -> Right | None:
    """What ``authorize`` has asked for; None while authorization is off."""
    right: Right | None = connection.scope["state"].get("right")
    return right


def _resource_of(rule: AccessRule, template: str, names: Mapping[str, Any]) -> Resource:
    """What the path names, decoded exactly as its route will do (dependencies.py).

    Raises:
        ApiError: 404 unknown domain, 412 bad name.
    """
    if rule.permission is _SUPERUSER:
        return Resource(form_decode(names["tenant"])) if "tenant" in names else Resource()
    subscription = form_decode(names.get("subscription", ""))
    if _OF_ALL.fullmatch(template):
        subscription = EVERY_SUBSCRIPTION
    if "topic" in names:
        volatile = template.startswith("/admin/v2/non-persistent/")
        domain = names.get("domain", "non-persistent" if volatile else "persistent")
        topic = make_topic_name(domain, names["tenant"], names["namespace"], names["topic"])
        return Resource.of_topic(topic, form_decode(subscription))
    if "namespace" in names:
        return Resource.of_namespace(
            make_namespace(names["tenant"], names["namespace"]), subscription
        )
    return Resource(form_decode(names["tenant"]))
