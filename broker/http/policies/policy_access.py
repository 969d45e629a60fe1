"""What the routes of policies share: bodies, answers, descriptions, whose document it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Depends, Query, Request, Response

from magnetar.broker.http.dependencies import body_doc, flag, parse_json, read_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.topics.topic_access import not_found
from magnetar.broker.policies.errors import UnsupportedPolicyError
from magnetar.broker.policies.quotas import QUOTA_TYPES
from magnetar.broker.policies.values import Names

if TYPE_CHECKING:
    from magnetar.broker.policies.effective import EffectivePolicies
    from magnetar.broker.policies.table import Policy, PolicyRoute
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.broker_service import BrokerService

Responses = dict[int | str, dict[str, Any]]
_BODY_BYTES_MAX: Final = 1 << 20

ABSENT: Final[Responses] = {404: {"description": "No such namespace"}}
TOPIC_ABSENT: Final[Responses] = {
    404: {"description": "No such topic"},
    405: {"description": "Topic-level policies are switched off"},
}
TOPIC_REFUSALS: Final[Responses] = {
    412: {"description": "A partition's name: its partitioned topic has policies"},
    **TOPIC_ABSENT,
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


# --- documents


async def namespace_policies(service: BrokerService, namespace: str) -> EffectivePolicies:
    """Raises ApiError 404."""
    if (policies := await service.resources.policies(namespace)) is None:
        raise ApiError(404, "Namespace does not exist")
    return policies


async def own_policies(service: BrokerService, name: TopicName) -> EffectivePolicies:
    """What holds for an existing topic; its own document is ``topic_document``.

    Raises:
        ApiError: 404 no such topic, 405 no topic has own policies, 412 a partition.
    """
    if not service.config.topic_level_policies_enabled:
        raise ApiError(
            405,
            "Topic level policies is disabled, to enable the topic level policy and retry.",
        )
    if name.is_partition:
        raise ApiError(412, "Not allowed to set/get topic policy for a partition")
    if await service.resources.policies(name.namespace) is None:
        raise ApiError(404, "Namespace not found")
    if await service.partitions(name) is None and not await service.topic_exists(name):
        raise not_found(name)
    return await service.policies.of(name)


# --- values


def body_of(policy: Policy, at: PolicyRoute, value: Any, service: BrokerService) -> Any:
    """What a client's body says, as it is stored; None: take the policy away.

    Raises:
        PolicyError.
    """
    if value is not None:
        return policy.parse(value, at, service.config)
    if not at.null_removes:
        raise policy.null_error
    return None


def value_of(
    policy: Policy, at: PolicyRoute, stored: Any, policies: EffectivePolicies, applied: bool
) -> Any:
    """What GET answers with; None: nothing."""
    if applied or policy.always_applied:
        return policy.applied(policies)
    return at.unset if stored is None else stored


def answer(value: Any) -> Response:
    """A policy's value; 204 where it isn't set."""
    return no_content() if value is None else JsonResponse(value)


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


# --- descriptions


def get_doc(policy: Policy, at: PolicyRoute, *, topic: bool) -> Responses:
    """``responses`` of a GET."""
    content = {"schema": policy.kind.schema, "example": policy.example}
    responses: Responses = {
        200: {"description": "Its value", "content": {"application/json": content}}
    }
    if at.unset is None and not policy.always_applied:
        responses[204] = {"description": "It is not set"}
    return {**responses, **(TOPIC_REFUSALS if topic else ABSENT)}


def write_doc(policy: Policy, at: PolicyRoute, *, topic: bool) -> dict[str, Any]:
    """Keywords of the route that sets a policy."""
    keywords: dict[str, Any] = {
        "status_code": 204,
        "responses": {
            400: {"description": "Not a value of this policy"},
            412: {"description": "Out of range, or of a feature that this version lacks"},
            **(TOPIC_ABSENT if topic else ABSENT),
        },
    }
    if not (at.bodiless or at.in_query):
        keywords["openapi_extra"] = body_doc(
            policy.kind.schema, policy.example, required=not at.null_removes
        )
    return keywords
