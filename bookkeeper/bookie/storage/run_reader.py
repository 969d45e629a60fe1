"""Reads entries where a bookie of this machine said that they lie.

For small processes: imports little.
"""

import os
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Final

from magnetar.bookkeeper.bookie.storage.record_format import (
    RECORD_HEADER_BYTES,
    count_intact_entries,
)
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.transport import StoredRun

_DONT_NEED: Final[int | None] = getattr(os, "POSIX_FADV_DONTNEED", None)
_RANDOM: Final[int | None] = getattr(os, "POSIX_FADV_RANDOM", None)
"""Without it the kernel reads ahead, by 8 MiB on some machines, and the journal's sync waits."""
_STEP_BYTES: Final = 64 * 1024
"""In one system call: others that want the processor or the disk get it behind each."""


class RunReader:
    """Keeps the last file open: the next run is most likely in it, too."""

    def __init__(self) -> None:
        self._path, self._fd = "", -1
        self._next_s = 0.0

    def read(self, run: StoredRun, bytes_per_s: int = 0) -> list[memoryview] | None:
        """The entries' bodies, each of them checked; None: at least one isn't there any more.

        Args:
            bytes_per_s: it waits where it would read faster: others' writes wait for the disk
                behind each of its reads (decision 0094). 0: never.
        """
        sizes = run.sizes
        size = sum(sizes) + RECORD_HEADER_BYTES * len(sizes)
        try:
            data = self._bytes(run.path, run.offset, size, bytes_per_s)
            if not run.is_cached and _DONT_NEED is not None:
                os.posix_fadvise(self._fd, run.offset, size, _DONT_NEED)
        except OSError:  # the bookie has removed the file, or the disk fails: its read tells
            return None
        if count_intact_entries(data, sizes, run.ledger_id, run.first) < len(sizes):
            return None
        return _bodies(data, sizes)

    def _pace(self, size: int, bytes_per_s: int) -> None:
        if not bytes_per_s:
            return
        now_s = monotonic()
        if now_s < self._next_s:
            sleep(self._next_s - now_s)
        self._next_s = max(now_s, self._next_s) + size / bytes_per_s

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._path, self._fd = "", -1

    def _bytes(self, path: str, offset: int, size: int, bytes_per_s: int) -> memoryview:
        if path != self._path:
            self.close()
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if _RANDOM is not None:
                os.posix_fadvise(self._fd, 0, 0, _RANDOM)
            self._path = path
        data, got = memoryview(bytearray(size)), 0
        while got < size:
            step = data[got : got + _STEP_BYTES]
            self._pace(len(step), bytes_per_s)
            if not (count := os.preadv(self._fd, [step], offset + got)):
                break
            got += count
        return data[:got]


def _bodies(data: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    at, bodies = 0, []
    for size in sizes:
        at += RECORD_HEADER_BYTES
        bodies.append(data[at + PACKET_HEADER_BYTES : at + size])
        at += size
    return bodies
