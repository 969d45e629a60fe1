"""What the bundles of this broker carry: topics, clients and traffic, bundle by bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.cluster.latest_result import LatestResult, kept_s
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
from magnetar.metadata.loop_turns import LoopTurns, Steps, in_turns, run_in_turns

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.topic.topic import Topic

_LONG_S: Final = 0.02
"""What takes longer isn't walked again for each who asks."""
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
    return [name async for name in in_turns(names) if topic_hash(name) in bundle]


async def fullest_bundle(service: BrokerService, bundles: NamespaceBundles) -> HashRange:
    """The bundle with the most topics; the widest of several."""
    counts = dict.fromkeys(bundles.ranges, 0)
    async for name in in_turns(await service.directory.names(bundles.namespace, "all")):
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
        loaded = in_turns(service.topics.of_namespace(namespace))
        return divide_load(
            bundle,
            [load async for topic in loaded if (load := await _load_of(topic)).hash in bundle],
            config.load_balancer_namespace_bundle_max_msg_rate,
            config.load_balancer_namespace_bundle_max_bandwidth_mbytes * 1024 * 1024,
            config.flow_or_qps_difference_threshold_percentage / 100,
        )
    if algorithm not in (TOPIC_COUNT_EQUALLY_DIVIDE, SPECIFIED_POSITIONS_DIVIDE):
        return halve_range(bundle)
    names = await topics_of_bundle(service, namespace, bundle)
    hashes = [topic_hash(name) async for name in in_turns(names)]
    if algorithm == TOPIC_COUNT_EQUALLY_DIVIDE:
        return halve_topics(bundle, hashes)
    return at_positions(bundle, positions, hashes)


async def loads_by_bundle(
    service: BrokerService,
    look: Callable[[Topic], Steps[None]] | None = None,
    turns: LoopTurns | None = None,
) -> dict[str, dict[str, Any]]:
    """NamespaceBundleStats of every owned bundle with loaded topics.

    Args:
        look: gets each topic as well.
        turns: of the walk, which tell what it took.
    """
    answer: dict[str, dict[str, Any]] = {}
    turns = turns or LoopTurns()
    for topic in service.topics.walk():
        if turns.is_over:
            await turns.next()
        bundle = service.bundles.bundle_of_nowait(topic.full_name)
        if bundle is None:
            bundle = await service.bundles.bundle_of(topic.full_name)
        if (metrics := answer.get(bundle)) is None:
            metrics = answer[bundle] = dict.fromkeys(_FIGURES, 0.0) | dict.fromkeys(_COUNTS, 0)
        if look is not None:
            await turns.run(look(topic))
        for name, value in zip(_FIGURES, await turns.run(topic.traffic()), strict=True):
            metrics[name] += value
        metrics["producerCount"] += len(topic.producers)
        for subscription in list(topic.subscriptions.values()):
            metrics["consumerCount"] += len(subscription.consumers)
            if turns.is_over:
                await turns.next()
        metrics["topics"] += 1
    return answer


class BundleLoads:
    """``loads_by_bundle`` for whoever asks often; of very many topics that of a minute ago."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._latest = LatestResult(self._walk, 0.0)

    async def get(self) -> dict[str, dict[str, Any]]:
        return await self._latest.get()

    async def walk(
        self, look: Callable[[Topic], Steps[None]], turns: LoopTurns
    ) -> dict[str, dict[str, Any]]:
        """Those of now, for somebody who looks at each topic; whoever asks next gets them, too."""
        return await self._latest.renewed(partial(self._walk, look, turns))

    async def _walk(
        self, look: Callable[[Topic], Steps[None]] | None = None, turns: LoopTurns | None = None
    ) -> dict[str, dict[str, Any]]:
        turns = turns or LoopTurns()
        found = await loads_by_bundle(self._service, look, turns)
        self._latest.kept_s = kept_s(turns.used_s) if turns.used_s > _LONG_S else 0.0
        return found

    def close(self) -> None:
        self._latest.close()


async def _load_of(topic: Topic) -> TopicLoad:
    rate_in, bytes_in, rate_out, bytes_out = await run_in_turns(topic.traffic())
    return TopicLoad(topic_hash(topic.full_name), rate_in + rate_out, bytes_in + bytes_out)
