"""Long work in turns of half a millisecond of the event loop; others have theirs in between."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from time import perf_counter, thread_time
from typing import Final, TypeVar

TURN_S: Final = 0.0005
_Item = TypeVar("_Item")


class LoopTurns:
    """Whether it is time to let others run, and the wait for the next turn."""

    __slots__ = ("_before_s", "_clock", "_end_s", "_used_s")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._before_s = 0.0  # used in the turns before
        self._begin()

    def _begin(self) -> None:
        self._end_s, self._used_s = self._clock() + TURN_S, thread_time()

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._end_s

    @property
    def used_s(self) -> float:
        """Of a processor, in all turns."""
        return self._before_s + thread_time() - self._used_s

    async def next(self) -> None:
        self._before_s = self.used_s
        await asyncio.sleep(0)
        self._begin()


async def in_turns(
    items: Iterable[_Item], clock: Callable[[], float] = perf_counter
) -> AsyncIterator[_Item]:
    """The items; between two of them others have their turn when half a millisecond is over."""
    end_s = clock() + TURN_S
    for item in items:
        yield item
        if clock() >= end_s:
            await asyncio.sleep(0)
            end_s = clock() + TURN_S
