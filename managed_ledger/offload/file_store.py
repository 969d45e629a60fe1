"""Objects as files of a directory: written under another name, synced, then renamed.

What is read back before the rename comes from the disk, as far as the system allows: its cached
pages are dropped first.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.offload.block_offloader import BlockOffloader
from magnetar.managed_ledger.offload.config import FILESYSTEM, URI, OffloadMetrics, path_of_uri
from magnetar.managed_ledger.offload.errors import OffloadError

_FANOUT = 1000
_TEMPORARY = ".writing"

T = TypeVar("T")


class FilesystemOffloader(BlockOffloader):
    """Pulsar's driver ``filesystem``; copies and reads have threads of their own."""

    def __init__(self, copy_threads: int, read_threads: int) -> None:
        self._writers = ThreadPoolExecutor(copy_threads, "offload-write")
        self._readers = ThreadPoolExecutor(read_threads, "offload-read")
        super().__init__(FILESYSTEM, self._store, copy_threads, OffloadMetrics())

    def close(self) -> None:
        """Ends the threads; what they do is waited for."""
        self._writers.shutdown()
        self._readers.shutdown()

    def _store(self, location: Mapping[str, str]) -> "FileStore":
        try:
            root = path_of_uri(location[URI])
        except (KeyError, ValueError) as error:
            raise OffloadError(f"no place for copies: {error}") from error
        return FileStore(root, self._writers, self._readers)


class FileStore:
    """See ``ObjectStore``: ``<root>/<ledger id modulo 1000>/<name>``."""

    def __init__(self, root: Path, writers: Executor, readers: Executor) -> None:
        self._root, self._writers, self._readers = root, writers, readers

    async def create(self, name: str) -> "FileUpload":
        path = self._path(name)
        upload = FileUpload(path, self._writers)
        try:
            await upload.open()
        except BaseException:
            await upload.abort()  # cancelled: the thread makes the file all the same
            raise
        return upload

    async def size(self, name: str) -> int | None:
        def size() -> int | None:
            try:
                return self._path(name).stat().st_size
            except FileNotFoundError:
                return None

        return await _in(self._readers, size)

    async def read(self, name: str, offset: int, size: int) -> bytes:
        def read() -> bytes:
            fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _pread(fd, offset, size)
            finally:
                os.close(fd)

        return await _in(self._readers, read)

    async def delete(self, name: str) -> None:
        path = self._path(name)

        def delete() -> None:
            path.unlink(missing_ok=True)
            _temporary(path).unlink(missing_ok=True)
            _remove_if_empty(path.parent)
            for directory in (path.parent, self._root):
                if directory.exists():
                    _sync_directory(directory)
                    break

        await _in(self._writers, delete)

    def _path(self, name: str) -> Path:
        return self._root / f"{int(name.partition('-')[0]) % _FANOUT:03d}" / name


class FileUpload:
    """See ``Upload``."""

    def __init__(self, path: Path, threads: Executor) -> None:
        self._path, self._threads = path, threads
        self._fd = -1
        self._last: asyncio.Future[None] | None = None  # may outlive a cancelled caller

    async def open(self) -> None:
        """Makes the file, and the directories above it."""

        await self._do(self._make)

    def _make(self, tries: int = 10) -> None:
        directory = self._path.parent
        missing = [x for x in (directory, *directory.parents) if not x.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for made in missing:
            _sync_directory(made.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._fd = os.open(_temporary(self._path), flags, 0o640)
        except FileNotFoundError:
            if not tries:
                raise
            self._make(tries - 1)  # the last copy there was deleted meanwhile, and the directory

    async def write(self, buffers: Sequence[Buffer]) -> None:
        def write() -> None:
            view = memoryview(b"".join(buffers))
            while view:
                view = view[os.write(self._fd, view) :]

        await self._do(write)

    async def end_block(self) -> None:
        """A file has no parts."""

    async def sync(self) -> None:
        def sync() -> None:
            os.fsync(self._fd)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

        await self._do(sync)

    async def read(self, offset: int, size: int) -> bytes:
        return await _in(self._threads, lambda: _pread(self._fd, offset, size))

    async def complete(self) -> None:
        def rename() -> None:
            os.rename(_temporary(self._path), self._path)
            _sync_directory(self._path.parent)
            # Another upload may have made the directory, and not synced it yet.
            _sync_directory(self._path.parent.parent)
            self._close()

        await self._do(rename)

    async def abort(self) -> None:
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])  # a thread has the file
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._close()
                _temporary(self._path).unlink(missing_ok=True)
                _remove_if_empty(self._path.parent)

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    async def _do(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._last = loop.run_in_executor(self._threads, work)
        await asyncio.shield(self._last)


async def _in(threads: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + _TEMPORARY)


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):  # it isn't empty, or isn't there
        directory.rmdir()


def _pread(fd: int, offset: int, size: int) -> bytes:
    """So many bytes; fewer only at the end of the file."""
    part = os.pread(fd, size, offset)
    while 0 < len(part) < size and (more := os.pread(fd, size - len(part), offset + len(part))):
        part += more
    return part


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
