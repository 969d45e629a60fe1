"""What a bookie says that it holds is durable: repairs leave out what is listed."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.transport import AddRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.memory_file_system import FileSystemCall, MemoryFileSystem
from tests.memory_store import MemoryStore
from tests.simulation.bookie_machine import CONFIG


async def test_entries_are_listed_once_they_are_durable() -> None:
    """Simulation (cluster) seed 1657: a slow bookie was counted as a copy of acked entries."""
    store = EmbeddedMetadataStore.open(None)
    files = MemoryFileSystem()
    config = BookieConfig("b0", Path("/b0"), CONFIG, disk_reserve_bytes=0)
    bookie = await open_bookie(config, files, store, index=MemoryStore(files))
    may_write = threading.Event()

    def slow_disk(call: FileSystemCall) -> None:
        if call.sync_point == "journal.group":
            may_write.wait(30)

    files.on_call = slow_disk
    added: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    head = packet.encode_head(1, 0, -1, 0, b"", b"body")
    bookie.add_entries(
        AddRequest(
            *(1, bytes(20), range(1), [head], [b"body"], len(head) + 4, False),
            lambda _, code: added.set_result(code),
        )
    )
    asks = asyncio.Event()
    write_lac = bookie.storage.write_lac

    def watched(*arguments: Any) -> int:
        asks.set()
        return write_lac(*arguments)

    bookie.storage.write_lac = watched  # type: ignore[method-assign, assignment]
    listed = asyncio.ensure_future(bookie.list_entries(1))
    waits = asyncio.ensure_future(asks.wait())
    await asyncio.wait({listed, waits}, return_when=asyncio.FIRST_COMPLETED)
    assert not listed.done()
    assert not added.done()
    may_write.set()
    assert await listed == [(0, 1)]
    assert await added == codes.OK
    await bookie.close()
    await store.close()
