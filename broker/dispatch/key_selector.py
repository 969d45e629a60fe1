"""Which consumer owns a sticky slot: consistent hashing, or ranges the consumers bring (6.4)."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Generator, Iterator, Mapping, Sequence

import mmh3

from magnetar.broker.dispatch.interfaces import ConsumerState

Ranges = Mapping[ConsumerState, Sequence[tuple[int, int]]]
Steps = Generator[None, None, Ranges]
RANGE_SIZE = 65_536
_POINTS = 100
_BROUGHT_MAX = 4_096
_POINTS_A_STEP = 256


class KeySelector(ABC):
    """Maps 31-bit key hashes to slots and slots to consumers."""

    def slot_of(self, key_hash: int) -> int:
        return key_hash % (RANGE_SIZE - 1) + 1

    @abstractmethod
    def owner(self, slot: int) -> ConsumerState | None: ...
    @abstractmethod
    def add(self, consumer: ConsumerState) -> None: ...
    @abstractmethod
    def remove(self, consumer: ConsumerState) -> None: ...
    @abstractmethod
    def ranges(self) -> Steps:
        """Inclusive ranges of slots by consumer, ascending; for statistics.

        Consumers that come or go between two steps may be missing.
        """


class HashRing(KeySelector):
    """AUTO_SPLIT: 100 points a consumer on a ring of the slots 1 .. 65535.

    Source: Pulsar ConsistentHashingStickyKeyConsumerSelector: a point is the slot of the consumer's
    name, its index among consumers of that name and the point's number, parted by NUL.
    """

    def __init__(self) -> None:
        self._points: dict[int, list[ConsumerState]] = {}
        self._order: list[int] = []
        self._mine: dict[ConsumerState, tuple[int, list[int]]] = {}  # name index, points
        self._ranges: Ranges | None = None  # as last asked
        self._cutting: Ranges | None = None  # those that are being made; None: of another ring

    def owner(self, slot: int) -> ConsumerState | None:
        if not self._order:
            return None
        at = bisect_left(self._order, slot)
        return self._points[self._order[at if at < len(self._order) else 0]][0]

    def add(self, consumer: ConsumerState) -> None:
        taken = {index for other, (index, _) in self._mine.items() if other.name == consumer.name}
        name_index = next(index for index in range(len(taken) + 1) if index not in taken)
        points = [
            self.slot_of(_hash(f"{consumer.name}\0{name_index}\0{point}"))
            for point in range(_POINTS)
        ]
        self._mine[consumer] = (name_index, points)
        for point in points:
            owners = self._points.get(point)
            if owners is None:
                self._points[point] = [consumer]
                insort(self._order, point)
            elif consumer not in owners:
                owners.append(consumer)
        self._ranges = self._cutting = None

    def remove(self, consumer: ConsumerState) -> None:
        _, points = self._mine.pop(consumer)
        for point in set(points):
            owners = self._points[point]
            owners.remove(consumer)
            if not owners:
                del self._points[point]
                del self._order[bisect_left(self._order, point)]
        self._ranges = self._cutting = None

    def ranges(self) -> Steps:
        if self._ranges is not None:
            return self._ranges
        found: dict[ConsumerState, list[tuple[int, int]]] = {each: [] for each in self._mine}
        self._cutting = found
        yield from self._cut(found)
        if self._cutting is found:  # the ring has not changed
            self._ranges = found
        return found

    def _cut(self, found: dict[ConsumerState, list[tuple[int, int]]]) -> Iterator[None]:
        """Of thousands of consumers in steps: 60,000 ranges are a turn of 50 ms."""
        first = 1
        # What lies behind the last point belongs to the first point's owner.
        for number, last in enumerate([*self._order, RANGE_SIZE - 1], 1):
            owner = self.owner(last)
            if last >= first and owner is not None and (mine := found.get(owner)) is not None:
                if mine and mine[-1][1] == first - 1:
                    mine[-1] = (mine[-1][0], last)
                else:
                    mine.append((first, last))
            first = last + 1
            if number % _POINTS_A_STEP == 0:
                yield


class SplitRanges(KeySelector):
    """AUTO_SPLIT without consistent hashing: one range a consumer, of the slots 1 .. 65535.

    A new consumer takes the lower half of the widest range; one that leaves gives its own to
    the narrower neighbour. Two consumers share evenly whatever their names are; many share less so.
    """

    def __init__(self) -> None:
        self._lasts: list[int] = []  # last slot of each range, ascending
        self._owners: list[ConsumerState] = []  # of the range at the same index
        self._idle: list[ConsumerState] = []  # came when every range was a single slot

    def owner(self, slot: int) -> ConsumerState | None:
        return self._owners[bisect_left(self._lasts, slot)] if self._owners else None

    def add(self, consumer: ConsumerState) -> None:
        if not self._owners:
            self._lasts, self._owners = [RANGE_SIZE - 1], [consumer]
            return
        widest = max(range(len(self._lasts)), key=self._width)
        if (width := self._width(widest)) == 1:
            self._idle.append(consumer)
            return
        self._lasts.insert(widest, self._lasts[widest] - (width + 1) // 2)
        self._owners.insert(widest, consumer)

    def remove(self, consumer: ConsumerState) -> None:
        if consumer in self._idle:
            self._idle.remove(consumer)
            return
        at = self._owners.index(consumer)
        if self._idle:
            self._owners[at] = self._idle.pop(0)
            return
        last_index = len(self._owners) - 1
        # A range ends where the next one begins: dropping its end gives it to the next one.
        if at > 0 and (at == last_index or self._width(at - 1) < self._width(at + 1)):
            self._lasts[at - 1] = self._lasts[at]
        del self._lasts[at], self._owners[at]

    def _width(self, at: int) -> int:
        return self._lasts[at] - (self._lasts[at - 1] if at else 0)

    def ranges(self) -> Steps:
        yield
        firsts = [1, *(last + 1 for last in self._lasts)]
        held: dict[ConsumerState, Sequence[tuple[int, int]]] = {each: [] for each in self._idle}
        for owner, first, last in zip(self._owners, firsts, self._lasts, strict=False):
            held[owner] = [(first, last)]
        return held


class StickyRanges(KeySelector):
    """STICKY: every consumer brings inclusive ranges of the slots 0 .. 65535."""

    def __init__(self) -> None:
        self._ranges: dict[ConsumerState, list[tuple[int, int]]] = {}
        self._offered: list[tuple[int, int]] = []
        # All ranges, ascending, and the owner of each at the same index; they don't overlap
        self._order: list[tuple[int, int]] = []
        self._owners: list[ConsumerState] = []

    def conflict(self, ranges: Sequence[tuple[int, int]]) -> str | None:
        """Why a consumer can't join with these ranges; None: it can."""
        if not ranges:
            return "Ranges for KeyShared policy must not be empty."
        if len(ranges) > _BROUGHT_MAX:
            return f"{len(ranges)} ranges, a consumer may bring {_BROUGHT_MAX}"
        taken = self._order.copy()
        for first, last in ranges:
            if not 0 <= first <= last < RANGE_SIZE:
                return f"Invalid range [{first}, {last}]"
            # They don't overlap: of those that begin before ours ends, the last reaches furthest
            at = bisect_right(taken, (last, RANGE_SIZE))
            if at and taken[at - 1][1] >= first:
                other_first, other_last = taken[at - 1]
                return f"Range [{first}, {last}] overlaps [{other_first}, {other_last}]"
            taken.insert(at, (first, last))
        return None

    def offer(self, ranges: Sequence[tuple[int, int]]) -> None:
        """The ranges of the consumer that is added next."""
        self._offered = list(ranges)

    def slot_of(self, key_hash: int) -> int:
        return key_hash % RANGE_SIZE or 1  # slot 0 is reserved

    def owner(self, slot: int) -> ConsumerState | None:
        at = bisect_right(self._order, (slot, RANGE_SIZE)) - 1
        return self._owners[at] if at >= 0 and self._order[at][1] >= slot else None

    def add(self, consumer: ConsumerState) -> None:
        self._ranges[consumer], self._offered = self._offered, []
        self._sort()

    def remove(self, consumer: ConsumerState) -> None:
        del self._ranges[consumer]
        self._sort()

    def ranges(self) -> Steps:
        yield
        return {consumer: sorted(held) for consumer, held in self._ranges.items()}

    def _sort(self) -> None:
        owners = {each: owner for owner, held in self._ranges.items() for each in held}
        self._order = sorted(owners)
        self._owners = [owners[each] for each in self._order]


def _hash(text: str) -> int:
    return mmh3.hash(text, signed=False) & 0x7FFFFFFF
