"""What the C library does with memory that is freed."""

import ctypes
from typing import Final

# malloc.h: M_MMAP_THRESHOLD (its largest value), M_TRIM_THRESHOLD, M_TOP_PAD
_SETTINGS: Final = ((-3, 32 << 20), (-1, 128 << 20), (-2, 16 << 20))


def keep_freed_memory() -> None:
    """Keep what is freed, up to a bound, for the next messages.

    By default every message of 1 MiB gets fresh pages from the kernel and gives them back: measured
    half of the system time of receiving it (benchmarks/README.md). Nothing happens where the C
    library isn't glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for parameter, value in _SETTINGS:
        mallopt(parameter, value)
