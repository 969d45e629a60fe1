"""Gives memory back to the system after a load: freed entries leave holes that malloc keeps.

glibc returns pages at the end of its heap only; entries of a kilobyte are freed in the middle of
it, so a broker would stay as large as its busiest moment. ``malloc_trim`` returns every free page,
but it holds malloc's lock meanwhile (70 to 290 ms on a heap of 500 MB full of holes), so it runs
when caches have emptied and the process has nothing else to do.
"""

import ctypes
import ctypes.util
import gc
import logging

logger = logging.getLogger(__name__)

_WORTH_BYTES = 16 * 1024 * 1024
_AGAIN_MS, _AGAIN_COUNT = 15_000, 4
"""More trims after the first: the bookie's write cache is flushed, and freed, up to 30 s later, and
what the caches still held goes in steps."""
_QUIET_SHARE = 0.03
"""Of one core's time: less than that is an idle process, or some dozen messages a second."""


_GONE_MIN, _GONE_SHARE = 2_000, 0.25
"""Topics and connections that must have gone: so many, and this part of those that are there."""
_WHEN_BUSY = 10
"""A busy process waits for so many times as many."""
_MADE_MIN = 50
"""Topics and connections: they have some thousand objects, and requests for more wait."""


class CollectionPlan:
    """Decides when to look for cyclic garbage, which costs 60 ms a million objects: pure.

    A topic that was unloaded and a connection that has ended are cycles, which reference counting
    leaves. What is made for one stays meanwhile: Python would walk it, and again when it is older,
    and find nothing (decision 0124).
    """

    __slots__ = ("_gone", "_is_kept", "_made")

    def __init__(self) -> None:
        self._gone = self._made = 0
        self._is_kept = False

    def keep(self) -> None:
        """Much that stays was made: modules, a table of all topics."""
        self._is_kept = True

    def is_growth(self, made: int) -> bool:
        """Whether young objects are to be kept unwalked: most are new and stay.

        Args:
            made: topics and connections since the start.
        """
        grown, self._made = made - self._made, made
        is_kept, self._is_kept = self._is_kept, False
        return is_kept or grown >= _MADE_MIN

    def on_sweep(self, gone: int, alive: int, *, is_quiet: bool) -> bool:
        """Whether to walk all objects now.

        Args:
            gone: topics and connections that have gone since the start.
            alive: those that are there.
            is_quiet: the process does nothing else.
        """
        worth = max(_GONE_MIN, alive * _GONE_SHARE)
        if gone - self._gone < (worth if is_quiet else worth * _WHEN_BUSY):
            return False
        self._gone = gone
        return True


def collect_all() -> None:
    """Free all cyclic garbage, also among objects that were frozen; those that stay are again."""
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if was_frozen:
        gc.freeze()


class TrimPlan:
    """Decides when a trim is worth it: pure, fed by the sweep."""

    __slots__ = ("_cpu_ms", "_due_count", "_due_ms", "_now_ms", "_peak_bytes", "is_quiet")

    def __init__(self) -> None:
        self.is_quiet = False
        """Whether the process was idle before the last sweep."""
        self._peak_bytes = self._due_count = self._due_ms = self._now_ms = self._cpu_ms = 0

    def on_sweep(self, now_ms: int, cached_bytes: int, cpu_ms: int) -> bool:
        """Whether to trim now: the cache once fell below half of its peak, and the process is idle.

        Args:
            cpu_ms: of the whole process since its start.
        """
        self.is_quiet = cpu_ms - self._cpu_ms <= _QUIET_SHARE * (now_ms - self._now_ms)
        self._now_ms, self._cpu_ms = now_ms, cpu_ms
        self._peak_bytes = max(self._peak_bytes, cached_bytes)
        if self._peak_bytes > _WORTH_BYTES and cached_bytes < self._peak_bytes // 2:
            self._peak_bytes = cached_bytes
            self._due_count, self._due_ms = 1 + _AGAIN_COUNT, now_ms
        if not self._due_count or now_ms < self._due_ms or not self.is_quiet:
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
