"""Work for unauthenticated clients, done in small pieces between that for others.

Clients that come to a port in great numbers make work before they are authenticated: they are
accepted, read, checked, refused. Done as it comes, fifty of them would hold the loop for many
milliseconds. Here the work queues, and gets a fraction of a millisecond of each turn of the loop:
authenticated clients are served in between. A loop that has nothing else to do loses nothing.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

TURN_S: Final = 0.0001
"""One piece of work is done in any case."""

Item = TypeVar("Item")


class TimeSlicedQueue(Generic[Item]):
    """A queue of things to be worked on, in the order of their coming."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[Item], None],
        *,
        turn_s: float = TURN_S,
    ) -> None:
        """
        Args:
            work: called for each; what it raises is logged.
            turn_s: of each turn of the loop; 0: one piece of work, where that makes more of it.
        """
        self._turn_s = turn_s
        self._loop = loop
        self._work = work
        self._queue: deque[Item] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: Item) -> None:
        self._queue.append(item)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        end_s = perf_counter() + self._turn_s
        queue, work = self._queue, self._work
        while queue:
            try:
                work(queue.popleft())
            except Exception:  # the others in the queue go on
                logger.exception("an unauthenticated connection failed")
            if perf_counter() >= end_s:
                break
        self._scheduled = bool(queue)
        if queue:
            self._loop.call_soon(self._turn)
