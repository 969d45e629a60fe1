"""What pages show of slow answers: the last one that this visitor got, read again by and by."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from magnetar.broker.console.admin_api import AdminError

logger = logging.getLogger(__name__)

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
            read: asks, as ``who`` may.
        Raises:
            AdminError: it is refused.
        """
        known = self._known.get(who)
        if known is not None and self._clock_s() < known[1]:
            return known[0]
        if (task := self._reading.get(who)) is None:
            task = self._reading[who] = asyncio.create_task(self._read(who, read))
            task.add_done_callback(_seen)
        await asyncio.wait({task}, timeout=_WAIT_S)
        ended = task.done() and not task.cancelled()
        if ended and isinstance(refusal := task.exception(), AdminError):
            raise refusal
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
    """The page that asked may have gone. A mistake of ours shall not cost it more than a number."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, AdminError):
        logger.error("a page of the console lacks an answer", exc_info=error)
