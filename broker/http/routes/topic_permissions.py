"""Who may do what with a topic: stored here, checked where authorization is (http-api 2.4)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Path, Response

from broker.http.dependencies import Service, Topic, body_doc, json_body
from broker.http.errors import ApiError
from broker.http.raw_path import form_decode
from broker.http.responses import JsonResponse, no_content
from broker.http.topic_access import NOT_FOUND, TOPIC, require_existing
from broker.service import topic_permissions

__all__ = ["router"]

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


@router.get(
    _PATH,
    summary="Actions by role, of the namespace and of the topic together",
    responses={
        200: {"content": {"application/json": {"example": {"joe": ["produce"]}}}},
        **NOT_FOUND,
    },
)
async def permissions(service: Service, topic: Topic) -> Response:
    await require_existing(service, topic)
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
    count = await require_existing(service, topic)
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
    count = await require_existing(service, topic)
    names = topic_permissions.names_of(topic, count)
    await service.resources.update_policies(
        topic.namespace, lambda before: topic_permissions.revoked(before, names, role)
    )
    return no_content()
