"""Heads of ledgers: every legal ensemble, replicas that stand in, what is said when none can."""

import asyncio
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import (
    ClientConfig,
    LedgerConfig,
    ReadConfig,
    SpeculationConfig,
)
from magnetar.bookkeeper.client.entry_prefix_reader import EntryPrefixReader
from magnetar.bookkeeper.errors import (
    BadRequestError,
    BookieIoError,
    BookieUnavailableError,
    NoSuchEntryError,
)
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment
from magnetar.bookkeeper.transport import ALL_ENTRIES, EntryPrefixesReply, ReadRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.simulation.model_bookie import ModelBookieClient
from tests.unit.bookkeeper.client.conftest import Cluster, eventually
from tests.unit.bookkeeper.client.test_client import batch, write, written

HEAD_BYTES = 10  # of the entries that ``batch`` makes
PAIRS = [(e, qw) for e in range(1, 8) for qw in range(1, e + 1)]


def heads_reader(
    cluster: Cluster, writer: AsyncLedgerWriter, head_bytes: int = HEAD_BYTES
) -> EntryPrefixReader:
    client = cluster.client
    return EntryPrefixReader(
        *(writer.metadata, writer.last_confirmed, client.ledgers, cluster.pool),
        *(client._config, client.replicas),
        head_bytes=head_bytes,
    )


def expected(first: int, count: int) -> tuple[list[bytes], list[int]]:
    heads, bodies = batch(first, count)
    return heads, [len(h) + len(b) for h, b in zip(heads, bodies, strict=True)]


async def all_runs(reader: EntryPrefixReader, first: int, end: int) -> int:
    """Read and compare everything; the number of runs."""
    count = 0
    async for run in reader.runs(first, end):
        assert run.first == first
        assert run.first < run.end <= end
        assert (run.heads, run.sizes) == expected(first, run.end - first)
        first = run.end
        count += 1
    assert first == end
    return count


@given(
    pair=st.sampled_from(PAIRS),
    cuts=st.lists(st.integers(1, 9), max_size=3),
    reads=st.lists(st.tuples(st.integers(0, 39), st.integers(1, 40)), min_size=1, max_size=6),
    bytes_max=st.sampled_from([1, 300, 1 << 20]),
    down=st.integers(0, 12),
    hedged=st.booleans(),
)
async def test_any_read_of_any_ledger(
    pair: tuple[int, int],
    cuts: list[int],
    reads: list[tuple[int, int]],
    bytes_max: int,
    down: int,
    hedged: bool,
) -> None:
    """Random ranges over random segments; one bookie is down if others have all it holds."""
    size, write_quorum = pair
    store = EmbeddedMetadataStore.open(None)
    cluster = Cluster(store)
    reading = ReadConfig(speculation=SpeculationConfig(1, 1)) if hedged else ReadConfig()
    cluster.client = BookKeeperClient(
        *(store, cluster.pool, cluster.client._placement),
        clock=lambda: 0,
        rng=cluster.client._rng,
        config=ClientConfig(read_bytes_max=bytes_max, reads=reading),
    )
    cluster.add_bookies(size + len(cuts))
    writer = await cluster.client.create_ledger(LedgerConfig(size, write_quorum, write_quorum))
    done = 0
    for cut in cuts:
        done += cut
        await write(writer, done, per_append=3)
        cluster.bookies[writer.metadata.last_segment.bookies[cut % size]].up = False
        # The next write goes to another ensemble.
    await write(writer, 40, per_append=3)
    for bookie in cluster.bookies.values():
        bookie.up = True
    if write_quorum > 1:
        names = sorted(cluster.bookies)
        cluster.bookies[names[down % len(names)]].up = False
    reader = heads_reader(cluster, writer)
    for first, count in reads:
        await all_runs(reader, first, min(40, first + count))
    await store.close()


@pytest.mark.parametrize("pair", [(3, 3), (3, 2), (5, 3), (6, 2), (7, 4)])
async def test_one_round_of_requests_brings_everything(
    cluster: Cluster, pair: tuple[int, int]
) -> None:
    """However few entries in a row a bookie holds, and none of them twice."""
    writer = await written(cluster, LedgerConfig(*pair, 1), 200)
    for client in cluster.clients.values():
        client.reads.clear()
        client.stripes.clear()
    run = await heads_reader(cluster, writer).read(0, 200)
    assert (run.heads, run.sizes) == expected(0, 200)
    entries = [
        entry
        for client in cluster.clients.values()
        for (first, count), stripe in zip(client.reads, client.stripes, strict=True)
        for entry in islice(stripe.ids(first), count)
    ]
    assert sorted(entries) == list(range(200))


async def test_a_bookie_that_is_down_costs_one_short_run(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 2, 2), 100)
    for down in cluster.bookies.values():
        down.up = False
        assert await all_runs(heads_reader(cluster, writer), 0, 100) <= 2
        down.up = True


@pytest.mark.parametrize("pair", [(3, 3), (3, 2), (4, 3), (6, 2)])
async def test_a_bookie_that_is_down_is_asked_once(cluster: Cluster, pair: tuple[int, int]) -> None:
    """It may take its time to fail."""
    cluster.client._config = ClientConfig(read_bytes_max=300)  # many runs
    writer = await written(cluster, LedgerConfig(*pair, 1), 100)
    for name, down in cluster.bookies.items():
        down.up = False
        for client in cluster.clients.values():
            client.reads.clear()
        assert await all_runs(heads_reader(cluster, writer), 0, 100) > 5
        assert len(cluster.clients[name].reads) <= 1
        down.up = True


def watch_heads(cluster: Cluster) -> list[int]:
    """Asks for how many entries each request was from now on."""
    counts: list[int] = []

    def watch(client: ModelBookieClient) -> None:
        read = client.read_heads

        async def counted(request: ReadRequest) -> EntryPrefixesReply:
            counts.append(request.count_max)
            return await read(request)

        client.read_heads = counted  # type: ignore[method-assign]

    for client in cluster.clients.values():
        watch(client)
    return counts


async def test_who_holds_less_of_a_stripe_gives_no_more_than_can_be_used(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(5, 3, 2), 100)
    counts = watch_heads(cluster)
    cluster.bookies[writer.metadata.last_segment.bookies[2]].up = False
    reader = heads_reader(cluster, writer)
    reader._start = 0
    run = await reader.read(0, 100)
    assert run.end == 1  # of entries 0 to 2 the next slot has the first
    # Three of five entries of slot 2, which is down, two of five of slot 0, and what stands in.
    assert sorted(counts) == [1, 40, 60]


async def test_no_bookie_is_asked_beyond_its_segment(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 3, 2), 30, bookies=4)
    replaced = writer.metadata.last_segment.bookies[0]
    cluster.bookies[replaced].up = False
    await write(writer, 60)
    (_, second) = writer.metadata.segments
    assert replaced not in second.bookies
    cluster.bookies[replaced].up = True
    # It got entries before it was found out: they may be others than those that were confirmed.
    stored = cluster.bookies[replaced].ledgers[writer.ledger_id].entries
    stored[second.first_entry] = stored[0]
    for start in range(3):
        reader = heads_reader(cluster, writer)
        reader._start = start
        await all_runs(reader, 0, 60)
    asked = cluster.clients[replaced].reads
    assert asked
    assert max(first + count for first, count in asked) <= second.first_entry


async def test_a_lost_copy_costs_one_short_run(cluster: Cluster) -> None:
    """A bookie that denies what it should have isn't ill, but is asked last."""
    writer = await written(cluster, LedgerConfig(5, 3, 2), 100)
    for bookie in cluster.bookies.values():
        kept = bookie.ledgers[writer.ledger_id].entries
        bookie.ledgers[writer.ledger_id].entries = {}
        assert await all_runs(heads_reader(cluster, writer), 0, 100) <= 3
        bookie.ledgers[writer.ledger_id].entries = kept


async def test_who_gave_nothing_is_asked_first_again_some_time(cluster: Cluster) -> None:
    client = cluster.client
    config = ClientConfig(reads=ReadConfig(slow_memory_ms=0))
    cluster.client = BookKeeperClient(
        *(cluster.store, cluster.pool, client._placement),
        clock=lambda: 0,
        rng=client._rng,
        config=config,
    )
    writer = await written(cluster, LedgerConfig(2, 2, 2), 10)
    reader = heads_reader(cluster, writer)
    first_choice = cluster.clients[writer.metadata.last_segment.bookies[reader._start]]
    first_choice.bookie.up = False
    await reader.read(0, 10)
    first_choice.bookie.up = True
    first_choice.reads.clear()
    await asyncio.sleep(0.001)  # the clock of the loop moves on
    await reader.read(0, 10)
    assert first_choice.reads == [(0, 10)]


async def test_nothing_is_read_above_the_last_confirmed_entry(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 3, 2), 20)
    for client in cluster.clients.values():
        client.hold_adds = True
    writer.append(*batch(20, 1))
    next(iter(cluster.clients.values())).release()  # stored on one, not confirmed
    reader = heads_reader(cluster, writer)
    with pytest.raises(NoSuchEntryError, match="above the last confirmed"):
        await reader.read(10, 21)
    await all_runs(reader, 10, 20)
    for client in cluster.clients.values():
        client.release()
    await eventually(lambda: writer.last_confirmed == 20)
    reader.last_confirmed = writer.last_confirmed
    await all_runs(reader, 10, 21)


@pytest.mark.parametrize(("first", "end"), [(-1, 3), (3, 3), (4, 3)])
async def test_ranges_without_entries_are_bugs(cluster: Cluster, first: int, end: int) -> None:
    writer = await written(cluster, LedgerConfig(1, 1, 1), 5)
    with pytest.raises(ValueError, match="not a range"):
        await heads_reader(cluster, writer).read(first, end)


async def test_no_such_entry_only_if_every_replica_says_so(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 3, 2), 5)
    reader = heads_reader(cluster, writer)
    for bookie in cluster.bookies.values():
        del bookie.ledgers[writer.ledger_id].entries[3]
    with pytest.raises(NoSuchEntryError):
        await reader.read(3, 5)
    next(iter(cluster.bookies.values())).up = False
    with pytest.raises(BookieUnavailableError):
        await reader.read(3, 5)


async def test_entries_shorter_than_a_head_come_whole(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 2, 2), 12)
    shorter = writer.last_confirmed + 1
    writer.append([b"tiny"], [b""])
    await eventually(lambda: writer.last_confirmed == shorter)
    reader = heads_reader(cluster, writer)
    found = await reader.read(shorter, shorter + 1)
    assert (found.heads, found.sizes) == ([b"tiny"], [4])
    assert not any(client.reports for client in cluster.clients.values())


async def test_what_a_bookie_finds_corrupt_is_read_elsewhere(cluster: Cluster) -> None:
    """A bookie checks digests; it answers IO_ERROR, or ends its reply before the entry."""
    writer = await written(cluster, LedgerConfig(3, 2, 2), 30)
    victim = cluster.clients[writer.metadata.last_segment.bookies[1]]
    read = victim.read_heads

    async def damaged(request: ReadRequest) -> EntryPrefixesReply:
        first, count_max = request.first, request.count_max
        good = request.stripe.count(first, 13) if first < 13 else 0
        if first == 13:
            return EntryPrefixesReply(codes.IO_ERROR, first, [], [])
        return await read(replace(request, count_max=min(count_max, good) if good else count_max))

    victim.read_heads = damaged  # type: ignore[method-assign]
    await all_runs(heads_reader(cluster, writer), 0, 30)
    for client in cluster.clients.values():
        client.read_heads = damaged  # type: ignore[method-assign]
    with pytest.raises(BookieIoError):
        await heads_reader(cluster, writer).read(13, 30)


async def test_bookies_that_know_no_heads_are_left_out(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(2, 2, 2), 10)

    async def refused(request: ReadRequest) -> EntryPrefixesReply:
        return EntryPrefixesReply(codes.BAD_REQUEST, request.first, [], [])

    first, second = cluster.clients.values()
    first.read_heads = refused  # type: ignore[method-assign]
    await all_runs(heads_reader(cluster, writer), 0, 10)
    second.read_heads = refused  # type: ignore[method-assign]
    with pytest.raises(BadRequestError):
        await heads_reader(cluster, writer).read(0, 10)


async def test_moved_replicas_are_found_in_the_metadata(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(2, 2, 2), 10)
    await writer.close()
    reader = heads_reader(cluster, writer)
    old = writer.metadata.last_segment.bookies
    cluster.add_bookies(2)
    new = tuple(name for name in cluster.bookies if name not in old)
    for source, target in zip(old, new, strict=True):
        cluster.bookies[target].ledgers = cluster.bookies[source].ledgers
        cluster.bookies[source].up = False
    await cluster.client.ledgers.update(
        writer.ledger_id, lambda found: replace(found, segments=(EnsembleSegment(0, new),))
    )
    await all_runs(reader, 0, 10)
    assert reader.metadata.last_segment.bookies == new


async def test_an_error_of_the_client_itself_is_no_answer(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(1, 1, 1), 3)
    (client,) = cluster.clients.values()

    async def closed(*_: object, **__: object) -> EntryPrefixesReply:
        raise BookieUnavailableError("closed")

    client.read_heads = closed  # type: ignore[method-assign]
    with pytest.raises(BookieUnavailableError, match="closed"):
        await heads_reader(cluster, writer).read(0, 3)


def test_the_default_stripe_is_everything() -> None:
    assert [ALL_ENTRIES.has(n) for n in range(3)] == [True] * 3
    assert ALL_ENTRIES.run_end(5, 1 << 40) == 1 << 40
