"""When a bundle is too large for one broker, and how it is cut. Pure.

Rules: docs/spec/bundles.md, "Automatic splits".

A bundle splits after it was over a limit for more than three rounds in a row. One with a single
topic can't be helped that way (partition the topic). How it is cut follows from what is too much:

| too much | cut |
|---|---|
| topics, sessions | ``topic_count_equally_divide``: as many topics on each side |
| messages, bytes | ``flow_or_qps_equally_divide``: by traffic; a busy topic is soon alone |

To halve the range, as Pulsar does, may take twenty cuts until a busy topic is alone, and cuts are
never undone. A setting may still ask for it.
"""

from collections.abc import Callable
from typing import Final

from magnetar.loadbalance.cluster_state import ClusterState
from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.model import BundleStats, Split, namespace_of
from magnetar.loadbalance.policies import pinned_broker

_BY_COUNT: Final = "topic_count_equally_divide"
_BY_FLOW: Final = "flow_or_qps_equally_divide"
_MIB: Final = 1024 * 1024


class BundleSplitStrategy:
    """Keeps for how many rounds in a row a bundle was too large."""

    def __init__(self, config: BalancerConfig) -> None:
        self._config = config
        self._hits: dict[str, int] = {}

    def choose(
        self, state: ClusterState, bundles_of: Callable[[str], int | None], busy: set[str]
    ) -> list[Split]:
        """The cuts of one round, the largest bundles first.

        Args:
            bundles_of: the number of bundles of a namespace; None: not known, so no split.
            busy: bundles that are moving or splitting.
        """
        config, before = self._config, self._hits
        self._hits = {}
        due: list[tuple[float, str, str, str, str]] = []
        for broker in state.brokers.values():
            for name, stats in broker.load.stats.items():
                found = _excess(stats, config)
                if found is None or name not in broker.bundles or not _is_divisible(name, stats):
                    continue
                hits = self._hits[name] = before.get(name, 0) + 1
                if hits > config.load_balancer_split_condition_hit_count_threshold:
                    ratio, what, algorithm = found
                    due.append((ratio, name, broker.broker, what, algorithm))
        due.sort(reverse=True)
        return self._limited(due, state, bundles_of, busy)

    def _limited(
        self,
        due: list[tuple[float, str, str, str, str]],
        state: ClusterState,
        bundles_of: Callable[[str], int | None],
        busy: set[str],
    ) -> list[Split]:
        config = self._config
        splits: list[Split] = []
        chosen: dict[str, int] = {}  # by namespace
        for _, name, owner, what, algorithm in due:
            if len(splits) >= config.load_balancer_max_number_of_bundles_to_split_per_cycle:
                break
            namespace = namespace_of(name)
            count = bundles_of(namespace)
            # Each decision of this round counts: it adds one bundle at least.
            taken = chosen.get(namespace, 0)
            if count is None or count + taken >= config.load_balancer_namespace_maximum_bundles:
                continue
            if name in busy or state.owners.get(name) != owner:
                continue
            chosen[namespace] = taken + 1
            del self._hits[name]
            unload = (
                config.load_balancer_auto_unload_split_bundles_enabled and len(state.brokers) > 1
            )
            by = config.default_namespace_bundle_split_algorithm or algorithm
            splits.append(Split(name, owner, by, unload, what))
        return splits


def _is_divisible(bundle: str, stats: BundleStats) -> bool:
    namespace, _, its = bundle.rpartition("/")
    lower, _, upper = its.partition("_")
    return (
        stats.topics >= 2
        and pinned_broker(namespace) is None
        and int(upper, 16) - int(lower, 16) > 1
    )


def _excess(stats: BundleStats, config: BalancerConfig) -> tuple[float, str, str] | None:
    """(how many times the limit, what, algorithm) of what exceeds its limit most, if anything."""
    bytes_max = config.load_balancer_namespace_bundle_max_bandwidth_mbytes * _MIB
    metrics = (
        (stats.topics, config.load_balancer_namespace_bundle_max_topics, "topics", _BY_COUNT),
        (
            stats.consumers + stats.producers,
            config.load_balancer_namespace_bundle_max_sessions,
            "sessions",
            _BY_COUNT,
        ),
        (stats.rate, config.load_balancer_namespace_bundle_max_msg_rate, "messages", _BY_FLOW),
        (stats.throughput, bytes_max, "bytes", _BY_FLOW),
    )
    worst: tuple[float, str, str] | None = None
    for value, limit, what, algorithm in metrics:
        if 0 <= limit < value:
            ratio = value / max(limit, 1.0)
            if worst is None or ratio > worst[0]:
                worst = (ratio, f"{value:.0f} {what}", algorithm)
    return worst
