"""The only access to files: two narrow Protocols and their named sync points.

Paths are relative to the file system's root and use "/". Every call that makes bytes or names
durable carries the name of its *sync point* ("journal.group", "entry-log.data"): the power-loss
test turns single sync points into no-ops and shows that each one is needed.

``os_file_system.py`` talks to the kernel, ``tests/memory_file_system.py`` loses unsynced
bytes in a crash. Failures are ``OSError``; after a failed sync the unsynced bytes may be
lost although a repeated sync reports success (Linux), so callers must never retry one.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class File(Protocol):
    """An open file. Thread-safe for disjoint ranges; the owner closes it."""

    def pwritev(
        self, buffers: Sequence[Buffer], offset: int, *, sync_point: str | None = None
    ) -> None:
        """Write all buffers one after the other from ``offset`` on.

        With ``sync_point`` the bytes are durable on return. On an error any part of them may have
        been written.
        """
        ...

    @property
    def durable_descriptor(self) -> int:
        """Where ``pwritev2`` with ``RWF_DSYNC`` does what ``pwritev`` with a sync point does.

        It may take only what is aligned: offset, size and memory. -1: nowhere.
        """
        return -1

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""
        ...

    def pread_direct(
        self, size: int, offset: int, turn: AbstractContextManager[object] | None = None
    ) -> "bytes | memoryview":
        """As ``pread``, but past the page cache, where the file system can do that.

        For synced bytes that are not likely to be read again.

        Args:
            turn: others want the disk, too: small pieces are read, each in a turn.
        """
        data = self.pread(size, offset)
        self.drop_cached(offset, size)
        return data

    def sync(self, sync_point: str) -> None:
        """Make all bytes written so far, and the file's size, durable (not its name)."""
        ...

    def preallocate(self, size: int, sync_point: str) -> None:
        """Grow the file to at least ``size`` bytes by zeros; its size is durable on return."""
        ...

    def truncate(self, size: int) -> None: ...

    def drop_cached(self, offset: int, size: int) -> None:
        """Synced bytes that memory needn't hold any longer; advice, reads go on as before."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class DirectoryLock(Protocol):
    """Held until released or until the process ends."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """A directory tree."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, durably; an existing one is fine."""
        ...

    def create(self, path: str) -> File:
        """Create an empty file and open it; its name is durable only after ``sync_dir``.

        Raises:
            FileExistsError: there is one.
        """
        ...

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing.

        Raises:
            FileNotFoundError: there is none.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def absolute(self, path: str) -> str | None:
        """Where other processes find a file; None: nowhere."""
        return None

    def rename(self, path: str, new_path: str) -> None:
        """Atomically give a file a new name, replacing what has it; durable after ``sync_dir``."""
        ...

    def remove(self, path: str) -> None: ...

    def list(self, path: str) -> list[str]:
        """Sorted names in a directory; empty if there is no such directory."""
        ...

    def sync_dir(self, path: str, sync_point: str) -> None:
        """Make created, renamed and removed names of one directory durable."""
        ...

    def lock(self, path: str) -> DirectoryLock:
        """Take the exclusive lock that the file ``path`` stands for.

        Raises:
            BlockingIOError: another process (or another caller) holds it.
        """
        ...

    def release_memory(self) -> None:
        """Give back what was kept for the next reads."""
        return

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int: ...
