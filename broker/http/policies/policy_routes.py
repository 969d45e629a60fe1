"""Routes of policies, made from the rows of broker/policies/table.py, for namespaces and topics.

A route reads and writes through a ``PolicyScope``: the namespace or the topic that the request
names. ``ScopeConfig`` says how the two levels differ beyond their documents.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from magnetar.broker.http.dependencies import body_doc, flag
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.parameters import Depends, Query
from magnetar.broker.http.policies.policy_access import (
    Applied,
    PolicyScope,
    QuotaType,
    answer,
    quota_type,
)
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, RouteOptions, Routes
from magnetar.broker.policies.documents import (
    QUOTA_EXAMPLE,
    QUOTA_SCHEMA,
    applied_quotas,
    parse_quota,
)
from magnetar.broker.policies.table import POLICIES, Policy, PolicyRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeConfig:
    """Differences between namespaces and topics."""

    policy_scope: Callable[..., Any]
    """Dependency: the holder."""
    body: Callable[..., Any]
    """Dependency: the JSON of the body."""
    at: Callable[[Policy], PolicyRoute | None]
    """Where it has a policy; None: nowhere."""
    is_topic: bool

    @property
    def prefix(self) -> str:
        """Of the routes' names, which are unique."""
        return "topic_" if self.is_topic else ""


def add_policy_routes(routes: Routes, level: ScopeConfig) -> None:
    """GET, the method that sets, and DELETE of every policy that the level has."""
    for policy in POLICIES:
        if (at := level.at(policy)) is not None:
            _add_get(routes, level, policy, at)
            _add_set(routes, level, policy, at)
            if at.removable:
                _add_remove(routes, level, policy, at)
    _add_quotas(routes, level)


def _access(at: PolicyRoute) -> Access:
    return Access.ADMIN_401 if at.refusal == Access.ADMIN_401.status else Access.ADMIN_403


def _write_access(at: PolicyRoute) -> Access:
    return Access.SUPERUSER if at.set_by_superuser else _access(at)


def _add_get(routes: Routes, level: ScopeConfig, policy: Policy, at: PolicyRoute) -> None:
    of = Depends(level.policy_scope)

    async def get_applied(policy_scope: PolicyScope = of, applied: Applied = None) -> Response:
        policies = await policy_scope.policies()
        if flag(applied) or policy.always_applied:
            return answer(policy.applied(policies))
        stored = policy_scope.stored(policies, policy)
        return answer(at.unset if stored is None else stored)

    async def get(policy_scope: PolicyScope = of) -> Response:
        return await get_applied(policy_scope)

    value = {"application/json": {"schema": policy.kind.schema, "example": policy.example}}
    may_be_unset = at.unset is None and not policy.always_applied
    routes.declare(
        "GET",
        f"/{at.path}",
        get_applied if at.applied else get,
        f"Get: {policy.title}",
        access=_access(at),
        name=f"get_{level.prefix}{policy.field}",
        statuses={
            200: {"description": "Its value", "content": value},
            **({204: "It is not set"} if may_be_unset else {}),
        },
    )


def _add_set(routes: Routes, level: ScopeConfig, policy: Policy, at: PolicyRoute) -> None:
    of, json = Depends(level.policy_scope), Depends(level.body)
    query = Query(
        None,
        alias=at.path,
        description=f"{policy.title.capitalize()}; none: unset it",
        json_schema_extra={"type": "integer", "minimum": 0},
    )

    async def set_value(policy_scope: PolicyScope = of, body: Any = json) -> None:
        await policy_scope.policies()
        if body is not None:
            body = policy.parse(body, at, policy_scope.service.config)
        elif not at.null_removes:
            raise policy.null_error
        await policy_scope.store(policy, body)

    async def set_true(policy_scope: PolicyScope = of) -> None:
        await set_value(policy_scope, True)

    # The value comes as text in the query.
    async def set_query(policy_scope: PolicyScope = of, given: str | None = query) -> None:
        await set_value(policy_scope, _number(given))

    options: RouteOptions = {
        "access": _write_access(at),
        "name": f"set_{level.prefix}{policy.field}",
        "statuses": {
            400: "Not a value of this policy",
            412: "Out of range, or of a feature that this version lacks",
        },
    }
    if not (at.bodiless or at.in_query):
        options["body"] = body_doc(policy.kind.schema, policy.example, not at.null_removes)
    routes.declare(
        at.method,
        f"/{at.path}",
        set_query if at.in_query else set_true if at.bodiless else set_value,
        f"Set: {policy.title}",
        **options,
    )


def _number(text: str | None) -> int | None:
    if text is None or text == "":
        return None
    with answer_for(ValueError, 400, f"{text!r:.60} is not an integer"):
        return int(text)


def _add_remove(routes: Routes, level: ScopeConfig, policy: Policy, at: PolicyRoute) -> None:
    of = Depends(level.policy_scope)

    async def remove(policy_scope: PolicyScope = of) -> None:
        await policy_scope.policies()
        await policy_scope.store(policy, None)

    routes.declare(
        "DELETE",
        f"/{at.path}",
        remove,
        f"Unset: {policy.title}",
        access=_write_access(at),
        name=f"remove_{level.prefix}{policy.field}",
    )


def _add_quotas(routes: Routes, level: ScopeConfig) -> None:
    """Backlog quotas: one for each type, named in the query."""
    of, json = Depends(level.policy_scope), Depends(level.body)

    async def get_applied(policy_scope: PolicyScope = of, applied: Applied = None) -> Response:
        policies = await policy_scope.policies()
        if flag(applied):
            return JsonResponse(applied_quotas(policies))
        return JsonResponse(policy_scope.stored_quotas(policies))

    async def get(policy_scope: PolicyScope = of) -> Response:
        return JsonResponse(policy_scope.stored_quotas(await policy_scope.policies()))

    async def set_quota(
        policy_scope: PolicyScope = of, body: Any = json, backlogQuotaType: QuotaType = None
    ) -> None:
        kind = quota_type(backlogQuotaType)
        await policy_scope.policies()
        if body is None and not level.is_topic:
            raise ApiError(400, "The request entity cannot be empty.")
        quota = None if body is None else parse_quota(body, policy_scope.namespace)
        await policy_scope.store_quota(kind, quota)

    async def remove(policy_scope: PolicyScope = of, backlogQuotaType: QuotaType = None) -> None:
        kind = quota_type(backlogQuotaType)
        await policy_scope.policies()
        await policy_scope.store_quota(kind, None)

    routes.declare(
        "GET",
        "/backlogQuotaMap",
        get_applied if level.is_topic else get,
        "Get: backlog quotas by type",
        name=f"get_{level.prefix}quotas",
        example={"destination_storage": QUOTA_EXAMPLE},
    )
    routes.declare(
        "POST",
        "/backlogQuota",
        set_quota,
        "Set: what a subscription may be behind, and what happens then",
        name=f"set_{level.prefix}quota",
        body=body_doc(QUOTA_SCHEMA, QUOTA_EXAMPLE, required=not level.is_topic),
        statuses={
            400: "No such type or action",
            412: "Retention keeps less, or a partition's name",
        },
    )
    routes.declare(
        "DELETE",
        "/backlogQuota",
        remove,
        "Unset: what a subscription may be behind",
        name=f"remove_{level.prefix}quota",
        statuses={400: "No such type"},
    )
