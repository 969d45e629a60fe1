"""Collects callbacks and waits, with a deadline, for what they bring."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tests.waiting import eventually as eventually

E = TypeVar("E")

DEADLINE_S = 30.0


class EventLog(Generic[E]):
    """Pass the log itself as the callback."""

    def __init__(self) -> None:
        self.events: list[E] = []
        self._news = asyncio.Event()

    def __call__(self, event: E) -> None:
        self.events.append(event)
        self._news.set()

    async def until(self, reached: Callable[[list[E]], bool]) -> list[E]:
        """Waits until ``reached(events)``; fails with the events so far after half a minute."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not reached(self.events):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not reached; events so far: {self.events}") from None
        return self.events


async def eventually_equal(read: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Reads until it is ``wanted``; fails after half a minute."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while (found := await read()) != wanted:
        assert asyncio.get_running_loop().time() < deadline, f"still {found}"
        await asyncio.sleep(0.001)
