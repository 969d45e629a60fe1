"""The LMDB store's interface in memory: same commits, and a crash loses what was not synced."""

import errno
from bisect import bisect_left, bisect_right, insort

from magnetar.bookkeeper.storage.ordered_store import OrderedStore, StoreTransaction
from tests.memory_file_system import CrashRandom, MemoryFileSystem, PowerLoss


class MemoryStore(OrderedStore):
    """Keys in a sorted list. Commits count as calls of ``file_system`` (faults, sync points)."""

    def __init__(self, file_system: MemoryFileSystem) -> None:
        self._fs = file_system
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._durable: dict[bytes, bytes] = {}
        self._unsynced: list[StoreTransaction] = []

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        index = bisect_right(self._keys, key)
        if index == 0:
            return None
        found = self._keys[index - 1]
        return found, self._values[found]

    def range(
        self, first: bytes, end: bytes, items_max: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        start, stop = bisect_left(self._keys, first), bisect_left(self._keys, end)
        if items_max is not None:
            stop = min(stop, start + items_max)
        return [(key, self._values[key]) for key in self._keys[start:stop]]

    def commit(self, changes: StoreTransaction, sync_point: str | None) -> None:
        self._unsynced.append(changes)
        try:
            lost = self._fs.tick("commit", "index", sync_point)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # no page could be written: as if it was never begun
                self._unsynced.pop()
            else:
                self._unsynced.clear()
            raise
        if lost:
            raise PowerLoss  # applied or not: crash() decides
        self._apply(changes)
        if sync_point is not None and not self._fs.ignores(sync_point):
            for pending in self._unsynced:
                _apply(self._durable, pending)
            self._unsynced.clear()

    def close(self) -> None:
        pass

    def crash(self, rng: CrashRandom, file_system: MemoryFileSystem) -> "MemoryStore":
        """What is left after the power cut: a prefix of the unsynced commits, each as a whole."""
        after = MemoryStore(file_system)
        after._durable = dict(self._durable)
        kept = rng.randrange(0, len(self._unsynced) + 1)
        for changes in self._unsynced[:kept]:
            _apply(after._durable, changes)
        after._values = dict(after._durable)
        after._keys = sorted(after._values)
        return after

    def _apply(self, changes: StoreTransaction) -> None:
        for first, end in changes.delete_ranges:
            start, stop = bisect_left(self._keys, first), bisect_left(self._keys, end)
            for key in self._keys[start:stop]:
                del self._values[key]
            del self._keys[start:stop]
        for key in changes.deletes:
            if self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        for key, value in changes.puts:
            if key not in self._values:
                insort(self._keys, key)
            self._values[key] = value


def _apply(values: dict[bytes, bytes], changes: StoreTransaction) -> None:
    for first, end in changes.delete_ranges:
        for key in [key for key in values if first <= key < end]:
            del values[key]
    for key in changes.deletes:
        values.pop(key, None)
    values.update(changes.puts)
