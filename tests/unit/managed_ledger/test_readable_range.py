"""What may be read of a log at one moment, and what of that is still there later."""

from dataclasses import replace

import pytest

from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows, PackedRows
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.offload.context import CopyState, LedgerCopy, OffloadContext
from magnetar.managed_ledger.position import EARLIEST
from magnetar.managed_ledger.readable_range import ReadableLedger, ReadableRange, extent_of, left_of
from tests.unit.managed_ledger.cluster import (
    CONFIG,
    HEAD,
    NAME,
    Appends,
    Cluster,
    appended,
    eventually,
)


def ledgers(extent: ReadableRange) -> list[ReadableLedger]:
    return [x for piece in extent.pieces() for x in piece]


def rows(extent: ReadableRange) -> list[tuple[int, int]]:
    return [(x.entries, x.size) for x in ledgers(extent)]


async def test_nothing_was_ever_written(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    assert extent_of(log) == ReadableRange((-1, 0), EARLIEST, False, -1, (), ())


async def test_closed_ledgers_and_the_one_that_is_written(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=2))
    await log.open_cursor("keeps all", EARLIEST)
    appends = Appends(log)
    for payload in (b"one", b"two", b"three", b"four", b"five"):
        await appends.stored(payload)
    await eventually(lambda: [bool(x.closed_ms) for x in ledgers(extent_of(log))] == [1, 1, 0])
    extent = extent_of(log)
    at = [position for position, _ in appends.acked]
    assert (extent.first, extent.last_confirmed) == (at[0], at[-1])
    assert rows(extent) == [(2, 6 + 2 * len(HEAD)), (2, 9 + 2 * len(HEAD)), (1, 4 + len(HEAD))]
    assert [x.closed_ms for x in ledgers(extent)] == [x.closed_ms for x in log.lists.info.ledgers]
    # From some ledger on: nothing else changes.
    for ledger_id, left in ((at[2][0], 2), (at[-1][0], 1), (at[-1][0] + 1, 0), (at[0][0] - 1, 3)):
        some = extent_of(log, ledger_id)
        assert ledgers(some) == ledgers(extent)[3 - left :]
        assert (some.first, some.last_confirmed) == (extent.first, extent.last_confirmed)


async def test_only_what_is_confirmed_counts(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    appends = await appended(log, b"first")
    connection = cluster.connections[0]
    connection.hold_adds = True
    appends.send(b"under way")
    await eventually(lambda: log.appends is not None and log.appends.core.pending_entries == 1)
    extent = extent_of(log)
    assert extent.last_confirmed[1] == 0
    assert rows(extent) == [(1, 5 + len(HEAD))]
    connection.release()
    await appends.settle()
    assert rows(extent_of(log)) == [(2, 14 + 2 * len(HEAD))]


async def test_a_new_ledger_without_entries_is_not_listed(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=2))
    await log.open_cursor("keeps all", EARLIEST)
    appends = await appended(log, b"one", b"two")
    connection = cluster.connections[0]
    connection.hold_adds = True
    appends.send(b"three")
    await eventually(lambda: len(log.offsets.ledger_ids) == 2)
    extent = extent_of(log)
    assert [x.ledger_id for x in ledgers(extent)] == [extent.last_confirmed[0]]
    connection.release()
    await appends.settle()
    assert len(ledgers(extent_of(log))) == 2


async def test_the_size_of_a_ledger_whose_close_is_being_recorded_is_not_known(
    cluster: Cluster,
) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    await appended(log, b"one")
    assert log.appends is not None
    ((ledger_id, writer),) = log.appends.writers.items()
    del log.appends.writers[ledger_id]  # as between the close and its record
    assert rows(extent_of(log)) == [(1, -1)]
    log.appends.writers[ledger_id] = writer


async def test_a_sealed_log_that_is_opened_again(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    await appended(log, b"one", b"two")
    last = await log.terminate()
    extent = extent_of(log)
    assert (extent.terminated, extent.last_confirmed) == (True, last)
    await log.close()
    again = await cluster.factory().open(NAME, CONFIG)
    assert extent_of(again) == extent


async def test_what_is_trimmed_meanwhile_is_left_out(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=2))
    cursor = await log.open_cursor("sub", EARLIEST)
    appends = Appends(log)
    for payload in (b"1", b"2", b"3", b"4", b"5"):
        await appends.stored(payload)
    before = extent_of(log)
    listed = ledgers(before)
    assert len(listed) == 3
    at = [position for position, _ in appends.acked]
    cursor.ack(at[:2])
    await eventually(lambda: len(log.offsets.ledger_ids) == 2)
    assert before.first_left(log) == at[2]
    assert left_of(listed, log) == listed[1:]

    await appends.stored(b"6")
    cursor.ack([position for position, _ in appends.acked[2:]])
    await appends.stored(b"7")
    await eventually(lambda: len(log.offsets.ledger_ids) == 1)
    assert left_of(listed, log) == []
    # Behind the moment's own end, though there is more by now.
    assert before.first_left(log) == (at[4][0], at[4][1] + 1) < extent_of(log).first


async def test_copies_are_those_of_the_later_moment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = LedgerCopy(5, "u", "filesystem", {"fileSystemURI": "file:///c"})
    complete = OffloadContext(copy, CopyState.COMPLETE, 7, 100)
    only = replace(complete, state=CopyState.ONLY)
    listed = ReadableLedger(5, 10, 99, 3, complete)
    log = await cluster.factory().open(NAME, CONFIG)
    later = LedgerRows([LedgerInfo(5, 10, 99, 3, only)])
    monkeypatch.setattr(log.lists, "info", log.lists.info.with_rows(later))
    assert left_of([listed], log) == [replace(listed, offload=only)]
    assert listed.is_in_bookies
    assert not replace(listed, offload=only).is_in_bookies
    assert listed.copy == complete
    started = replace(listed, offload=OffloadContext(copy))
    assert started.copy is None
    assert started.is_in_bookies


async def test_packed_and_newest_ledgers_are_told_in_order(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    closed = [LedgerInfo(n, 2, 10 * n, n) for n in range(1, 10)]
    packed = LedgerRows(closed[6:], (PackedRows.of(closed[:3]), PackedRows.of(closed[3:6])))
    monkeypatch.setattr(log.lists, "info", log.lists.info.with_rows(packed))
    monkeypatch.setattr(log, "offsets", LedgerOffsets((x.ledger_id, 2) for x in closed))
    told = [ReadableLedger(x.ledger_id, 2, x.size, x.closed_ms) for x in closed]
    for first in range(11):
        assert ledgers(extent_of(log, first)) == told[max(0, first - 1) :]
