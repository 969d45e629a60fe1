"""Holds brokers' load reports, the averages the leader computes, and its decisions. Pure data.

Units: messages and bytes a second, shares of a resource as fractions (1.0: all of it), seconds
and milliseconds as the name says. JSON forms are in ``documents.py``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from magnetar.loadbalance.config import BalancerConfig

SHORT_SAMPLES: Final = 10
LONG_SAMPLES: Final = 1_000
_DEFAULT_RATE: Final = 50.0
_DEFAULT_BYTES: Final = 50_000.0
_SHARE_MAX: Final = 1.1


class SelectionRandom(Protocol):
    """Chance as an argument; ``random.Random`` fits."""

    def randrange(self, stop: int, /) -> int: ...


def _counted(share: float) -> float:
    # A full CPU may be measured as 1.003: left out, the busiest broker would look idle.
    return min(share, 1.0) if share <= _SHARE_MAX else 0.0


def namespace_of(bundle: str) -> str:
    """``tenant/ns`` of ``tenant/ns/0x00000000_0x08000000``."""
    return bundle.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Use of one resource, in the unit of its limit."""

    usage: float = 0.0
    limit: float = 0.0

    @property
    def share(self) -> float:
        """0.0 where the limit isn't known: a broker that can't tell isn't overloaded."""
        return self.usage / self.limit if self.limit > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Weights:
    """How much a resource counts when brokers are compared."""

    cpu: float = 1.0
    direct_memory: float = 0.0
    bandwidth_in: float = 1.0
    bandwidth_out: float = 1.0

    @classmethod
    def of(cls, config: BalancerConfig) -> "Weights":
        return cls(
            config.load_balancer_cpu_resource_weight,
            config.load_balancer_direct_memory_resource_weight,
            config.load_balancer_bandwidth_in_resource_weight,
            config.load_balancer_bandwidth_out_resource_weight,
        )


@dataclass(slots=True)
class BundleStats:
    """NamespaceBundleStats: what a bundle carries now, by its owner."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    consumers: int = 0
    producers: int = 0
    topics: int = 0
    cache_bytes: int = 0

    @property
    def rate(self) -> float:
        return self.msg_rate_in + self.msg_rate_out

    @property
    def throughput(self) -> float:
        return self.msg_throughput_in + self.msg_throughput_out


@dataclass(slots=True)
class BrokerLoad:
    """LocalBrokerData: one load report."""

    broker_id: str  # host:port of its HTTP interface, the name of its node
    web_service_url: str = ""
    web_service_url_tls: str = ""
    pulsar_service_url: str = ""
    pulsar_service_url_tls: str = ""
    persistent_topics_enabled: bool = True
    non_persistent_topics_enabled: bool = True
    cpu: ResourceUsage = ResourceUsage()
    memory: ResourceUsage = ResourceUsage()
    direct_memory: ResourceUsage = ResourceUsage()
    bandwidth_in: ResourceUsage = ResourceUsage()
    bandwidth_out: ResourceUsage = ResourceUsage()
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    last_update_ms: int = 0  # the broker's own clock
    stats: dict[str, BundleStats] = field(default_factory=dict)  # of bundles with loaded topics
    topics: int = 0
    consumers: int = 0
    producers: int = 0
    bundles: Sequence[str] = ()  # all it owns, sorted
    gains: Sequence[str] = ()  # since the report before
    losses: Sequence[str] = ()
    version: str = ""
    start_timestamp_ms: int = 0
    incarnation: int = 0  # our own: of two processes of one broker the later has the higher one
    draining: bool = False  # our own: it gives its bundles away and takes none
    protocols: Mapping[str, str] = field(default_factory=dict)
    advertised_listeners: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)  # as of Pulsar's BrokerLookupData

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Two reports with the same identity are of the same broker, whatever its load."""
        return (
            self.web_service_url,
            self.web_service_url_tls,
            self.pulsar_service_url,
            self.pulsar_service_url_tls,
        )

    @property
    def rate(self) -> float:
        return self.msg_rate_in + self.msg_rate_out

    @property
    def throughput(self) -> float:
        return self.msg_throughput_in + self.msg_throughput_out

    def usage(self, weights: Weights) -> float:
        """The largest weighted share of a resource.

        A share far above 1.0 says that its limit is wrong (a NIC of unknown speed): left out.
        """
        return max(
            _counted(self.cpu.share) * weights.cpu,
            _counted(self.direct_memory.share) * weights.direct_memory,
            _counted(self.bandwidth_in.share) * weights.bandwidth_in,
            _counted(self.bandwidth_out.share) * weights.bandwidth_out,
        )


@dataclass(slots=True)
class TimeAverage:
    """TimeAverageMessageData: mean of the samples so far, at most ``samples_max`` of them.

    Invariant: samples <= samples_max. When full, a new sample weighs 1 / samples_max.
    """

    samples_max: int
    samples: int = 0
    msg_rate_in: float = _DEFAULT_RATE
    msg_rate_out: float = _DEFAULT_RATE
    msg_throughput_in: float = _DEFAULT_BYTES
    msg_throughput_out: float = _DEFAULT_BYTES

    def add(self, stats: BundleStats) -> None:
        """The first sample replaces the defaults."""
        if self.samples < self.samples_max:
            self.samples += 1
        if self.samples == 1:
            self.msg_rate_in, self.msg_rate_out = stats.msg_rate_in, stats.msg_rate_out
            self.msg_throughput_in = stats.msg_throughput_in
            self.msg_throughput_out = stats.msg_throughput_out
            return
        part = 1.0 / self.samples
        # The old value plus a part of the difference: a constant input stays what it is, exactly.
        self.msg_rate_in += (stats.msg_rate_in - self.msg_rate_in) * part
        self.msg_rate_out += (stats.msg_rate_out - self.msg_rate_out) * part
        self.msg_throughput_in += (stats.msg_throughput_in - self.msg_throughput_in) * part
        self.msg_throughput_out += (stats.msg_throughput_out - self.msg_throughput_out) * part

    @property
    def rate(self) -> float:
        return self.msg_rate_in + self.msg_rate_out

    @property
    def throughput(self) -> float:
        return self.msg_throughput_in + self.msg_throughput_out


@dataclass(slots=True)
class BundleData:
    """BundleData: a bundle's load over a short and a long time.

    One sample for each report of its owner, so the windows are counts of reports, not times.
    """

    short: TimeAverage = field(default_factory=lambda: TimeAverage(SHORT_SAMPLES))
    long: TimeAverage = field(default_factory=lambda: TimeAverage(LONG_SAMPLES))
    topics: int = 0

    def add(self, stats: BundleStats) -> None:
        self.short.add(stats)
        self.long.add(stats)
        self.topics = stats.topics

    @classmethod
    def of_quota(cls, quota: "BundleQuota") -> "BundleData":
        """Build the bundle's load from an operator's quota, with the weight of a full history."""
        metrics = (quota.msg_rate_in, quota.msg_rate_out, quota.bandwidth_in, quota.bandwidth_out)
        return cls(
            TimeAverage(SHORT_SAMPLES, SHORT_SAMPLES, *metrics),
            TimeAverage(LONG_SAMPLES, LONG_SAMPLES, *metrics),
        )


@dataclass(frozen=True, slots=True)
class BundleQuota:
    """Holds an operator's resource quota of a bundle; used until the bundle's load is known."""

    msg_rate_in: float = 40.0
    msg_rate_out: float = 120.0
    bandwidth_in: float = 100_000.0  # bytes a second
    bandwidth_out: float = 300_000.0
    memory: float = 80.0  # MiB
    dynamic: bool = True  # the load that is seen replaces it


DEFAULT_QUOTA: Final = BundleQuota()


@dataclass(frozen=True, slots=True)
class Move:
    """Unload ``bundle`` from ``source``. Answer: ``Balancer.on_moved`` or ``on_move_failed``."""

    bundle: str
    source: str
    target: str | None  # None: the broker that the next lookup finds
    reason: str = ""
    epoch: int = 0  # of the leader that orders it; 0: epochs aren't used


@dataclass(frozen=True, slots=True)
class Split:
    """Cut ``bundle``, at its owner. Answer: ``Balancer.on_split`` or ``on_split_failed``."""

    bundle: str
    owner: str
    algorithm: str  # one of bundles/splitting.py
    unload: bool  # the parts are placed anew
    reason: str = ""
    epoch: int = 0  # as of a move


SETTLE_S: Final = 60.0
"""After this time a change of a broker's bundles shows in its usage of CPU and network."""


def largest_change(last: BrokerLoad, now: BrokerLoad, weights: Weights) -> float:
    """Percent: of messages, bytes and bundles by their last value, of usage in points."""
    return max(
        _percent(last.rate, now.rate),
        _percent(last.throughput, now.throughput),
        _percent(len(last.bundles), len(now.bundles)),
        100.0 * abs(now.usage(weights) - last.usage(weights)),
    )


def report_due(
    last: BrokerLoad | None, age_s: float, now: BrokerLoad, config: BalancerConfig, weights: Weights
) -> bool:
    """Tell whether to write ``now``; asked every ``report_update_min_interval_millis``.

    Never ask while the store is out of reach. A split, the start and the beginning of a drain are
    reported at once, without asking.

    Args:
        last: what was written last, ``age_s`` ago by a clock that doesn't jump.
    """
    if last is None or age_s >= config.load_balancer_report_update_max_interval_minutes * 60:
        return True
    if age_s * 1000 < config.load_balancer_report_update_min_interval_millis:
        return False
    if largest_change(last, now, weights) > config.load_balancer_report_update_threshold_percentage:
        return True
    # Not in Pulsar: one bundle of hundreds changes no figure by ten percent. Without this the
    # leader that moved it would judge both brokers by its own guess for a quarter of an hour.
    return age_s >= SETTLE_S and set(last.bundles) != set(now.bundles)


def _percent(old: float, new: float) -> float:
    if old == 0:
        return 0.0 if new == 0 else math.inf
    return 100.0 * abs(old - new) / old
