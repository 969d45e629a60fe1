"""Garbage collection of a bookie: what may go, when, how fast, and what must not."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import GarbageCollectionConfig
from magnetar.bookkeeper.bookie.cookie import read_instance_id
from magnetar.bookkeeper.bookie.gc.garbage_collector import (
    COLLECTORS_PATH,
    GarbageCollector,
    MetadataFreshnessCheck,
)
from magnetar.bookkeeper.bookie.gc.over_replicated import OverReplicatedLedgers
from magnetar.bookkeeper.bookie.http.admin_pages import AdminPages
from magnetar.bookkeeper.bookie.http.admin_server import BodyPage, HttpResponse
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.client.ledger_store import LedgerRange, LedgerStore
from magnetar.bookkeeper.errors import CookieMismatchError, LedgerError
from magnetar.bookkeeper.ledger_metadata import (
    EnsembleSegment,
    LedgerMetadata,
    LedgerState,
    replace_members,
)
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.metadata.store import MetadataStore
from tests.integration.bookie_node import KEY, Node, Registry, add
from tests.memory_file_system import MemoryFileSystem
from tests.memory_store import MemoryStore
from tests.waiting import eventually


def fill(size: int, entry_id: int) -> bytes:
    return b"%d" % (entry_id % 10) * size


async def write_two(bookie: Bookie, deleted_size: int, live_size: int, entries: int = 300) -> None:
    """Ledgers 1 and 2 mixed over several entry logs, then a log at work with other things."""
    for first in range(0, entries, 10):
        for ledger_id, size in ((1, deleted_size), (2, live_size)):
            assert await add(bookie, ledger_id, range(first, first + 10), partial(fill, size)) == 0
    await bookie.flush()
    assert await add(bookie, 3, range(45), partial(fill, 100_000)) == 0
    await bookie.flush()


def log_bytes(bookie: Bookie) -> int:
    return sum(log.end for log in bookie.storage.logs.logs.values())


async def test_minor_and_major_passes_take_their_share(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    await write_two(bookie, 30_000, 15_000)  # a third lives
    collector = GarbageCollector(bookie, Registry(2, 3))
    await collector.collect(compaction="minor")
    before = log_bytes(bookie)
    assert bookie.metrics.compactions == {"minor": 1, "major": 0, "forced": 0}
    report = await collector.collect(compaction="major")
    assert report.logs_removed > 0
    assert log_bytes(bookie) < 0.6 * before
    assert bookie.metrics.compacted_logs_bytes == report.bytes_freed
    for first in range(0, 300, 10):
        assert len((await bookie.read_entries(ReadRequest(2, first, 10, 1 << 20))).packets) == 10
    await bookie.close()


async def test_a_pass_keeps_to_its_rate_and_lets_hints_and_flushes_through(
    tmp_path: Path, store: MetadataStore
) -> None:
    slow = GarbageCollectionConfig(compaction_bytes_per_s=1000, forced_pause_s=0.0)
    bookie = await Node(tmp_path / "b1", store, collection=slow).start()
    await write_two(bookie, 30_000, 15_000)
    registry = Registry(2, 3)
    collector = GarbageCollector(bookie, registry)
    collector.start(3600.0)
    collecting = asyncio.ensure_future(collector.collect(compaction="major"))
    await eventually(lambda: (c := bookie.metrics.last_compaction) and c.bytes_moved > 0)
    compaction = bookie.metrics.last_compaction
    assert compaction is not None
    assert not compaction.done
    moved = compaction.bytes_moved
    pages = AdminPages(None)
    pages.bookie, pages.collector = bookie, collector

    async def ask(path: str) -> HttpResponse:
        page = pages.by_path()[path]
        assert not isinstance(page, BodyPage)
        return await page()

    (details,) = json.loads((await ask("/api/v1/bookie/gc_details")).body)
    assert details["majorCompacting"] is True
    assert details["compaction"]["bytesMoved"] == moved
    assert details["compaction"]["logsLeft"] > 0
    # An hour of waiting lies ahead; others don't wait for it.
    assert await add(bookie, 4, range(10)) == codes.OK
    await bookie.flush()
    registry.ledger_ids.remove(3)
    collector.ledger_deleted_hint(3)
    await eventually(lambda: bookie.metrics.deleted_ledgers == 2)
    # And when space is short the rest goes at once.
    assert (await ask("PUT /api/v1/bookie/gc")).status == 200
    assert (await ask("PUT /api/v1/bookie/gc")).status == 429
    assert b"true" in (await ask("/api/v1/bookie/gc")).body
    report = await collecting
    assert compaction.bytes_moved > moved
    assert report.logs_removed > 0
    await eventually(lambda: not collector.is_forced)
    assert bookie.metrics.compactions["forced"] == 1
    assert len((await bookie.read_entries(ReadRequest(2, 290, 10, 1 << 20))).packets) == 10
    await collector.close()
    await bookie.close()


async def test_a_round_asked_for_during_another_follows_it(
    tmp_path: Path, store: MetadataStore
) -> None:
    config = GarbageCollectionConfig(
        minor_ratio=0.5, minor_interval_s=1e-9, compaction_bytes_per_s=1000, forced_pause_s=0.0
    )
    bookie = await Node(tmp_path / "b1", store, collection=config).start()
    await write_two(bookie, 30_000, 15_000)
    collector = GarbageCollector(bookie, Registry(2, 3))
    collector.start(0.001)
    await eventually(lambda: (c := bookie.metrics.last_compaction) and c.bytes_moved > 0)
    running = bookie.metrics.last_compaction
    assert running is not None
    assert running.kind == "minor"
    assert collector.collect_soon()
    await eventually(lambda: bookie.metrics.compactions["forced"] == 1)
    assert running.done
    await collector.close()
    await bookie.close()


async def test_a_pass_that_takes_too_long_ends_and_the_next_goes_on(
    tmp_path: Path, store: MetadataStore
) -> None:
    short = GarbageCollectionConfig(major_s_max=1e-9, compaction_bytes_per_s=0)
    bookie = await Node(tmp_path / "b1", store, collection=short).start()
    await write_two(bookie, 30_000, 15_000)
    collector = GarbageCollector(bookie, Registry(2, 3))
    rounds = 0
    while not (await collector.collect()).logs_removed or rounds < 3:
        rounds += 1
        assert rounds < 50
    compaction = bookie.metrics.last_compaction
    assert compaction is not None
    assert compaction.done
    assert len((await bookie.read_entries(ReadRequest(2, 290, 10, 1 << 20))).packets) == 10
    await bookie.close()


async def test_an_idle_bookie_on_a_full_disk_collects_and_takes_writes_again(
    tmp_path: Path, store: MetadataStore
) -> None:
    """Nobody calls it: its own look at the disk makes it read-only, collects, brings it back."""
    fs = MemoryFileSystem()
    node = Node(
        tmp_path / "b1",
        store,
        disk_usage_max=0.7,
        disk_usage_low=0.6,
        disk_idle_check_interval_s=0.02,
        disk_check_interval_s=0.02,
        advertised=("somewhere", 1),
        collection=GarbageCollectionConfig(forced_pause_s=0.05),
    )
    fs.faults.space_bytes = 100_000_000
    bookie = await open_bookie(node.config, fs, store, index=MemoryStore(fs))
    await write_two(bookie, 30_000, 15_000)
    registry = Registry(1, 2, 3)
    collector = GarbageCollector(bookie, registry)
    collector.start(3600.0)
    fs.faults.space_bytes = int(fs.used_bytes() / 0.75)
    await eventually(lambda: bookie.read_only)
    assert await add(bookie, 2, [300]) == codes.READ_ONLY
    assert await add(bookie, 2, [300], recovery=True) == codes.OK
    # What compaction needs is not for recoveries.
    spare = fs.faults.space_bytes
    largest = max(log.end for log in bookie.storage.logs.logs.values())
    fs.faults.space_bytes = fs.used_bytes() + largest // 2
    assert await add(bookie, 2, [301], recovery=True) == codes.READ_ONLY
    fs.faults.space_bytes = spare
    registry.ledger_ids.discard(1)
    await eventually(lambda: not bookie.read_only)
    assert 1 not in bookie.storage.ledgers
    assert await add(bookie, 2, [302]) == codes.OK
    await collector.close()
    await bookie.close()


async def test_forced_rounds_that_free_nothing_come_less_often(
    tmp_path: Path, store: MetadataStore
) -> None:
    config = GarbageCollectionConfig(forced_pause_s=0.02)
    bookie = await Node(tmp_path / "b1", store, collection=config).start()
    assert await add(bookie, 1, range(3)) == codes.OK
    collector = GarbageCollector(bookie, Registry(1))
    collector.start(3600.0)
    low_space = bookie.on_low_space
    assert low_space is not None
    loop = asyncio.get_running_loop()
    ends = [loop.time()]
    for number in range(5):
        while bookie.metrics.compactions["forced"] == number:
            low_space()
            await asyncio.sleep(0.001)
        ends.append(loop.time())
        await eventually(lambda: not collector.is_forced)
    assert ends[5] - ends[0] >= 0.04 + 0.08 + 0.16
    await collector.close()
    await bookie.close()


# ---- docs/spec/storage.md, "Faults", 26: what must never delete anything


class _Listing(Registry):
    """A listing that does something in its middle."""

    def __init__(self, *ledger_ids: int, midway: Callable[[], object]) -> None:
        super().__init__(*ledger_ids)
        self._midway = midway

    async def ranges(self) -> AsyncIterator[LedgerRange]:  # type: ignore[override]
        yield LedgerRange(0, 1, [id_ for id_ in sorted(self.ledger_ids) if id_ < 1])
        self._midway()
        yield LedgerRange(1, 100, [id_ for id_ in sorted(self.ledger_ids) if id_ >= 1])


async def test_a_listing_that_fails_half_way_deletes_nothing(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    for ledger_id in (0, 5, 7):
        assert await add(bookie, ledger_id, range(3)) == codes.OK

    def fail() -> None:
        raise ConnectionError("metadata store")

    registry = _Listing(0, midway=fail)
    with pytest.raises(ConnectionError):
        await GarbageCollector(bookie, registry).collect()
    assert set(bookie.storage.ledgers) == {0, 5, 7}
    await bookie.close()


async def test_a_ledger_created_during_the_listing_stays(
    tmp_path: Path, store: MetadataStore
) -> None:
    """Its metadata came after its directory was read: it isn't in what was taken before."""
    bookie = await Node(tmp_path / "b1", store).start()
    assert await add(bookie, 5, range(3)) == codes.OK
    created: list[asyncio.Task[int]] = []

    def create() -> None:
        created.append(asyncio.ensure_future(add(bookie, 0, range(3))))

    registry = _Listing(5, midway=create)
    collector = GarbageCollector(bookie, registry)
    assert (await collector.collect()).ledgers_dropped == 0
    assert await created[0] == codes.OK
    assert set(bookie.storage.ledgers) == {0, 5}
    await bookie.close()


async def test_a_stale_view_of_the_metadata_is_brought_up_to_date_first(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    for ledger_id in (1, 2):
        assert await add(bookie, ledger_id, range(3)) == codes.OK
    registry = Registry(1)  # as a follower that lags would answer

    async def catch_up() -> None:
        registry.ledger_ids.add(2)

    collector = GarbageCollector(bookie, registry, before_listing=catch_up)
    assert (await collector.collect()).ledgers_dropped == 0
    await bookie.close()


async def test_a_store_of_another_cluster_ends_the_round(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    assert await add(bookie, 1, range(3)) == codes.OK
    name = await read_instance_id(store)
    current = MetadataFreshnessCheck(store, "b1", name)
    await current.check()
    before = await store.get(f"{COLLECTORS_PATH}/b1")
    await current.check()
    after = await store.get(f"{COLLECTORS_PATH}/b1")
    assert before is not None
    assert after is not None
    assert after.stat.version == before.stat.version + 1, "a write of its own, each time"
    foreign = MetadataFreshnessCheck(store, "b1", "another cluster")
    collector = GarbageCollector(bookie, Registry(2), before_listing=foreign.check)
    with pytest.raises(CookieMismatchError):
        await collector.collect()
    assert 1 in bookie.storage.ledgers
    await bookie.close()


async def test_a_ledger_deleted_while_it_is_written_stays_deleted(
    tmp_path: Path, store: MetadataStore
) -> None:
    """Adds around the deletion, of its writer and of a repair, before and after a restart."""
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    answers = [asyncio.ensure_future(add(bookie, 1, [number])) for number in range(50)]
    assert await add(bookie, 2, range(3)) == codes.OK
    collecting = asyncio.ensure_future(GarbageCollector(bookie, Registry(2)).collect())
    for number in range(50, 100):
        answers.append(asyncio.ensure_future(add(bookie, 1, [number])))
        await asyncio.sleep(0)
    assert (await collecting).ledgers_dropped == 1
    assert set(await asyncio.gather(*answers)) <= {codes.OK, codes.FENCED}
    for restarted in (False, True):
        if restarted:
            await bookie.close()
            bookie = await node.start()
        for recovery in (False, True):
            assert await add(bookie, 1, [200], recovery=recovery) == codes.FENCED
        assert 1 not in bookie.storage.ledgers
        assert bookie.storage.stored_runs(1) == []
    await bookie.close()


# ---- ledgers that others hold


async def close_ledger(ledgers: LedgerStore, *bookies: str, closed: bool = True) -> int:
    """A ledger of 10 entries on these bookies."""

    def build(ledger_id: int) -> LedgerMetadata:
        state = LedgerState.CLOSED if closed else LedgerState.OPEN
        count = len(bookies)
        segments = (EnsembleSegment(0, bookies),)
        metadata = LedgerMetadata(ledger_id, count, count, 1, segments)
        return replace(metadata, state=state, last_entry=9, length=70) if closed else metadata

    return (await ledgers.create(build)).metadata.ledger_id


async def test_only_closed_ledgers_that_name_others_are_emptied(
    tmp_path: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    ledgers = LedgerStore(store)
    locks = UnderReplicationStore(store, lambda: 0)
    moved = await close_ledger(ledgers, "b2", "b3")
    ours = await close_ledger(ledgers, "b1", "b2")
    opened = await close_ledger(ledgers, "b2", "b3", closed=False)
    repaired = await close_ledger(ledgers, "b2", "b3")
    deleted = 77
    held = (moved, ours, opened, repaired, deleted)
    for ledger_id in held:
        assert await add(bookie, ledger_id, range(10)) == codes.OK
    known = OverReplicatedLedgers("b1", ledgers, locks)
    collector = GarbageCollector(bookie, ledgers, over_replicated=known)
    lock = await locks.lock(repaired)
    assert lock is not None
    dropped: list[int] = []
    monkeypatch.setattr(bookie._deferred, "forget", dropped.append)
    assert (await collector.empty_over_replicated()).ledgers_dropped == 1
    assert [i for i in held if bookie.storage.ledgers[i].last_entry < 0] == [moved]
    assert dropped == [moved], "who acknowledged early forgets it, too"
    reply = await bookie.read_entries(ReadRequest(moved, 0, 10, 1 << 20))
    assert reply.packets == []
    assert await add(bookie, moved, [10]) == codes.FENCED, "a writer that was paused all the time"
    await lock.release()
    assert (await collector.empty_over_replicated()).ledgers_dropped == 1
    assert bookie.storage.ledgers[repaired].last_entry == -1
    assert await locks.lock(repaired) is not None, "the lock was given back"
    # A later repair may choose this bookie again.
    assert await add(bookie, moved, range(10), recovery=True) == codes.OK
    await bookie.close()
    bookie = await node.start()
    assert len((await bookie.read_entries(ReadRequest(moved, 0, 10, 1 << 20))).packets) == 10
    assert bookie.storage.stored_runs(repaired) == []
    assert await add(bookie, repaired, [10]) == codes.FENCED
    assert bookie.storage.ledgers[repaired].master_key == KEY
    await bookie.close()


async def test_a_repair_between_the_look_and_the_lock_is_seen(
    tmp_path: Path, store: MetadataStore
) -> None:
    """A worker has just moved the ledger here: the metadata under the lock is what counts."""
    bookie = await Node(tmp_path / "b1", store).start()
    ledgers = LedgerStore(store)
    markers = UnderReplicationStore(store, lambda: 0)
    ledger_id = await close_ledger(ledgers, "b2", "b3")
    assert await add(bookie, ledger_id, range(10)) == codes.OK

    class Known(OverReplicatedLedgers):
        async def lock(self, ledger_id: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
            await ledgers.update(
                ledger_id, lambda found: replace_members(found, 0, {1: ("b3", "b1")})
            )
            return await super().lock(ledger_id)

    known = Known("b1", ledgers, markers)
    collector = GarbageCollector(bookie, ledgers, over_replicated=known)
    assert (await collector.empty_over_replicated()).ledgers_dropped == 0
    assert len((await bookie.read_entries(ReadRequest(ledger_id, 0, 10, 1 << 20))).packets) == 10
    assert await markers.lock(ledger_id) is not None
    await bookie.close()


async def test_a_store_that_fails_in_the_middle_leaves_the_rest(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    ledgers = LedgerStore(store)
    ids = [await close_ledger(ledgers, "b2", "b3") for _ in range(3)]
    for ledger_id in ids:
        assert await add(bookie, ledger_id, range(10)) == codes.OK

    class Failing(OverReplicatedLedgers):
        async def names_others(self, ledger_id: int, creator: int) -> bool:
            if ledger_id == ids[1]:
                raise ConnectionError("metadata store")
            return await super().names_others(ledger_id, creator)

    known = Failing("b1", ledgers, UnderReplicationStore(store, lambda: 0))
    collector = GarbageCollector(bookie, ledgers, over_replicated=known)
    with pytest.raises(ConnectionError):
        await collector.empty_over_replicated()
    assert [bookie.storage.ledgers[id_].last_entry for id_ in ids] == [-1, 9, 9]
    await bookie.close()


async def test_what_somebody_was_told_to_be_here_or_was_just_written_stays(
    tmp_path: Path, store: MetadataStore
) -> None:
    """A repair leaves out what the target has; its lock may have been lost by then."""
    bookie = await Node(tmp_path / "b1", store).start()
    ledgers = LedgerStore(store)
    listed, written = [await close_ledger(ledgers, "b2", "b3") for _ in range(2)]
    for ledger_id in (listed, written):
        assert await add(bookie, ledger_id, range(10)) == codes.OK
    await bookie.flush()
    assert await bookie.list_entries(listed) == [(0, 10)]

    class Known(OverReplicatedLedgers):
        async def names_others(self, ledger_id: int, creator: int) -> bool:
            if ledger_id == written:
                assert await add(bookie, written, [10]) == codes.OK
            return await super().names_others(ledger_id, creator)

    known = Known("b1", ledgers, UnderReplicationStore(store, lambda: 0))
    collector = GarbageCollector(bookie, ledgers, over_replicated=known)
    assert (await collector.empty_over_replicated()).ledgers_dropped == 0
    for ledger_id in (listed, written):
        assert (
            len((await bookie.read_entries(ReadRequest(ledger_id, 0, 10, 1 << 20))).packets) == 10
        )
    # While a ledger is being emptied nobody may add to it, or count on what it has.
    await bookie.flush()
    assert bookie.storage.empty(written)
    assert await add(bookie, written, [11], recovery=True) == codes.TOO_MANY_REQUESTS
    with pytest.raises(LedgerError):
        await bookie.list_entries(written)
    bookie.storage.end_draining(written)
    assert await bookie.list_entries(written) == [(0, 11)]
    await bookie.close()
