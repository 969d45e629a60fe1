"""Memory that direct reads go to: aligned, and for large reads in huge pages that are used again.

Pages of 4 KiB took most of the processor time of such a read: the kernel finds them and fills them
with zeros, and it splits the read for the disk (docs/decisions/0107).
"""

import contextlib
import ctypes
import mmap
import threading
from typing import Final

ALIGNMENT: Final = 4096  # of memory, offset and size: enough for every disk in use
_PAGE_BYTES: Final = 2 << 20  # a huge one
_SMALL_BYTES: Final = 1 << 20  # up to here, memory of its own is as cheap
_LARGE_BYTES: Final = 2 * _PAGE_BYTES + 2 * ALIGNMENT  # 4 MiB, wherever they lie in a file
_HUGE_PAGES: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


class DirectBuffers:
    """Takes and gives buffers; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._large: list[mmap.mmap] = []

    def take(self, size: int) -> memoryview:
        """Writable memory of ``size`` bytes with any content, until the last view of it is gone.

        Args:
            size: a multiple of ``ALIGNMENT``.
        """
        if _SMALL_BYTES < size <= _LARGE_BYTES:
            with self._lock, contextlib.suppress(OSError):  # no room for it: one of its own
                return _aligned(self._unused(), _PAGE_BYTES, size)
        return _aligned(bytearray(size + ALIGNMENT), ALIGNMENT, size)

    def release_unused(self) -> None:
        """Give memory that nobody has a view of back to the system."""
        with self._lock:
            self._large = [each for each in self._large if not _is_unused(each)]

    def _unused(self) -> mmap.mmap:
        for memory in self._large:
            if _is_unused(memory):
                return memory
        memory = mmap.mmap(-1, _LARGE_BYTES + _PAGE_BYTES, mmap.MAP_PRIVATE)
        if _HUGE_PAGES is not None:
            with contextlib.suppress(OSError):  # a kernel without them: small ones do as well
                memory.madvise(_HUGE_PAGES)
        self._large.append(memory)
        return memory


def _is_unused(memory: mmap.mmap) -> bool:
    """Nobody has a view: only then it lets itself be resized, here to what it is."""
    try:
        memory.resize(len(memory))
    except BufferError:
        return False
    return True


def _aligned(memory: mmap.mmap | bytearray, alignment: int, size: int) -> memoryview:
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % alignment
    return memoryview(memory)[start : start + size]
