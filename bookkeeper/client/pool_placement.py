"""A placement policy that goes by what a pool of bookies knows."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.bookkeeper.client.placement import (
    EnsemblePlacementPolicy,
    PlacementConfig,
    PlacementRandom,
    make_placement,
)
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookkeeperError


@asynccontextmanager
async def placement_for(
    config: PlacementConfig, bookies: BookiePool, rng: PlacementRandom
) -> AsyncIterator[EnsemblePlacementPolicy]:
    """The policy of these settings, with the pool's places and quarantine.

    Asks for the bookies' free space in the background if the policy goes by it; the pool has been
    started.
    """
    if not config.by_free_space:
        yield make_placement(
            *(config, rng, bookies.location, bookies.health.quarantined),
            groups_of=bookies.groups_of,
        )
        return
    space = FreeSpace(bookies, config.info_interval_s, config.info_retry_s)
    space.start()
    try:
        yield make_placement(
            *(config, rng, bookies.location, bookies.health.quarantined, space.free_bytes),
            groups_of=bookies.groups_of,
        )
    finally:
        await space.close()


_log = logging.getLogger(__name__)


class FreeSpace:
    """Free bytes of the bookies that accept writes, for placement by weight.

    It sleeps until a bookie comes, an answer is due or a failed one is to be asked again: an idle
    cluster costs one request per bookie and interval.

    Args:
        interval_s: how old an answer may get.
        retry_s: pause before a bookie that didn't answer is asked again.
    """

    def __init__(self, bookies: BookiePool, interval_s: float, retry_s: float) -> None:
        self._bookies = bookies
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._free: dict[str, int] = {}
        self._due: dict[str, float] = {}  # bookie -> when it is to be asked, by the loop's clock
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def free_bytes(self, bookie_id: str) -> int:
        """As it last said; 0: it never did."""
        return self._free.get(bookie_id, 0)

    def start(self) -> None:
        """Begin to ask; the pool tells of newcomers from now on."""
        self._bookies.on_writable_changed = self._changed.set
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._bookies.on_writable_changed = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            writable = self._bookies.writable
            self._due = {b: due for b, due in self._due.items() if b in writable}
            self._free = {b: free for b, free in self._free.items() if b in writable}
            wanted = sorted(b for b in writable if self._due.get(b, 0.0) <= clock())
            await asyncio.gather(*map(self._ask, wanted))
            pause = min(self._due.values(), default=clock() + self._interval_s) - clock()
            try:
                async with asyncio.timeout(max(pause, 0.0)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _ask(self, bookie: str) -> None:
        pause_s = self._interval_s
        try:
            info = await self._bookies.client(bookie).info()
        except BookkeeperError as error:
            # What it said before still counts; without that it counts as the smallest.
            _log.info("bookie %s doesn't tell its free space: %s", bookie, error)
            pause_s = self._retry_s
        else:
            self._free[bookie] = info.free_bytes
        self._due[bookie] = asyncio.get_running_loop().time() + pause_s
