"""Entries that are sent again: which of them are the same, and the line behind one looked at."""

import asyncio
from pathlib import Path

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.duplicate_adds import is_same_entry
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, encode_head
from magnetar.bookkeeper.transport import AddRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.memory_file_system import MemoryFileSystem
from tests.memory_store import MemoryStore
from tests.simulation.bookie_machine import CONFIG

LAC, DIGEST = range(16, 24), range(32, PACKET_HEADER_BYTES)


def test_only_what_a_recovery_rewrites_may_differ() -> None:
    """Whichever byte of a packet another ledger's entry differs in."""
    stored = encode_head(1, 2, 1, 300, b"head", b"body") + b"body"
    for at in range(len(stored)):
        sent = bytearray(stored)
        sent[at] ^= 1
        for cut in (0, PACKET_HEADER_BYTES, len(sent)):
            is_same = is_same_entry(stored, sent[:cut], sent[cut:])
            assert is_same == (at in LAC or at in DIGEST), f"byte {at}, cut at {cut}"
    assert not is_same_entry(stored, stored, b"y")
    assert not is_same_entry(stored, stored[:-1], b"")


async def test_all_that_waits_behind_a_look_is_answered_in_its_turn() -> None:
    """Also where what waits has to be looked at itself."""
    store, files = EmbeddedMetadataStore.open(None), MemoryFileSystem()
    config = BookieConfig("b0", Path("/b0"), CONFIG, disk_reserve_bytes=0)
    bookie = await open_bookie(config, files, store, index=MemoryStore(files))
    answers: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    def add(entry_id: int) -> None:
        head = encode_head(1, entry_id, -1, 0, b"", b"body")
        bookie.add_entries(
            AddRequest(
                *(1, bytes(20), range(entry_id, entry_id + 1), [head], [b"body"]),
                *(len(head) + 4, False),
                lambda _, code: answers.put_nowait((entry_id, code)),
            )
        )

    for entry_id in range(4):
        add(entry_id)
    for entry_id in range(4):
        assert await answers.get() == (entry_id, codes.OK)
    await bookie.flush()  # only the disk can tell now
    assert not bookie.storage.cached_ids(1)
    sent = [0, 1, 4, 2, 3, 5]
    for entry_id in sent:
        add(entry_id)
    assert bookie._duplicates.lines
    async with asyncio.timeout(30):  # one that is forgotten is never answered
        assert [await answers.get() for _ in sent] == [(entry_id, codes.OK) for entry_id in sent]
    assert await bookie.list_entries(1) == [(0, 6)]
    await bookie.close()
    await store.close()
