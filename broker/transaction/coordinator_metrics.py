"""Core: what coordinators count for metrics: each from its replay on, and all of a broker."""

from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.metrics import PeriodBuckets
from magnetar.broker.protocol.topic_name import TopicName

JOINED_LIMITS: Final = (10, 50, 100, 200, 500, 1000)
JOINED_BYTES_LIMITS: Final = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_232_896)
HELD_LIMITS_S: Final = (1, 5, 10)
"""Upper limits of Pulsar's buckets."""
TOPICS_MAX: Final = 500

DURATION_LIMITS_MS: Final = (
    *(10, 20, 50, 100, 500, 1000, 5000, 15_000, 30_000, 60_000, 300_000, 1_500_000, 3_000_000),
)
"""Upper limits of Pulsar's buckets; one more holds what is above."""


@dataclass(slots=True)
class EndTimes:
    """Commits, or aborts, that a topic and its subscriptions were asked for."""

    count: int = 0
    total_s: float = 0
    failed: int = 0

    def add(self, other: "EndTimes") -> None:
        self.count += other.count
        self.total_s += other.total_s
        self.failed += other.failed


class CoordinatorsMetrics:
    """Of all coordinators of a broker.

    Attributes:
        joined: records of each entry of a log.
        held_s: how long its oldest record was kept back.
        timed: entries that were appended since their time was over, at the end of a turn or later.
        filled: those that were large enough.
        under_way: ends that topics and subscriptions haven't answered.
        topics: those whose ends were the last, with their commits and aborts.
    """

    def __init__(self) -> None:
        self.joined = PeriodBuckets(JOINED_LIMITS)
        self.joined_bytes = PeriodBuckets(JOINED_BYTES_LIMITS)
        self.held_s = PeriodBuckets(HELD_LIMITS_S)
        self.timed = self.filled = self.under_way = 0
        self.topics: dict[str, tuple[EndTimes, EndTimes]] = {}

    def on_joined(self, count: int, size: int, held_s: float, *, is_last: bool) -> None:
        """An entry of that many records; ``is_last``: no further one was behind it."""
        self.joined.record(count)
        self.joined_bytes.record(size)
        self.held_s.record(held_s)
        self.timed += is_last
        self.filled += not is_last

    def on_end(self, topic: str, took_s: float, *, commit: bool, failed: bool) -> None:
        """A topic or one of its subscriptions has answered."""
        self.under_way -= 1
        both = self.topics.pop(topic, None) or (EndTimes(), EndTimes())
        self.topics[topic] = both
        if len(self.topics) > TOPICS_MAX:
            del self.topics[next(iter(self.topics))]
        times = both[0 if commit else 1]
        if failed:
            times.failed += 1
        else:
            times.count += 1
            times.total_s += took_s

    def ends(self, *, by_topic: bool) -> dict[tuple[str, str], tuple[EndTimes, EndTimes]]:
        """By namespace and topic, or "": one that clients have named in two ways is there once."""
        found: dict[tuple[str, str], tuple[EndTimes, EndTimes]] = {}
        for topic, both in self.topics.items():
            name = TopicName.parse(topic)
            key = name.namespace, str(name) if by_topic else ""
            for sums, times in zip(
                found.setdefault(key, (EndTimes(), EndTimes())), both, strict=True
            ):
                sums.add(times)
        return found


@dataclass(slots=True)
class CoordinatorMetrics:
    """Events of one coordinator.

    Attributes:
        committed, aborted: transactions whose participants all have the end; timed out ones are
            aborted, too.
        refused: new ones above the limit, which get no answer.
        appended: what was added to the log, joined or not.
        stuck: transactions that are there now and whose participants couldn't end them yet.
        durations: ms from the begin to the end.
    """

    created: int = 0
    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    refused: int = 0
    appended: int = 0
    stuck: int = 0
    durations: PeriodBuckets = field(default_factory=lambda: PeriodBuckets(DURATION_LIMITS_MS))
    _ended: list[int] = field(default_factory=list)  # when they began; not in ``durations`` yet

    def on_ended(self, start_ms: int, *, commits: bool) -> None:
        """``measure`` follows soon, with the time of the end."""
        if commits:
            self.committed += 1
        else:
            self.aborted += 1
        self._ended.append(start_ms)

    def measure(self, now_ms: int) -> None:
        """The time now, which is also that of the ends since the last call."""
        for start_ms in self._ended:
            self.durations.record(max(0, now_ms - start_ms))
        self._ended.clear()
