"""Who may do what with a topic: stored here, checked where authorization is."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from magnetar.broker.http.dependencies import Service, Topic, body_doc, json_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.middleware.raw_path import form_decode
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.topics.topic_access import NOT_FOUND, TOPIC, not_found
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic import topic_permissions as topic_permissions

router = APIRouter(tags=["topics"])

Action = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]
_PATH = TOPIC + "/permissions"
_DOC = body_doc(
    {"type": "array", "items": {"enum": list(get_args(Action))}}, ["produce", "consume"], True
)


async def _role(
    role: Annotated[str, Path(description="Role, percent-encoded once", examples=["joe"])],
) -> str:
    return form_decode(role)


Role = Annotated[str, Depends(_role)]


async def _partitions(service: BrokerService, topic: TopicName) -> int | None:
    """Their number; None: it isn't partitioned. Raises ApiError 404."""
    count = await service.partitions(topic)
    if count is None and not await service.topic_exists(topic):
        raise not_found(topic)
    return count


@router.get(
    _PATH,
    summary="Actions by role, of the namespace and of the topic together",
    responses={
        200: {"content": {"application/json": {"example": {"joe": ["produce"]}}}},
        **NOT_FOUND,
    },
)
async def permissions(service: Service, topic: Topic) -> Response:
    await _partitions(service, topic)
    policies = await service.resources.policies(topic.namespace)
    document: Any = {} if policies is None else policies.document
    return JsonResponse(topic_permissions.of_topic(document, str(topic)))


@router.post(
    _PATH + "/{role}",
    status_code=204,
    summary="Grant actions on the topic and all its partitions, in place of the role's former ones",
    openapi_extra=_DOC,
    responses={400: {"description": "Not a list of actions"}, **NOT_FOUND},
)
async def grant(
    service: Service,
    topic: Topic,
    role: Role,
    body: Annotated[list[Action] | None, Depends(json_body(list[Action]))],
) -> Response:
    if body is None:
        raise ApiError(400, "A list of actions is expected in the body")
    count = await _partitions(service, topic)
    names = topic_permissions.names_of(topic, count)
    await service.resources.update_policies(
        topic.namespace, lambda before: topic_permissions.granted(before, names, role, body)
    )
    return no_content()


@router.delete(
    _PATH + "/{role}",
    status_code=204,
    summary="Revoke what was granted on the topic; grants of the namespace stay",
    responses={**NOT_FOUND, 412: {"description": "Nothing was granted on the topic itself"}},
)
async def revoke(service: Service, topic: Topic, role: Role) -> Response:
    count = await _partitions(service, topic)
    names = topic_permissions.names_of(topic, count)
    await service.resources.update_policies(
        topic.namespace, lambda before: topic_permissions.revoked(before, names, role)
    )
    return no_content()


# --- many topics of one namespace in one call, in one write


class TopicGrant(BaseModel):
    """What one role may do with one topic; revoking takes all its actions."""

    model_config = ConfigDict(extra="ignore")

    topic: str
    role: str
    actions: list[Action] = Field([])


_GRANT_EXAMPLE = {"topic": "persistent://public/default/orders", "role": "joe"}
_GRANTS = Annotated[list[TopicGrant] | None, Depends(json_body(list[TopicGrant]))]
_MANY: dict[int | str, dict[str, Any]] = {
    400: {"description": "No grants, or topics of several namespaces"},
    **NOT_FOUND,
    412: {"description": "Not the name of a topic"},
}


async def _names(
    service: BrokerService, grants: list[TopicGrant] | None
) -> tuple[str, list[tuple[TopicGrant, list[str]]]]:
    """The namespace, and each grant with the names of its topic and its partitions.

    Raises:
        ApiError: see ``_MANY``; InvalidTopicNameError.
    """
    topics = [TopicName.parse(grant.topic) for grant in grants or ()]
    if grants is None or len({topic.namespace for topic in topics}) != 1:
        raise ApiError(400, "The namespace should be the same")
    found = []
    for grant, topic in zip(grants, topics, strict=True):
        count = await _partitions(service, topic)
        found.append((grant, topic_permissions.names_of(topic, count)))
    return topics[0].namespace, found


@router.post(
    "/admin/v2/namespaces/grantPermissionsOnTopics",
    status_code=204,
    summary="Grant actions on several topics of one namespace: all of it or nothing",
    openapi_extra=body_doc(
        {"type": "array", "items": TopicGrant.model_json_schema()},
        [{**_GRANT_EXAMPLE, "actions": ["produce"]}],
        required=True,
    ),
    responses=_MANY,
)
async def grant_many(service: Service, grants: _GRANTS) -> Response:
    namespace, found = await _names(service, grants)

    def change(document: dict[str, Any]) -> dict[str, Any]:
        for grant, names in found:
            document = topic_permissions.granted(document, names, grant.role, grant.actions)
        return document

    await service.resources.update_policies(namespace, change)
    return no_content()


@router.post(
    "/admin/v2/namespaces/revokePermissionsOnTopics",
    status_code=204,
    summary="Revoke what was granted on several topics of one namespace",
    openapi_extra=body_doc(
        {"type": "array", "items": TopicGrant.model_json_schema()}, [_GRANT_EXAMPLE], required=True
    ),
    responses=_MANY,
)
async def revoke_many(service: Service, grants: _GRANTS) -> Response:
    namespace, found = await _names(service, grants)

    def change(document: dict[str, Any]) -> dict[str, Any]:
        for grant, names in found:
            document = topic_permissions.revoked(document, names, grant.role)
        return document

    await service.resources.update_policies(namespace, change)
    return no_content()
