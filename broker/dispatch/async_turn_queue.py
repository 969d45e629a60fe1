"""asyncio shell of the turn queue: takes turns in runs, between which other work of the loop is."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

from magnetar.broker.dispatch.turn_queue import Turn, TurnQueue

_RUN_S: Final = 0.00025
"""A run that has taken so long ends with its turn; the other turns are taken in the next tick."""


class AsyncTurnQueue:
    """Turns of all dispatchers of a broker, their cost in seconds."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float] = perf_counter
    ) -> None:
        self._loop, self._now_s = loop, now_s
        self._queue = TurnQueue()
        self._scheduled = False

    def add(self, topic: object, turn: Turn) -> None:
        """Take ``turn``, which must not raise, in the next tick of the loop or a later one."""
        self._queue.add(topic, turn)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        queue, now_s = self._queue, self._now_s
        # Turns that are asked for by turns are for the next tick.
        left, began = queue.size, now_s()
        before, end = began, began + _RUN_S
        try:
            while left and before < end:
                left -= 1
                turn = queue.take()
                try:
                    turn()
                finally:
                    now = now_s()
                    queue.charge(now - before)
                    before = now
        finally:
            self._scheduled = queue.size > 0
            if self._scheduled:
                self._loop.call_soon(self._run)
