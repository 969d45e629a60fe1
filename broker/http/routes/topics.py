"""Topics: lists, creation, partitions, deletion, statistics (http-api 2.4)."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.convertors import Convertor, register_url_convertor

from broker.errors import AlreadyExistsError, NotAllowedError, TopicNotFoundError
from broker.http.dependencies import (
    Authoritative,
    Namespace,
    Service,
    Topic,
    flag,
    json_body,
    read_json,
)
from broker.http.errors import ApiError
from broker.http.partitioned_stats import sum_topic_stats
from broker.http.responses import JsonResponse, no_content
from broker.http.topic_internals import internal_stats
from broker.protocol.topic_name import TopicName
from broker.service.broker_service import BrokerService
from broker.service.persistent_topic import PersistentTopic
from broker.service.topic import Topic as LoadedTopic
from broker.service.topic_directory import partitions_max

__all__ = ["router"]

router = APIRouter(tags=["topics"])

TOPIC = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic}"
NAMESPACE = "/admin/v2/{domain:domain}/{tenant}/{namespace}"
_PARTITIONS_TYPE = "application/vnd.partitioned-topic-metadata+json"
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"description": "No such topic"}}
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_Text = str | None


class _DomainConvertor(Convertor[str]):
    """Keeps ``/admin/v2/namespaces/...`` and the like from matching as topics."""

    regex = "persistent|non-persistent"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("domain", _DomainConvertor())


def not_found(name: TopicName) -> ApiError:
    return ApiError(404, f"Topic {name} not found")


async def loaded(service: BrokerService, name: TopicName) -> LoadedTopic:
    """The topic, loaded if it exists.

    Raises:
        ApiError: 404 in Pulsar's words.
    """
    if (topic := service.topics.get(str(name))) is not None:
        return topic
    try:
        return await service.get_topic(name, create=False)
    except (TopicNotFoundError, NotAllowedError) as error:  # NotAllowed: a partitioned base name
        raise not_found(name) from error


async def persistent(service: BrokerService, name: TopicName, what: str) -> PersistentTopic:
    """The loaded topic behind operations that need stored entries.

    Raises:
        ApiError: 405 partitioned or non-persistent, 404 missing.
    """
    if not name.is_persistent:
        raise ApiError(405, f"{what} on a non-persistent topic is not allowed")
    if await service.partitions(name) is not None:
        raise ApiError(405, f"{what} of a partitioned topic is not allowed")
    topic = await loaded(service, name)
    assert isinstance(topic, PersistentTopic)
    return topic


async def _require_namespace(service: BrokerService, namespace: str) -> None:
    if await service.resources.policies(namespace) is None:
        raise ApiError(404, "Namespace does not exist")


# --- lists


@router.get(
    NAMESPACE,
    summary="Topics of a namespace, each partition on its own",
    responses={
        200: {"content": {"application/json": {"example": ["persistent://public/default/orders"]}}},
        404: {"description": "No such namespace"},
    },
)
async def list_topics(
    service: Service,
    domain: str,
    namespace: Namespace,
    bundle: Annotated[_Text, Query(description="Only topics of this bundle")] = None,
    includeSystemTopic: _Text = None,
) -> Response:
    await _require_namespace(service, namespace)
    names = await service.list_topics(namespace, domain)
    if not flag(includeSystemTopic):
        names = [name for name in names if not TopicName.parse(name).is_system]
    if bundle is not None:
        names = [
            name
            for name in names
            if (await service.bundles.bundle_of(name)).rpartition("/")[2] == bundle
        ]
    return JsonResponse(names)


@router.get(NAMESPACE + "/partitioned", summary="Base names of partitioned topics")
async def list_partitioned(service: Service, domain: str, namespace: Namespace) -> Response:
    await _require_namespace(service, namespace)
    return JsonResponse(await service.resources.partitioned_topics(namespace, domain))


# --- creation and deletion


@router.put(TOPIC, status_code=204, summary="Create a topic without partitions")
async def create(
    service: Service,
    topic: Topic,
    properties: Annotated[dict[str, str] | None, Depends(json_body(dict[str, str]))],
    authoritative: Authoritative = None,
) -> Response:
    await _require_namespace(service, topic.namespace)
    if await service.partitions(topic) is not None or await service.topic_exists(topic):
        raise ApiError(409, "This topic already exists")
    if topic.is_partition:
        await _check_partition_name(service, topic)
    try:
        await service.create_topic(topic, properties)
    except AlreadyExistsError as error:
        raise ApiError(409, "This topic already exists") from error
    return no_content()


async def _check_partition_name(service: BrokerService, topic: TopicName) -> None:
    count = await service.partitions(topic.base)
    if count is None:
        raise ApiError(
            412,
            f'Can\'t create topic {topic.local} with "-partition-" followed by numeric value if '
            f"there isn't a partitioned topic {topic.base.local} created.",
        )
    if topic.partition_index >= count:
        raise ApiError(412, f"Topic {topic.base} has only {count} partitions")


@router.delete(TOPIC, status_code=204, summary="Delete a topic", responses=_NOT_FOUND)
async def delete(
    service: Service,
    topic: Topic,
    force: Annotated[_Text, Query(description="Also with producers or consumers")] = None,
    authoritative: Authoritative = None,
) -> Response:
    if await service.partitions(topic) is not None:
        raise ApiError(
            409,
            f"{topic} is a partitioned topic, instead of calling delete topic, "
            "please call delete-partitioned-topic.",
        )
    try:
        await service.delete_topic(topic, force=flag(force))
    except TopicNotFoundError as error:
        raise not_found(topic) from error
    return no_content()


@router.put(TOPIC + "/unload", status_code=204, summary="Unload: close, to be loaded again")
async def unload(service: Service, topic: Topic, authoritative: Authoritative = None) -> Response:
    count = await service.partitions(topic)
    if count is None and not await service.topic_exists(topic):
        raise not_found(topic)
    for name in [topic.partition(i) for i in range(count)] if count else [topic]:
        if str(name) in service.topics:
            await service.unload_topic(name)
    return no_content()


# --- partitions


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


def _check_limit(service: BrokerService, count: int, status: int) -> None:
    limit = partitions_max(service.config)
    if count > limit:
        raise ApiError(status, f"Number of partitions should be less than or equal to {limit}")


@router.put(
    TOPIC + "/partitions",
    status_code=204,
    summary="Create a partitioned topic",
    openapi_extra=_PARTITIONS_DOC,
)
async def create_partitioned(
    service: Service,
    topic: Topic,
    body: Annotated[tuple[int, dict[str, str]], Depends(_partition_count)],
    createLocalTopicOnly: _Text = None,
) -> Response:
    count, properties = body
    await _require_namespace(service, topic.namespace)
    if count <= 0:
        raise ApiError(406, "Number of partitions should be more than 0")
    _check_limit(service, count, 406)
    if topic.is_partition:
        raise ApiError(412, "Partitioned Topic Name should not contain '-partition-'")
    if await service.partitions(topic) is not None or await service.topic_exists(topic):
        raise ApiError(409, "This topic already exists")
    try:
        await service.create_partitioned_topic(topic, count, properties)
    except AlreadyExistsError as error:
        raise ApiError(409, "This topic already exists") from error
    return no_content()


@router.get(
    TOPIC + "/partitions",
    summary="Number of partitions; 0 for a topic without",
    responses={
        200: {"content": {"application/json": {"example": {"partitions": 3, "deleted": False}}}},
        **_NOT_FOUND,
    },
)
async def get_partitions(
    service: Service,
    topic: Topic,
    authoritative: Authoritative = None,
    checkAllowAutoCreation: _Text = None,
) -> Response:
    count = await service.partitions(topic)
    if count is None:
        if not await service.topic_exists(topic) and not (
            flag(checkAllowAutoCreation) and service.config.allow_auto_topic_creation
        ):
            raise not_found(topic)
        return JsonResponse({"partitions": 0, "deleted": False})
    return JsonResponse({"partitions": count, "deleted": False})


@router.post(
    TOPIC + "/partitions",
    status_code=204,
    summary="Raise the number of partitions",
    openapi_extra=_PARTITIONS_DOC,
)
async def update_partitions(
    service: Service,
    topic: Topic,
    body: Annotated[tuple[int, dict[str, str]], Depends(_partition_count)],
    authoritative: Authoritative = None,
) -> Response:
    wanted, _ = body
    if wanted <= 0:
        raise ApiError(422, "Number of partitions should be more than 0")
    count = await service.partitions(topic)
    if count is None:
        raise ApiError(409, f"Topic {topic} is not the partitioned topic.")
    _check_limit(service, wanted, 422)
    if wanted < count:
        raise ApiError(
            422,
            f"Desired partitions {wanted} can't be less than the current partitions {count}.",
        )
    await service.update_partitions(topic, wanted)
    return no_content()


@router.post(
    TOPIC + "/createMissedPartitions", status_code=204, summary="Create what is missing of it"
)
async def create_missed(service: Service, topic: Topic) -> Response:
    count = await service.partitions(topic)
    if count is None:
        raise ApiError(404, f"Topic {topic} is not the partitioned topic.")
    for index in range(count):
        if not await service.topic_exists(topic.partition(index)):
            await service.create_topic(topic.partition(index))
    return no_content()


@router.delete(TOPIC + "/partitions", status_code=204, summary="Delete a partitioned topic")
async def delete_partitioned(
    service: Service,
    topic: Topic,
    force: Annotated[_Text, Query(description="Also with producers or consumers")] = None,
    authoritative: Authoritative = None,
) -> Response:
    if topic.is_partition:
        raise ApiError(412, f"{topic} is a partition: delete the partitioned topic")
    if await service.partitions(topic) is None:
        if await service.topic_exists(topic):
            raise ApiError(
                409,
                f"{topic} is a non-partitioned topic. Instead of calling "
                "delete-partitioned-topic please call delete.",
            )
        raise ApiError(404, f"Topic {topic} not found.")
    await service.delete_partitioned_topic(topic, force=flag(force))
    return no_content()


# --- statistics and information


class StatsOptions:
    """What of the statistics a caller wants (http-api 2.4); the rest is left out or -1."""

    def __init__(
        self,
        request: Request,
        getPreciseBacklog: _Text = None,
        subscriptionBacklogSize: _Text = None,
        getEarliestTimeInBacklog: _Text = None,
        excludePublishers: _Text = None,
        excludeConsumers: _Text = None,
    ) -> None:
        is_persistent = request.path_params["domain"] == "persistent"
        self.backlog_size = flag(subscriptionBacklogSize, default=is_persistent)
        self.publishers = not flag(excludePublishers)
        self.consumers = not flag(excludeConsumers)

    def apply(self, stats: dict[str, Any]) -> dict[str, Any]:
        if not self.publishers:
            stats["publishers"] = []
        if not self.backlog_size or not self.consumers:
            for subscription in stats["subscriptions"].values():
                if not self.backlog_size:
                    subscription["backlogSize"] = -1
                if not self.consumers:
                    subscription["consumers"] = []
        return stats


async def _options(
    options: Annotated[StatsOptions, Depends(StatsOptions)],
) -> StatsOptions:
    return options


Options = Annotated[StatsOptions, Depends(_options)]


@router.get(TOPIC + "/stats", summary="Statistics of one topic", responses=_NOT_FOUND)
async def stats(
    service: Service, topic: Topic, options: Options, authoritative: Authoritative = None
) -> Response:
    return JsonResponse(options.apply((await loaded(service, topic)).stats()))


@router.get(TOPIC + "/partitioned-stats", summary="Sum over all partitions", responses=_NOT_FOUND)
async def partitioned_stats(
    service: Service,
    topic: Topic,
    options: Options,
    perPartition: _Text = None,
    authoritative: Authoritative = None,
) -> Response:
    count = await service.partitions(topic)
    if count is None:
        raise ApiError(404, f"Partitioned Topic {topic} not found")
    parts: dict[str, dict[str, Any]] = {}
    for index in range(count):
        name = topic.partition(index)
        try:
            parts[str(name)] = options.apply((await loaded(service, name)).stats())
        except ApiError:  # never used yet: counts as empty
            continue
    total = sum_topic_stats(list(parts.values()))
    total["metadata"] = {"partitions": count, "deleted": False}
    total["partitions"] = parts if flag(perPartition, default=True) else {}
    return JsonResponse(total)


@router.get(TOPIC + "/internalStats", summary="Ledgers and cursors", responses=_NOT_FOUND)
async def get_internal_stats(
    service: Service, topic: Topic, authoritative: Authoritative = None
) -> Response:
    found = await loaded(service, topic)
    if not isinstance(found, PersistentTopic):
        raise ApiError(405, "internalStats on a non-persistent topic is not allowed")
    return JsonResponse(internal_stats(found.ledger))


@router.get(TOPIC + "/partitioned-internalStats", summary="Ledgers and cursors of all partitions")
async def partitioned_internal_stats(
    service: Service, topic: Topic, authoritative: Authoritative = None
) -> Response:
    count = await service.partitions(topic)
    if count is None:
        raise ApiError(404, f"Partitioned Topic {topic} not found")
    parts: dict[str, Any] = {}
    for index in range(count):
        name = topic.partition(index)
        try:
            found = await loaded(service, name)
        except ApiError:
            continue
        if isinstance(found, PersistentTopic):
            parts[str(name)] = internal_stats(found.ledger)
    return JsonResponse({"metadata": {"partitions": count, "deleted": False}, "partitions": parts})


@router.get(
    TOPIC + "/lastMessageId",
    summary="Id of the last message",
    responses={
        200: {
            "content": {
                "application/json": {
                    "example": {"ledgerId": 12, "entryId": 4, "partitionIndex": -1}
                }
            }
        },
        **_NOT_FOUND,
    },
)
async def last_message_id(
    service: Service, topic: Topic, authoritative: Authoritative = None
) -> Response:
    found = await persistent(service, topic, "GetLastMessageId")
    return JsonResponse(message_id(found.ledger.last_confirmed, topic))


def message_id(position: tuple[int, int], topic: TopicName) -> dict[str, int]:
    ledger_id, entry_id = position
    return {
        "ledgerId": ledger_id,
        "entryId": entry_id,
        "partitionIndex": topic.partition_index,
        "batchIndex": -1,
        "batchSize": 0,
    }


@router.post(TOPIC + "/terminate", summary="Take no more messages, for good")
async def terminate(
    service: Service, topic: Topic, authoritative: Authoritative = None
) -> Response:
    if not topic.is_persistent:
        raise ApiError(406, "Termination of a non-persistent topic is not allowed")
    found = await persistent(service, topic, "Termination")
    return JsonResponse(message_id(await found.terminate(), topic))


@router.post(TOPIC + "/terminate/partitions", summary="Terminate every partition")
async def terminate_partitions(
    service: Service, topic: Topic, authoritative: Authoritative = None
) -> Response:
    count = await service.partitions(topic)
    if count is None:
        raise ApiError(
            405, "Termination of a non-partitioned topic is not allowed using partitioned-terminate"
        )
    answer: dict[str, Any] = {}
    for index in range(count):
        name = topic.partition(index)
        found = await loaded(service, name)
        assert isinstance(found, PersistentTopic)
        answer[str(index)] = message_id(await found.terminate(), name)
    return JsonResponse(answer)
