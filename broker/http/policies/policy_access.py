"""Parts that the routes of policies share: bodies, answers, and whose policies a request means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.http.dependencies import Namespace, Service, flag, parse_json, read_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends, Query
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.topics.topic_access import not_found
from magnetar.broker.policies.applied import applied_policies
from magnetar.broker.policies.documents import (
    QUOTA_TYPES,
    QUOTAS,
    TOPIC_QUOTA_ABOVE_RETENTION,
    TOPIC_RETENTION_BELOW_QUOTA,
    change_inner,
    change_namespace,
    change_quota,
    change_topic,
    check_topic_agreement,
    in_namespace,
    in_topic,
)
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.errors import UnsupportedPolicyError
from magnetar.broker.policies.values import Names

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.policies.table import Policy
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.broker_service import BrokerService

Document = dict[str, Any]
_BODY_BYTES_MAX: Final = 1 << 20

ALL_EXAMPLE: Final = {
    "retention": {
        "value": {"retentionTimeInMinutes": 1440, "retentionSizeInMB": 1024},
        "source": "namespace",
    },
    "messageTTL": {"value": 0, "source": "broker"},
}

ABSENT: Final = {404: "No such namespace"}
TOPIC_REFUSALS: Final = {
    404: "No such topic",
    405: "Topic-level policies are switched off",
    412: "A partition's name: its partitioned topic has policies",
}

Applied = Annotated[
    str | None,
    Query(
        description="`true`: what holds in the end, of topic, namespace and broker",
        json_schema_extra={"type": "boolean", "default": False},
    ),
]
QuotaType = Annotated[
    str | None,
    Query(
        description="`destination_storage`: of the size; `message_age`: of the time",
        json_schema_extra={
            "type": "string",
            "enum": ["destination_storage", "message_age"],
            "default": "destination_storage",
        },
    ),
]


async def _scope(
    isGlobal: Annotated[
        str | None,
        Query(
            description="`true`: the policies of the topic in every cluster",
            json_schema_extra={"type": "boolean", "default": False},
        ),
    ] = None,
) -> str:
    return "global" if flag(isGlobal) else "local"


async def read_strictly(request: Request) -> Any:
    """The body's JSON, None when there is none; namespaces take no other type (415)."""
    return await _read(request, strict=True)


async def read_leniently(request: Request) -> Any:
    """The same for topics: a lone number may come as text."""
    return await _read(request, strict=False)


async def _read(request: Request, *, strict: bool) -> Any:
    body = await read_body(request)
    if len(body) > _BODY_BYTES_MAX:  # it couldn't be stored, and parsing it takes a while
        raise ApiError(413, f"A body of {len(body)} bytes, at most {_BODY_BYTES_MAX} are taken")
    return parse_json(request, body, scalars_as_text=not strict)


Scope = Annotated[str, Depends(_scope)]
"""Layer of a topic's document."""
JsonBody = Annotated[Any, Depends(read_strictly)]
LenientBody = Annotated[Any, Depends(read_leniently)]


# --- whose policies a request means


async def namespace_policies(service: BrokerService, namespace: str) -> EffectivePolicies:
    """Raises ApiError 404."""
    if (policies := await service.resources.policies(namespace)) is None:
        raise ApiError(404, "Namespace does not exist")
    return policies


async def _existing(service: Service, namespace: Namespace) -> EffectivePolicies:
    return await namespace_policies(service, namespace)


NamespacePolicies = Annotated[EffectivePolicies, Depends(_existing)]
"""Of a namespace that has to exist: else 404."""


class PolicyScope(ABC):
    """Whose policies a request means."""

    def __init__(self, service: BrokerService, namespace: str) -> None:
        self.service, self.namespace = service, namespace

    @abstractmethod
    async def policies(self) -> EffectivePolicies:
        """The policies in force. Raises ApiError: it doesn't exist, or may have no policies."""

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


class NamespacePolicyScope(PolicyScope):
    async def policies(self) -> EffectivePolicies:
        return await namespace_policies(self.service, self.namespace)

    def stored(self, policies: EffectivePolicies, policy: Policy) -> Any:
        return in_namespace(policies.document, policy, self.service.cluster)

    async def store(self, policy: Policy, value: Any) -> None:
        cluster = self.service.cluster
        await self.service.policies.update_namespace(
            self.namespace, lambda document: change_namespace(document, policy, cluster, value)
        )

    def stored_quotas(self, policies: EffectivePolicies) -> dict[str, Any]:
        return policies.document.get(QUOTAS) or {}

    async def store_quota(self, kind: str, quota: dict[str, Any] | None) -> None:
        await self.service.policies.update_namespace(
            self.namespace, lambda document: change_quota(document, kind, quota)
        )


async def namespace_scope(service: Service, namespace: Namespace) -> PolicyScope:
    return NamespacePolicyScope(service, namespace)


class TopicPolicyScope(PolicyScope):
    """Reads and writes a topic's own policies: its ``local`` or its ``global`` ones (``scope``)."""

    def __init__(self, service: BrokerService, name: TopicName, scope: str) -> None:
        super().__init__(service, name.namespace)
        self.name, self.scope = name, scope

    async def policies(self) -> EffectivePolicies:
        """Return the policies in force for an existing topic: broker's, namespace's and its own.

        Raises:
            ApiError: 404 no such topic, 405 topic policies are switched off, 412 a partition.
        """
        service, name = self.service, self.name
        if not service.config.topic_level_policies_enabled:
            raise ApiError(
                405,
                "Topic level policies is disabled, to enable the topic level policy and retry.",
            )
        if name.is_partition:
            raise ApiError(412, "Not allowed to set/get topic policy for a partition")
        if await service.resources.policies(name.namespace) is None:
            raise ApiError(404, "Namespace not found")
        if await service.directory.partitions(name) is None and not await service.directory.exists(
            name
        ):
            raise not_found(name)
        return await service.policies.of(name)

    def stored(self, policies: EffectivePolicies, policy: Policy) -> Any:
        return in_topic(policies.topic_document, self.scope, policy.field)

    async def store(self, policy: Policy, value: Any) -> None:
        is_retention = policy.field == "retention_policies" and value is not None
        await self.change(
            lambda document: change_topic(document, self.scope, policy.field, value),
            TOPIC_RETENTION_BELOW_QUOTA if is_retention else "",
        )

    def stored_quotas(self, policies: EffectivePolicies) -> Document:
        return in_topic(policies.topic_document, self.scope, QUOTAS) or {}

    async def store_quota(self, kind: str, quota: Document | None) -> None:
        await self.change(
            lambda document: change_inner(document, self.scope, QUOTAS, kind, quota),
            TOPIC_QUOTA_ABOVE_RETENTION if quota is not None else "",
        )

    async def change(self, change: Callable[[Document], Document], conflict: str = "") -> None:
        """Write the topic's document.

        Args:
            conflict: what to say when backlog quota and retention don't agree afterwards; empty:
                what is changed is neither of them.
        """
        namespace = await self.service.resources.policies(self.namespace)
        assert namespace is not None

        def checked(document: Document) -> Document:
            changed = change(document)
            if conflict:
                check_topic_agreement(namespace.with_topic(changed), conflict)
            return changed

        await self.service.policies.update_topic(self.name, checked)


# --- values


def answer(value: Any) -> Response:
    """A policy's value; 204 where it isn't set."""
    return no_content() if value is None else JsonResponse(value)


def all_applied(policies: EffectivePolicies, applied: str | None, *, is_topic: bool) -> Response:
    """All that hold, with their sources; without ``applied`` those that the level itself sets."""
    own = {"topic", "global"} if is_topic else {"namespace"}
    return JsonResponse(
        {
            name: {"value": value, "source": source}
            for name, (value, source) in applied_policies(policies, is_topic=is_topic).items()
            if flag(applied) or source in own
        }
    )


def quota_type(text: str | None) -> str:
    """Raises ApiError 400."""
    kind = QUOTA_TYPES[0] if text is None else text
    if kind not in QUOTA_TYPES:
        raise ApiError(400, f"backlogQuotaType {kind!r:.50} is none of {', '.join(QUOTA_TYPES)}")
    return kind


def cluster_names(body: Any) -> list[str]:
    """Raises ApiError 412 for none, InvalidPolicyError."""
    if body is None or body == []:
        raise ApiError(412, "ClusterIds should not be null or empty")
    return Names().parse(body, "clusters")


def require_local(clusters: list[str], local: str) -> None:
    """Raises UnsupportedPolicyError: other clusters than this one."""
    if clusters != [local]:
        raise UnsupportedPolicyError(
            "Replication to other clusters is not available in this version"
        )
