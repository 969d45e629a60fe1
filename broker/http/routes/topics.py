"""Topics: lists, creation, deletion, unloading."""

from bisect import bisect_right
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.errors import AlreadyExistsError, TopicNotFoundError
from magnetar.broker.http.dependencies import Namespace, Service, Topic, flag
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import Spread
from magnetar.broker.http.streamed_answers import long_names
from magnetar.broker.http.topics.namespace_topics import topics_everywhere
from magnetar.broker.http.topics.topic_access import (
    NAMESPACE,
    NOT_FOUND,
    TOPIC,
    PropertiesBody,
    check_properties,
    not_found,
    require_bundle,
    require_existing,
    require_namespace,
    user_topics,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.metadata.loop_turns import in_turns

routes = Routes(tag="topics", access=Access.LOOKUP_403, mode=RoutingMode.TOPIC, statuses=NOT_FOUND)

_Text = str | None


# --- lists


@routes.get(
    NAMESPACE,
    mode=RoutingMode.SCATTER,
    example=["persistent://public/default/orders"],
    statuses={404: "No such namespace"},
)
async def list_topics(
    request: Request,
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
    """Topics of a namespace, each partition on its own."""
    await require_namespace(service, namespace)
    names = await topics_everywhere(service, spread, namespace, domain)
    if after is not None:
        names = names[bisect_right(names, after) :]
    if not flag(includeSystemTopic):
        names = await user_topics(names)
    if bundle is not None:
        names = await _in_bundle(service, namespace, names, bundle)
    return await long_names(request, names if limit is None else names[:limit])


async def _in_bundle(
    service: BrokerService, namespace: str, names: list[str], bundle: str
) -> list[str]:
    bundle_of = (await service.bundles.bundles(namespace)).bundle_of
    return [name async for name in in_turns(names) if bundle_of(name).endswith("/" + bundle)]


@routes.get(
    NAMESPACE + "/partitioned",
    mode=RoutingMode.LOCAL,
    example=["persistent://public/default/p"],
    statuses={404: "No such namespace"},
)
async def list_partitioned(
    request: Request,
    service: Service,
    domain: str,
    namespace: Namespace,
    includeSystemTopic: _Text = None,
) -> Response:
    """Base names of partitioned topics."""
    await require_namespace(service, namespace)
    names = await service.resources.partitioned_topics(namespace, domain)
    return await long_names(
        request, names if flag(includeSystemTopic) else await user_topics(names)
    )


@routes.get(
    "/admin/v2/non-persistent/{tenant}/{namespace}/{bundle}",
    mode=RoutingMode.BUNDLE,
    example=["non-persistent://public/default/a"],
    statuses={404: "No such namespace", 412: "No such bundle"},
)
async def list_bundle(
    request: Request, service: Service, namespace: Namespace, bundle: str
) -> Response:
    """Loaded non-persistent topics of one bundle."""
    await require_namespace(service, namespace, "Namespace not found")
    await require_bundle(service, namespace, bundle)
    names = await service.directory.names(namespace, "non-persistent")
    return await long_names(request, await _in_bundle(service, namespace, names, bundle))


# --- creation and deletion


@routes.put(
    TOPIC,
    access=Access.ADMIN_403,
    statuses={
        404: "No such namespace",
        409: "There is a topic, or a partitioned topic, of that name",
        412: "The name is a partition's of no such partitioned topic",
    },
)
async def create(service: Service, topic: Topic, properties: PropertiesBody) -> None:
    """Create a topic without partitions."""
    await require_namespace(service, topic.namespace)
    if await service.directory.partitions(topic) is not None or await service.directory.exists(
        topic
    ):
        raise ApiError(409, "This topic already exists")
    if topic.is_partition:
        await _check_partition_name(service, topic)
    with answer_for(AlreadyExistsError, 409, "This topic already exists"):
        await service.directory.create(topic, check_properties(properties))


async def _check_partition_name(service: BrokerService, topic: TopicName) -> None:
    count = await service.directory.partitions(topic.base)
    if count is None:
        raise ApiError(
            412,
            f'Can\'t create topic {topic.local} with "-partition-" followed by numeric value if '
            f"there isn't a partitioned topic {topic.base.local} created.",
        )
    if topic.partition_index >= count:
        raise ApiError(412, f"Topic {topic.base} has only {count} partitions")


@routes.delete(
    TOPIC,
    access=Access.ADMIN_403,
    statuses={409: "It is partitioned", 412: "Clients are connected, and `force` is not set"},
)
async def delete(
    service: Service,
    topic: Topic,
    force: Annotated[_Text, Query(description="Also with producers or consumers")] = None,
) -> None:
    """Delete a topic."""
    if await service.directory.partitions(topic) is not None:
        raise ApiError(
            409,
            f"{topic} is a partitioned topic, instead of calling delete topic, "
            "please call delete-partitioned-topic.",
        )
    try:
        await service.directory.delete(topic, force=flag(force))
    except TopicNotFoundError as error:
        raise not_found(topic) from error


@routes.put(TOPIC + "/unload", access=Access.ADMIN_401)
async def unload(service: Service, topic: Topic, spread: Spread) -> None:
    """Unload: close the topic or all its partitions, to be loaded again when needed."""
    await require_existing(service, topic)

    async def one(name: TopicName) -> None:
        if str(name) in service.topics:  # what isn't loaded is unloaded already
            await service.loader.unload(str(name))

    (await spread.parts(topic, one)).without(404).check()
