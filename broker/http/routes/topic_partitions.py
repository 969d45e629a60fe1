"""Partitioned topics: create, grow, repair, delete."""

import re
from contextlib import suppress
from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.errors import AlreadyExistsError
from magnetar.broker.http.dependencies import Service, Topic, flag, read_json
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.parameters import Depends, Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import each
from magnetar.broker.http.topics.topic_access import (
    NOT_FOUND,
    TOPIC,
    check_properties,
    not_found,
    partitioned_metadata,
    require_namespace,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.topic_directory import partitions_max

routes = Routes(
    TOPIC, tag="topics", access=Access.ADMIN_403, mode=RoutingMode.LOCAL, statuses=NOT_FOUND
)

_PARTITIONS_TYPE = "application/vnd.partitioned-topic-metadata+json"
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_Text = str | None


async def _partition_count(request: Request) -> tuple[int, dict[str, str]]:
    """The body of a partitions call: a number, or the vendor type's object."""
    body = await read_json(request)
    properties: Any = {}
    if isinstance(body, dict):
        properties = body.get("properties") or {}
        body = body.get("partitions", 0)
    if isinstance(body, str) and _INTEGER.fullmatch(body):
        body = int(body)
    if isinstance(body, bool) or not isinstance(body, int):
        raise ApiError(400, f"A number of partitions is expected, not {body!r:.50}")
    if not isinstance(properties, dict) or any(
        not isinstance(value, str) for value in properties.values()
    ):
        raise ApiError(400, "properties must be an object of texts")
    return body, properties


_PARTITIONS_DOC: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "integer", "minimum": 1}, "example": 3},
            _PARTITIONS_TYPE: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "partitions": {"type": "integer"},
                        "properties": {
                            "type": "object",
                            "additionalProperties": {"type": "string"},
                        },
                    },
                },
                "example": {"partitions": 3, "properties": {"team": "billing"}},
            },
        },
    }
}


def _partition_name() -> ApiError:
    return ApiError(412, "Partitioned Topic Name should not contain '-partition-'")


def _check_limit(service: BrokerService, count: int, status: int) -> None:
    limit = partitions_max(service.config)
    if count > limit:
        raise ApiError(status, f"Number of partitions should be less than or equal to {limit}")


@routes.put(
    "/partitions",
    statuses={
        404: "No such namespace",
        406: "No partitions, or too many",
        409: "There is a topic, partitioned or not, of that name",
        412: "The name is a partition's",
    },
    body=_PARTITIONS_DOC,
)
async def create_partitioned(
    service: Service,
    topic: Topic,
    body: Annotated[tuple[int, dict[str, str]], Depends(_partition_count)],
    createLocalTopicOnly: _Text = None,
) -> None:
    """Create a partitioned topic."""
    count, properties = body
    await require_namespace(service, topic.namespace)
    if count <= 0:
        raise ApiError(406, "Number of partitions should be more than 0")
    _check_limit(service, count, 406)
    if topic.is_partition:
        raise _partition_name()
    if await service.directory.partitions(topic) is not None or await service.directory.exists(
        topic
    ):
        raise ApiError(409, "This topic already exists")
    with answer_for(AlreadyExistsError, 409, "This topic already exists"):
        await service.directory.create_partitioned(topic, count, check_properties(properties))


@routes.get(
    "/partitions",
    access=Access.LOOKUP_401,
    mode=RoutingMode.TOPIC,
    example={"partitions": 3, "deleted": False},
)
async def get_partitions(
    service: Service, topic: Topic, checkAllowAutoCreation: _Text = None
) -> Response:
    """Number of partitions; 0 for a topic without."""
    record = await service.resources.partitioned(topic)
    if record is not None:
        return JsonResponse(partitioned_metadata(record))
    if not await service.directory.exists(topic) and not (
        flag(checkAllowAutoCreation) and await _may_be_created(service, topic)
    ):
        raise not_found(topic)
    return JsonResponse({"partitions": 0, "deleted": False})


async def _may_be_created(service: BrokerService, topic: TopicName) -> bool:
    return (await service.policies.of(topic)).auto_topic_creation.allowed


@routes.post(
    "/partitions",
    authoritative=True,
    statuses={
        409: "It isn't partitioned, or a new partition's name is taken",
        412: "The name is a partition's",
        422: "Fewer partitions than now, or too many",
    },
    body=_PARTITIONS_DOC,
)
async def update_partitions(
    service: Service,
    topic: Topic,
    body: Annotated[tuple[int, dict[str, str]], Depends(_partition_count)],
    force: Annotated[_Text, Query(description="Also over topics of the new names")] = None,
    updateLocalTopicOnly: _Text = None,
) -> None:
    """Raise the number of partitions.

    New partitions get the durable subscriptions of the old ones.
    """
    wanted, _ = body
    if topic.is_partition:
        raise _partition_name()
    count = await service.directory.partitions(topic)
    if count is None:
        raise ApiError(409, f"Topic {topic} is not the partitioned topic.")
    _check_limit(service, wanted, 422)
    if wanted < count or wanted <= 0:
        raise ApiError(
            422,
            f"Desired partitions {wanted} can't be less than the current partitions {count}.",
        )
    if not flag(force):
        await _check_names_free(service, topic, count)
    await service.directory.update_partitions(topic, wanted)


async def _check_names_free(service: BrokerService, topic: TopicName, count: int) -> None:
    """Raises ApiError 409: a topic that is no partition yet would become one."""
    prefix = f"{topic}-partition-"
    for name in await service.directory.names(topic.namespace, topic.domain):
        if name.startswith(prefix) and TopicName.parse(name).partition_index >= count:
            raise ApiError(
                409,
                f"Already have non partition topic {name} which contains partition suffix "
                "'-partition-' and a number",
            )


@routes.post(
    "/createMissedPartitions", access=Access.ADMIN_401, statuses={412: "The name is a partition's"}
)
async def create_missed(service: Service, topic: Topic) -> None:
    """Create the partitions that are missing."""
    if topic.is_partition:
        raise _partition_name()
    count = await service.directory.partitions(topic)
    if count is None:
        raise ApiError(404, f"Topic {topic} does not exist")

    async def create(index: int) -> None:
        name = topic.partition(index)
        if not await service.directory.exists(name):
            with suppress(AlreadyExistsError):  # another request was faster
                await service.directory.create(name)

    await each(range(count), create)


@routes.delete(
    "/partitions",
    authoritative=True,
    statuses={409: "It has no partitions", 412: "Clients are connected, and `force` is not set"},
)
async def delete_partitioned(
    service: Service,
    topic: Topic,
    force: Annotated[_Text, Query(description="Also with producers or consumers")] = None,
) -> None:
    """Delete a partitioned topic."""
    if topic.is_partition:
        raise _partition_name()
    if await service.directory.partitions(topic) is None:
        if await service.directory.exists(topic):
            raise ApiError(
                409,
                f"{topic} is a non-partitioned topic. Instead of calling "
                "delete-partitioned-topic please call delete.",
            )
        raise ApiError(404, f"Topic {topic} not found.")
    await service.directory.delete_partitioned(topic, force=flag(force))
