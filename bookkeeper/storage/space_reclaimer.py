"""Gives the space of unlinked files back slowly, so that synced writes beside it stay short.

Freeing a gigabyte at once keeps every sync of the file system waiting: 4 KiB synced writes beside
it had a p99 of 60 ms on the machine of benchmarks/README.md. A thread of its own shortens the files
step by step; it exists only while there is something to free.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import Final

_log = logging.getLogger(__name__)

STEP_BYTES: Final = 2 << 20
_RATE_MIN: Final = 128 << 20  # bytes a second
_BACKLOG_S: Final = 60.0
_SPARE_BYTES: Final = 4 << 30


def pause_s(backlog_bytes: int, free_bytes: int) -> float:
    """How long to wait after a step, with so much still to free and so much free on the disk.

    A backlog is gone in about a minute, or at 128 MiB/s; a disk that is filling up has no time to
    lose.
    """
    if free_bytes < backlog_bytes + _SPARE_BYTES:
        return 0.0
    return STEP_BYTES / max(_RATE_MIN, backlog_bytes / _BACKLOG_S)


class SpaceReclaimer:
    """A queue of unlinked files and the thread that shortens, then closes them.

    A crash on the way loses nothing: a file without a name is freed when its last descriptor goes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[tuple[int, int]] = deque()  # descriptor, bytes
        self._backlog = 0
        self._thread: threading.Thread | None = None

    @property
    def backlog_bytes(self) -> int:
        """Unlinked, but still taken on the disk."""
        return self._backlog

    def close_later(self, fd: int, size: int) -> None:
        """Free and close a file that has no name any more; the descriptor is ours from now on."""
        with self._lock:
            self._queue.append((fd, size))
            self._backlog += size
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="space", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                fd, size = self._queue.popleft()
            try:
                self._shorten(fd, size)
            except OSError as error:  # closing frees the rest at once
                _log.warning("freeing an unlinked file in steps failed: %s", error)
            finally:
                os.close(fd)

    def _shorten(self, fd: int, size: int) -> None:
        while size > 0:
            step = min(size, STEP_BYTES)
            size -= step
            try:
                os.ftruncate(fd, size)
                disk = os.fstatvfs(fd)
            except OSError:
                step += size
                raise
            finally:
                with self._lock:
                    self._backlog -= step
            time.sleep(pause_s(self._backlog, disk.f_bavail * disk.f_frsize))
