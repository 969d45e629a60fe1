"""Whose turn it is among the dispatchers of a broker, so that no topic waits for all of another's.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each topic has a virtual time, to which the cost
of its turns is added, and the topic whose time is the least is next. One that comes back begins at
the time of the topic that was served last, or where it ended if that is later. So a topic whose
turns cost little waits for a turn or two of the others, and one whose turns cost much isn't passed
over for ever. Turns of one topic are taken in the order in which they came.

Calls in, effects out; no clock, socket or task.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import TypeAlias

Turn: TypeAlias = Callable[[], None]


class TopicTurns:
    """The turns that dispatchers of one topic wait for."""

    __slots__ = ("start", "waiting")

    def __init__(self, start: float) -> None:
        self.start = start
        """Virtual time at which its next turn begins."""
        self.waiting: deque[Turn] = deque()


class TurnQueue:
    """Turns of all topics, in the order in which they are taken.

    Invariant: a topic is in the heap once, from its first turn until those served have passed the
    virtual time at which it ended, or no turn waits.
    """

    __slots__ = ("_heap", "_pushes", "_topics", "_virtual", "size")

    def __init__(self) -> None:
        self._topics: dict[object, TopicTurns] = {}
        self._heap: list[tuple[float, int, object, TopicTurns]] = []  # by start, then as they came
        self._pushes = 0
        self._virtual = 0.0  # start of the turn that was taken last
        self.size = 0
        """Turns that wait."""

    def add(self, topic: object, turn: Turn) -> None:
        """A dispatcher of ``topic`` wants a turn."""
        self.size += 1
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicTurns(self._virtual)
            self._pushes += 1
            heappush(self._heap, (found.start, self._pushes, topic, found))
        found.waiting.append(turn)

    def take(self) -> Turn:
        """The next turn; what it cost is told with ``charge``. REQUIRES: ``size`` isn't 0."""
        heap = self._heap
        while not (found := heap[0][3]).waiting:
            del self._topics[heap[0][2]]
            heappop(heap)
        self._virtual = found.start
        self.size -= 1
        return found.waiting.popleft()

    def charge(self, cost: float) -> None:
        """The turn that was taken last has ended; ``cost`` is in whatever unit, above 0."""
        if not self.size:  # nobody was passed over: all begin anew
            self._topics.clear()
            self._heap.clear()
            self._virtual = 0.0
            return
        # Still the first: what came meanwhile begins no earlier.
        _, _, topic, found = self._heap[0]
        found.start += cost
        self._pushes += 1
        heapreplace(self._heap, (found.start, self._pushes, topic, found))
