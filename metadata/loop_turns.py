"""Long work in turns of half a millisecond of the event loop; others have theirs in between."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from time import perf_counter, thread_time
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

TURN_S: Final = 0.0005
_SORTED_AT: Final = 256
_Item = TypeVar("_Item")
Steps: TypeAlias = Generator[None, None, _Item]
"""Work with a result that may be long; between two of its steps anything may happen."""


def keep_least(found: list[Any], item: tuple[Any, ...], most: int) -> None:
    """Add one of very many, of which the least ``most`` are asked for; more may stay, unsorted."""
    found.append(item)
    if len(found) % _SORTED_AT == 0:
        found.sort()
        del found[most:]


class _Queue:
    """Of those that wait for a turn of a loop: one goes on in each."""

    __slots__ = ("_is_due", "_waiting")

    def __init__(self) -> None:
        self._waiting = deque[asyncio.Future[None]]()
        self._is_due = False  # whether one goes on in the next turn

    async def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_due:
            self._waiting.append(waits := loop.create_future())
            await waits
        else:
            self._is_due = True
            loop.call_soon(self._wake, loop)
            await asyncio.sleep(0)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            if not (waits := self._waiting.popleft()).done():  # else its task was cancelled
                waits.set_result(None)
                loop.call_soon(self._wake, loop)
                return
        self._is_due = False


_QUEUES: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue]()


async def next_turn() -> None:
    """Others have their turn.

    A hundred pages that are made at the same time wait here for each other: if all of them had half
    a millisecond of the same turn, it would take fifty.
    """
    loop = asyncio.get_running_loop()
    if (queue := _QUEUES.get(loop)) is None:
        queue = _QUEUES[loop] = _Queue()
    await queue.wait(loop)


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
        await next_turn()
        self._begin()

    async def run(self, steps: Steps[_Item]) -> _Item:
        """The result; between two steps others may have their turn."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found: _Item = done.value
                return found
            if self.is_over:
                await self.next()


async def in_turns(
    items: Iterable[_Item], clock: Callable[[], float] = perf_counter
) -> AsyncGenerator[_Item, None]:
    """The items; between two of them others have their turn when half a millisecond is over."""
    end_s = clock() + TURN_S
    for item in items:
        yield item
        if clock() >= end_s:
            await next_turn()
            end_s = clock() + TURN_S


async def run_in_turns(steps: Steps[_Item]) -> _Item:
    """The result; between two steps others have their turn when half a millisecond is over."""
    # Not LoopTurns, which asks for the processor's time: most of what is run here is short.
    end_s = perf_counter() + TURN_S
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: _Item = done.value
            return found
        if perf_counter() >= end_s:
            await next_turn()
            end_s = perf_counter() + TURN_S


def run_at_once(steps: Steps[_Item]) -> _Item:
    """The result, in one turn."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: _Item = done.value
            return found
