"""Which consumer of a Failover subscription is active.

Only consumers of the best priority level are eligible, sorted by name. A partition picks by its
index, so that partitions spread; any other topic by a consistent hash ring, with 100 points for
each consumer. The order of joining is of no matter but among consumers of one name, of which the
later one is the greater. Source: Pulsar's AbstractDispatcherSingleActiveConsumer,
pickAndScheduleActiveConsumer.

The ring isn't kept: of each consumer only the point that comes first behind the topic's matters. So
a consumer that joins others costs a hundred hashes, and not a hundred for each one there. One that
is alone costs none: it is all that an Exclusive subscription ever has.
"""

from bisect import bisect_left, insort

import mmh3

from magnetar.broker.dispatch.interfaces import ConsumerState

_RING_POINTS = 100
_RING_SIZE = 1 << 31


class ActiveConsumerSelector:
    """The consumers of one subscription, and which of them is active."""

    def __init__(self, topic: str, partition_index: int) -> None:
        """``partition_index``: -1 for a topic that is no partition."""
        self._target = _hash(topic)
        self._partition = partition_index
        self._joined = 0
        self._keys: dict[ConsumerState, tuple[str, int]] = {}  # name, number of joining
        # By priority level, ascending by key; no level is empty
        self._levels: dict[int, list[tuple[tuple[str, int], ConsumerState]]] = {}
        self._distances: dict[ConsumerState, int] = {}
        self._first: dict[int, ConsumerState] = {}  # by level: the choice, while it is known

    def add(self, consumer: ConsumerState) -> None:
        self._joined += 1
        key = self._keys[consumer] = (consumer.name, self._joined)
        level = self._levels.setdefault(consumer.priority, [])
        insort(level, (key, consumer), key=_key_of)
        if self._partition < 0:
            first = self._first.get(consumer.priority)
            if len(level) == 1 or (first is not None and self._beats(consumer, first)):
                self._first[consumer.priority] = consumer

    def remove(self, consumer: ConsumerState) -> None:
        """REQUIRES: it was added."""
        key = self._keys.pop(consumer)
        level = self._levels[consumer.priority]
        del level[bisect_left(level, key, key=_key_of)]
        self._distances.pop(consumer, None)
        if self._first.get(consumer.priority) is consumer:
            del self._first[consumer.priority]
        if not level:
            del self._levels[consumer.priority]

    def choose(self) -> ConsumerState:
        """REQUIRES: there is one."""
        best = min(self._levels)
        level = self._levels[best]
        if self._partition >= 0:
            return level[self._partition % len(level)][1]
        if (first := self._first.get(best)) is None:
            first = level[0][1]
            for _, consumer in level[1:]:
                if self._beats(consumer, first):
                    first = consumer
            self._first[best] = first
        return first

    def _beats(self, consumer: ConsumerState, other: ConsumerState) -> bool:
        """Whose point is nearer; of those with the same point it is the greater one's."""
        mine, theirs = self._distance(consumer), self._distance(other)
        return mine < theirs or (mine == theirs and self._keys[consumer] > self._keys[other])

    def _distance(self, consumer: ConsumerState) -> int:
        """From the topic's place on the ring to the consumer's next point."""
        if (known := self._distances.get(consumer)) is not None:
            return known
        points = (_hash(f"{consumer.name}{point}") for point in range(_RING_POINTS))
        found = min((point - self._target) % _RING_SIZE for point in points)
        self._distances[consumer] = found
        return found


def _key_of(item: tuple[tuple[str, int], ConsumerState]) -> tuple[str, int]:
    return item[0]


def _hash(text: str) -> int:
    return mmh3.hash(text, signed=False) & 0x7FFFFFFF
