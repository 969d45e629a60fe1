"""The managed ledger's shell over the real client and a model bookie."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.packet import encode_head
from magnetar.managed_ledger.empty_containers import NO_ITEMS
from magnetar.managed_ledger.errors import (
    AppendFailedError,
    ManagedLedgerClosedError,
    ManagedLedgerFencedError,
    ManagedLedgerNotFoundError,
    ManagedLedgerTerminatedError,
    OpenFailedError,
)
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.managed_ledger_info import encode_info
from magnetar.managed_ledger.position import EARLIEST, LATEST
from magnetar.managed_ledger.stored_info import read_stored
from magnetar.managed_ledger.trim_path import DELETED_AT_ONCE
from magnetar.metadata.errors import OutcomeUnknownError
from magnetar.metadata.store import VALUE_BYTES_MAX, Versioned
from tests.simulation.model_bookie import ModelLedger
from tests.unit.managed_ledger.cluster import (
    CONFIG,
    NAME,
    Appends,
    Cluster,
    appended,
    eventually,
    read_all,
)


def payloads(first: int, count: int) -> list[bytes]:
    return [b"payload-%d" % i for i in range(first, first + count)]


async def test_append_then_read(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    assert await log.read(EARLIEST, 10, 1000) is None
    assert log.last_confirmed == EARLIEST
    appends = Appends(log)
    appends.send(*payloads(0, 5))
    appends.send(*payloads(5, 3))
    assert log.pending_bytes == sum(len(x) + 4 for x in payloads(0, 8))
    await appends.settle()
    assert log.pending_bytes == 0
    assert [x for _, x in appends.acked] == payloads(0, 8)
    assert await read_all(log) == appends.acked
    assert log.offsets.entry_count == log.entries_added == 8
    batch = log.read_nowait(log.offsets.first_position(), 2, 1000)
    assert batch is not None
    assert batch.bodies == payloads(0, 2)
    assert log.read_nowait(log.offsets.next_position(log.last_confirmed), 2, 1000) is None


async def test_a_reader_that_fails_keeps_nobody_from_their_report(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)

    def fail() -> None:
        raise RuntimeError("a reader's bug")

    log.on_appended = fail
    appends = await appended(log, *payloads(0, 5))
    assert [x for _, x in appends.acked] == payloads(0, 5)
    assert await read_all(log) == appends.acked


async def test_a_new_log_costs_one_put_and_no_ledger(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    stored = await cluster.store.get(log.path)
    assert stored is not None
    assert stored.stat.version == 0
    assert log.offsets.counts() == []


async def test_reopen_without_close_recovers_everything(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    appends = await appended(log, *payloads(0, 5))
    # The first broker is gone without a word: the second fences and recovers.
    second = await cluster.factory().open(NAME, CONFIG)
    assert await read_all(second) == appends.acked
    fenced: list[BaseException] = []
    log.on_fenced = fenced.append
    await appends.stored(b"too late")
    assert isinstance(appends.errors[0], ManagedLedgerFencedError)
    assert len(fenced) == 1
    assert log.state == "Fenced"
    later = await appended(second, b"goes on")
    assert await read_all(second) == appends.acked + later.acked
    assert later.acked[0][0] > appends.acked[-1][0]


async def test_reopen_after_close(cluster: Cluster) -> None:
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    appends = Appends(log)
    appends.send(*payloads(0, 5))
    await log.close()
    assert len(appends.acked) == 5
    with pytest.raises(ManagedLedgerClosedError):
        await log.read(EARLIEST, 1, 1)
    await appends.stored(b"refused")
    assert isinstance(appends.errors[0], ManagedLedgerClosedError)
    again = await factory.open(NAME, CONFIG)
    assert again is not log
    assert await read_all(again) == appends.acked
    assert again.lists.info.ledgers[0].entries == 5


async def test_cursors_that_are_opened_at_once_hold_entries_back_until_they_are_there(
    cluster: Cluster,
) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    await appended(log, *payloads(0, 3))
    opening = [asyncio.ensure_future(log.open_cursor(f"s{n}", EARLIEST)) for n in range(20)]
    await asyncio.sleep(0)
    assert not log.cursors
    assert log.cursor_set.slowest_durable() == (log.last_confirmed[0], -1)
    cursors = await asyncio.gather(*opening)
    assert log.cursors == {cursor.name: cursor for cursor in cursors}
    assert log.cursor_set._opening is NO_ITEMS, "a dict for each idle log"


async def test_rotation_by_entries_splits_batches(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=4))
    await log.open_cursor("sub", EARLIEST)
    appends = Appends(log)
    appends.send(*payloads(0, 10))
    for i in range(10, 23):
        appends.send(*payloads(i, 1))
    await appends.settle()
    assert [x for _, x in appends.acked] == payloads(0, 23)
    assert [x for x, _ in appends.acked] == sorted(x for x, _ in appends.acked)
    assert [n for _, n in log.offsets.counts()] == [4, 4, 4, 4, 4, 3]
    assert await read_all(log) == appends.acked
    await eventually(lambda: all(x.closed_ms for x in log.lists.info.ledgers[:-1]))
    assert [x.entries for x in log.lists.info.ledgers] == [4, 4, 4, 4, 4, 0]


async def test_rotation_creates_the_next_ledger_ahead(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=16))
    await appended(log, *payloads(0, 14))
    await eventually(lambda: len(log.offsets.counts()) == 2)
    assert [n for _, n in log.offsets.counts()] == [14, 0]


async def test_trim_behind_the_slowest_cursor(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=4))
    slow = await log.open_cursor("slow", EARLIEST)
    fast = await log.open_cursor("fast", EARLIEST)
    appends = await appended(log, *payloads(0, 14))
    fast.ack_cumulative(appends.acked[11][0])
    slow.ack_cumulative(appends.acked[8][0])
    await eventually(lambda: log.offsets.entry_count == 6)
    assert await read_all(log) == appends.acked[8:]
    assert log.offsets.first_position() == appends.acked[8][0]
    await eventually(lambda: log.lists.info.doomed != ())
    gone = appends.acked[0][0][0]
    await eventually(lambda: gone in log.trimmer.deleted)
    assert await log.client.read_ledger_metadata(gone) is None


async def test_ledgers_that_are_trimmed_together_are_deleted_together(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, each waited for a write of the store: a far trim took half an hour."""
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=1))
    cursor = await log.open_cursor("sub", EARLIEST)
    appends = Appends(log)
    for n in range(DELETED_AT_ONCE + 10):
        await appends.stored(b"%d" % n)
    under_way, most, delete = 0, 0, log.client.ledgers.delete

    async def counted(ledger_id: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        await delete(ledger_id)
        under_way -= 1

    monkeypatch.setattr(log.client.ledgers, "delete", counted)
    cursor.ack_cumulative(log.last_confirmed)
    await eventually(lambda: len(log.trimmer.deleted) >= DELETED_AT_ONCE + 5)
    assert most == DELETED_AT_ONCE


async def test_without_cursors_everything_old_goes(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=4))
    appends = await appended(log, *payloads(0, 14))
    await eventually(lambda: log.offsets.entry_count == 2)
    assert await read_all(log) == appends.acked[12:]


async def test_failed_append_goes_to_the_next_ledger_once(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    await log.open_cursor("hold", EARLIEST)
    appends = await appended(log, *payloads(0, 3))
    cluster.bookie.refuse_adds = codes.IO_ERROR
    appends.send(*payloads(3, 3))
    await eventually(lambda: log.state != "LedgerOpened")
    appends.send(*payloads(6, 3))
    cluster.bookie.refuse_adds = codes.OK
    await appends.settle()
    assert [x for _, x in appends.acked] == payloads(0, 9)
    assert await read_all(log) == appends.acked
    reopened = await cluster.factory().open(NAME, CONFIG)
    assert await read_all(reopened) == appends.acked


async def test_storage_that_refuses_everything_fails_appends_at_last(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    appends = Appends(log)
    cluster.bookie.refuse_adds = codes.IO_ERROR
    await appends.stored(*payloads(0, 3))
    assert isinstance(appends.errors[0], AppendFailedError)
    assert appends.failed == 3
    assert log.pending_bytes == 0
    cluster.bookie.refuse_adds = codes.OK
    await appends.stored(*payloads(3, 3))
    assert await read_all(log) == appends.acked
    assert len(log.lists.info.ledgers) == 1  # the empty ones are gone


async def test_terminate(cluster: Cluster) -> None:
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    appends = Appends(log)
    appends.send(*payloads(0, 3))
    last = await log.terminate()
    assert last == appends.acked[-1][0]
    await appends.stored(b"no")
    assert isinstance(appends.errors[0], ManagedLedgerTerminatedError)
    assert log.state == "Terminated"
    await log.close()
    log = await factory.open(NAME, CONFIG)
    assert log.terminated == last == await log.terminate()
    assert await read_all(log) == appends.acked


async def test_truncate_and_properties(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    cursor = await log.open_cursor("sub", EARLIEST)
    appends = await appended(log, *payloads(0, 3))
    await log.set_properties({"a": "b"})
    await log.truncate()
    assert log.offsets.entry_count == 0
    assert cursor.state.backlog == 0
    assert await read_all(log) == []
    await appends.stored(b"x")
    assert await read_all(log) == appends.acked[3:]
    reopened = await cluster.factory().open(NAME, CONFIG)
    assert reopened.properties == {"a": "b"}
    assert await read_all(reopened) == appends.acked[3:]


async def test_concurrent_changes_of_properties_all_count(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)

    def adding(key: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
        return lambda before: {**before, key: "x"}

    await asyncio.gather(*(log.update_properties(adding(str(n))) for n in range(20)))
    assert log.properties == {str(n): "x" for n in range(20)}

    def refuse(_: Mapping[str, str]) -> Mapping[str, str]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await log.update_properties(refuse)
    await log.update_properties(lambda _: {})
    assert log.properties == {}


async def test_what_is_stored_is_read_without_opening(cluster: Cluster) -> None:
    assert await read_stored(cluster.store, NAME) is None
    log = await cluster.factory().open(NAME, CONFIG)
    await log.open_cursor("a b", EARLIEST, {"team": "x"})
    appends = await appended(log, *payloads(0, 3))
    stored = await read_stored(cluster.store, NAME)
    assert stored is not None
    assert [x.ledger_id for x in stored.info.ledgers] == log.offsets.ledger_ids
    assert stored.cursors["a b"].node.cursor_properties == {"team": "x"}
    assert stored.stat.modified_ms >= stored.stat.created_ms
    await appends.stored(b"still the owner")
    assert not appends.errors


async def test_delete_leaves_nothing(cluster: Cluster) -> None:
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    await log.open_cursor("sub", EARLIEST)
    appends = await appended(log, *payloads(0, 3))
    assert await factory.exists(NAME)
    ledger_id = appends.acked[0][0][0]
    await log.close()
    await factory.delete(NAME)
    assert not await factory.exists(NAME)
    assert await log.client.read_ledger_metadata(ledger_id) is None
    await factory.delete(NAME)
    with pytest.raises(ManagedLedgerNotFoundError):
        await factory.open(NAME, replace(CONFIG, create_if_missing=False))
    assert (await factory.open(NAME, CONFIG)).offsets.entry_count == 0


async def test_cursors_come_back(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    appends = Appends(log)
    first = await log.open_cursor("sub one/two", EARLIEST)
    await appends.stored(*payloads(0, 6))
    assert (await log.open_cursor("late", LATEST)).mark_delete == log.last_confirmed
    first.ack_cumulative(appends.acked[2][0])
    await first.flush()
    reopened = await cluster.factory().open(NAME, CONFIG)
    assert sorted(reopened.cursors) == ["late", "sub one/two"]
    assert reopened.cursors["sub one/two"].mark_delete == appends.acked[2][0]
    assert reopened.cursors["sub one/two"].state.backlog == 3


async def test_concurrent_opens_of_one_cursor_and_log_are_joined(cluster: Cluster) -> None:
    factory = cluster.factory()
    logs = await asyncio.gather(*(factory.open(NAME, CONFIG) for _ in range(3)))
    assert logs[0] is logs[1] is logs[2]
    cursors = await asyncio.gather(*(logs[0].open_cursor("s") for _ in range(3)))
    assert cursors[0] is cursors[1] is cursors[2] is logs[0].cursors["s"]


async def test_find_newest(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=4))
    await log.open_cursor("hold", EARLIEST)
    appends = await appended(log, *[b"%04d" % i for i in range(19)])
    for i in range(-1, 19):
        found = await log.find_newest(lambda _, body, i=i: int(bytes(body)) <= i)  # type: ignore[misc]
        assert found == (None if i < 0 else appends.acked[i][0])


async def test_open_fails_while_the_bookie_is_down_and_loses_nothing(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    appends = await appended(log, *payloads(0, 3))
    factory = cluster.factory()
    cluster.bookie.up = False
    with pytest.raises(OpenFailedError):
        await factory.open(NAME, CONFIG)
    cluster.bookie.up = True
    assert await read_all(await factory.open(NAME, CONFIG)) == appends.acked


async def test_stats(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    appends = await appended(log, b"abc", b"de")
    assert log.state == "LedgerOpened"
    assert log.entries_added == log.offsets.entry_count == 2
    assert log.total_bytes == log.written_bytes == 13
    assert log.last_confirmed == appends.acked[-1][0]
    assert [(x.entries, x.size) for x in log.lists.info.ledgers] == [(0, 0)]
    assert log.appends is not None
    assert log.appends.created_ms == cluster.now_ms


async def test_a_ledger_that_the_next_owner_has_is_not_deleted(cluster: Cluster) -> None:
    """Its listing got through, the answer didn't, and then another owner took the list over."""
    log = await cluster.factory().open(NAME, CONFIG)
    put = log.store.put
    second: ManagedLedger | None = None

    async def put_and_lose_the_answer(
        path: str, value: bytes, expected_version: int | None = None
    ) -> Versioned:
        nonlocal second
        stored = await put(path, value, expected_version)
        if path == log.path and second is None:
            second = await cluster.factory().open(NAME, CONFIG)
            raise OutcomeUnknownError(path)
        return stored

    log.store.put = put_and_lose_the_answer  # type: ignore[method-assign,assignment]  # one store's fault
    appends = await appended(log, b"a")
    assert isinstance(appends.errors[0], ManagedLedgerFencedError)
    assert second is not None
    [(ledger_id, entries)] = second.offsets.counts()
    assert entries == 0
    await log.close()
    assert await second.client.read_ledger_metadata(ledger_id) is not None


async def test_a_stale_owner_can_t_touch_a_log_made_anew(cluster: Cluster) -> None:
    stale = await cluster.factory().open(NAME, CONFIG)
    cursor = await stale.open_cursor("sub", EARLIEST)
    before = await appended(stale, b"old")
    # While that owner sleeps, others take the log over, delete it and make it anew ...
    await cluster.factory().delete(NAME)
    log = await cluster.factory().open(NAME, CONFIG)
    await log.open_cursor("sub", EARLIEST)
    appends = await appended(log, b"new")
    assert log.lists.version == stale.lists.version  # ... until versions are equal by chance.
    with pytest.raises(ManagedLedgerFencedError):
        await stale.set_properties({"who": "stale"})
    cursor.ack_cumulative(before.acked[0][0])
    await stale.close()
    await cursor.close()
    again = await cluster.factory().open(NAME, CONFIG)
    assert await read_all(again) == appends.acked
    assert again.properties == {}
    assert again.cursors["sub"].state.backlog == 1


async def test_delete_takes_a_cursor_along_that_is_just_being_made(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    put, held = log.store.put, asyncio.Event()

    async def slow(path: str, *args: object, **options: object) -> Versioned:
        if path.endswith("/late"):
            await held.wait()
        return await put(path, *args, **options)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(log.store, "put", slow)
    opening = asyncio.create_task(log.open_cursor("late", EARLIEST))
    await asyncio.sleep(0)
    deleting = asyncio.create_task(log.delete())
    for _ in range(50):
        await asyncio.sleep(0)
    held.set()
    await deleting
    await asyncio.wait([opening])
    assert not await factory.exists(NAME)
    assert await cluster.store.children(f"/managed-ledgers/{NAME}") == []


async def test_terminating_twice_at_once_and_closing_meanwhile(cluster: Cluster) -> None:
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    appends = Appends(log)
    appends.send(*payloads(0, 3))
    first, second, _ = await asyncio.gather(log.terminate(), log.terminate(), log.close())
    assert first == second == appends.acked[-1][0]
    log = await factory.open(NAME, CONFIG)
    assert log.terminated == first
    assert await read_all(log) == appends.acked


async def test_truncating_while_a_cursor_is_deleted(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    await log.open_cursor("gone", EARLIEST)
    await log.open_cursor("stays", EARLIEST)
    # Nothing was appended: the cursors are reset at once, while the deletion is under way.
    await asyncio.gather(log.delete_cursor("gone"), log.truncate())
    assert list(log.cursors) == ["stays"]


@pytest.mark.parametrize("code", [codes.OTHER_CREATOR, codes.ENTRY_DIFFERS])
async def test_ids_that_other_ledgers_have_are_passed_over(cluster: Cluster, code: int) -> None:
    """The metadata store went back: a topic goes on with the next id that nobody has."""
    token = 7 if code == codes.OTHER_CREATOR else 0
    packet = encode_head(0, 0, -1, 5, b"", b"other") + b"other"
    for ledger_id in range(20_000):
        cluster.bookie.ledgers[ledger_id] = ModelLedger(bytes(20), {0: packet}, creator=token)
    log = await cluster.factory().open(NAME, CONFIG)
    cursor = await log.open_cursor("sub", EARLIEST)
    appends = await appended(log, *payloads(0, 3))
    assert appends.failed == 0
    assert [x for _, x in appends.acked] == payloads(0, 3)
    assert await read_all(log) == appends.acked
    cursor.ack_cumulative(appends.acked[1][0])
    await cursor.flush()
    assert len(log.lists.info.ledgers) == 1  # those that were in use are gone from the list
    stored = [id_ async for found in log.client.ledgers.ranges() for id_ in found.ledger_ids]
    assert all(ledger_id >= 20_000 for ledger_id in stored)  # and from the store
    held = cluster.bookie.ledgers
    assert all(held[ledger_id].entries == {0: packet} for ledger_id in range(20_000))


async def test_a_list_at_its_end_is_refused_once_and_keeps_no_ledger(cluster: Cluster) -> None:
    """Before, each attempt was taken for a failure that passes, and kept a ledger more."""
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=1))
    await log.open_cursor("keep", EARLIEST)
    appends = await appended(log, b"0")
    await eventually(lambda: log.lists.info.ledgers[0].closed_ms > 0)
    room = VALUE_BYTES_MAX - len(encode_info(log.lists.info)) - 30
    # As an earlier release took them.
    await log.update_list(lambda info: info.with_properties({"x": "y" * room}))
    for _ in range(3):
        await appends.stored(b"1", b"2")
        cluster.now_ms += 60_000
        log.sweep(cluster.now_ms)
    assert appends.failed > 0
    assert log.appends is not None
    assert len(log.appends.writers) <= 1
    listed = {x.ledger_id for x in log.lists.info.ledgers}
    await eventually(lambda: set(cluster.bookie.ledgers) <= listed)
