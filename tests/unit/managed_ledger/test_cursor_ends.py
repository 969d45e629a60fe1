"""The cursor's shell at the ends of its life: deletion, refusals, rare states, large ones."""

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest

from magnetar.bookkeeper.errors import WriteFailedError
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor import ack_state, cursor_writer
from magnetar.managed_ledger.cursor.cursor import (
    create_non_durable_cursor,
    delete_cursor,
)
from magnetar.managed_ledger.cursor.cursor_format import SectionKind, decode_record
from magnetar.managed_ledger.cursor.errors import (
    CursorFencedError,
    CursorFormatError,
    CursorWriteError,
)
from magnetar.managed_ledger.errors import CursorClosedError, InvalidPositionError
from magnetar.managed_ledger.position import Position
from magnetar.metadata.errors import MetadataWriteError
from tests.unit.managed_ledger.cursor_doubles import FakeLog, FakeWriter
from tests.unit.managed_ledger.cursor_steps import (
    START,
    Answers,
    ack_and_flush,
    node_of,
    opened,
    opened_log,
    reopened,
    until,
)


async def test_delete_removes_node_and_ledger() -> None:
    log, cursor = await opened_log({1: 100}, acked=[(1, 0)])
    done = Answers()
    cursor.ack([(1, 1)], done)
    await cursor.delete()
    assert len(done) == 1
    assert (log.nodes.nodes, log.storage.ledgers) == ({}, {})
    await delete_cursor(log, "sub")
    assert log.fenced == []


async def test_delete_of_a_cursor_that_is_not_loaded() -> None:
    log, _ = await opened_log({1: 100}, acked=[(1, 0)])
    await delete_cursor(log.successor("s2"), "sub")
    assert (log.nodes.nodes, log.storage.ledgers) == ({}, {})


async def test_cursor_properties_live_in_the_node() -> None:
    log, cursor = await opened_log({1: 100}, acked=[(1, 0)])
    await cursor.set_cursor_properties({"owner": "me"})
    ledger_id = node_of(log).ledger_id
    assert ledger_id in log.storage.ledgers
    await ack_and_flush(cursor, [(1, 1)])
    again = await reopened(log)
    assert again.cursor_properties == {"owner": "me"}
    assert again.mark_delete == (1, 1)
    assert again.last_active_ms == log.clock_ms


async def test_non_durable_cursor_touches_no_storage() -> None:
    log = FakeLog({1: 100})
    cursor = create_non_durable_cursor(log, "reader", START)
    done = Answers()
    cursor.ack([(1, 0)], done)
    cursor.ack_cumulative((1, 4), None, done)
    assert done == [None, None]
    await cursor.flush()
    await cursor.reset((1, 2))
    assert cursor.state.first_unacked() == (1, 2)
    cursor.advance_to((1, 50))
    assert cursor.mark_delete == cursor.durable_mark_delete == (1, 50)
    await cursor.set_cursor_properties({"a": "b"})
    assert (cursor.cursor_properties, cursor.last_active_ms) == ({}, 0)
    await cursor.close()
    await cursor.delete()
    assert (log.faults.steps, log.moves) == (0, [])


async def test_cumulative_beyond_the_end_is_refused() -> None:
    cursor = await opened(FakeLog({1: 10}))
    with pytest.raises(InvalidPositionError, match="1:10 is beyond"):
        cursor.ack_cumulative((1, 10))
    cursor.ack([(1, 10), (7, 0)])  # individual: unknown, ignored
    assert cursor.state.backlog == 10


async def test_the_log_hears_of_durable_moves_only() -> None:
    log, cursor = await opened_log({1: 10}, acked=[(1, 3)])
    assert log.moves == []
    cursor.ack_cumulative((1, 2))
    assert log.moves == []
    await cursor.flush()
    assert log.moves == [(START, (1, 3))]


async def test_a_writer_that_dies_while_idle_is_replaced() -> None:
    log, cursor = await opened_log({1: 10}, acked=[(1, 0)])
    writer: FakeWriter = log.bookkeeper.writers[0]
    writer.fail(WriteFailedError("idle"))
    await asyncio.sleep(0)
    await ack_and_flush(cursor, [(1, 1)])
    assert len(log.bookkeeper.writers) == 2
    assert (await reopened(log)).mark_delete == (1, 1)


async def test_every_call_is_refused_once_closed() -> None:
    cursor = await opened(FakeLog({1: 10}))
    await cursor.close()
    done = Answers()
    cursor.ack([(1, 0)], done)
    cursor.ack([(1, 0)])
    cursor.ack_cumulative((1, 0), None, done)
    assert not cursor.ack_batch((1, 0), [], done)
    cursor.ack_cumulative_batch((1, 0), [], done)
    cursor.advance_to((1, 5))
    assert [type(error) for error in done] == [CursorClosedError] * 4
    for call in (cursor.reset((1, 0)), cursor.set_cursor_properties({}), cursor.flush()):
        with pytest.raises(CursorClosedError):
            await call
    assert cursor.mark_delete == START
    assert cursor.is_closed


async def test_batch_acknowledgements_are_durable() -> None:
    log, cursor = await opened_log({1: 10, 2: 10})
    done = Answers()
    cursor.ack_cumulative_batch((2, 3), [0b1010], done)
    assert not cursor.ack_batch((2, 5), [0b11], done)
    assert cursor.ack_batch((2, 6), [], done)
    await until(lambda: done == [None] * 3)
    again = await reopened(log)
    assert again.mark_delete == (2, 2)
    assert again.state.batch_ack_set((2, 3)) == [0b1010]
    assert again.state.batch_ack_set((2, 5)) == [0b11]
    assert again.state.is_acked((2, 6))


async def test_advancing_a_durable_cursor_is_stored() -> None:
    log, cursor = await opened_log({1: 10, 2: 10})
    cursor.advance_to((1, 9))
    await cursor.flush()
    assert cursor.durable_mark_delete == (1, 9)
    assert (await reopened(log)).mark_delete == (1, 9)


def large_holes(log: FakeLog) -> list[Position]:
    return [(1, entry) for entry in range(1, log.ledgers[1], 3)]


async def test_a_state_too_large_for_the_node_falls_back_to_a_new_ledger() -> None:
    log, cursor = await opened_log({1: 4_000_000})
    holes = large_holes(log)
    cursor.ack(holes)
    await cursor.flush()
    log.storage.recover(node_of(log).ledger_id, log.faults.rng)  # the next append fails
    await ack_and_flush(cursor, [(1, 2)])
    assert node_of(log).ledger_id == log.bookkeeper.writers[1].ledger_id
    again = await reopened(log)
    assert again.state.acked_above == len(holes) + 1


async def test_a_large_state_gets_its_snapshots_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_writer, "INCREMENTS_MAX", 3)
    log = FakeLog({1: 1_000_000})  # 125 KB: above what is encoded at once
    cursor = await opened(log)
    cursor.ack(large_holes(log))
    await cursor.flush()
    [ledger] = log.storage.ledgers.values()
    for entry in range(2, 50, 3):
        await ack_and_flush(cursor, [(1, entry)])
    kinds = [decode_record(body, "test").kind for body in ledger.bodies]
    assert kinds.count(SectionKind.SNAPSHOT) == 5
    again = await reopened(log)
    assert again.state.acked_above == cursor.state.acked_above


@pytest.mark.parametrize("step", [2, 20])
@pytest.mark.parametrize("start", [1, 1_000_001, 3_900_001])
async def test_acknowledgements_between_the_slices_of_a_snapshot(step: int, start: int) -> None:
    """Ahead of what is encoded, behind it, and mark-delete moves over both."""
    log, cursor = await opened_log({1: 4_000_000})
    await ack_and_flush(cursor, [(1, entry) for entry in range(0, 4_000_000, step)])
    log.config = ManagedLedgerConfig(cursor_ledger_entries_max=1)
    cursor.ack([(1, start)])  # begins a snapshot, in a new ledger
    write = asyncio.ensure_future(cursor.flush())
    acked = [start]
    while not write.done():
        await asyncio.sleep(0)
        if len(log.bookkeeper.writers) == 2:
            log.config = ManagedLedgerConfig()  # what follows are increments
        acked += [acked[-1] + 2 * step, (acked[-1] + 1_234_567) % 3_999_999]
        cursor.ack([(1, acked[-2]), (1, acked[-1])])
        if len(acked) == 15:
            cursor.ack_cumulative((1, start + 50_000))
    assert len(acked) > 20, "not in slices"
    await cursor.flush()
    assert len(log.bookkeeper.writers) == 2
    again = await reopened(log)
    assert again.mark_delete == cursor.mark_delete
    assert again.state.acked_in(1, 0, 4_000_000) == cursor.state.acked_in(1, 0, 4_000_000)


async def test_a_large_increment_is_written_in_slices() -> None:
    log, cursor = await opened_log({1: 9_000_000}, acked=[(1, 5)])
    [ledger] = log.storage.ledgers.values()
    for first in (7, 8):
        cursor.ack([(1, entry) for entry in range(first, 9_000_000, 10)])
        write = asyncio.ensure_future(cursor.flush())
        turns = 0
        while not write.done():
            await asyncio.sleep(0)
            turns += 1
            cursor.ack([(1, 9 + 10 * turns)])
        assert turns > 15, "not in slices"
    await cursor.flush()
    kinds = [decode_record(body, "test").kind for body in ledger.bodies]
    assert kinds[:2] == [SectionKind.SNAPSHOT, SectionKind.INCREMENT]
    again = await reopened(log)
    assert again.state.acked_in(1, 0, 9_000_000) == cursor.state.acked_in(1, 0, 9_000_000)


async def test_a_large_state_is_read_back_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded, and looked through for what the log has lost."""
    monkeypatch.setattr(ack_state, "_ADOPTED_SETS", 1000)
    log, cursor = await opened_log({1: 400_000, 2: 400_000})
    for entry in range(0, 300_000, 2):
        cursor.ack_batch((2, entry), [5])
    await ack_and_flush(cursor, [(1, entry) for entry in range(1, 400_000, 3)])
    load = asyncio.ensure_future(reopened(log))
    turns = 0
    while not load.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 150, "not in slices"  # of 150,000 sets; decoding has some as well
    again = load.result()
    assert again.state.acked_above == cursor.state.acked_above
    assert again.state.batch_ack_set((2, 299_998)) == [5]


@pytest.mark.parametrize("damaged", [0, 1])
async def test_a_damaged_record_fails_the_open_and_names_its_place(damaged: int) -> None:
    """Neither the older position nor half of the state is taken for it, now or later."""
    log, cursor = await opened_log({1: 60_000, 2: 60_000})
    await ack_and_flush(cursor, [(1, entry) for entry in range(1, 60_000, 20)])
    await ack_and_flush(cursor, [(2, entry) for entry in range(1, 60_000, 20)])
    ledger_id = node_of(log).ledger_id
    bodies = log.storage.ledgers[ledger_id].bodies
    whole = bodies[damaged]
    bodies[damaged] = whole[:-40] + bytes(40)
    place = rf"cursor sub of {log.name}, ledger {ledger_id} entry {damaged}: section \d+ at \d+"
    for _ in range(2):
        with pytest.raises(CursorFormatError, match=place):
            await reopened(log)
        assert node_of(log).ledger_id == ledger_id
    bodies[damaged] = whole
    assert (await reopened(log)).state.acked_above == 6000


async def test_a_large_increment_whose_write_fails_is_not_forgotten() -> None:
    log, cursor = await opened_log({1: 9_000_000}, acked=[(1, 5)])
    log.storage.recover(node_of(log).ledger_id, log.faults.rng)  # the next append fails
    await ack_and_flush(cursor, [(1, entry) for entry in range(7, 9_000_000, 30)])
    again = await reopened(log)
    assert again.state.acked_in(1, 0, 9_000_000) == cursor.state.acked_in(1, 0, 9_000_000)


async def test_a_cursor_ledger_is_rotated_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few records these are."""
    monkeypatch.setattr(cursor_writer, "LEDGER_BYTES_MAX", 30_000)
    log, cursor = await opened_log({1: 100_000})
    rng = random.Random(4)
    for _ in range(60):
        await ack_and_flush(cursor, [(1, entry) for entry in rng.sample(range(100_000), 1_000)])
    assert len(log.bookkeeper.writers) > 2
    [ledger] = log.storage.ledgers.values()  # the others are deleted
    assert sum(map(len, ledger.bodies)) < 30_000 + 20_000
    again = await reopened(log)
    assert again.state.acked_in(1, 0, 100_000) == cursor.state.acked_in(1, 0, 100_000)


async def test_large_increments_call_for_a_snapshot_soon() -> None:
    """Else a recovery would read 1,024 of them, however large."""
    log, cursor = await opened_log({1: 4_000_000})
    rng = random.Random(4)
    await ack_and_flush(cursor, [(1, 1)])
    for _ in range(60):
        await ack_and_flush(cursor, [(1, entry) for entry in rng.sample(range(100_000), 2_000)])
    [ledger] = log.storage.ledgers.values()
    records = [decode_record(body, "test") for body in ledger.bodies]
    snapshots = [n for n, record in enumerate(records) if record.kind is SectionKind.SNAPSHOT]
    assert len(snapshots) > 3
    for first, end in pairwise(snapshots):
        increments = sum(map(len, ledger.bodies[first + 1 : end]))
        assert increments <= max(16 << 10, len(ledger.bodies[first])) + 4_000


async def test_a_failed_rotation_is_not_tried_at_each_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursor_writer, "ROTATION_RETRY_ENTRIES", 10)
    log = FakeLog({1: 1000}, config=ManagedLedgerConfig(cursor_ledger_entries_max=5))
    create, attempts = log.bookkeeper.create_ledger, []

    async def counted(*arguments: Any, **named: Any) -> Any:
        attempts.append(log.bookkeeper.writers[0].ledger_id if log.bookkeeper.writers else None)
        return await create(*arguments, **named)

    monkeypatch.setattr(log.bookkeeper, "create_ledger", counted)
    cursor = await opened(log)
    for entry in range(40):
        log.storage.is_unavailable = entry >= 1
        await ack_and_flush(cursor, [(1, entry)])
    assert 2 <= len(attempts) <= 1 + 40 // 10
    log.storage.is_unavailable = False
    assert (await reopened(log)).mark_delete == (1, 39)


async def test_ledgers_that_could_not_be_deleted_are_deleted_later() -> None:
    log, cursor = await opened_log({1: 100}, ManagedLedgerConfig(cursor_ledger_entries_max=1))
    log.storage.deletes_fail = True
    for entry in range(3):
        await ack_and_flush(cursor, [(1, entry)])
        await asyncio.sleep(0)
    assert len(log.storage.ledgers) == 3
    log.storage.deletes_fail = False
    await ack_and_flush(cursor, [(1, 3)])
    await until(lambda: len(log.storage.ledgers) == 1)


async def test_what_was_not_stored_before_a_refused_delete_is_stored_later() -> None:
    log, cursor = await opened_log({1: 100})
    log.storage.is_unavailable, log.faults.put_failure_rate = True, 1.0
    cursor.ack([(1, 0), (1, 1)])
    with pytest.raises(CursorWriteError):
        await cursor.flush()

    async def refuse(path: str, expected_version: int | None = None) -> None:
        raise MetadataWriteError(path, OSError("disk full"))

    log.fake_store.delete = refuse  # type: ignore[method-assign]
    with pytest.raises(MetadataWriteError):
        await cursor.delete()
    log.storage.is_unavailable, log.faults.put_failure_rate = False, 0.0
    await cursor.flush()
    assert (await reopened(log)).mark_delete == (1, 1)


async def test_fenced_while_closing_resetting_or_changing_properties() -> None:
    for operation in ("close", "reset", "properties"):
        log, cursor = await opened_log({1: 100})
        await reopened(log)
        if operation == "close":
            cursor.ack([(1, 0)])
            await cursor.close()
        elif operation == "reset":
            with pytest.raises(CursorFencedError):
                await cursor.reset((1, 5))
        else:
            with pytest.raises(CursorFencedError):
                await cursor.set_cursor_properties({"a": "b"})
        assert len(log.fenced) == 1
        assert cursor.is_closed
        assert cursor.state.generation == 0


async def test_a_log_that_is_not_the_owner_does_not_write_the_node() -> None:
    log, cursor = await opened_log({1: 100})
    log.is_owner = False
    puts = log.fake_store.puts
    with pytest.raises(CursorFencedError):
        await cursor.reset((1, 5))
    assert log.fake_store.puts == puts


async def test_a_flush_that_nobody_waits_for_any_more() -> None:
    log, cursor = await opened_log({1: 100})
    cursor.ack([(1, 0)])
    flushing = asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    await cursor.flush()
    assert (await reopened(log)).mark_delete == (1, 0)


async def test_operations_wait_for_each_other() -> None:
    log, cursor = await opened_log({1: 100})
    cursor.ack([(1, 0)])
    await asyncio.gather(
        cursor.set_cursor_properties({"a": "1"}),
        cursor.set_cursor_properties({"a": "2"}),
        cursor.flush(),
        cursor.reset((1, 50)),
    )
    again = await reopened(log)
    assert again.mark_delete == (1, 49)
    assert again.cursor_properties == {"a": "2"}


async def test_a_position_is_durable_once_the_node_names_its_ledger() -> None:
    """A snapshot in a ledger that no node names is found by nobody: trimming must not go by it."""
    log, cursor = await opened_log({1: 1000, 2: 1000})
    create = log.bookkeeper.create_ledger

    async def create_then_outage(*args: Any) -> FakeWriter:
        writer = await create(*args)
        log.fake_store.is_down = True
        return writer

    log.bookkeeper.create_ledger = create_then_outage  # type: ignore[method-assign,assignment]
    done = Answers()
    cursor.ack_cumulative((1, 999), {"producer": 41}, done)
    await until(lambda: len(done) == 1)
    assert done[0] is not None
    assert (cursor.durable_mark_delete, log.moves) == (START, [])
    log.fake_store.is_down = False
    assert (await reopened(log)).mark_delete == START


async def test_after_a_failed_reset_the_lower_position_counts() -> None:
    log, cursor = await opened_log({1: 1000})
    cursor.ack_cumulative((1, 499))
    await cursor.flush()
    log.bookkeeper.writers[-1].held = True
    reset = asyncio.ensure_future(cursor.reset((1, 100)))
    await until(lambda: log.bookkeeper.writers[-1]._upto == 1)
    log.fake_store.is_down = True
    log.bookkeeper.writers[-1].fail(WriteFailedError("injected"))  # it may be there all the same
    with pytest.raises(CursorWriteError):
        await reset
    assert cursor.durable_mark_delete == (1, 99)
    cursor.ack([(1, 500)])
    log.fake_store.is_down = False
    await cursor.flush()  # everything is written anew
    assert cursor.durable_mark_delete == (1, 500)


@pytest.mark.parametrize(("names", "length"), [(10_000, 90), (250, 4000), (10_000, 4096)])
async def test_as_many_producers_as_de_duplication_keeps_are_stored(
    names: int, length: int
) -> None:
    """The cursor ledger has them; the node stays small, and tells an older position."""
    log, cursor = await opened_log({1: 1000})
    for position in (100, 200):
        known = {f"{n:05d}".ljust(length, "x"): position + n for n in range(names)}
        cursor.ack_cumulative((1, position), known)
        await cursor.flush()
        assert cursor.durable_mark_delete == (1, position)
    assert len(log.storage.ledgers) == 1
    await cursor.set_cursor_properties({"key": "x" * 60_000})
    await cursor.close()
    assert sum(len(value) for value, _ in log.nodes.nodes.values()) < 1_000_000
    assert (await reopened(log)).state.properties == known


async def test_many_properties_and_no_bookies_at_the_close() -> None:
    """What was durable stays so: the node goes on naming the ledger that has it."""
    log, cursor = await opened_log({1: 1000})
    known = {f"{n}".ljust(4000, "x"): n for n in range(250)}
    cursor.ack_cumulative((1, 100), known)
    await cursor.flush()
    log.bookkeeper.writers[-1].fail(WriteFailedError("injected"))
    log.storage.is_unavailable = True
    cursor.ack_cumulative((1, 200), dict.fromkeys(known, 9))
    with pytest.raises(CursorWriteError):
        await cursor.close()
    log.storage.is_unavailable = False
    again = await reopened(log)
    assert (again.mark_delete, again.state.properties) == ((1, 100), known)
    assert cursor.durable_mark_delete == (1, 100)


async def test_a_lost_ledger_of_many_properties_means_an_older_pair() -> None:
    """Never a position without what was known at it: producers would be forgotten in silence."""
    log, cursor = await opened_log({1: 1000})
    cursor.ack_cumulative((1, 10), {"a": 1})
    await cursor.flush()
    known = {f"{n}".ljust(4000, "x"): n for n in range(250)}
    cursor.ack_cumulative((1, 100), known)
    log.bookkeeper.writers[-1].fail(WriteFailedError("injected"))
    await cursor.flush()
    log.storage.ledgers.clear()
    again = await reopened(log)
    assert (again.mark_delete, again.state.properties) == ((1, 10), {"a": 1})


async def test_properties_replaced_while_they_are_encoded_are_those_of_mark_delete() -> None:
    log, cursor = await opened_log({1: 1000}, acked=[(1, 0)])
    last = {}
    for position in range(1, 40):
        last = {f"{n}".ljust(4000, "x"): position for n in range(50)}
        cursor.ack_cumulative((1, position), last)
        for _ in range(3):  # in the middle of the slices
            await asyncio.sleep(0)
        found = await opened(log.rival("s9"))  # as if it died now
        assert set(found.state.properties.values()) <= {found.mark_delete[1]}
        log.nodes.owner = log
    await cursor.flush()
    assert (await reopened(log)).state.properties == last
