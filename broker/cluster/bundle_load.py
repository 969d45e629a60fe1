"""What the bundles of this broker carry: topics, clients and traffic, bundle by bundle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.errors import NamespaceNotFoundError
from magnetar.bundles.namespace_bundles import HashRange, NamespaceBundles, topic_hash
from magnetar.bundles.splitting import (
    FLOW_OR_QPS_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
    TOPIC_COUNT_EQUALLY_DIVIDE,
    TopicLoad,
    at_positions,
    divide_load,
    halve_range,
    halve_topics,
)

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.topic.topic import Topic

_SLICE: Final = 16
"""Topics whose statistics are made before others get their turn on the loop."""
_COUNTS: Final = ("consumerCount", "producerCount", "topics", "cacheSize")
_FIGURES: Final = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")


async def namespace_bundles(service: BrokerService, namespace: str) -> NamespaceBundles:
    """The bundles of an existing namespace.

    Raises:
        NamespaceNotFoundError, BundleError.
    """
    if not await service.resources.namespace_exists(namespace):
        raise NamespaceNotFoundError("Namespace not found")
    return await service.bundles.bundles(namespace)


async def topics_of_bundle(service: BrokerService, namespace: str, bundle: HashRange) -> list[str]:
    """Full names of the topics in a bundle, loaded or not, each partition on its own."""
    names = await service.directory.names(namespace, "all")
    return [name for name in names if topic_hash(name) in bundle]


async def fullest_bundle(service: BrokerService, bundles: NamespaceBundles) -> HashRange:
    """The bundle with the most topics; the widest of several."""
    counts = dict.fromkeys(bundles.ranges, 0)
    for name in await service.directory.names(bundles.namespace, "all"):
        counts[bundles.range_of(name)] += 1
    return max(bundles.ranges, key=lambda each: (counts[each], each.upper - each.lower))


def busiest_bundle(bundles: NamespaceBundles, loads: Mapping[str, float]) -> HashRange | None:
    """The bundle with the most bytes a second, by range; None when nothing flows."""
    busiest = max(bundles.ranges, key=lambda each: loads.get(str(each), 0.0))
    return busiest if loads.get(str(busiest), 0.0) > 0 else None


async def split_points(
    service: BrokerService,
    bundles: NamespaceBundles,
    bundle: HashRange,
    algorithm: str,
    positions: Sequence[int],
) -> list[int]:
    """Where one of Pulsar's algorithms cuts a bundle; nowhere when it isn't worth it.

    Raises:
        InvalidBundleError: the algorithm wants positions, and there are none.
    """
    namespace = bundles.namespace
    if algorithm == FLOW_OR_QPS_EQUALLY_DIVIDE:
        config = service.config
        return divide_load(
            bundle,
            [load for load in map(_load_of, _loaded(service, namespace)) if load.hash in bundle],
            config.load_balancer_namespace_bundle_max_msg_rate,
            config.load_balancer_namespace_bundle_max_bandwidth_mbytes * 1024 * 1024,
            config.flow_or_qps_difference_threshold_percentage / 100,
        )
    if algorithm not in (TOPIC_COUNT_EQUALLY_DIVIDE, SPECIFIED_POSITIONS_DIVIDE):
        return halve_range(bundle)
    hashes = [topic_hash(name) for name in await topics_of_bundle(service, namespace, bundle)]
    if algorithm == TOPIC_COUNT_EQUALLY_DIVIDE:
        return halve_topics(bundle, hashes)
    return at_positions(bundle, positions, hashes)


async def loads_by_bundle(
    service: BrokerService, look: Callable[[Topic, Mapping[str, Any]], None] | None = None
) -> dict[str, dict[str, Any]]:
    """NamespaceBundleStats of every owned bundle with loaded topics.

    Args:
        look: gets each topic with its TopicStats as well.
    """
    answer: dict[str, dict[str, Any]] = {}
    for number, topic in enumerate(list(service.topics.values()), 1):
        bundle = await service.bundles.bundle_of(str(topic.name))
        metrics = answer.setdefault(
            bundle,
            {
                **dict.fromkeys(_FIGURES, 0.0),
                **dict.fromkeys(_COUNTS, 0),
            },
        )
        stats = topic.stats()
        if look is not None:
            look(topic, stats)
        for name in _FIGURES:
            metrics[name] += stats[name]
        metrics["producerCount"] += len(stats["publishers"])
        metrics["consumerCount"] += sum(
            len(subscription["consumers"]) for subscription in stats["subscriptions"].values()
        )
        metrics["topics"] += 1
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    return answer


def _loaded(service: BrokerService, namespace: str) -> list[Topic]:
    return [topic for topic in service.topics.values() if topic.name.namespace == namespace]


def _load_of(topic: Topic) -> TopicLoad:
    stats = topic.stats()
    return TopicLoad(
        topic_hash(str(topic.name)),
        stats["msgRateIn"] + stats["msgRateOut"],
        stats["msgThroughputIn"] + stats["msgThroughputOut"],
    )
