"""Read-only by order: an operator's, or of a bookie that is about to be stopped.

It registers as read-only, so that no new ledger names it, and then refuses adds, which sends the
writers of open ledgers to other bookies one by one, while it still reads and answers what it took
before. Not earlier: they write to the metadata store to go elsewhere, so it had better be there.
Without that they find out by a connection that breaks with adds under way. Writers that have
nowhere to go keep asking: then it is for the caller to give up waiting.
"""

import asyncio
import logging
from typing import Final

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.errors import BookieClosedError

_log = logging.getLogger(__name__)

_QUIET_S: Final = 1.0
"""Without an add, until the writers count as gone; a refused one doesn't ask here again."""
_LOOK_S: Final = 0.1


class Drain:
    """``begin``; ``done`` is True some day. ``end`` takes it back, ``close`` leaves it at that.

    Attributes:
        is_before_stop: it was begun because the process will be stopped.

    Args:
        quiet_s: time without adds after which no writer is left.
    """

    def __init__(self, bookie: Bookie, quiet_s: float = _QUIET_S) -> None:
        self._bookie, self._quiet_s = bookie, quiet_s
        self._task: asyncio.Task[None] | None = None
        self._refuses = asyncio.Event()
        self.is_before_stop = False

    @property
    def is_under_way(self) -> bool:
        """It was ordered, and not taken back; also when it is done."""
        return self._task is not None

    @property
    def done(self) -> bool:
        """Registered as read-only, no adds any more, and all that was taken is flushed."""
        return self._task is not None and self._task.done() and not self._task.cancelled()

    def begin(self, *, before_stop: bool = True) -> None:
        self.is_before_stop |= before_stop
        if self._task is None:
            _log.info("read-only by order: writers are sent away")
            self._bookie.announce_read_only()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def end(self) -> None:
        """Take writers again, if the disk lets it."""
        task, self._task = self._task, None
        self.is_before_stop = False
        self._refuses.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
            self._bookie.set_ordered_read_only(False)

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def wait(self, seconds_max: float) -> bool:
        """Whether it is done by then. REQUIRES: begun."""
        assert self._task is not None
        await asyncio.wait((self._task,), timeout=seconds_max)
        return self.done

    async def wait_refusing(self, seconds_max: float) -> bool:
        """Whether writers are refused by then. REQUIRES: begun."""
        try:
            async with asyncio.timeout(seconds_max):
                return await self._refuses.wait()
        except TimeoutError:
            return False

    async def _run(self) -> None:
        bookie, loop = self._bookie, asyncio.get_running_loop()
        while not bookie.is_registered:
            if bookie.is_closed:
                return
            await asyncio.sleep(_LOOK_S)
        bookie.set_ordered_read_only(True)
        self._refuses.set()
        seen, since = -1, loop.time()
        while not bookie.is_closed:
            adds = bookie.metrics.added_entries + bookie.metrics.refused_adds
            if adds != seen or not bookie.is_registered or not bookie.is_idle:
                seen, since = adds, loop.time()
            elif loop.time() - since >= self._quiet_s:
                try:
                    await bookie.flush()
                except BookieClosedError as error:
                    _log.warning("drained, but not flushed: %s", error)  # the journal has it
                else:
                    _log.info("drained: no writers any more")
                return
            await asyncio.sleep(_LOOK_S)
