"""What pages show of slow answers: the last one that this visitor got, read again by and by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_WAIT_S: Final = 0.1
"""A page waits so long for an answer; else it has that of before, or none."""
_KNOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Age:
    """How long an answer is good for.

    Attributes:
        fresh_s: at least.
        share: as many times as long as it took.
        most_s: but no longer than this.
    """

    fresh_s: float
    share: float
    most_s: float


class KeptReads(Generic[T]):
    """One kind of answer, for each visitor as he may see it."""

    def __init__(self, clock_s: Callable[[], float], age: Age) -> None:
        self._clock_s, self._age = clock_s, age
        self._known: dict[str, tuple[T, float]] = {}  # and until when
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def of(self, who: str, read: Callable[[], Awaitable[T]]) -> T | None:
        """The last answer; None: there is none yet.

        Args:
            read: asks, as ``who`` may. What it raises is raised here, if it does so soon.
        """
        known = self._known.get(who)
        if known is not None and self._clock_s() < known[1]:
            return known[0]
        if (task := self._reading.get(who)) is None:
            task = self._reading[who] = asyncio.create_task(self._read(who, read))
            task.add_done_callback(_seen)
        done, _ = await asyncio.wait({task}, timeout=_WAIT_S)
        for each in done:
            each.result()
        known = self._known.get(who)
        return None if known is None else known[0]

    async def close(self) -> None:
        """Ends what is being read."""
        reading = list(self._reading.values())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    async def _read(self, who: str, read: Callable[[], Awaitable[T]]) -> None:
        began_s, age = self._clock_s(), self._age
        try:
            found = await read()
        finally:
            del self._reading[who]
        now_s = self._clock_s()
        self._known.pop(who, None)
        kept_s = min(max(age.fresh_s, age.share * (now_s - began_s)), age.most_s)
        self._known[who] = found, now_s + kept_s
        while len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]


def _seen(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # the page that asked may have gone
