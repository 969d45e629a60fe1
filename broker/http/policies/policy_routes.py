"""Routes of policies, made from the rows of broker/policies/table.py, for namespaces and topics.

A route reads and writes through a ``PolicyScope``: the namespace or the topic that the request
names. What differs between the two levels beyond their documents is said in ``ScopeConfig``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, Query, Response

from magnetar.broker.http.dependencies import body_doc, flag
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.policies.policy_access import (
    ABSENT,
    TOPIC_REFUSALS,
    Applied,
    QuotaType,
    Responses,
    answer,
    body_of,
    get_doc,
    quota_type,
    value_of,
    write_doc,
)
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.policies.quotas import QUOTA_EXAMPLE, QUOTA_SCHEMA, applied_quotas, parse_quota
from magnetar.broker.policies.table import POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.policies.effective import EffectivePolicies
    from magnetar.broker.policies.table import Policy, PolicyRoute
    from magnetar.broker.service.broker_service import BrokerService

Document = dict[str, Any]


class PolicyScope(ABC):
    """Whose policies a request means."""

    def __init__(self, service: BrokerService, namespace: str) -> None:
        self.service, self.namespace = service, namespace

    @abstractmethod
    async def policies(self) -> EffectivePolicies:
        """What holds. Raises ApiError: it doesn't exist, or may have no policies."""

    @abstractmethod
    def stored(self, policies: EffectivePolicies, policy: Policy) -> Any:
        """Its own value; None: not set."""

    @abstractmethod
    async def store(self, policy: Policy, value: Any) -> None:
        """Set its own value, None: unset it. Raises PolicyConflictError."""

    @abstractmethod
    def stored_quotas(self, policies: EffectivePolicies) -> Document:
        """Its own backlog quotas by type."""

    @abstractmethod
    async def store_quota(self, kind: str, quota: Document | None) -> None:
        """Set its own backlog quota of a type, None: unset it. Raises PolicyConflictError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeConfig:
    """What namespaces and topics have each in their own way."""

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

    @property
    def refusals(self) -> Responses:
        """What every route may answer."""
        return TOPIC_REFUSALS if self.is_topic else ABSENT


def add_policy_routes(router: APIRouter, level: ScopeConfig) -> None:
    """GET, the method that sets, and DELETE of every policy that the level has."""
    for policy in POLICIES:
        if (at := level.at(policy)) is not None:
            _add_get(router, level, policy, at)
            _add_set(router, level, policy, at)
            if at.removable:
                _add_remove(router, level, policy, at)
    _add_quotas(router, level)


def _add_get(router: APIRouter, level: ScopeConfig, policy: Policy, at: PolicyRoute) -> None:
    of = Depends(level.policy_scope)

    async def read(policy_scope: PolicyScope, applied: bool) -> Response:
        policies = await policy_scope.policies()
        return answer(
            value_of(policy, at, policy_scope.stored(policies, policy), policies, applied)
        )

    async def get_applied(policy_scope: PolicyScope = of, applied: Applied = None) -> Response:
        return await read(policy_scope, flag(applied))

    async def get(policy_scope: PolicyScope = of) -> Response:
        return await read(policy_scope, False)

    router.add_api_route(
        f"/{at.path}",
        get_applied if at.applied else get,
        methods=["GET"],
        name=f"get_{level.prefix}{policy.field}",
        summary=f"Get: {policy.title}",
        responses=get_doc(policy, at, topic=level.is_topic),
    )


def _add_set(router: APIRouter, level: ScopeConfig, policy: Policy, at: PolicyRoute) -> None:
    of, json = Depends(level.policy_scope), Depends(level.body)
    query = Query(
        None,
        alias=at.path,
        description=f"{policy.title.capitalize()}; none: unset it",
        json_schema_extra={"type": "integer", "minimum": 0},
    )

    async def write(policy_scope: PolicyScope, given: Any) -> Response:
        await policy_scope.policies()
        await policy_scope.store(policy, body_of(policy, at, given, policy_scope.service))
        return no_content()

    async def set_value(policy_scope: PolicyScope = of, body: Any = json) -> Response:
        return await write(policy_scope, body)

    async def set_true(policy_scope: PolicyScope = of) -> Response:
        return await write(policy_scope, True)

    # What comes as text in the query.
    async def set_query(policy_scope: PolicyScope = of, given: str | None = query) -> Response:
        return await write(policy_scope, _number(given))

    router.add_api_route(
        f"/{at.path}",
        set_query if at.in_query else set_true if at.bodiless else set_value,
        methods=[at.method],
        name=f"set_{level.prefix}{policy.field}",
        summary=f"Set: {policy.title}",
        **write_doc(policy, at, topic=level.is_topic),
    )


def _number(text: str | None) -> int | None:
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ApiError(400, f"{text!r:.60} is not an integer") from error


def _add_remove(router: APIRouter, level: ScopeConfig, policy: Policy, at: PolicyRoute) -> None:
    of = Depends(level.policy_scope)

    async def remove(policy_scope: PolicyScope = of) -> Response:
        await policy_scope.policies()
        await policy_scope.store(policy, None)
        return no_content()

    router.add_api_route(
        f"/{at.path}",
        remove,
        methods=["DELETE"],
        name=f"remove_{level.prefix}{policy.field}",
        summary=f"Unset: {policy.title}",
        status_code=204,
        responses=level.refusals,
    )


def _add_quotas(router: APIRouter, level: ScopeConfig) -> None:
    """Backlog quotas: one for each type, named in the query."""
    of, json = Depends(level.policy_scope), Depends(level.body)
    shown = {"application/json": {"example": {"destination_storage": QUOTA_EXAMPLE}}}

    async def get_applied(policy_scope: PolicyScope = of, applied: Applied = None) -> Response:
        policies = await policy_scope.policies()
        if flag(applied):
            return JsonResponse(applied_quotas(policies))
        return JsonResponse(policy_scope.stored_quotas(policies))

    async def get(policy_scope: PolicyScope = of) -> Response:
        return JsonResponse(policy_scope.stored_quotas(await policy_scope.policies()))

    async def set_quota(
        policy_scope: PolicyScope = of, body: Any = json, backlogQuotaType: QuotaType = None
    ) -> Response:
        kind = quota_type(backlogQuotaType)
        await policy_scope.policies()
        if body is None and not level.is_topic:
            raise ApiError(400, "The request entity cannot be empty.")
        quota = None if body is None else parse_quota(body, policy_scope.namespace)
        await policy_scope.store_quota(kind, quota)
        return no_content()

    async def remove(
        policy_scope: PolicyScope = of, backlogQuotaType: QuotaType = None
    ) -> Response:
        kind = quota_type(backlogQuotaType)
        await policy_scope.policies()
        await policy_scope.store_quota(kind, None)
        return no_content()

    router.add_api_route(
        "/backlogQuotaMap",
        get_applied if level.is_topic else get,
        methods=["GET"],
        name=f"get_{level.prefix}quotas",
        summary="Get: backlog quotas by type",
        responses={200: {"content": shown}, **level.refusals},
    )
    router.add_api_route(
        "/backlogQuota",
        set_quota,
        methods=["POST"],
        name=f"set_{level.prefix}quota",
        status_code=204,
        summary="Set: what a subscription may be behind, and what happens then",
        openapi_extra=body_doc(QUOTA_SCHEMA, QUOTA_EXAMPLE, required=not level.is_topic),
        responses={
            **level.refusals,
            400: {"description": "No such type or action"},
            412: {"description": "Retention keeps less, or a partition's name"},
        },
    )
    router.add_api_route(
        "/backlogQuota",
        remove,
        methods=["DELETE"],
        name=f"remove_{level.prefix}quota",
        status_code=204,
        summary="Unset: what a subscription may be behind",
        responses={400: {"description": "No such type"}, **level.refusals},
    )
