"""Create, append, confirm, close, read, recover, delete through the shells."""

import asyncio
import random
from dataclasses import replace

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.placement import PlacementConfig, make_placement
from magnetar.bookkeeper.client.placement.isolation import metadata_of_groups
from magnetar.bookkeeper.errors import (
    BookieUnavailableError,
    EntryDigestError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerRecoveryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedAccessError,
    WriteFailedError,
)
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerState
from tests.unit.bookkeeper.client.conftest import Cluster, eventually

TRIPLES = [(1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 2, 2)]


def batch(first: int, count: int) -> tuple[list[bytes], list[bytes]]:
    return (
        [b"head%06d" % entry_id for entry_id in range(first, first + count)],
        [b"body%d" % entry_id * 20 for entry_id in range(first, first + count)],
    )


def entries(first: int, count: int) -> list[bytes]:
    """What a ledger has of a ``batch``."""
    return [head + body for head, body in zip(*batch(first, count), strict=True)]


def payload_bytes(count: int) -> int:
    heads, bodies = batch(0, count)
    return sum(map(len, heads + bodies))


async def write(writer: AsyncLedgerWriter, count: int, per_append: int = 7) -> None:
    """Append up to entry ``count`` and wait until all is confirmed."""
    while writer.next_entry < count:
        writer.append(*batch(writer.next_entry, min(per_append, count - writer.next_entry)))
    await eventually(lambda: writer.last_confirmed == count - 1)


async def created(cluster: Cluster, config: LedgerConfig, *, bookies: int = 0) -> AsyncLedgerWriter:
    """Of a new ledger, and ``bookies`` new bookies: as many as its ensemble has if it's 0."""
    cluster.add_bookies(bookies or config.ensemble_size)
    return await cluster.client.create_ledger(config)


async def written(
    cluster: Cluster, config: LedgerConfig, count: int, *, bookies: int = 0
) -> AsyncLedgerWriter:
    writer = await created(cluster, config, bookies=bookies)
    await write(writer, count)
    return writer


async def read_all(cluster: Cluster, ledger_id: int, *, recover: bool = True) -> int:
    """Read the whole ledger, check every byte; the number of entries."""
    reader = await cluster.client.open_ledger(ledger_id, recover=recover)
    first = 0
    while first <= reader.last_confirmed:
        run = await reader.read(first, reader.last_confirmed, 1 << 20)
        assert run.first == first
        assert run.bodies == entries(first, len(run.bodies))
        first += len(run.bodies)
    return first


@pytest.mark.parametrize("triple", TRIPLES)
async def test_write_close_read(cluster: Cluster, triple: tuple[int, int, int]) -> None:
    cluster.add_bookies(5)
    writer = await cluster.client.create_ledger(LedgerConfig(*triple), {"component": b"test"})
    confirmed: list[int] = []
    writer.on_confirmed = confirmed.append
    await write(writer, 100)
    metadata = await writer.close()
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry == 99
    assert metadata.length == writer.length == payload_bytes(100)
    assert metadata.custom_metadata == {"component": b"test"}
    assert confirmed == sorted(set(confirmed))
    assert confirmed[-1] == 99
    assert await cluster.client.read_ledger_metadata(writer.ledger_id) == metadata
    assert await read_all(cluster, writer.ledger_id) == 100


@pytest.mark.parametrize("triple", TRIPLES)
async def test_recovery_keeps_what_was_confirmed(
    cluster: Cluster, triple: tuple[int, int, int]
) -> None:
    cluster.add_bookies(5)
    writer = await cluster.client.create_ledger(LedgerConfig(*triple))
    await write(writer, 50)
    assert await read_all(cluster, writer.ledger_id) == 50
    failed: list[LedgerError] = []
    writer.on_failed = failed.append
    writer.append(*batch(50, 1))
    await eventually(lambda: bool(failed))
    assert isinstance(failed[0], LedgerFencedError)
    with pytest.raises(LedgerFencedError):
        writer.append(*batch(51, 1))
    with pytest.raises(LedgerFencedError):
        await writer.close()


async def test_answers_of_one_tick_are_one_watermark(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    confirmed: list[int] = []
    writer.on_confirmed = confirmed.append
    cluster.clients["b0"].hold_adds = True
    for first in range(10):
        writer.append(*batch(first, 1))
    cluster.clients["b0"].release()
    assert confirmed == []
    await eventually(lambda: bool(confirmed))
    assert confirmed == [9]


async def test_what_was_under_way_alone_is_told_with_its_answer(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    confirmed: list[int] = []
    writer.on_confirmed = confirmed.append
    cluster.clients["b0"].hold_adds = True
    writer.append(*batch(0, 1))
    (request,) = cluster.clients["b0"]._held
    request.done(request, codes.OK)
    assert confirmed == [0]


async def test_an_owner_that_appends_while_it_is_told_stalls_nothing(cluster: Cluster) -> None:
    """#4557: answers out of order, and an owner's code in between, leave nothing behind."""
    writer = await created(cluster, LedgerConfig(3, 3, 2))
    clients = [cluster.clients[name] for name in writer.metadata.last_segment.bookies]

    def on_confirmed(upto: int) -> None:
        if writer.next_entry < 60:
            writer.append(*batch(writer.next_entry, 3))

    writer.on_confirmed = on_confirmed
    clients[2].bookie.up = False
    for client in clients:
        client.hold_adds = True
    for first in range(0, 30, 3):
        writer.append(*batch(first, 3))
    clients[0]._held.reverse()
    clients[0].release()
    assert writer.last_confirmed == -1
    clients[1]._held.reverse()  # the first entry comes last: all behind it have their quorum
    clients[1].release()
    await eventually(lambda: writer.last_confirmed == 59)
    assert (writer.next_entry, writer.pending_bytes) == (60, 0)
    await writer.close()
    assert await read_all(cluster, writer.ledger_id) == 60


async def test_one_request_per_bookie_and_append(cluster: Cluster) -> None:
    writer = await created(cluster, LedgerConfig(3, 3, 2))
    await write(writer, 64, per_append=64)
    for client in cluster.clients.values():
        assert [request.entry_ids for request in client.requests] == [range(64)]


async def test_failed_bookie_is_replaced(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 3, 3), 10, bookies=4)
    victim = writer.metadata.last_segment.bookies[1]
    cluster.bookies[victim].up = False
    await write(writer, 30)
    segments = writer.metadata.segments
    assert [segment.first_entry for segment in segments] == [0, 10]
    assert victim not in segments[1].bookies
    await writer.close()
    assert await read_all(cluster, writer.ledger_id) == 30


async def test_a_ledger_of_a_group_is_created_and_repaired_inside_of_it(cluster: Cluster) -> None:
    """Whatever the client's own placement: the ledger's custom metadata name the group."""
    cluster.add_bookies(7)
    grouped = {"b1", "b3", "b5"}
    rng = random.Random(3)
    placement = make_placement(
        *(PlacementConfig(), rng, cluster.pool.location, set),
        groups_of=lambda bookie: ["ssd" if bookie in grouped else "hdd"],
    )
    client = BookKeeperClient(cluster.store, cluster.pool, placement, clock=lambda: 1, rng=rng)
    writer = await client.create_ledger(LedgerConfig(2, 2, 2), metadata_of_groups("ssd", None))
    failed: list[LedgerError] = []
    writer.on_failed = failed.append
    await write(writer, 10)
    cluster.bookies[writer.metadata.last_segment.bookies[0]].up = False
    await write(writer, 20)
    segments = writer.metadata.segments
    assert [segment.first_entry for segment in segments] == [0, 10]
    assert {bookie for segment in segments for bookie in segment.bookies} == grouped
    cluster.bookies[segments[1].bookies[1]].up = False
    writer.append(*batch(20, 1))
    await eventually(lambda: bool(failed))
    assert isinstance(failed[0], NotEnoughBookiesError)
    assert "group ssd" in str(failed[0])


async def test_no_bookie_left_fails_the_writer(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 3, 2), 10)
    failed: list[LedgerError] = []
    writer.on_failed = failed.append
    for bookie in cluster.bookies.values():
        bookie.refuse_adds = codes.READ_ONLY
    writer.append(*batch(10, 3))
    await eventually(lambda: bool(failed))
    assert isinstance(failed[0], NotEnoughBookiesError)
    assert (await writer.close()).last_entry == 9


async def test_refusing_bookies_do_not_take_turns_for_ever(cluster: Cluster) -> None:
    """Simulation (protocol) seed 75231: each turn was a write to the metadata store."""
    writer = await written(cluster, LedgerConfig(3, 3, 3), 3, bookies=4)
    before = writer.metadata.segments
    failed: list[LedgerError] = []
    writer.on_failed = failed.append
    for bookie in ("b0", "b1"):
        cluster.bookies[bookie].refuse_adds = codes.UNKNOWN_LEDGER_STATE
    writer.append(*batch(3, 1))
    await eventually(lambda: bool(failed))
    assert isinstance(failed[0], NotEnoughBookiesError)
    found = await cluster.client.read_ledger_metadata(writer.ledger_id)
    assert found is not None
    assert len(found.segments) <= len(before) + 1


async def test_close_drops_what_is_unconfirmed(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(2, 2, 2), 5)
    failed: list[LedgerError] = []
    writer.on_failed = failed.append
    for client in cluster.clients.values():
        client.hold_adds = True
    writer.append(*batch(5, 3))
    metadata = await writer.close()
    assert (metadata.last_entry, metadata.length) == (4, payload_bytes(5))
    assert isinstance(failed[0], LedgerClosedError)
    for client in cluster.clients.values():
        client.release()
    assert writer.last_confirmed == 4
    assert await writer.close() == metadata  # closing again is harmless


async def test_create_needs_enough_bookies(cluster: Cluster) -> None:
    cluster.add_bookies(2)
    with pytest.raises(NotEnoughBookiesError):
        await cluster.client.create_ledger(LedgerConfig(3, 3, 2))


async def test_delete(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await cluster.client.delete_ledger(writer.ledger_id)
    await cluster.client.delete_ledger(writer.ledger_id)
    assert await cluster.client.read_ledger_metadata(writer.ledger_id) is None
    with pytest.raises(NoSuchLedgerError):
        await cluster.client.open_ledger(writer.ledger_id, recover=True)
    with pytest.raises(NoSuchLedgerError):
        await writer.close()


async def test_password(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig(password=b"secret"))
    await write(writer, 3)
    with pytest.raises(UnauthorizedAccessError):
        await cluster.client.open_ledger(writer.ledger_id, recover=True)
    reader = await cluster.client.open_ledger(writer.ledger_id, b"secret", recover=True)
    assert reader.last_confirmed == 2


async def test_open_without_recovery_never_disturbs_the_writer(cluster: Cluster) -> None:
    writer = await created(cluster, LedgerConfig(3, 3, 2))
    await write(writer, 5, per_append=1)
    await write(writer, 10, per_append=1)
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    assert 4 <= reader.last_confirmed <= 9  # the LAC lags behind by what is in flight
    with pytest.raises(NoSuchEntryError):
        await reader.read(0, 10, 1 << 20)
    await write(writer, 20, per_append=1)
    await writer.close()
    await reader.refresh()
    assert reader.last_confirmed == 19


async def test_read_falls_over_to_an_intact_replica(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 3, 3), 10)
    await writer.close()
    cluster.bookies["b0"].corrupt(writer.ledger_id, 4)
    cluster.bookies["b1"].up = False
    del cluster.bookies["b2"].ledgers[writer.ledger_id].entries[9]
    assert await read_all(cluster, writer.ledger_id) == 10
    cluster.bookies["b2"].corrupt(writer.ledger_id, 4)
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    corrupt: list[tuple[int, int, str]] = []
    reader.on_corrupt = lambda *found: corrupt.append(found)
    assert len((await reader.read(0, 9, 1 << 20)).bodies) == 4  # the intact prefix
    with pytest.raises(LedgerError):
        await reader.read(4, 9, 1 << 20)
    cluster.bookies["b1"].up = True
    cluster.bookies["b1"].corrupt(writer.ledger_id, 4)
    with pytest.raises(EntryDigestError):
        await reader.read(4, 9, 1 << 20)
    assert {bookie for _, entry_id, bookie in corrupt if entry_id == 4} == {"b0", "b1", "b2"}


async def test_own_reader_follows_the_writer(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    reader = writer.reader()
    cluster.clients["b0"].hold_adds = True
    writer.append(*batch(0, 2))
    assert reader.last_confirmed == -1
    with pytest.raises(NoSuchEntryError):
        await reader.read(0, 0, 100)
    cluster.clients["b0"].release()
    assert (await reader.read(0, 1, 1)).bodies == entries(0, 1)


async def test_recovery_waits_for_a_quorum(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 3, 2), 10)
    for name in ("b0", "b1"):
        cluster.bookies[name].up = False
    with pytest.raises(LedgerRecoveryError):
        await cluster.client.open_ledger(writer.ledger_id, recover=True)
    metadata = await cluster.client.read_ledger_metadata(writer.ledger_id)
    assert metadata is not None
    assert metadata.state is LedgerState.IN_RECOVERY
    cluster.bookies["b0"].up = True
    assert await read_all(cluster, writer.ledger_id) == 10


async def test_many_recoverers_agree(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 3, 2), 40, bookies=4)
    ends = await asyncio.gather(*(read_all(cluster, writer.ledger_id) for _ in range(5)))
    assert set(ends) == {40}


async def test_ids_and_paths(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    ids = [(await cluster.client.create_ledger(LedgerConfig())).ledger_id for _ in range(5)]
    assert ids == sorted(set(ids))
    ranges = [found async for found in cluster.client.ledgers.ranges()]
    assert [ledger_id for found in ranges for ledger_id in found.ledger_ids] == ids
    assert all(found.first <= i < found.end for found in ranges for i in found.ledger_ids)


async def test_recovery_starts_again_when_the_last_segment_changed(cluster: Cluster) -> None:
    """3.2 step 8: re-applying its end to another last segment could lose entries."""
    writer = await written(cluster, LedgerConfig(1, 1, 1), 12, bookies=3)
    (old,) = writer.metadata.last_segment.bookies
    new = next(name for name in cluster.bookies if name != old)
    held = cluster.bookies[old].ledgers[writer.ledger_id]
    cluster.bookies[new].ledgers[writer.ledger_id] = replace(held, entries=dict(held.entries))
    for entry_id in (10, 11):
        del held.entries[entry_id]
    moves: list[asyncio.Task[object]] = []

    def move(first: int) -> None:
        if not moves:
            change = cluster.client.ledgers.update(
                writer.ledger_id, lambda m: replace(m, segments=(EnsembleSegment(0, (new,)),))
            )
            moves.append(asyncio.get_running_loop().create_task(change))

    cluster.clients[old].on_read = move
    assert await read_all(cluster, writer.ledger_id) == 12
    metadata = await cluster.client.read_ledger_metadata(writer.ledger_id)
    assert metadata is not None
    assert metadata.segments == (EnsembleSegment(0, (new,)),)
    await moves[0]


async def test_bookie_client_that_raises_is_no_answer(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(3, 3, 2), 10)

    async def fail(*args: object, **options: object) -> object:
        raise BookieUnavailableError("connection reset")

    broken = cluster.clients["b0"]
    broken.read_entries = fail  # type: ignore[method-assign,assignment]
    broken.read_lac = fail  # type: ignore[method-assign,assignment]
    assert await read_all(cluster, writer.ledger_id) == 10


async def test_metadata_failure_in_an_ensemble_change_is_fatal(cluster: Cluster) -> None:
    cluster.add_bookies(2)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 3)
    failed: list[LedgerError] = []
    writer.on_failed = failed.append
    cluster.bookies[writer.metadata.last_segment.bookies[0]].up = False
    await cluster.store.close()
    writer.append(*batch(3, 1))
    await eventually(lambda: bool(failed))
    assert isinstance(failed[0], WriteFailedError)
    assert writer.last_confirmed == 2


async def test_a_slow_bookie_slows_its_writer_down(cluster: Cluster) -> None:
    """The others confirm what waits for it; the owner is told once it has caught up."""
    writer = await created(cluster, LedgerConfig(3, 3, 2))
    told: list[int] = []
    writer.on_confirmed = told.append
    slow = cluster.clients["b1"]
    slow.hold_adds = slow.is_backlogged = True
    writer.append(*batch(0, 10))
    await eventually(lambda: writer.last_confirmed == 9)
    writer.append(*batch(10, 10))
    await eventually(lambda: writer.last_confirmed == 19)
    assert told == []
    slow.is_backlogged = False
    await eventually(lambda: told == [19])
    slow.release()
    await writer.close()


@pytest.mark.parametrize("end", ["close", "fenced"])
async def test_a_held_watermark_is_told_before_the_end(cluster: Cluster, end: str) -> None:
    writer = await created(cluster, LedgerConfig(3, 3, 2))
    story: list[object] = []
    writer.on_confirmed = story.append
    writer.on_failed = lambda error: story.append(type(error))
    cluster.clients["b1"].is_backlogged = True
    writer.append(*batch(0, 10))
    await eventually(lambda: writer.last_confirmed == 9)
    if end == "close":
        await writer.close()
        assert story == [9]
    else:
        await cluster.client.open_ledger(writer.ledger_id, recover=True)
        writer.append(*batch(10, 1))
        await eventually(lambda: len(story) == 2)
        assert story == [9, LedgerFencedError]
