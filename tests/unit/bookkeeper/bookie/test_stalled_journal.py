"""A journal without space on a disk that is slow, too."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.transport import AddRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.memory_file_system import FileSystemCall, MemoryFileSystem
from tests.memory_store import MemoryStore
from tests.simulation.bookie_machine import CONFIG
from tests.waiting import eventually


def add(bookie: Bookie, entry_id: int, on_done: Callable[[int], None]) -> None:
    body = b"x" * 3000
    head = packet.encode_head(1, entry_id, -1, 0, b"", body)
    size = len(head) + len(body)
    bookie.add_entries(
        AddRequest(
            *(1, bytes(20), range(entry_id, entry_id + 1), [head], [body], size, False),
            lambda _, code: on_done(code),
        )
    )


async def test_a_stalled_group_is_written_once_at_a_time() -> None:
    """Simulation (cluster) seed 158: the disk timer wrote it again while it was being written."""
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    store = EmbeddedMetadataStore.open(None)
    files = MemoryFileSystem()
    config = BookieConfig(
        "b0", Path("/b0"), CONFIG, disk_reserve_bytes=0, disk_check_interval_s=0.002
    )
    bookie = await open_bookie(config, files, store, index=MemoryStore(files))
    answers: list[int] = []
    files.faults.space_bytes = files.used_bytes()
    entry_id = 0
    while not bookie.read_only:
        add(bookie, entry_id, answers.append)
        entry_id += 1
        await asyncio.sleep(0.001)
    may_write, is_writing, looks = threading.Event(), threading.Event(), 0
    free_bytes = files.free_bytes

    def slow_disk(call: FileSystemCall) -> None:
        if call.path.startswith("journal/"):
            is_writing.set()
            may_write.wait(30)

    def look() -> int:
        nonlocal looks
        looks += threading.current_thread() is threading.main_thread()
        return free_bytes()

    files.on_call = slow_disk
    files.free_bytes = look  # type: ignore[method-assign]
    await eventually(is_writing.is_set)
    before = looks
    await eventually(lambda: looks > before + 10)
    files.faults.space_bytes = 1 << 30
    may_write.set()
    await eventually(lambda: len(answers) == entry_id)
    assert set(answers) <= {codes.OK, codes.READ_ONLY, codes.TOO_MANY_REQUESTS}
    assert answers.count(codes.OK) > 0
    await bookie.close()
    await store.close()
    assert not errors
