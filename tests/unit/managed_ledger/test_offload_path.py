"""A log whose closed ledgers are copied elsewhere, step by step and with everything that fails."""

import asyncio
from dataclasses import replace

import pytest

from magnetar.bookkeeper.errors import LedgerError, NoSuchLedgerError
from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.managed_ledger_info import (
    ManagedLedgerInfo,
    decode_list_node,
    encode_info,
)
from magnetar.managed_ledger.offload import policy
from magnetar.managed_ledger.offload.config import OffloadConfig
from magnetar.managed_ledger.offload.context import CopyState, LedgerCopy, OffloadContext
from magnetar.managed_ledger.offload.errors import CopyDamagedError, OffloadBusyError
from magnetar.managed_ledger.offload.policy import (
    is_offloaded,
    ledgers_before,
    ledgers_to_copy,
    ledgers_to_release,
)
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.errors import MetadataError, OutcomeUnknownError
from magnetar.metadata.store import Versioned
from tests.unit.managed_ledger.cluster import (
    CONFIG,
    NAME,
    Appends,
    Cluster,
    appended,
    eventually,
    read_all,
)
from tests.unit.managed_ledger.offload_doubles import MemoryStore, memory_offloader

BY_HAND = OffloadConfig("memory", (("place", "here"),), deletion_lag_ms=1000)
AT_ONCE = replace(BY_HAND, threshold_bytes=0, deletion_lag_ms=0)
KEEPING = replace(CONFIG, ledger_entries_max=4, retention_ms=-1, retention_bytes=-1)


async def filled(cluster: Cluster, offload: OffloadConfig) -> tuple[ManagedLedger, Appends]:
    """A log of three full ledgers and a part of a fourth."""
    log = await cluster.factory().open(NAME, replace(KEEPING, offload=offload))
    await log.open_cursor("sub", EARLIEST)
    appends = await appended(log, *(b"%d" % number for number in range(14)))
    await eventually(lambda: all(x.closed_ms for x in log.lists.info.ledgers[:-1]))
    return log, appends


def states(log: ManagedLedger) -> list[CopyState | None]:
    return [None if x.offload is None else x.offload.state for x in log.lists.info.ledgers]


def with_store(cluster: Cluster) -> MemoryStore:
    store = MemoryStore()
    cluster.offloaders = [memory_offloader(store)]
    return store


async def test_by_hand_upto_a_position(cluster: Cluster) -> None:
    store = with_store(cluster)
    log, appends = await filled(cluster, BY_HAND)
    assert log.offloads.status.state == "NOT_RUN"
    ids = [x.ledger_id for x in log.lists.info.ledgers]
    store.gate.clear()
    log.offloads.offload_before((ids[2], 1))
    assert log.offloads.status.state == "RUNNING"
    with pytest.raises(OffloadBusyError):
        log.offloads.offload_before((ids[1], 0))
    store.gate.set()
    await eventually(lambda: log.offloads.status.state != "RUNNING")
    assert log.offloads.status.state == "SUCCESS"
    assert log.offloads.status.first_kept == (ids[2], 0)
    assert states(log) == [CopyState.COMPLETE, CopyState.COMPLETE, None, None]
    assert list(map(is_offloaded, log.lists.info.ledgers)) == [True, True, False, False]
    assert log.offloads.copied_bytes == sum(x.size for x in log.lists.info.ledgers[:2])
    assert len(store.objects) == 4
    log.offloads.offload_before((ids[3], 0))  # the rest, but never what is written
    await eventually(lambda: log.offloads.status.first_kept == (ids[3], 0))
    assert states(log) == [CopyState.COMPLETE] * 3 + [None]
    assert await read_all(log) == appends.acked


@pytest.mark.parametrize("where", [(10**6, 0), (-1, -1), (0, 10**6)])
async def test_by_hand_upto_nowhere(cluster: Cluster, where: tuple[int, int]) -> None:
    with_store(cluster)
    log, _ = await filled(cluster, BY_HAND)
    log.offloads.offload_before(where)
    await eventually(lambda: log.offloads.status.state == "ERROR")
    assert log.offloads.status.error == "Invalid position for offload"


async def test_without_a_driver_nothing_is_offloaded(cluster: Cluster) -> None:
    log, appends = await filled(cluster, replace(AT_ONCE, driver=""))
    log.offloads.offload_before(log.last_confirmed)
    await eventually(lambda: log.offloads.status.state == "ERROR")
    assert "no offload driver is set" in log.offloads.status.error
    log.configure(replace(KEEPING, offload=replace(BY_HAND, driver="s3")))
    log.offloads.offload_before(log.last_confirmed)
    await eventually(lambda: "no offload driver 's3'" in log.offloads.status.error)
    assert await read_all(log) == appends.acked


async def test_by_itself_and_then_bookies_forget(cluster: Cluster) -> None:
    store = with_store(cluster)
    log, appends = await filled(cluster, AT_ONCE)
    await eventually(lambda: states(log) == [CopyState.SETTLED] * 3 + [None])
    for ledger in log.lists.info.ledgers[:-1]:
        assert await log.client.read_ledger_metadata(ledger.ledger_id) is None
        with pytest.raises(NoSuchLedgerError):
            await log.client.open_ledger(ledger.ledger_id, recover=False)
    other = await cluster.factory().open(NAME, KEEPING)  # a new owner, without settings of its own
    assert await read_all(other) == appends.acked
    assert await other.find_newest(lambda _, body: int(bytes(body)) < 6) == appends.acked[5][0]
    assert len(store.objects) == 6


async def test_bookies_keep_theirs_for_the_lag(cluster: Cluster) -> None:
    with_store(cluster)
    log, _ = await filled(cluster, replace(BY_HAND, threshold_bytes=0))
    await eventually(lambda: states(log)[:-1] == [CopyState.COMPLETE] * 3)
    cluster.now_ms += 999
    log.sweep(cluster.now_ms)
    assert not log.offloads._is_due(log.lists.info)
    cluster.now_ms += 1
    log.sweep(cluster.now_ms)
    await eventually(lambda: states(log)[:-1] == [CopyState.SETTLED] * 3)


async def test_nothing_more_is_released_until_bookies_have_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "AT_ONCE", 1)
    with_store(cluster)
    log, _ = await filled(cluster, replace(BY_HAND, threshold_bytes=0))
    await eventually(lambda: states(log)[:-1] == [CopyState.COMPLETE] * 3)
    cluster.now_ms += 1000

    async def refuse(ledger_id: int) -> None:
        raise LedgerError("not now")

    with monkeypatch.context() as failing:
        failing.setattr(log.client, "delete_ledger", refuse)
        for _ in range(3):
            log.sweep(cluster.now_ms)
            await eventually(lambda: not log.offloads._is_passing)
    assert states(log)[:-1] == [CopyState.ONLY, CopyState.COMPLETE, CopyState.COMPLETE]
    log.sweep(cluster.now_ms)
    await eventually(lambda: states(log)[:-1] == [CopyState.SETTLED] * 3)


async def test_trimming_and_deleting_take_the_copies_along(cluster: Cluster) -> None:
    store = with_store(cluster)
    log, appends = await filled(cluster, AT_ONCE)
    await eventually(lambda: states(log)[:-1] == [CopyState.SETTLED] * 3)
    log.cursors["sub"].ack_cumulative(appends.acked[4][0])
    log.configure(replace(log.config, retention_ms=0, retention_bytes=0))
    await eventually(lambda: len(store.objects) == 4)
    await eventually(lambda: log.lists.info.doomed_copies == ())
    assert await read_all(log) == appends.acked[4:]
    await log.delete()
    assert store.objects == {}
    assert await cluster.store.get(log.path) is None


async def test_a_topic_whose_copies_can_t_be_deleted_stays(cluster: Cluster) -> None:
    store = with_store(cluster)
    factory = cluster.factory()
    log, _ = await filled(cluster, AT_ONCE)
    await eventually(lambda: states(log)[:-1] == [CopyState.SETTLED] * 3)
    store.error = OSError("gone for a while")
    with pytest.raises(Exception, match="gone for a while"):
        await factory.delete(NAME, KEEPING)
    store.error = None
    assert len(store.objects) == 6
    await factory.delete(NAME, KEEPING)
    assert store.objects == {}
    assert not await factory.exists(NAME)


async def test_what_an_owner_left_unfinished_is_deleted_by_the_next(cluster: Cluster) -> None:
    store = with_store(cluster)
    log, appends = await filled(cluster, BY_HAND)
    ids = [x.ledger_id for x in log.lists.info.ledgers]
    store.gate.clear()
    log.offloads.offload_before((ids[1], 0))
    await eventually(lambda: states(log)[0] is CopyState.STARTED)
    first = log.lists.info.ledgers[0].offload
    assert first is not None
    taker = await cluster.factory().open(NAME, replace(KEEPING, offload=BY_HAND))
    store.gate.set()
    await eventually(lambda: states(taker)[0] is None)
    await eventually(lambda: taker.lists.info.doomed_copies == ())
    await eventually(lambda: not log.is_open)
    await log.close()
    assert (store.objects, store.uploads) == ({}, {})
    taker.offloads.offload_before((ids[1], 0))
    await eventually(lambda: states(taker)[0] is CopyState.COMPLETE)
    second = taker.lists.info.ledgers[0].offload
    assert second is not None
    assert second.copy.uuid != first.copy.uuid
    assert await read_all(taker) == appends.acked


async def test_what_the_next_owner_deleted_before_it_was_there_is_deleted_again(
    cluster: Cluster,
) -> None:
    """Simulation, test_managed_ledger_offload seed 1000079: it stayed for ever."""
    store = with_store(cluster)
    log, _ = await filled(cluster, BY_HAND)
    ids = [x.ledger_id for x in log.lists.info.ledgers]
    store.gate.clear()
    log.offloads.offload_before((ids[1], 0))
    await eventually(lambda: states(log)[0] is CopyState.STARTED)
    stored = await cluster.store.get(log.path)
    assert stored is not None
    info = decode_list_node(stored.value, log.path).info
    taken = replace(info, owner="another").without_copy_started(ids[0])
    assert [x.ledger_id for x in taken.doomed_copies] == [ids[0]]
    await cluster.store.put(log.path, encode_info(taken), stored.stat.version)
    assert not store.objects  # so that owner's deletion found nothing
    store.gate.set()
    await eventually(lambda: log.offloads.status.state == "ERROR")
    assert not log.is_open
    assert not store.objects


async def test_an_unknown_outcome_deletes_nothing(cluster: Cluster) -> None:
    """The write that calls the copy complete got through, its answer did not."""
    store = with_store(cluster)
    log, _ = await filled(cluster, BY_HAND)
    session = cluster.sessions[0]
    put, lost = session.put, 0

    async def losing(path: str, value: bytes, *args: object, **more: object) -> object:
        nonlocal lost
        answer = await put(path, value, *args, **more)  # type: ignore[arg-type]
        if b'"state":1' in value and not lost:
            lost += 1
            raise OutcomeUnknownError(path)
        return answer

    session.put = losing  # type: ignore[assignment,method-assign]
    log.offloads.offload_before((log.lists.info.ledgers[1].ledger_id, 0))
    await eventually(lambda: log.offloads.status.state == "SUCCESS")
    assert lost == 1
    assert states(log)[0] is CopyState.COMPLETE
    assert len(store.objects) == 2


async def test_the_only_copy_damaged_is_an_error_and_no_gap(cluster: Cluster) -> None:
    store = with_store(cluster)
    log, _ = await filled(cluster, AT_ONCE)
    await eventually(lambda: states(log)[:-1] == [CopyState.SETTLED] * 3)
    other = await cluster.factory().open(NAME, KEEPING)
    for name, data in store.objects.items():
        if name.endswith(".data"):
            data[65] ^= 1
    with pytest.raises(CopyDamagedError, match=r"\.data: "):
        await other.read(EARLIEST, 10, 1000)
    store.error = OSError("no network")
    with pytest.raises(LedgerError, match="no network"):
        await other.read(EARLIEST, 10, 1000)


@pytest.mark.parametrize("bookies_first", [False, True])
async def test_with_two_copies_a_bad_one_is_passed_over(
    cluster: Cluster, bookies_first: bool
) -> None:
    store = with_store(cluster)
    log, appends = await filled(cluster, replace(BY_HAND, threshold_bytes=0))
    await eventually(lambda: states(log)[:-1] == [CopyState.COMPLETE] * 3)
    settings = replace(BY_HAND, bookies_first=bookies_first)
    other = await cluster.factory().open(NAME, replace(KEEPING, offload=settings))
    metrics = cluster.offloaders[0].metrics
    if bookies_first:
        cluster.bookie.ledgers[other.lists.info.ledgers[0].ledger_id].entries.clear()
    else:
        store.error = OSError("no network")
    assert await read_all(other) == appends.acked
    assert (metrics.reads > 0) == bookies_first
    assert (metrics.read_errors > 0) == (not bookies_first)


async def test_a_copy_that_can_t_be_read_keeps_the_ledger_in_bookies(cluster: Cluster) -> None:
    store = with_store(cluster)
    log, _ = await filled(cluster, replace(BY_HAND, threshold_bytes=0))
    await eventually(lambda: states(log)[:-1] == [CopyState.COMPLETE] * 3)
    for data in store.objects.values():
        data[-5] ^= 1
    cluster.now_ms += 10_000
    log.sweep(cluster.now_ms)
    await eventually(lambda: not log.offloads._is_passing)
    assert states(log)[:-1] == [CopyState.COMPLETE] * 3
    for ledger in log.lists.info.ledgers[:-1]:
        assert await log.client.read_ledger_metadata(ledger.ledger_id) is not None


async def test_trimmed_while_it_is_copied(cluster: Cluster) -> None:
    store = with_store(cluster)
    log, appends = await filled(cluster, BY_HAND)
    store.gate.clear()
    log.offloads.offload_before((log.lists.info.ledgers[1].ledger_id, 0))
    await eventually(lambda: states(log)[0] is CopyState.STARTED)
    log.configure(replace(log.config, retention_ms=0, retention_bytes=0))
    log.cursors["sub"].ack_cumulative(appends.acked[4][0])
    await eventually(lambda: log.offsets.first_position() == appends.acked[4][0])
    store.gate.set()
    await eventually(lambda: log.lists.info.doomed_copies == () and store.objects == {})
    assert store.uploads == {}


async def test_what_ended_a_copy_is_told_though_the_list_can_t_be_read_then(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = with_store(cluster)
    log, _ = await filled(cluster, BY_HAND)
    store.gate.clear()
    log.offloads.offload_before((log.lists.info.ledgers[1].ledger_id, 0))
    await eventually(lambda: states(log)[0] is CopyState.STARTED)
    get = cluster.sessions[0].get

    async def fail(path: str) -> Versioned | None:
        if path == log.path:
            raise MetadataError(f"{path}: not now")
        return await get(path)

    monkeypatch.setattr(cluster.sessions[0], "get", fail)
    store.error = OSError("the disk is full")
    store.gate.set()
    await eventually(lambda: log.offloads.status.state == "ERROR")
    assert "the disk is full" in log.offloads.status.error
    assert "may be left" in caplog.text
    assert "not now" in caplog.text


async def test_closing_ends_a_copy_under_way(cluster: Cluster) -> None:
    store = with_store(cluster)
    log, _ = await filled(cluster, BY_HAND)
    store.gate.clear()
    log.offloads.offload_before((log.lists.info.ledgers[1].ledger_id, 0))
    await eventually(lambda: states(log)[0] is CopyState.STARTED)
    await asyncio.wait_for(log.close(), 30)
    assert (store.objects, store.uploads) == ({}, {})


# --- the pure part

COPY = LedgerCopy(1, "u1", "d", {"a": "b"})
INFO = ManagedLedgerInfo(
    owner="o",
    ledgers=LedgerRows(
        (
            LedgerInfo(1, 10, 100, 1000),
            LedgerInfo(2, 10, 100, 2000),
            LedgerInfo(3, 10, 100, 3000),
            LedgerInfo(4),
        )
    ),
)


def test_a_copy_s_way_through_the_list() -> None:
    started = INFO.with_copy_started(COPY)
    assert started.with_copy_started(COPY) == started
    assert decode_list_node(encode_info(started), "/p").info == started
    assert b'"format":2' in encode_info(started)
    again = started.with_copy_started(replace(COPY, uuid="u2"))
    assert again.doomed_copies == (COPY,)
    assert decode_list_node(encode_info(again), "/p").info == again
    assert again.with_copy_complete(COPY, 5, 7) == again, "it is another copy's place"
    complete = started.with_copy_complete(COPY, 5, 7)
    assert complete.ledgers[0].offload == OffloadContext(COPY, CopyState.COMPLETE, 5, 7)
    assert complete.with_copy_started(replace(COPY, uuid="u2")) == complete
    assert complete.without_copy_started(1) == complete
    assert complete.with_closed(1, 10, 100, 1000) == complete
    only = complete.with_copy_state([1], CopyState.ONLY)
    assert only.with_copy_state([1], CopyState.ONLY) == only
    assert started.with_copy_state([1], CopyState.ONLY) == started, "it isn't proved"
    assert (only.without([1]).doomed, only.without([1]).doomed_copies) == ((1,), (COPY,))
    settled = only.with_copy_state([1], CopyState.SETTLED)
    assert settled.with_copy_state([1], CopyState.ONLY) == settled
    assert (settled.without([1]).doomed, settled.without([1]).doomed_copies) == ((), (COPY,))
    assert settled.without([1]).forget_copies(["u1"]).doomed_copies == ()
    for ledger_id in (4, 5):  # open; not listed
        assert INFO.with_copy_started(replace(COPY, ledger_id=ledger_id)) == INFO


def test_which_ledgers_are_due() -> None:
    by_size = OffloadConfig("d", threshold_bytes=150)
    assert ledgers_to_copy(INFO.ledgers, 4, by_size, 9000) == [1, 2]
    assert ledgers_to_copy(INFO.ledgers, 2, by_size, 9000) == []
    assert ledgers_to_copy(INFO.ledgers, 4, replace(by_size, threshold_bytes=0), 0) == [1, 2, 3]
    assert ledgers_to_copy(INFO.ledgers, 4, replace(by_size, threshold_bytes=300), 9000) == []
    assert ledgers_to_copy(INFO.ledgers, 4, replace(by_size, driver=""), 9000) == []
    by_age = OffloadConfig("d", threshold_s=6)
    assert ledgers_to_copy(INFO.ledgers, 4, by_age, 8000) == [1, 2]
    assert ledgers_to_copy(INFO.ledgers, 4, OffloadConfig("d"), 10**12) == []
    complete = INFO.with_copy_started(COPY).with_copy_complete(COPY, 5000, 7)
    assert ledgers_to_copy(complete.ledgers, 4, by_size, 9000) == [2]
    assert ledgers_before(INFO.ledgers, 4, (3, 0)) == ([1, 2], 3)
    assert ledgers_before(INFO.ledgers, 4, (4, 0)) == ([1, 2, 3], 4)
    assert ledgers_before(complete.ledgers, 2**63, (9, 0)) == ([2, 3], 4)
    lag = OffloadConfig("d", deletion_lag_ms=1000)
    assert ledgers_to_release(complete.ledgers, lag, 6000) == [1]
    assert ledgers_to_release(complete.ledgers, lag, 5999) == []
    assert ledgers_to_release(complete.ledgers, lag, 0) == [], "a clock that went back"
    assert ledgers_to_release(complete.ledgers, replace(lag, deletion_lag_ms=-1), 10**12) == []
