"""Gives memory back to the system after a load: freed entries leave holes that malloc keeps.

glibc returns pages at the end of its heap only; entries of a kilobyte are freed in the middle of
it, so a broker would stay as large as its busiest moment. ``malloc_trim`` returns every free page,
but it holds malloc's lock meanwhile (70 to 290 ms on a heap of 500 MB full of holes), so it runs
when caches have emptied and the process has nothing else to do.
"""

import ctypes
import ctypes.util
import logging

logger = logging.getLogger(__name__)

_WORTH_BYTES = 16 * 1024 * 1024
_AGAIN_MS, _AGAIN_COUNT = 15_000, 4
"""More trims after the first: the bookie's write cache is flushed, and freed, up to 30 s later, and
what the caches still held goes in steps."""
_QUIET_SHARE = 0.03
"""Of one core's time: less than that is an idle process, or some dozen messages a second."""


class TrimPlan:
    """Decides when a trim is worth it: pure, fed by the sweep."""

    __slots__ = ("_cpu_ms", "_due_count", "_due_ms", "_now_ms", "_peak_bytes")

    def __init__(self) -> None:
        self._peak_bytes = self._due_count = self._due_ms = self._now_ms = self._cpu_ms = 0

    def on_sweep(self, now_ms: int, cached_bytes: int, cpu_ms: int) -> bool:
        """Whether to trim now: the cache once fell below half of its peak, and the process is idle.

        Args:
            cpu_ms: of the whole process since its start.
        """
        is_quiet = cpu_ms - self._cpu_ms <= _QUIET_SHARE * (now_ms - self._now_ms)
        self._now_ms, self._cpu_ms = now_ms, cpu_ms
        self._peak_bytes = max(self._peak_bytes, cached_bytes)
        if self._peak_bytes > _WORTH_BYTES and cached_bytes < self._peak_bytes // 2:
            self._peak_bytes = cached_bytes
            self._due_count, self._due_ms = 1 + _AGAIN_COUNT, now_ms
        if not self._due_count or now_ms < self._due_ms or not is_quiet:
            return False
        self._due_count -= 1
        self._due_ms = now_ms + _AGAIN_MS
        return True


def trim() -> None:
    """Return free heap pages to the system; does nothing where the C library has no such call."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # musl, macOS
        return
    malloc_trim(0)
