"""Reads past the cache: joined, ahead, bounded, and what happens when they fail."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise

import pytest

from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST
from magnetar.managed_ledger.read_path import READ_AHEAD_ENTRIES_MAX, READERS_MAX
from tests.unit.managed_ledger.cluster import (
    CONFIG,
    NAME,
    Appends,
    Cluster,
    appended,
    eventually,
    read_all,
)


@pytest.fixture
async def cold() -> AsyncIterator[tuple[Cluster, ManagedLedger, Appends]]:
    """A log of 60 ledgers with 50 entries each, opened by a broker that has nothing cached."""
    cluster = Cluster(cache_bytes=4 << 20)
    config = replace(CONFIG, ledger_entries_max=50)
    log = await cluster.factory().open(NAME, config)
    await log.open_cursor("hold", EARLIEST)
    appends = await appended(log, *[b"%05d" % i for i in range(3000)])
    await log.close()
    yield cluster, await cluster.factory().open(NAME, config), appends
    await cluster.close()


async def test_everything_is_read_once_and_in_order(
    cold: tuple[Cluster, ManagedLedger, Appends],
) -> None:
    cluster, log, appends = cold
    assert await read_all(log, entries_max=7) == appends.acked
    assert log.cache.misses == 60
    assert len(cluster.connections[-1].reads) == 60  # one request per ledger
    assert log._reads is not None
    assert len(log._reads._readers) <= READERS_MAX


async def test_a_read_is_ahead_of_its_reader(cold: tuple[Cluster, ManagedLedger, Appends]) -> None:
    _, log, appends = cold
    first = await log.read(EARLIEST, 10, 1 << 20)
    assert first is not None
    assert len(first) == 10
    assert log.read_nowait(appends.acked[10][0], 10, 1 << 20) is not None
    await eventually(lambda: log.read_nowait(appends.acked[50][0], 10, 1 << 20) is not None)


async def test_identical_reads_are_joined_and_outlive_a_cancelled_one(
    cold: tuple[Cluster, ManagedLedger, Appends],
) -> None:
    cluster, log, appends = cold
    readers = [asyncio.create_task(log.read(EARLIEST, 5, 1 << 20)) for _ in range(5)]
    await asyncio.sleep(0)
    readers[0].cancel()
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    for batch in results[1:]:
        assert not isinstance(batch, BaseException)
        assert batch is not None
        assert batch.bodies == [x for _, x in appends.acked[:5]]
    assert len(cluster.connections[-1].reads) == 1


async def test_readers_that_catch_up_together_cost_one_read_of_each_range(
    cluster: Cluster,
) -> None:
    """A dozen subscriptions at different entries of the same old ledger, all at once."""
    log = await cluster.factory().open(NAME, CONFIG)
    await log.open_cursor("hold", EARLIEST)
    appends = await appended(log, *[b"%05d" % i for i in range(3000)])
    await log.close()
    log = await cluster.factory().open(NAME, CONFIG)
    start = 37  # the distance between two of them, which share no request

    async def catch_up(number: int) -> None:
        begin = number * start
        found = await read_all(log, appends.acked[begin][0], entries_max=10)
        assert found == appends.acked[begin:]

    await asyncio.gather(*map(catch_up, range(12)))
    reads = [first for first, _ in cluster.connections[-1].reads]
    # 512 entries each, which all of them wait for.
    assert len(reads) <= 3000 // READ_AHEAD_ENTRIES_MAX + 2
    assert len(set(reads)) == len(reads)


async def test_a_new_read_ends_where_another_begins(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    await log.open_cursor("hold", EARLIEST)
    appends = await appended(log, *[b"%05d" % i for i in range(400)])
    await log.close()
    log = await cluster.factory().open(NAME, CONFIG)
    batches = await asyncio.gather(
        *(log.read(appends.acked[i][0], 1000, 1 << 20) for i in (300, 200, 350, 100))
    )
    assert sorted(cluster.connections[-1].reads) == [(100, 100), (200, 100), (300, 100)]
    assert [None if x is None else (x.first, x.last) for x in batches] == [
        *((300, 399), (200, 299), (350, 399), (100, 199))
    ]


async def test_a_reader_behind_an_entry_that_can_t_be_read_goes_on_alone(
    cluster: Cluster,
) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    await log.open_cursor("hold", EARLIEST)
    appends = await appended(log, *[b"%05d" % i for i in range(10)])
    await log.close()
    log = await cluster.factory().open(NAME, CONFIG)
    ledger_id, _ = appends.acked[0][0]
    cluster.bookie.corrupt(ledger_id, 0)
    results = await asyncio.gather(
        log.read((ledger_id, 0), 5, 1 << 20),
        log.read((ledger_id, 4), 5, 1 << 20),
        return_exceptions=True,
    )
    assert isinstance(results[0], LedgerError)
    assert not isinstance(results[1], BaseException)
    assert results[1] is not None
    assert results[1].bodies == [x for _, x in appends.acked[4:9]]


async def test_a_failing_read_is_told_and_tried_again(
    cold: tuple[Cluster, ManagedLedger, Appends],
) -> None:
    cluster, log, appends = cold
    cluster.bookie.up = False
    with pytest.raises(LedgerError):
        await log.read(EARLIEST, 5, 1 << 20)
    with pytest.raises(LedgerError):
        await log.find_newest(lambda _, body: bytes(body) < b"00100")
    cluster.bookie.up = True
    assert await read_all(log) == appends.acked
    assert await log.find_newest(lambda _, body: bytes(body) < b"00100") == appends.acked[99][0]


async def test_reading_a_ledger_that_is_trimmed_meanwhile_goes_on_behind_it(
    cold: tuple[Cluster, ManagedLedger, Appends],
) -> None:
    cluster, log, appends = cold
    # Its entries vanish from the bookie while the read is on its way.
    first = appends.acked[0][0][0]

    def on_read(_: int) -> None:
        cluster.connections[-1].on_read = None
        cluster.bookie.ledgers[first].entries.clear()
        log.on_list_changed(log.lists.info.without([first]))

    cluster.connections[-1].on_read = on_read
    batch = await log.read(EARLIEST, 5, 1 << 20)
    assert batch is not None
    assert (batch.ledger_id, batch.first) == appends.acked[50][0]
    assert log.log_cache is not None
    assert log.log_cache.find(first, 0) is None


async def test_search_finds_every_entry(cold: tuple[Cluster, ManagedLedger, Appends]) -> None:
    _, log, appends = cold
    for i in (0, 1, 49, 50, 1499, 2998, 2999):
        limit = b"%05d" % i
        found = await log.find_newest(lambda _, body, limit=limit: bytes(body) <= limit)  # type: ignore[misc]
        assert found == appends.acked[i][0]
    assert await log.find_newest(lambda *_: False) is None
    upto = appends.acked[700][0]
    assert await log.find_newest(lambda *_: True, upto=upto) == upto
    after = appends.acked[100][0]
    assert await log.find_newest(lambda *_: False, after=after) is None
    assert log.cache.is_empty  # searches don't fill the cache


async def test_runs_are_bounded() -> None:
    cluster = Cluster(cache_bytes=8 << 20)
    log = await cluster.factory().open(NAME, CONFIG)
    await log.open_cursor("hold", EARLIEST)
    appends = await appended(log, *[b"%05d" % i for i in range(3 * READ_AHEAD_ENTRIES_MAX)])
    second = await cluster.factory().open(NAME, CONFIG)
    assert await read_all(second, entries_max=10_000) == appends.acked
    assert second.cache.misses == 3
    await cluster.close()


async def test_nothing_is_cached_without_a_budget() -> None:
    cluster = Cluster(cache_bytes=0)
    log = await cluster.factory().open(NAME, CONFIG)
    appends = await appended(log, *[b"%05d" % i for i in range(100)])
    assert log.read_nowait(appends.acked[0][0], 1, 1) is None
    assert await read_all(log, entries_max=30) == appends.acked
    assert log.cache.is_empty
    await cluster.close()


async def test_a_reader_that_goes_on_gets_longer_runs() -> None:
    """From 256 KiB to 4 MiB, by doubling; whoever jumps begins anew."""
    cluster, size = Cluster(cache_bytes=128 << 20), 16 << 10
    log = await cluster.factory().open(NAME, CONFIG)
    await log.open_cursor("hold", EARLIEST)
    appends = await appended(log, *[bytes(size)] * 1500)
    second = await cluster.factory().open(NAME, CONFIG)
    cluster.connections[-1].reads.clear()
    position = EARLIEST
    while (batch := await second.read(position, 1, 1)) is not None and batch.first < 1000:
        position = (batch.ledger_id, batch.last + 1)
    begins = [first for first, _ in cluster.connections[-1].reads]
    runs = [end - first for first, end in pairwise(begins)]
    # An entry has a head and a packet's header as well, so one less fits.
    assert runs[:6] == [15, 31, 63, 127, 255, 255]
    assert set(runs[4:]) == {255}
    jumped = await second.read((appends.acked[0][0][0], 1400), 1, 1)
    assert jumped is not None
    await eventually(lambda: begins[-1] != cluster.connections[-1].reads[-1][0])
    again = second.read_nowait((jumped.ledger_id, 1400), 1000, 1 << 30)
    assert again is not None
    assert len(again) <= 16
    await cluster.close()
