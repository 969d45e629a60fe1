"""Several disks of one simulated machine: views of one file system that loses power as a whole."""

from magnetar.bookkeeper.bookie.storage.directories import MultiDirFileSystem
from magnetar.bookkeeper.storage.file_system import DirectoryLock, File, FileSystem
from tests.memory_file_system import MemoryFileSystem

_ROOT_BYTES = 1 << 40
_MOUNT = "disk-"


class Root(FileSystem):
    """One directory of the machine: the files below ``disk-N/``, or (0) all others."""

    def __init__(self, disk: MemoryFileSystem, number: int) -> None:
        self._disk = disk
        self._prefix = f"{_MOUNT}{number}/" if number else ""

    def _path(self, path: str) -> str:
        return (self._prefix + path).rstrip("/")

    def make_directory(self, path: str) -> None:
        self._disk.make_directory(self._path(path))

    def create(self, path: str) -> File:
        return self._disk.create(self._path(path))

    def open(self, path: str) -> File:
        return self._disk.open(self._path(path))

    def exists(self, path: str) -> bool:
        return self._disk.exists(self._path(path))

    def rename(self, path: str, new_path: str) -> None:
        self._disk.rename(self._path(path), self._path(new_path))

    def remove(self, path: str) -> None:
        self._disk.remove(self._path(path))

    def list(self, path: str) -> list[str]:
        return self._disk.list(self._path(path))

    def sync_dir(self, path: str, sync_point: str) -> None:
        self._disk.sync_dir(self._path(path), sync_point)

    def lock(self, path: str) -> DirectoryLock:
        return self._disk.lock(self._path(path))

    def free_bytes(self) -> int:
        others = 0 if self._prefix else self._disk.used_bytes(_MOUNT)
        return _ROOT_BYTES + others - self._disk.used_bytes(self._prefix)

    def total_bytes(self) -> int:
        return _ROOT_BYTES


def several_disks(disk: MemoryFileSystem, ledger_directories: int) -> FileSystem:
    """``disk`` with the journal in the first of so many ledger directories."""
    main, *more = [Root(disk, number) for number in range(ledger_directories)]
    return MultiDirFileSystem(main, None, more) if more else disk
