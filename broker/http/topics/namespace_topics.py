"""All topics of a namespace, whichever brokers serve them: listed, deleted, unloaded."""

from collections.abc import Iterable

from magnetar.broker.cluster.broker_client import BrokerCall, BrokerRefusedError, topic_path
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.http.routing.scatter_gather import ScatterGather, each
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService


async def topics_everywhere(
    service: BrokerService, spread: ScatterGather, namespace: str, mode: str
) -> list[str]:
    """Full names, sorted: as ``list_topics``, with the volatile topics that others have loaded.

    Raises:
        BrokerError: a broker that owns a bundle can't tell.
    """
    names = await service.directory.names(namespace, mode)
    if mode == "persistent":
        return names

    async def here(bundle: str) -> list[str]:
        return []  # of a broker that has left: what it had in memory is gone

    answers = await spread.bundles(
        namespace,
        await spread.owned_by_others(namespace),
        here,
        method="GET",
        tail="",
        root="/admin/v2/non-persistent",
    )
    return sorted({*names, *(name for some in answers.check().values for name in some)})


async def delete_topics(
    service: BrokerService, spread: ScatterGather, names: Iterable[str]
) -> None:
    """Delete topics by force, each by its broker; those that are gone are fine."""

    async def delete(full: str) -> None:
        name = TopicName.parse(full)
        call = BrokerCall("DELETE", topic_path(name), "force=true")
        try:
            await spread.on_owner(
                name, lambda: service.directory.delete(name, force=True), lambda: call
            )
        except TopicNotFoundError:
            pass
        except BrokerRefusedError as error:
            if error.http_status != 404:
                raise

    await each(list(names), delete)


async def release_everywhere(service: BrokerService, spread: ScatterGather, namespace: str) -> None:
    """Unload all bundles of a namespace, whoever owns them."""

    async def here(bundle: str) -> None:
        await service.bundles.release(f"{namespace}/{bundle}")

    answers = await spread.bundles(
        namespace, await spread.owned_by_others(namespace), here, method="PUT", tail="/unload"
    )
    await service.bundles.release_namespace(namespace)
    answers.check()


async def forget_namespace(service: BrokerService, spread: ScatterGather, namespace: str) -> None:
    """Delete an empty namespace. Raises NamespaceNotFoundError: another request was faster."""
    await release_everywhere(service, spread, namespace)  # while others can still be asked
    await service.resources.delete_namespace(namespace)
    await service.bundles.release_namespace(namespace)  # a later one may have other bundles


async def delete_namespace_with_topics(
    service: BrokerService, spread: ScatterGather, namespace: str
) -> None:
    """Forced deletion: partitioned topics, topics, then the namespace."""
    for domain in ("persistent", "non-persistent"):
        for name in await service.resources.partitioned_topics(namespace, domain):
            await service.directory.delete_partitioned(TopicName.parse(name), force=True)
    await delete_topics(service, spread, await topics_everywhere(service, spread, namespace, "all"))
    await forget_namespace(service, spread, namespace)
