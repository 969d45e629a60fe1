"""Gives memory back to the system after a load: freed entries leave holes that malloc keeps.

glibc returns pages at the end of its heap only; entries of a kilobyte are freed in the middle of
it, so a broker would stay as large as its busiest moment. ``malloc_trim`` returns every free page,
but it holds malloc's lock meanwhile, so it runs when caches have emptied, never under load.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import logging

__all__ = ["TrimPlan", "trim"]

logger = logging.getLogger(__name__)

_WORTH_BYTES = 16 * 1024 * 1024
_AGAIN_MS, _AGAIN_COUNT = 15_000, 4
"""More trims after the first: the bookie's write cache is flushed, and freed, up to 30 s later, and
what the caches still held goes in steps."""


class TrimPlan:
    """Decides when a trim is worth it: pure, fed by the sweep."""

    __slots__ = ("_again_count", "_again_ms", "_peak_bytes")

    def __init__(self) -> None:
        self._peak_bytes = 0
        self._again_ms = 0
        self._again_count = 0

    def on_sweep(self, now_ms: int, cached_bytes: int) -> bool:
        """Whether to trim now: the cache fell below half of its peak, or did so a while ago."""
        self._peak_bytes = max(self._peak_bytes, cached_bytes)
        if self._peak_bytes > _WORTH_BYTES and cached_bytes < self._peak_bytes // 2:
            self._peak_bytes = cached_bytes
            self._again_count = _AGAIN_COUNT
        elif self._again_count and now_ms >= self._again_ms:
            self._again_count -= 1
        else:
            return False
        self._again_ms = now_ms + _AGAIN_MS
        return True


def trim() -> None:
    """Return free heap pages to the system; does nothing where the C library has no such call."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # musl, macOS
        return
    malloc_trim(0)
