"""A log with very many ledgers: no turn of the loop, and no change of its list, pays for all."""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import replace
from types import TracebackType
from typing import cast
from uuid import UUID

import pytest

from managed_ledger.ledger_rows import CHUNK_ROWS, LedgerInfo, LedgerRows, Segment
from managed_ledger.list_chunks import ListChunks, chunks_path, read_list
from managed_ledger.offload.context import CopyState, LedgerCopy, OffloadContext
from managed_ledger.offload.ports import LedgerOffloader
from managed_ledger.position import EARLIEST
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Appends, Cluster, eventually

PATH = f"/managed-ledgers/{NAME}"
LEDGERS = 30_000
FIRST = 1_000_000
TURN_MAX_S = 0.05


class Turns:
    """Fails if a turn of the loop has the processor for longer than `TURN_MAX_S`.

    Without full collections: what they look at is all that the tests of this process have made.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    def __enter__(self) -> Turns:
        gc.disable()
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._task.cancel()
        gc.enable()
        if error is None:
            assert self.longest_s < TURN_MAX_S

    async def _watch(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, time.thread_time() - before)


class Forgetful:
    """Has copies only to delete them."""

    driver = "none"

    def __init__(self) -> None:
        self.deleted = 0

    async def delete(self, copy: LedgerCopy) -> None:
        await asyncio.sleep(0)
        self.deleted += 1


def segment_of(first: int, is_copied: bool) -> Segment:
    ids = range(first, first + CHUNK_ROWS)
    copies: list[OffloadContext | None] = [None] * CHUNK_ROWS
    if is_copied:
        place = {"directory": "/var/lib/copies"}
        named = (LedgerCopy(n, str(UUID(int=n)), "none", place) for n in ids)
        copies = [OffloadContext(each, CopyState.SETTLED, 1, 9) for each in named]
    rows = zip(ids, copies, strict=True)
    return Segment.of([LedgerInfo(n, 10, 100, 1000, copy) for n, copy in rows])


async def lengthen(cluster: Cluster, is_copied: bool) -> None:
    """Lists many closed ledgers, which don't exist, behind the one that does."""
    found = await read_list(cluster.store, PATH)
    assert found is not None
    starts = range(FIRST, FIRST + LEDGERS, CHUNK_ROWS)
    segments = (
        Segment.of(found.info.ledgers),
        *(segment_of(first, is_copied) for first in starts),
    )
    rows = LedgerRows([LedgerInfo(FIRST + LEDGERS, 1, 10, 1000)], segments)
    info = replace(found.info, ledgers=rows)
    chunks = ListChunks(cluster.store, PATH, "former")
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
    appends = Appends(log)
    appends.send(b"first")
    await appends.settle()
    await eventually(lambda: log.lists.info.ledgers[0].closed_ms > 0)
    await log.close()
    await lengthen(cluster, is_copied)
    with Turns():
        log = await cluster.factory().open(NAME, config)
        cursor = await log.open_cursor("sub", EARLIEST)
        assert log.entry_count == 10 * LEDGERS + 2
        appends = Appends(log)
        for n in range(5):
            appends.send(b"%d" % n)
            await appends.settle()
        oldest, newest = await log.read((0, 0), 1, 99), await log.read(appends.acked[-1][0], 1, 99)
        assert oldest is not None
        assert newest is not None
        assert [bytes(x) for x in (*oldest.bodies, *newest.bodies)] == [b"first", b"4"]
        upto = FIRST + 3 * CHUNK_ROWS + 1
        cursor.ack_cumulative((upto, 9))
        await eventually(lambda: log.lists.info.ledgers[0].ledger_id == upto + 1)
        await eventually(lambda: not log.trimmer.is_held)
        left = 10 * (LEDGERS - 3 * CHUNK_ROWS - 2) + 6
        await eventually(lambda: log.entry_count == left)
        assert log.bytes_after((upto, 9)) == log.total_bytes
        await log.delete()
    assert offloader.deleted == (LEDGERS if is_copied else 0)
    assert await cluster.store.get(PATH) is None
    assert await cluster.store.children(chunks_path(PATH)) == []
