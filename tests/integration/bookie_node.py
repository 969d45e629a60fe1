"""Helpers of the bookie tests: one bookie on one directory, requests, a registry of ledgers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from magnetar.bookkeeper import packet
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig, StorageConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.storage.file_system import FileSystem
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.bookkeeper.transport import AddRequest
from magnetar.metadata.store import MetadataStore

KEY = bytes(20)
SMALL = StorageConfig(
    journal_segment_bytes=1 << 20,
    journal_extend_bytes=1 << 18,
    flush_bytes=1 << 20,
    entry_log_bytes=4 << 20,
)


class Node:
    """Opens one bookie on one directory, again and again."""

    def __init__(self, path: Path, store: MetadataStore, **changes: Any) -> None:
        self.path = path
        self.store = store
        config = BookieConfig("b1", path, SMALL, disk_reserve_bytes=0, disk_usage_max=1.0)
        self.config = replace(config, **changes)

    async def start(self, file_system: FileSystem | None = None, **changes: Any) -> Bookie:
        config = replace(self.config, **changes)
        return await open_bookie(config, file_system or OsFileSystem(self.path), self.store)

    def disk_bytes(self, folder: str = "") -> int:
        files = (self.path / folder).rglob("*")
        return sum(file.stat().st_blocks * 512 for file in files if file.is_file())


async def add(
    bookie: Bookie,
    ledger_id: int,
    ids: Sequence[int],
    body: Callable[[int], bytes] = lambda entry_id: b"body %d" % entry_id,
    *,
    key: bytes = KEY,
    recovery: bool = False,
) -> int:
    """Add entries and wait for the answer."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_done(_request: AddRequest, code: int) -> None:
        answer.set_result(code)

    bookie.add_entries(request(ledger_id, ids, body, on_done, key=key, recovery=recovery))
    return await answer


def request(
    ledger_id: int,
    ids: Sequence[int],
    body: Callable[[int], bytes],
    on_done: Callable[[AddRequest, int], None],
    *,
    key: bytes = KEY,
    recovery: bool = False,
) -> AddRequest:
    bodies = [body(entry_id) for entry_id in ids]
    heads = [
        packet.encode_head(ledger_id, entry_id, entry_id - 1, 0, b"head", data)
        for entry_id, data in zip(ids, bodies, strict=True)
    ]
    size = sum(map(len, heads)) + sum(map(len, bodies))
    return AddRequest(ledger_id, key, ids, heads, bodies, size, recovery, on_done)


@dataclass(frozen=True)
class _Range:
    first: int
    end: int
    ledger_ids: list[int]


class Registry:
    """Which ledgers exist; ``error`` makes its next answers fail."""

    def __init__(self, *ledger_ids: int) -> None:
        self.ledger_ids = set(ledger_ids)
        self.end: int | None = None  # of the ids that were given out
        self.hidden: set[int] = set()  # exist, but a listing misses them
        self.error: Exception | None = None

    async def ranges(self) -> AsyncIterator[_Range]:
        if self.error is not None:
            raise self.error
        yield _Range(0, 1 << 62, sorted(self.ledger_ids - self.hidden))

    async def exists(self, ledger_id: int) -> bool:
        if self.error is not None:
            raise self.error
        return ledger_id in self.ledger_ids

    async def ids_end(self) -> int | None:
        return self.end
