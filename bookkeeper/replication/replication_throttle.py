"""A limit on bytes per second, shared by all copies of one worker."""

from __future__ import annotations

import asyncio


class ReplicationThrottle:
    """Lets ``bytes_per_s`` through on average, in the order of the calls; 0: no limit.

    What was let through is paid for by the next one, so a single batch never waits for itself.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0  # time of the loop

    async def take(self, byte_count: int) -> None:
        """Wait until ``byte_count`` more bytes may be copied."""
        if not self._bytes_per_s:
            return
        now = asyncio.get_running_loop().time()
        wait_s = self._free_at - now
        # Reserved before the wait: those who come meanwhile queue up behind.
        self._free_at = max(now, self._free_at) + byte_count / self._bytes_per_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)
