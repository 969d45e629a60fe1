"""Permissions of topics: stored here, checked where authorization is."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from magnetar.broker.http.dependencies import DECODED, Body, Service, Topic
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Path
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, RouteOptions, Routes, RoutingMode
from magnetar.broker.http.topics.topic_access import NOT_FOUND, TOPIC, not_found
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.topic_permissions import granted, names_of, of_topic, revoked

routes = Routes(
    tag="topics",
    access=Access.ADMIN_401,
    mode=RoutingMode.TOPIC,
    authoritative=False,
    statuses=NOT_FOUND,
)

Action = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]
_PATH = TOPIC + "/permissions"


Role = Annotated[str, Path(description="Role, percent-encoded once", examples=["joe"]), DECODED]


async def _names(service: BrokerService, topic: TopicName) -> list[str]:
    """Of the topic and its partitions. Raises ApiError 404."""
    count = await service.directory.partitions(topic)
    if count is None and not await service.directory.exists(topic):
        raise not_found(topic)
    return names_of(topic, count)


@routes.get(_PATH, example={"joe": ["produce"]})
async def permissions(service: Service, topic: Topic) -> Response:
    """Actions by role, of the namespace and of the topic together."""
    await _names(service, topic)
    policies = await service.resources.policies(topic.namespace)
    document: Any = {} if policies is None else policies.document
    return JsonResponse(of_topic(document, str(topic)))


@routes.post(_PATH + "/{role}", statuses={400: "Not a list of actions", **NOT_FOUND})
async def grant(
    service: Service,
    topic: Topic,
    role: Role,
    body: Annotated[
        list[Action],
        Body(
            list[Action],
            ["produce", "consume"],
            missing="A list of actions is expected in the body",
        ),
    ],
) -> None:
    """Grant actions on the topic and all its partitions, in place of the role's former ones."""
    names = await _names(service, topic)
    await service.resources.update_policies(
        topic.namespace, lambda before: granted(before, names, role, body)
    )


@routes.delete(_PATH + "/{role}", statuses={412: "Nothing was granted on the topic itself"})
async def revoke(service: Service, topic: Topic, role: Role) -> None:
    """Revoke what was granted on the topic; grants of the namespace stay."""
    names = await _names(service, topic)
    await service.resources.update_policies(
        topic.namespace, lambda before: revoked(before, names, role)
    )


# --- many topics of one namespace in one call, in one write


class TopicGrant(BaseModel):
    """What one role may do with one topic; revoking takes all its actions."""

    model_config = ConfigDict(extra="ignore")

    topic: str
    role: str
    actions: list[Action] = Field([])


_GRANT_EXAMPLE = {"topic": "persistent://public/default/orders", "role": "joe"}
_GRANTS_SCHEMA = {"type": "array", "items": TopicGrant.model_json_schema()}
_GRANTS = Annotated[
    list[TopicGrant] | None,
    Body(
        list[TopicGrant],
        [{**_GRANT_EXAMPLE, "actions": ["produce"]}],
        required=True,
        schema=_GRANTS_SCHEMA,
    ),
]
_MANY: RouteOptions = {
    "access": Access.SUPERUSER,
    "mode": RoutingMode.LOCAL,
    "statuses": {
        400: "No grants, or topics of several namespaces",
        412: "Not the name of a topic",
    },
}


async def _update_many(
    service: BrokerService,
    grants: list[TopicGrant] | None,
    change: Callable[[dict[str, Any], list[str], TopicGrant], dict[str, Any]],
) -> None:
    """Apply ``change`` for each grant, with the names of its topic and its partitions.

    Raises:
        ApiError: see ``_MANY``; InvalidTopicNameError.
    """
    topics = [TopicName.parse(grant.topic) for grant in grants or ()]
    if grants is None or len({topic.namespace for topic in topics}) != 1:
        raise ApiError(400, "The namespace should be the same")
    names = [await _names(service, topic) for topic in topics]

    def change_all(document: dict[str, Any]) -> dict[str, Any]:
        for own, grant in zip(names, grants, strict=True):
            document = change(document, own, grant)
        return document

    await service.resources.update_policies(topics[0].namespace, change_all)


@routes.post("/admin/v2/namespaces/grantPermissionsOnTopics", **_MANY)
async def grant_many(service: Service, grants: _GRANTS) -> None:
    """Grant actions on several topics of one namespace: all of it or nothing."""
    await _update_many(
        service, grants, lambda old, names, one: granted(old, names, one.role, one.actions)
    )


@routes.post("/admin/v2/namespaces/revokePermissionsOnTopics", **_MANY)
async def revoke_many(service: Service, grants: _GRANTS) -> None:
    """Revoke what was granted on several topics of one namespace."""
    await _update_many(service, grants, lambda old, names, one: revoked(old, names, one.role))
