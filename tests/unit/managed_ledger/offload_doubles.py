"""Stand-ins for tests of copies: a ledger in memory, an object store in memory."""

import asyncio
from collections.abc import Sequence

from magnetar.bookkeeper.client.ledger_reader import EntryRun
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.offload.block_offloader import BlockOffloader
from magnetar.managed_ledger.offload.config import OffloadMetrics
from magnetar.managed_ledger.offload.context import LedgerCopy
from magnetar.managed_ledger.offload.interfaces import CopyJob, ObjectStore

UUID = "5f0c3a52-33c1-4c1b-8a6f-0d4c1c0c2b11"


class ListedLedger:
    """A reader of entries that are in memory; never more than ``count_max`` at once."""

    def __init__(self, entries: Sequence[bytes], count_max: int = 7) -> None:
        self.entries = entries
        self.count_max = count_max

    async def read(self, first: int, last: int, bytes_max: int) -> EntryRun:
        found = list(self.entries[first : min(last + 1, first + self.count_max)])
        return EntryRun(5, first, [memoryview(x) for x in found])


class MemoryStore:
    """Objects in a dictionary; calls wait for ``gate`` and fail with ``error`` while it is set."""

    def __init__(self) -> None:
        self.objects: dict[str, bytearray] = {}
        self.uploads: dict[str, bytearray] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: OSError | None = None
        self.spoil = False  # what is written is stored changed

    async def _call(self) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error

    async def create(self, name: str) -> "MemoryUpload":
        await self._call()
        assert name not in self.objects, "an object is written once"
        self.uploads[name] = bytearray()
        return MemoryUpload(self, name)

    async def size(self, name: str) -> int | None:
        await self._call()
        found = self.objects.get(name)
        return None if found is None else len(found)

    async def read(self, name: str, offset: int, size: int) -> bytes:
        await self._call()
        if name not in self.objects:
            raise FileNotFoundError(name)
        return bytes(self.objects[name][offset : offset + size])

    async def delete(self, name: str) -> None:
        await self._call()
        self.objects.pop(name, None)
        self.uploads.pop(name, None)


class MemoryUpload:
    def __init__(self, store: MemoryStore, name: str) -> None:
        self._store, self._name = store, name

    async def write(self, buffers: Sequence[Buffer]) -> None:
        await self._store._call()
        data = self._store.uploads.get(self._name)
        if data is None:
            raise FileNotFoundError(self._name)  # deleted meanwhile
        for buffer in buffers:
            data += buffer
        if self._store.spoil:
            data[-1] ^= 1

    async def end_block(self) -> None:
        await self._store._call()

    async def sync(self) -> None:
        await self._store._call()

    async def read(self, offset: int, size: int) -> bytes:
        await self._store._call()
        return bytes(self._store.uploads.get(self._name, b"")[offset : offset + size])

    async def complete(self) -> None:
        await self._store._call()
        if self._name not in self._store.uploads:
            raise FileNotFoundError(self._name)  # deleted meanwhile
        self._store.objects[self._name] = self._store.uploads.pop(self._name)

    async def abort(self) -> None:
        self._store.uploads.pop(self._name, None)


def memory_offloader(store: ObjectStore, copies_max: int = 2) -> BlockOffloader:
    """An offloader that keeps its copies in a store of this kind."""
    return BlockOffloader("memory", lambda _: store, copies_max, OffloadMetrics())


def job_of(entries: Sequence[bytes], block_bytes: int = 1000, driver: str = "memory") -> CopyJob:
    copy = LedgerCopy(5, UUID, driver, {})
    return CopyJob(copy, "t/n/persistent/x", len(entries), sum(map(len, entries)), block_bytes)
