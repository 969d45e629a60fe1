"""Topics: lists, creation, deletion, unloading."""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from magnetar.broker.errors import AlreadyExistsError, TopicNotFoundError
from magnetar.broker.http.dependencies import (
    Authoritative,
    Namespace,
    Service,
    Topic,
    flag,
    json_body,
)
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.routing.scatter_gather import Spread
from magnetar.broker.http.topics.namespace_topics import topics_everywhere
from magnetar.broker.http.topics.topic_access import (
    NAMESPACE,
    NOT_FOUND,
    PROPERTIES_DOC,
    TOPIC,
    check_properties,
    not_found,
    require_bundle,
    require_existing,
    require_namespace,
    user_topics,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService

router = APIRouter(tags=["topics"])

_Text = str | None


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
    spread: Spread,
    bundle: Annotated[_Text, Query(description="Only topics of this bundle")] = None,
    includeSystemTopic: _Text = None,
    after: Annotated[
        _Text,
        Query(description="Only names behind this full name: the last one of the page before"),
    ] = None,
    limit: Annotated[
        int | None,
        Query(ge=1, description="Names of a page; fewer are the last page. Not Pulsar's"),
    ] = None,
) -> Response:
    await require_namespace(service, namespace)
    names = await topics_everywhere(service, spread, namespace, domain)
    if after is not None:
        names = names[bisect_right(names, after) :]
    if not flag(includeSystemTopic):
        names = user_topics(names)
    if bundle is not None:
        names = await _in_bundle(service, namespace, names, bundle)
    return JsonResponse(names[:limit])


async def _in_bundle(
    service: BrokerService, namespace: str, names: list[str], bundle: str
) -> list[str]:
    bundle_of = (await service.bundles.bundles(namespace)).bundle_of
    return [name for name in names if bundle_of(name).endswith("/" + bundle)]


@router.get(
    NAMESPACE + "/partitioned",
    summary="Base names of partitioned topics",
    responses={
        200: {"content": {"application/json": {"example": ["persistent://public/default/p"]}}},
        404: {"description": "No such namespace"},
    },
)
async def list_partitioned(
    service: Service, domain: str, namespace: Namespace, includeSystemTopic: _Text = None
) -> Response:
    await require_namespace(service, namespace)
    names = await service.resources.partitioned_topics(namespace, domain)
    return JsonResponse(names if flag(includeSystemTopic) else user_topics(names))


@router.get(  # behind the list above: "partitioned" would be a bundle
    "/admin/v2/non-persistent/{tenant}/{namespace}/{bundle}",
    summary="Loaded non-persistent topics of one bundle",
    responses={
        200: {"content": {"application/json": {"example": ["non-persistent://public/default/a"]}}},
        404: {"description": "No such namespace"},
        412: {"description": "No such bundle"},
    },
)
async def list_bundle(service: Service, namespace: Namespace, bundle: str) -> Response:
    await require_namespace(service, namespace, "Namespace not found")
    await require_bundle(service, namespace, bundle)
    names = await service.list_topics(namespace, "non-persistent")
    return JsonResponse(await _in_bundle(service, namespace, names, bundle))


# --- creation and deletion


@router.put(
    TOPIC,
    status_code=204,
    summary="Create a topic without partitions",
    openapi_extra=PROPERTIES_DOC,
    responses={
        404: {"description": "No such namespace"},
        409: {"description": "There is a topic, or a partitioned topic, of that name"},
        412: {"description": "The name is a partition's of no such partitioned topic"},
    },
)
async def create(
    service: Service,
    topic: Topic,
    properties: Annotated[dict[str, str] | None, Depends(json_body(dict[str, str]))],
    authoritative: Authoritative = None,
) -> Response:
    await require_namespace(service, topic.namespace)
    if await service.partitions(topic) is not None or await service.topic_exists(topic):
        raise ApiError(409, "This topic already exists")
    if topic.is_partition:
        await _check_partition_name(service, topic)
    try:
        await service.create_topic(topic, check_properties(properties))
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


@router.delete(
    TOPIC,
    status_code=204,
    summary="Delete a topic",
    responses={
        **NOT_FOUND,
        409: {"description": "It is partitioned"},
        412: {"description": "Clients are connected, and `force` is not set"},
    },
)
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


@router.put(
    TOPIC + "/unload",
    status_code=204,
    summary="Unload: close the topic or all its partitions, to be loaded again when needed",
    responses=NOT_FOUND,
)
async def unload(
    service: Service, topic: Topic, spread: Spread, authoritative: Authoritative = None
) -> Response:
    await require_existing(service, topic)

    async def one(name: TopicName) -> None:
        if str(name) in service.topics:  # what isn't loaded is unloaded already
            await service.unload_topic(name)

    (await spread.parts(topic, one)).without(404).check()
    return no_content()
