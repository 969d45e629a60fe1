"""Files of the operating system below one root directory."""

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.storage.direct_buffers import ALIGNMENT, DirectBuffers
from magnetar.bookkeeper.storage.file_system import Buffer, DirectoryLock, File, FileSystem

_log = logging.getLogger(__name__)

_BUFFERS_PER_CALL_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
_SMALL_BYTES: Final = 16 * 1024  # copying this much costs less than one more iovec and its checks
_JOIN_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(1 << 20)
_RWF_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_DONT_NEED: Final[int | None] = getattr(os, "POSIX_FADV_DONTNEED", None)
_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
_TURN_BYTES: Final = 256 << 10
STEP_BYTES: Final = 2 << 20
_RATE_MIN: Final = 128 << 20  # bytes a second
_BACKLOG_S: Final = 60.0
_SPARE_BYTES: Final = 4 << 30


def pause_s(backlog_bytes: int, free_bytes: int) -> float:
    """Return the seconds to wait after each step of freeing.

    The backlog is freed in about a minute, but not slower than 128 MiB/s. If the disk has little
    free space, there is no wait.
    """
    if free_bytes < backlog_bytes + _SPARE_BYTES:
        return 0.0
    return STEP_BYTES / max(_RATE_MIN, backlog_bytes / _BACKLOG_S)


class SpaceReclaimer:
    """Frees the space of unlinked files: a thread truncates each in steps, then closes it.

    Freeing a gigabyte at once keeps every sync of the file system waiting: 4 KiB synced writes
    beside it had a p99 of 60 ms on the machine of benchmarks/README.md. The thread exists only
    while there is something to free. A crash on the way loses nothing: a file without a name is
    freed when its last descriptor goes.
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


_reclaimer: Final = SpaceReclaimer()  # of the process: its files share disks


def coalesce(buffers: Sequence[Buffer], calls_buffers_max: int) -> list[Buffer]:
    """Join neighbouring small buffers when there are more than one call may take.

    Large buffers stay as they are: they are never copied.
    """
    if len(buffers) <= calls_buffers_max:
        return list(buffers)
    out: list[Buffer] = []
    small: list[Buffer] = []
    small_bytes = 0
    for buffer in buffers:
        size = len(buffer)
        if size <= _SMALL_BYTES:
            small.append(buffer)
            small_bytes += size
            if small_bytes < _JOIN_BYTES:
                continue
        if small:
            out.append(b"".join(small))
            small, small_bytes = [], 0
        if size > _SMALL_BYTES:
            out.append(buffer)
    if small:
        out.append(b"".join(small))
    return out


class OsFile(File):
    """A file descriptor. Closed by ``close`` or by the last thread that shares it."""

    def __init__(self, path: Path, flags: int, buffers: DirectBuffers) -> None:
        self._fd = -1
        self.path, self._buffers = path, buffers
        self._fd = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o644)
        self._durable_writes = _RWF_DSYNC != 0
        self._direct_fd = -1
        self._direct_lock = threading.Lock()
        self._reads_directly = _O_DIRECT != 0

    def pwritev(
        self, buffers: Sequence[Buffer], offset: int, *, sync_point: str | None = None
    ) -> None:
        parts = coalesce(buffers, _BUFFERS_PER_CALL_MAX)
        flags = _RWF_DSYNC if sync_point is not None and self._durable_writes else 0
        first = 0
        while first < len(parts):
            group = parts[first : first + _BUFFERS_PER_CALL_MAX]
            offset = self._write_all(group, offset, flags)
            first += len(group)
        if sync_point is not None and not self._durable_writes:
            os.fdatasync(self._fd)

    def _write_all(self, group: list[Buffer], offset: int, flags: int) -> int:
        """Write one group of buffers, however many calls the kernel wants; the end offset."""
        total = sum(map(len, group))
        written = self._pwritev(group, offset, flags)
        if written < total:  # a signal, or the disk is nearly full: the next call tells
            rest = memoryview(b"".join(group))
            while written < total:
                count = self._pwritev([rest[written:]], offset + written, flags)
                if count == 0:
                    raise OSError(errno.EIO, "write made no progress", str(self.path))
                written += count
        return offset + total

    def _pwritev(self, group: list[Buffer], offset: int, flags: int) -> int:
        try:
            return os.pwritev(self._fd, group, offset, flags)
        except OSError as error:
            if flags == 0 or error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            # Some file systems refuse the flag. Nothing was written; sync after the write instead.
            self._durable_writes = False
            return os.pwritev(self._fd, group, offset)

    @property
    def durable_descriptor(self) -> int:
        if not self._durable_writes:
            return -1
        direct = self._open_direct()
        return self._fd if direct < 0 else direct

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_direct(
        self, size: int, offset: int, turn: AbstractContextManager[object] | None = None
    ) -> bytes | memoryview:
        fd = self._open_direct()
        if fd >= 0:
            try:
                return self._read_directly(fd, size, offset, turn)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                self._reads_directly = False  # this file system takes the flag, and no more
        return super().pread_direct(size, offset)

    def _open_direct(self) -> int:
        """-1: the file can't be read so."""
        if self._direct_fd < 0 and self._reads_directly:
            with self._direct_lock:
                if self._direct_fd < 0:
                    # By the descriptor: the file may have lost its name since it was opened.
                    path, flags = f"/proc/self/fd/{self._fd}", os.O_RDWR | _O_DIRECT
                    try:
                        self._direct_fd = os.open(path, flags | os.O_CLOEXEC)
                    except OSError:
                        self._reads_directly = False
        return self._direct_fd if self._reads_directly else -1

    def _read_directly(
        self, fd: int, size: int, offset: int, turn: AbstractContextManager[object] | None
    ) -> memoryview:
        skipped = offset % ALIGNMENT
        wanted = skipped + size
        view = self._buffers.take(wanted + -wanted % ALIGNMENT)
        got, step = 0, len(view) if turn is None else _TURN_BYTES
        while got < wanted and got % ALIGNMENT == 0:  # else it was the end of the file
            with turn or contextlib.nullcontext():
                count = os.preadv(fd, [view[got : got + step]], offset - skipped + got)
            if count == 0:
                break
            got += count
        return view[skipped : max(skipped, min(got, wanted))].toreadonly()

    def sync(self, sync_point: str) -> None:
        os.fdatasync(self._fd)

    def preallocate(self, size: int, sync_point: str) -> None:
        # Zeros, not fallocate: unwritten extents cost a file system transaction at every first
        # write (measured 141 instead of 89 microseconds for a durable 4 KiB write).
        position = self.size()
        while position < size:
            step = min(len(_ZEROS), size - position)
            position += os.pwrite(self._fd, memoryview(_ZEROS)[:step], position)
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def drop_cached(self, offset: int, size: int) -> None:
        if _DONT_NEED is not None:
            start = offset - offset % _PAGE_BYTES  # pages in part are kept, and nobody comes back
            with contextlib.suppress(OSError):  # advice: nothing depends on it
                os.posix_fadvise(self._fd, start, offset + size - start, _DONT_NEED)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        direct_fd, self._direct_fd = self._direct_fd, -1
        if direct_fd >= 0:
            os.close(direct_fd)
        stat = os.fstat(fd)
        if stat.st_nlink == 0 and stat.st_size > STEP_BYTES:
            _reclaimer.close_later(fd, stat.st_size)
        else:
            os.close(fd)

    def __del__(self) -> None:
        # An entry log that was unlinked may still be in the hands of a reading thread, so whoever
        # drops the last reference closes it.
        self.close()


class OsDirectoryLock(DirectoryLock):
    """flock: goes away with the process, so a killed bookie leaves nothing to clean up."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFileSystem(FileSystem):
    """Everything below ``root``, which is created when it is missing."""

    def __init__(self, root: Path) -> None:
        self.root, self._buffers = root, DirectBuffers()
        root.mkdir(parents=True, exist_ok=True)

    def make_directory(self, path: str) -> None:
        directory = self.root / path
        directory.mkdir(parents=True, exist_ok=True)
        while True:  # every new name up to the root must be durable in its parent
            sync_directory(directory.parent)
            if directory == self.root:
                return
            directory = directory.parent

    def create(self, path: str) -> File:
        return OsFile(self.root / path, os.O_CREAT | os.O_EXCL, self._buffers)

    def open(self, path: str) -> File:
        return OsFile(self.root / path, 0, self._buffers)

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def absolute(self, path: str) -> str:
        return str((self.root / path).absolute())

    def rename(self, path: str, new_path: str) -> None:
        (self.root / path).rename(self.root / new_path)

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    def list(self, path: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self.root / path))
        return []

    def sync_dir(self, path: str, sync_point: str) -> None:
        sync_directory(self.root / path)

    def lock(self, path: str) -> DirectoryLock:
        return OsDirectoryLock(self.root / path)

    def release_memory(self) -> None:
        self._buffers.release_unused()

    def free_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self) -> int:
        stat = os.statvfs(self.root)
        # What root alone may use counts as used: a bookie can't write there.
        return (stat.f_blocks - stat.f_bfree + stat.f_bavail) * stat.f_frsize


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
