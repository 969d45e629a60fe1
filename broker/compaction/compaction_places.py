"""Which compactions of a broker run at a time, and how fast they read together."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from magnetar.broker.rate_limits.token_bucket import TokenBuckets

_RUNS_MAX: Final = 2
"""At a time; each has a process of about 130 MB when it has many keys."""
LARGE_BYTES: Final = 64 * 1024 * 1024
"""A run that reads more in each pass may take minutes: only one of them at a time, so that small
ones don't wait for it."""
_PERIOD_MS: Final = 1000
LOCATED_BYTES: Final = 8 * 1024 * 1024
"""Of entries that a process reads by itself, together: the loop has little to do for each time."""
PAUSE_S: Final = 0.001
PAUSE_PIECES: Final = 2
"""After so many pieces the loop is others' for so long, the least that its timer knows: who sends a
message meanwhile waits for a piece or two, not for one at each of its steps. After each piece it
would be better for them, but a run would take three times as long."""


class CompactionPlaces:
    """Those of one broker."""

    def __init__(self, bytes_per_s: Callable[[], int]) -> None:
        """bytes_per_s: asked again and again; 0: no limit."""
        self.bytes_per_s = bytes_per_s
        self._all, self._large = asyncio.Semaphore(_RUNS_MAX), asyncio.Semaphore(_RUNS_MAX - 1)
        self._buckets = TokenBuckets(0, 0, _PERIOD_MS, 0)
        self._pieces = 0  # of all runs

    @property
    def located_bytes(self) -> int:
        """What a process may read by itself at a time: at most a quarter of a second's."""
        return min(LOCATED_BYTES, self.bytes_per_s() // 4 or LOCATED_BYTES)

    @asynccontextmanager
    async def place(self, size: int) -> AsyncIterator[None]:
        """Wait for a place, and hold it.

        Args:
            size: bytes that a pass reads.
        """
        async with AsyncExitStack() as held:
            if size > LARGE_BYTES:  # first: who waits for it holds no place
                await held.enter_async_context(self._large)
            await held.enter_async_context(self._all)
            yield

    async def pace(self, size: int, *, held_loop: bool = True) -> None:
        """Account for a piece that was read; return when the next one may be read.

        Args:
            held_loop: the broker's loop has read it.
        """
        buckets, is_taken = self._buckets, False
        while True:
            now_ms = int(asyncio.get_running_loop().time() * 1000)
            buckets.change(0, self.bytes_per_s(), _PERIOD_MS, now_ms)
            if not is_taken:
                buckets.take(0, size, now_ms)
                is_taken = True
            if not (wait_ms := buckets.wait_ms(now_ms)):
                break
            await asyncio.sleep(min(wait_ms, _PERIOD_MS) / 1000)  # the limit may change meanwhile
        if not held_loop:
            return
        self._pieces += 1
        await asyncio.sleep(0 if self._pieces % PAUSE_PIECES else PAUSE_S)
