"""Bounds what is in memory at a time, counted in bytes."""

import asyncio
from collections import deque


class ByteSemaphore:
    """Lets callers in as long as the sum of their bytes is below ``bytes_max``.

    One caller is always let in, whatever its size, so none waits for ever.
    """

    def __init__(self, bytes_max: int) -> None:
        self.used = 0
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, size: int) -> None:
        """Wait for room; ``release(size)`` must follow."""
        if not self._waiting and self._fits(size):
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # let in and cancelled in the same tick
                self.release(size)
            else:
                self._let_in()
            raise

    def grow(self, size: int) -> None:
        """Charge ``size`` more than was asked for, or give back what wasn't needed (< 0)."""
        self.used += size
        if size < 0:
            self._let_in()

    def release(self, size: int) -> None:
        self.grow(-size)

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self._bytes_max

    def _let_in(self) -> None:
        waiting = self._waiting
        while waiting:
            size, turn = waiting[0]
            if not turn.done():
                if not self._fits(size):
                    return
                self.used += size
                turn.set_result(None)
            waiting.popleft()
