"""Holds the leader's view of the cluster: reports, windows, and its decisions since. Pure.

A report is late by nature: a bundle that was placed or moved shows in it only after a while, and
the leader can't tell how much of it shows. Until then the leader expects the load of the broker's
last report plus a guess of the bundle's load (``PendingDelta``). It goes by reports again
once one was made ``SETTLE_S`` after the decision, or after twice that time if a report has shown
the bundle come or gone (a larger change would have been reported).

Time is the leader's own, from a clock that never jumps; a report's age is told by the shell.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from magnetar.loadbalance.model import SETTLE_S, BrokerLoad, BundleData, Weights, namespace_of

_SAMPLING_S: Final = 5.0
"""Interval of the samples of which the moving average of usage is made."""
_BYTES_OF_A_FULL_BROKER: Final = 10 * 1024 * 1024.0
"""A second; no broker is so slow that fewer of them fill it."""
STEP: Final = 100
"""Brokers that are looked at before others may run: some 0.2 ms."""
_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(slots=True)
class PendingDelta:
    """Holds the load that incoming bundles add to a broker; negative for outgoing bundles."""

    usage: float = 0.0
    rate: float = 0.0
    throughput: float = 0.0
    long_rate: float = 0.0  # 0.0 as soon as the broker's own long rate shows it
    topics: int = 0
    since_s: float = 0.0
    comes: bool = True

    def add(self, other: "PendingDelta") -> None:
        self.usage += other.usage
        self.rate += other.rate
        self.throughput += other.throughput
        self.long_rate += other.long_rate
        self.topics += other.topics


@dataclass(slots=True)
class BrokerState:
    """One live broker."""

    broker: str
    load: BrokerLoad
    reported_usage: float
    made_s: float  # when the last report was made
    average: float  # moving average of reported usage, as of ``made_s``
    bundles: set[str] = field(default_factory=set)  # by its last report
    reported_long_rate: float = 0.0  # of those, over a long time
    placed: dict[str, float] = field(default_factory=dict)  # to come, not reported: since when
    expected: dict[str, PendingDelta] = field(default_factory=dict)  # by bundle
    total: PendingDelta = field(
        default_factory=PendingDelta
    )  # of ``expected``, and what it adds to:
    base: tuple[float, float, float] = (0.0, 0.0, 0.0)  # usage, rate, throughput
    moved_s: float = -math.inf  # when a move from or to it was decided last

    @property
    def usage(self) -> float:
        """As reported, and what came or went since; so are the others."""
        if not self.expected:
            return self.reported_usage
        return max(0.0, self.base[0] + self.total.usage)

    @property
    def rate(self) -> float:
        return max(0.0, self.base[1] + self.total.rate) if self.expected else self.load.rate

    @property
    def throughput(self) -> float:
        if not self.expected:
            return self.load.throughput
        return max(0.0, self.base[2] + self.total.throughput)

    @property
    def long_rate(self) -> float:
        return max(0.0, self.reported_long_rate + self.total.long_rate)

    @property
    def topics(self) -> int:
        return self.load.topics + self.total.topics

    def average_at(self, now_s: float, history: float) -> float:
        """Moving average of usage, as if sampled every five seconds, and what came or went."""
        average = self.settled_average(now_s, history)
        return max(0.0, average + self.usage - self.reported_usage)

    def in_cooldown(self, now_s: float) -> bool:
        """Tell whether the broker took part in a move that its reports don't show yet."""
        shown = self.made_s >= self.moved_s + SETTLE_S or now_s >= self.moved_s + 2 * SETTLE_S
        return not shown

    def settled_average(self, now_s: float, history: float) -> float:
        """The same without what isn't reported. Between two reports usage is as in the first."""
        kept: float = history ** max(0.0, (now_s - self.made_s) / _SAMPLING_S)
        return self.reported_usage + (self.average - self.reported_usage) * kept

    def add_pending(self, bundle: str, change: PendingDelta) -> None:
        if not self.expected:
            self._begin()
        self.expected[bundle] = change
        self.total.add(change)

    def _begin(self) -> None:
        self.base = (self.reported_usage, self.load.rate, self.load.throughput)

    def settled(self) -> None:
        """Some of what was expected is in the last report."""
        self._begin()
        self.sum_up()

    def sum_up(self) -> None:
        """From the parts, so that no error of rounding stays."""
        self.total = PendingDelta()
        for each in self.expected.values():
            self.total.add(each)


class ClusterState:
    """Holds all live brokers, the load of all known bundles, and the owner of each bundle.

    Invariant: ``owners[b]`` is the broker that has b ``placed`` (one at most), else the one that
    reported to have got it last. ``spread`` counts exactly ``owners``, without zeros.
    """

    def __init__(self, weights: Weights, history: float) -> None:
        """``history``: weight of the old value in a step of the moving average of usage."""
        self._weights, self._history = weights, history
        self.brokers: dict[str, BrokerState] = {}
        self.bundles: dict[str, BundleData] = {}
        self.owners: dict[str, str] = {}
        self.spread: dict[str, dict[str, int]] = {}  # namespace -> broker -> bundles there
        self.membership = 0  # another number whenever a broker has come or gone
        self._usage = self._throughput = 0.0  # of all brokers, as reported

    # --- reports

    def on_report(self, load: BrokerLoad, now_s: float, age_s: float = 0.0) -> None:
        """A report of a broker; each one is told once.

        Args:
            age_s: how long ago it was made, at best knowledge; 0.0 for news.
        """
        usage, made_s = load.usage(self._weights), now_s - age_s
        broker = self.brokers.get(load.broker_id)
        if broker is None:
            broker = BrokerState(load.broker_id, load, usage, made_s, usage)
            self.brokers[load.broker_id] = broker
            self.membership += 1
        else:
            self._usage -= broker.reported_usage
            self._throughput -= broker.load.throughput
            made_s = max(made_s, broker.made_s)
            broker.average = broker.settled_average(made_s, self._history)
            broker.load, broker.reported_usage, broker.made_s = load, usage, made_s
        self._usage += usage
        self._throughput += load.throughput
        self._take_stats(broker)
        self._take_bundles(broker, set(load.bundles))
        self._settle(broker, now_s)

    def _take_stats(self, broker: BrokerState) -> None:
        bundles, long_rate = self.bundles, 0.0
        for name, stats in broker.load.stats.items():
            load = bundles.get(name)
            if load is None:
                load = bundles[name] = BundleData()
            load.add(stats)
            long_rate += load.long.msg_rate_in + load.long.msg_rate_out
        broker.reported_long_rate = long_rate

    def _take_bundles(self, broker: BrokerState, now: set[str]) -> None:
        before, broker.bundles = broker.bundles, now
        for name in before - now:
            if self.owners.get(name) == broker.broker and name not in broker.placed:
                self._set_owner(name, None)
        for name in now - before:
            holder = self.brokers.get(self.owners.get(name, ""))
            if holder is not None and holder is not broker and name in holder.placed:
                self._forget(holder, name)  # it came here, whatever was decided
            self._set_owner(name, broker.broker)
        for name in now & broker.placed.keys():
            del broker.placed[name]

    def _settle(self, broker: BrokerState, now_s: float) -> None:
        """Drops guesses that reports have replaced by now."""
        if not broker.expected and not broker.placed:
            return
        stats, settled_s = broker.load.stats, broker.made_s - SETTLE_S
        before = len(broker.expected)
        for name, each in list(broker.expected.items()):
            shown = (name in broker.bundles) == each.comes
            if each.since_s <= settled_s or (shown and each.since_s <= now_s - 2 * SETTLE_S):
                del broker.expected[name]
            elif (name in stats) == each.comes:
                each.long_rate = 0.0
        if len(broker.expected) < before:
            broker.settled()
        else:
            broker.sum_up()
        for name in [key for key, since_s in broker.placed.items() if since_s <= settled_s]:
            del broker.placed[name]  # it never came
            self._set_owner(name, self._reporter_of(name))

    def settle(self, now_s: float) -> Iterator[None]:
        """Before a round, however few reports there were; stops after every few brokers."""
        for number, broker in enumerate(list(self.brokers.values()), 1):
            if self.brokers.get(broker.broker) is broker:  # not gone meanwhile
                self._settle(broker, now_s)
            if not number % STEP:
                yield
        self._usage = sum(each.reported_usage for each in self.brokers.values())
        self._throughput = sum(each.load.throughput for each in self.brokers.values())

    def on_broker_gone(self, broker: str) -> None:
        """Remove a broker whose node is gone. Its bundles have no owner until a report has one."""
        state = self.brokers.pop(broker, None)
        if state is None:
            return
        self.membership += 1
        self._usage -= state.reported_usage
        self._throughput -= state.load.throughput
        for name in state.bundles:
            if self.owners.get(name) == broker:
                self._set_owner(name, None)
        for name in state.placed:
            if self.owners.get(name) == broker:
                self._set_owner(name, self._reporter_of(name))

    # --- decisions

    def add_pending(self, bundle: str, source: str | None, target: str, now_s: float) -> None:
        """Note our decision to move ``bundle`` from ``source`` (None: no owner) to ``target``."""
        load = self.load_of(bundle)
        giver = None if source is None else self.brokers.get(source)
        usage = self.usage_of(load, giver)
        rate, throughput, long_rate = load.short.rate, load.short.throughput, load.long.rate
        if giver is not None:
            self._forget(giver, bundle)
            shown = long_rate if bundle in giver.load.stats else 0.0
            goes = PendingDelta(-usage, -rate, -throughput, -shown, -load.topics, now_s, False)
            giver.add_pending(bundle, goes)
            giver.moved_s = now_s
        if (taker := self.brokers.get(target)) is not None:
            self._forget(taker, bundle)
            comes = PendingDelta(usage, rate, throughput, long_rate, load.topics, now_s)
            taker.add_pending(bundle, comes)
            if giver is not None:
                taker.moved_s = now_s
            taker.placed[bundle] = now_s
            self._set_owner(bundle, target)

    def rollback(self, bundle: str, source: str | None, target: str) -> None:
        """Undo a decision that wasn't carried out: the broker that reports the bundle has it."""
        for name in (source, target):
            if name is not None and (state := self.brokers.get(name)) is not None:
                self._forget(state, bundle)
        if self.owners.get(bundle) == target:
            giver = None if source is None else self.brokers.get(source)
            if giver is not None and bundle in giver.bundles:  # no need to ask all
                self._set_owner(bundle, giver.broker)
            else:
                self._set_owner(bundle, self._reporter_of(bundle))

    def forget_bundles(self, names: Iterable[str]) -> None:
        """Bundles that don't exist any more: split, or of a deleted namespace."""
        for name in names:
            self.bundles.pop(name, None)
            for state in self.brokers.values():
                self._forget(state, name)
                state.bundles.discard(name)
            self._set_owner(name, None)

    @staticmethod
    def _forget(broker: BrokerState, bundle: str) -> None:
        broker.placed.pop(bundle, None)
        if broker.expected.pop(bundle, None) is not None:
            broker.sum_up()

    # --- figures

    def load_of(self, bundle: str) -> BundleData:
        """Return a bundle's load; the default if no broker reported it and the store has none."""
        return self.bundles.get(bundle) or BundleData()

    def usage_of(self, load: BundleData, broker: BrokerState | None) -> float:
        """The part of a broker's usage that a bundle causes, by its share of the bytes.

        Args:
            broker: the broker that serves it; None: as on the average broker.
        """
        if broker is None:
            # In an idle cluster all usage would be blamed on the few bytes that there are.
            least = self._usage * _BYTES_OF_A_FULL_BROKER
            throughput = max(self._throughput, least)
            return self._usage * load.short.throughput / throughput if throughput > 0 else 0.0
        if broker.load.throughput <= 0:
            return 0.0
        return broker.reported_usage * min(1.0, load.short.throughput / broker.load.throughput)

    def held(self, namespace: str) -> Mapping[str, int]:
        """Bundles of a namespace by broker."""
        return self.spread.get(namespace, _NOWHERE)

    # --- owners of bundles

    def _reporter_of(self, bundle: str) -> str | None:
        having = (each for each in self.brokers.values() if bundle in each.bundles)
        return next((each.broker for each in having), None)

    def _set_owner(self, bundle: str, broker: str | None) -> None:
        before = self.owners.get(bundle)
        if before == broker:
            return
        namespace = namespace_of(bundle)
        counts = self.spread.setdefault(namespace, {})
        if before is not None:
            counts[before] -= 1
            if not counts[before]:
                del counts[before]
        if broker is None:
            del self.owners[bundle]
        else:
            self.owners[bundle] = broker
            counts[broker] = counts.get(broker, 0) + 1
        if not counts:
            del self.spread[namespace]
