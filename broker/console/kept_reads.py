"""What pages show of slow answers: the last one that this visitor got, read again by and by."""

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
_MISTAKE: Final = "a page of the console lacks an answer"


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


FINDINGS_AGE: Final = Age(fresh_s=5.0, share=20.0, most_s=60.0)
"""Of what needs attention: with 68,000 topics that takes 0.4 s of the processor."""


class KeptReads(Generic[T]):
    """One kind of answer, for each visitor as he may see it."""

    def __init__(self, clock_s: Callable[[], float], age: Age) -> None:
        self._clock_s, self._age = clock_s, age
        self._known: dict[str, tuple[T | AdminError, float]] = {}  # and until when
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def of(self, who: str, read: Callable[[], Awaitable[T]]) -> T | None:
        """The last answer; None: there is none yet.

        Args:
            read: asks, as ``who`` may.
        Raises:
            AdminError: it was refused, or failed by a mistake of ours.
        """
        known = self._known.get(who)
        if known is not None and self._clock_s() < known[1]:
            return _value(known[0])
        if (task := self._reading.get(who)) is None:
            task = self._reading[who] = asyncio.create_task(self._read(who, read))
        await asyncio.wait({task}, timeout=_WAIT_S)
        known = self._known.get(who)
        return None if known is None else _value(known[0])

    async def close(self) -> None:
        """Ends what is being read."""
        reading = list(self._reading.values())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    async def _read(self, who: str, read: Callable[[], Awaitable[T]]) -> None:
        began_s, age = self._clock_s(), self._age
        found: T | AdminError
        try:
            found = await read()
        except AdminError as error:
            found = error
        except Exception as error:
            logger.exception(_MISTAKE)
            reason = f"{type(error).__name__}, a mistake of the console; its log says: {_MISTAKE}"
            found = AdminError(500, reason)
        finally:
            del self._reading[who]
        now_s = self._clock_s()
        self._known.pop(who, None)
        kept_s = min(max(age.fresh_s, age.share * (now_s - began_s)), age.most_s)
        # A failure is told until the next read has ended, but the next page reads again.
        self._known[who] = found, 0.0 if isinstance(found, AdminError) else now_s + kept_s
        while len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]


def _value(found: T | AdminError) -> T:
    """Raises AdminError."""
    if isinstance(found, AdminError):
        raise found
    return found
