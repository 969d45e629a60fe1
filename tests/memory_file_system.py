"""A file system in memory that forgets what was not synced, and fails on demand.

Model of a power cut (``crash``): synced bytes and synced names stay; every unsynced write is kept,
dropped, cut short or torn into pieces at any byte; every unsynced change of a directory happened or
did not, independent of the others. Model of Linux's failed sync: the error is reported once, the
dirty bytes stay readable but are never written, and the next sync succeeds.
"""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.bookkeeper.storage.file_system import Buffer, DirectoryLock, File, FileSystem


class CrashRandom(Protocol):
    """The dice a crash needs; ``random.Random`` fits."""

    def random(self) -> float: ...

    def randrange(self, start: int, stop: int) -> int: ...


class PowerLoss(BaseException):
    """The machine lost power in this call. Not an Exception: no handler may swallow it."""


@dataclass(frozen=True, slots=True)
class FileSystemCall:
    """One call of the file system, as the fault plan sees it."""

    number: int
    kind: str  # "write", "sync", "create", "open", "read", "rename", "remove", "sync_dir", ...
    path: str
    sync_point: str | None


@dataclass(slots=True)
class Faults:
    """What goes wrong; all off by default. Numbers count calls from 0."""

    power_loss_at: int | None = None
    fail_at: int | None = None
    error: int = errno.EIO
    ignored_sync_points: set[str] = field(default_factory=set)  # these syncs do nothing
    space_bytes: int = 1 << 50  # total size of the disk


class _Inode:
    __slots__ = ("data", "durable", "path", "unsynced")

    def __init__(self, path: str) -> None:
        self.path = path  # of its creation; for messages
        self.data = bytearray()  # what a reader sees: the page cache
        self.durable = bytearray()
        # Writes since the last sync: (offset, bytes); offset -1: a truncation to int(bytes).
        self.unsynced: list[tuple[int, bytes]] = []

    def sync(self) -> None:
        for offset, data in self.unsynced:
            _apply(self.durable, offset, data)
        self.unsynced.clear()


def _apply(target: bytearray, offset: int, data: bytes) -> None:
    if offset < 0:
        size = int.from_bytes(data, "big")
        if len(target) > size:
            del target[size:]
        else:
            target.extend(bytes(size - len(target)))
        return
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


class MemoryFileSystem(FileSystem):
    """See the module's text. Not thread-safe: simulations run in one thread."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.call_count = 0
        self.sync_points_seen: set[str] = set()
        self.on_call: Callable[[FileSystemCall], None] | None = None
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        # Changes of directories since their last sync: (new name or None, old name or None, inode).
        self._unsynced_names: list[tuple[str | None, str | None, _Inode]] = []
        self._locks: set[str] = set()
        self._directories: set[str] = {""}
        self._lost_power = False

    # ---- faults

    def tick(self, kind: str, path: str, sync_point: str | None = None) -> bool:
        """Count a call; True if power fails in it (the caller does its part, then raises).

        Raises:
            OSError: this call is the one that fails.
        """
        if self._lost_power:
            raise PowerLoss
        number = self.call_count
        self.call_count += 1
        if sync_point is not None:
            self.sync_points_seen.add(sync_point)
        if self.on_call is not None:
            self.on_call(FileSystemCall(number, kind, path, sync_point))
        if number == self.faults.power_loss_at:
            self._lost_power = True
            return True
        if number == self.faults.fail_at:
            raise OSError(self.faults.error, os.strerror(self.faults.error), path)
        return False

    def ignores(self, sync_point: str) -> bool:
        return sync_point in self.faults.ignored_sync_points

    def power_off(self) -> None:
        """Lose power between two calls."""
        self._lost_power = True

    def crash(self, rng: CrashRandom) -> "MemoryFileSystem":
        """What a machine finds on its disk after the power cut."""
        after = MemoryFileSystem(Faults(space_bytes=self.faults.space_bytes))
        after._directories = set(self._directories)
        names = dict(self._durable_names)
        for new, old, inode in self._unsynced_names:
            if rng.random() < 0.5:
                if old is not None:
                    if names.get(old) is not inode:
                        continue  # needs an earlier change that did not make it
                    del names[old]
                if new is not None:
                    names[new] = inode
        survivors: dict[int, _Inode] = {}
        for name, inode in names.items():
            if id(inode) not in survivors:
                survivors[id(inode)] = _after_crash(inode, rng)
            after._names[name] = survivors[id(inode)]
        after._durable_names = dict(after._names)
        return after

    # ---- FileSystem

    def make_directory(self, path: str) -> None:
        self._raise_if(self.tick("mkdir", path))
        self._directories.add(path)

    def create(self, path: str) -> File:
        lost = self.tick("create", path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        inode = self._names[path] = _Inode(path)
        self._unsynced_names.append((path, None, inode))
        self._raise_if(lost)
        return MemoryFile(self, inode)

    def open(self, path: str) -> File:
        self._raise_if(self.tick("open", path))
        return MemoryFile(self, self._inode(path))

    def exists(self, path: str) -> bool:
        return path in self._names

    def rename(self, path: str, new_path: str) -> None:
        lost = self.tick("rename", path)
        inode = self._inode(path)
        del self._names[path]
        self._names[new_path] = inode
        self._unsynced_names.append((new_path, path, inode))
        self._raise_if(lost)

    def remove(self, path: str) -> None:
        lost = self.tick("remove", path)
        inode = self._inode(path)
        del self._names[path]
        self._unsynced_names.append((None, path, inode))
        self._raise_if(lost)

    def list(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        return sorted(
            name.removeprefix(prefix)
            for name in self._names
            if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
        )

    def sync_dir(self, path: str, sync_point: str) -> None:
        self._raise_if(self.tick("sync_dir", path, sync_point))
        if self.ignores(sync_point):
            return
        kept = []
        for new, old, inode in self._unsynced_names:
            if (new or old or "").rpartition("/")[0] != path:
                kept.append((new, old, inode))
                continue
            if old is not None and self._durable_names.get(old) is inode:
                del self._durable_names[old]
            if new is not None:
                self._durable_names[new] = inode
        self._unsynced_names = kept

    def lock(self, path: str) -> DirectoryLock:
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self._locks.add(path)
        return _MemoryLock(self._locks, path)

    def used_bytes(self, prefix: str = "") -> int:
        """Of all files whose path begins with ``prefix``."""
        return sum(len(node.data) for name, node in self._names.items() if name.startswith(prefix))

    def free_bytes(self) -> int:
        return max(0, self.faults.space_bytes - self.used_bytes())

    def total_bytes(self) -> int:
        return self.faults.space_bytes

    # ---- for tests

    def contents(self, path: str) -> bytearray:
        """The bytes of a file, to look at or to spoil (as bit rot would: cache and disk)."""
        inode = self._inode(path)
        inode.sync()
        inode.durable = inode.data
        return inode.data

    def _inode(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _raise_if(self, lost: bool) -> None:
        if lost:
            raise PowerLoss


class MemoryFile(File):
    """An open file of a MemoryFileSystem."""

    def __init__(self, file_system: MemoryFileSystem, inode: _Inode) -> None:
        self._fs = file_system
        self._inode = inode

    def pwritev(
        self, buffers: Sequence[Buffer], offset: int, *, sync_point: str | None = None
    ) -> None:
        data = b"".join(buffers)
        inode = self._inode
        try:
            lost = self._fs.tick("write", inode.path, sync_point)
        except OSError:
            # A failed write may have written any part; half of it is the nastiest.
            self._write(data[: len(data) // 2], offset)
            if sync_point is not None:
                inode.unsynced.clear()
            raise
        grown = offset + len(data) - len(inode.data)
        if grown > 0 and grown > self._fs.free_bytes():
            self._write(data[: self._fs.free_bytes()], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), inode.path)
        self._write(data, offset)
        if lost:
            raise PowerLoss
        if sync_point is not None and not self._fs.ignores(sync_point):
            inode.sync()

    def _write(self, data: bytes, offset: int) -> None:
        _apply(self._inode.data, offset, data)
        self._inode.unsynced.append((offset, data))

    def pread(self, size: int, offset: int) -> bytes:
        if self._fs.tick("read", self._inode.path):
            raise PowerLoss
        return bytes(self._inode.data[offset : offset + size])

    def sync(self, sync_point: str) -> None:
        try:
            lost = self._fs.tick("sync", self._inode.path, sync_point)
        except OSError:
            self._inode.unsynced.clear()  # lost for good, although the page cache still shows them
            raise
        if lost:
            raise PowerLoss
        if not self._fs.ignores(sync_point):
            self._inode.sync()

    def preallocate(self, size: int, sync_point: str) -> None:
        lost = self._fs.tick("preallocate", self._inode.path, sync_point)
        grown = size - len(self._inode.data)
        if grown > self._fs.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._inode.path)
        if grown > 0:
            self._write(size.to_bytes(8, "big"), -1)
        if lost:
            raise PowerLoss
        if not self._fs.ignores(sync_point):
            self._inode.sync()

    def truncate(self, size: int) -> None:
        lost = self._fs.tick("truncate", self._inode.path)
        self._write(size.to_bytes(8, "big"), -1)
        if lost:
            raise PowerLoss

    def drop_cached(self, offset: int, size: int) -> None:
        pass

    def size(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        pass


class _MemoryLock(DirectoryLock):
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


def _after_crash(inode: _Inode, rng: CrashRandom) -> _Inode:
    """A copy with every unsynced write kept, dropped, cut or torn."""
    after = _Inode(inode.path)
    data = bytearray(inode.durable)
    for offset, written in inode.unsynced:
        fate = rng.random()
        if fate < 0.35:  # dropped
            continue
        if offset < 0 or fate < 0.6 or not written:  # kept
            _apply(data, offset, written)
        elif fate < 0.8:  # cut
            _apply(data, offset, written[: rng.randrange(0, len(written))])
        else:  # torn: a hole somewhere in the middle
            first = rng.randrange(0, len(written))
            end = rng.randrange(first, len(written))
            _apply(data, offset, written[:first])
            _apply(data, offset + end, written[end:])
    after.data = data
    after.durable = bytearray(data)
    return after
