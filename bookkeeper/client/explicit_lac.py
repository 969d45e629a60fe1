"""Tells the bookies how far an idle writer has confirmed.

An entry carries the last confirmed one before it, so the last entry before a pause stays invisible
to tailing readers until the bookies are told. While adds flow there is one timer per interval
and nothing is sent; once the bookies know, there is no timer.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.ledger_writer import LedgerWriter
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookkeeperError

_BACKOFF_MAX: Final = 64  # longest pause between attempts that fail, in intervals


@dataclass(eq=False, repr=False)
class ExplicitLac:
    """The timer of one writer.

    Args:
        ack_quorum: so many bookies must know, that a reader who asks E - Qa + 1 of them hears it.
        interval_s: 0: off.
    """

    _core: LedgerWriter
    _bookies: BookiePool
    _master_key: bytes
    _creator: int
    _ack_quorum: int
    _interval_s: float
    _told: int = field(default=-1, init=False)
    _pause: int = field(default=1, init=False)  # in intervals
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def is_waiting(self) -> bool:
        """A timer or a request is under way."""
        return self._timer is not None or self._task is not None

    def on_confirmed(self) -> None:
        """The watermark moved; called once per loop tick at most."""
        if self._interval_s and self._timer is None and self._task is None:
            self._arm()

    def close(self) -> None:
        """The ledger was closed, or its writer failed: its metadata will tell."""
        self._interval_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s * self._pause, self._on_timer)

    def _is_untold(self) -> bool:
        core = self._core
        return core.error is None and core.last_confirmed > max(self._told, core.lac_carried)

    def _on_timer(self) -> None:
        self._timer = None
        if self._is_untold():
            self._task = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        lac = self._core.last_confirmed
        members = self._core.bookies
        answers = await asyncio.gather(*(self._write(bookie, lac) for bookie in members))
        self._task = None
        if answers.count(codes.OK) >= self._ack_quorum:
            self._told = lac
            self._pause = 1
        else:
            self._pause = min(2 * self._pause, _BACKOFF_MAX)
        if self._interval_s and self._is_untold():
            self._arm()

    async def _write(self, bookie: str, lac: int) -> int:
        client = self._bookies.client(bookie)
        try:
            return await client.write_lac(
                self._core.ledger_id, lac, master_key=self._master_key, creator=self._creator
            )
        except BookkeeperError:
            return codes.UNAVAILABLE
