"""A log with very many ledgers: no turn of the loop, and no change of its list, pays for all."""

import asyncio
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest

from magnetar.managed_ledger.ledger_info_chunks import (
    NODE_BYTES,
    LedgerInfoChunks,
    chunks_path,
    read_list,
)
from magnetar.managed_ledger.ledger_rows import CHUNK_ROWS, LedgerInfo, LedgerRows, PackedRows
from magnetar.managed_ledger.managed_ledger import PROPERTIES_BYTES_MAX
from magnetar.managed_ledger.offload.context import CopyState, LedgerCopy, OffloadContext
from magnetar.managed_ledger.offload.interfaces import LedgerOffloader
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.errors import ValueTooLargeError
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Appends, Cluster, appended, eventually
from tests.unit.managed_ledger.turns import Turns

PATH = f"/managed-ledgers/{NAME}"
LEDGERS = 30_000
FIRST = 1_000_000


class Forgetful:
    """Has copies only to delete them."""

    driver = "none"

    def __init__(self) -> None:
        self.deleted = self.most_at_once = self._under_way = 0

    async def delete(self, copy: LedgerCopy) -> None:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        await asyncio.sleep(0)
        self._under_way -= 1
        self.deleted += 1


def segment_of(first: int, is_copied: bool) -> PackedRows:
    ids = range(first, first + CHUNK_ROWS)
    copies: list[OffloadContext | None] = [None] * CHUNK_ROWS
    if is_copied:
        place = {"directory": "/var/lib/copies"}
        named = (LedgerCopy(n, str(UUID(int=n)), "none", place) for n in ids)
        copies = [OffloadContext(each, CopyState.SETTLED, 1, 9) for each in named]
    rows = zip(ids, copies, strict=True)
    return PackedRows.of([LedgerInfo(n, 10, 100, 1000, copy) for n, copy in rows])


async def lengthen(cluster: Cluster, is_copied: bool, newest: int = 1) -> None:
    """Lists many closed ledgers, which don't exist, behind the one that does.

    Args:
        newest: how many of them aren't packed.
    """
    found = await read_list(cluster.store, PATH)
    assert found is not None
    starts = range(FIRST, FIRST + LEDGERS, CHUNK_ROWS)
    segments = (
        PackedRows.of(found.info.ledgers),
        *(segment_of(first, is_copied) for first in starts),
    )
    last = list(segment_of(FIRST + LEDGERS, is_copied)) + list(
        segment_of(FIRST + LEDGERS + CHUNK_ROWS, is_copied)
    )
    tail = [*last[: newest - 1], LedgerInfo(last[newest - 1].ledger_id, 1, 10, 1000)]
    rows = LedgerRows(tail, segments)
    info = replace(found.info, ledgers=rows)
    chunks = LedgerInfoChunks(cluster.store, PATH, "former")
    _, value = await chunks.write(info, found.stat.version)
    await cluster.store.put(PATH, value, found.stat.version)


@pytest.mark.parametrize("is_copied", [False, True])
async def test_it_opens_appends_trims_is_read_and_deleted(
    cluster: Cluster, is_copied: bool
) -> None:
    offloader = Forgetful()
    cluster.offloaders = [cast("LedgerOffloader", offloader)]
    config = replace(CONFIG, ledger_entries_max=1)
    log = await cluster.factory().open(NAME, config)
    await log.open_cursor("sub", EARLIEST)  # else the first ledger is trimmed, sooner or later
    appends = await appended(log, b"first")
    await eventually(lambda: log.lists.info.ledgers[0].closed_ms > 0)
    await log.close()
    await lengthen(cluster, is_copied)
    with Turns():
        log = await cluster.factory().open(NAME, config)
        cursor = await log.open_cursor("sub", EARLIEST)
        assert log.offsets.entry_count == 10 * LEDGERS + 2
        appends = Appends(log)
        for n in range(5):
            await appends.stored(b"%d" % n)
        oldest, newest = await log.read((0, 0), 1, 99), await log.read(appends.acked[-1][0], 1, 99)
        assert oldest is not None
        assert newest is not None
        assert [bytes(x) for x in (*oldest.bodies, *newest.bodies)] == [b"first", b"4"]
        upto = FIRST + 3 * CHUNK_ROWS + 1
        cursor.ack_cumulative((upto, 9))
        await eventually(lambda: log.lists.info.ledgers[0].ledger_id == upto + 1)
        await eventually(lambda: not log.trimmer.is_held)
        assert offloader.most_at_once == (16 if is_copied else 0)
        left = 10 * (LEDGERS - 3 * CHUNK_ROWS - 2) + 6
        await eventually(lambda: log.offsets.entry_count == left)
        assert log.bytes_after((upto, 9)) == log.total_bytes
        await log.delete()
    assert offloader.deleted == (LEDGERS if is_copied else 0)
    assert await cluster.store.get(PATH) is None
    assert await cluster.store.children(chunks_path(PATH)) == []


@pytest.mark.parametrize("is_copied", [False, True])
async def test_the_largest_properties_leave_a_long_list_its_room(
    cluster: Cluster, is_copied: bool
) -> None:
    """Larger ones were stored, and then there was no room for a ledger, a trim or a claim."""
    cluster.offloaders = [cast("LedgerOffloader", Forgetful())]
    config = replace(CONFIG, ledger_entries_max=1)
    log = await cluster.factory().open(NAME, config)
    await log.open_cursor("sub", EARLIEST)
    appends = await appended(log, b"first")
    await log.close()
    await lengthen(cluster, is_copied, newest=2 * CHUNK_ROWS)
    log = await cluster.factory().open(NAME, config)
    before = await cluster.store.get(PATH)
    assert before is not None
    room = PROPERTIES_BYTES_MAX - len('{"x":""}')
    for size in (room + 1, 500_000, 999_000, 2_000_000):
        with pytest.raises(ValueTooLargeError, match=f"at most {PROPERTIES_BYTES_MAX}"):
            await log.set_properties({"x": "y" * size})
    assert await cluster.store.get(PATH) == before
    await log.set_properties({"x": "y" * room})
    appends = Appends(log)
    for n in range(5):
        await appends.stored(b"%d" % n)
        stored = await cluster.store.get(PATH)
        assert stored is not None
        assert len(stored.value) <= NODE_BYTES
    assert appends.failed == 0
    await log.close()
    log = await cluster.factory().open(NAME, config)
    assert log.properties == {"x": "y" * room}
    upto = FIRST + CHUNK_ROWS + 1
    log.cursors["sub"].ack_cumulative((upto, 9))
    await eventually(lambda: log.lists.info.ledgers[0].ledger_id == upto + 1)
    await log.delete()
    assert await cluster.store.get(PATH) is None
