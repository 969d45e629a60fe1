"""The cursor's shell: when it writes, what it answers, where the position goes."""

import asyncio
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor_format import SectionKind, decode_record
from magnetar.managed_ledger.cursor.cursor_store import NO_LEDGER
from magnetar.managed_ledger.cursor.errors import (
    CursorBusyError,
    CursorFencedError,
    CursorWriteError,
)
from magnetar.managed_ledger.errors import CursorClosedError, OpenFailedError
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from tests.unit.managed_ledger.cluster import eventually
from tests.unit.managed_ledger.cursor_doubles import FakeLog
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


async def test_creating_costs_one_put_and_no_ledger() -> None:
    log, cursor = await opened_log({1: 10})
    assert (log.fake_store.puts, log.bookkeeper.created) == (1, [])
    assert (cursor.mark_delete, cursor.state.backlog, cursor.durable) == (START, 10, True)
    assert len(asyncio.all_tasks()) == 1  # idle: no task of the cursor's


async def test_first_ack_makes_a_ledger_and_the_next_ones_are_small() -> None:
    log, cursor = await opened_log({1: 1000}, acked=[(1, 0), (1, 5)])
    [writer] = log.bookkeeper.writers
    assert node_of(log).ledger_id == writer.ledger_id
    puts = log.fake_store.puts
    for entry in range(1, 100):
        await ack_and_flush(cursor, [(1, entry)])
    assert log.fake_store.puts == puts
    bodies = log.storage.ledgers[writer.ledger_id].bodies
    assert max(map(len, bodies[1:])) < 80
    again = await reopened(log)
    assert again.mark_delete == (1, 99)


async def test_one_write_in_flight_and_the_rest_coalesces() -> None:
    log, cursor = await opened_log({1: 1000}, acked=[(1, 0)])
    [writer] = log.bookkeeper.writers
    bodies = log.storage.ledgers[writer.ledger_id].bodies
    writer.held = True
    first, later = Answers(), Answers()
    cursor.ack([(1, 1)], first)
    await asyncio.sleep(0)
    for entry in range(2, 500):
        cursor.ack([(1, entry)], later)
        await asyncio.sleep(0)
    assert len(bodies) == 2
    assert first == later == []
    writer.held = False
    writer.release()
    await until(lambda: len(later) == 498)
    assert first == [None]
    assert set(later) == {None}
    assert len(bodies) == 3


async def test_acks_that_nobody_waits_for_are_written_at_the_rate() -> None:
    log = FakeLog({1: 1000})
    log.config = replace(log.config, mark_delete_rate=0.001)
    cursor = await opened(log)
    cursor.ack([(1, 0)])  # the first one at once
    await until(lambda: cursor.durable_mark_delete == (1, 0))
    [writer] = log.bookkeeper.writers
    bodies = log.storage.ledgers[writer.ledger_id].bodies
    before = len(bodies)
    for entry in range(1, 500):
        cursor.ack([(1, entry)])
        await asyncio.sleep(0)
    assert len(bodies) == before
    answers = Answers()
    cursor.ack([(1, 500)], answers)  # somebody waits: all of them go with it
    await until(lambda: answers == [None])
    assert (len(bodies), cursor.durable_mark_delete) == (before + 1, (1, 500))
    cursor.ack([(1, 501)])
    await cursor.close()
    assert (await reopened(log)).mark_delete == (1, 501)


async def test_the_rate_s_next_write_comes_by_itself() -> None:
    log = FakeLog({1: 1000})
    log.config = replace(log.config, mark_delete_rate=200.0)
    cursor = await opened(log)
    for entry in range(50):
        cursor.ack([(1, entry)])
        await asyncio.sleep(0.001)
    # A timer of the real loop: turns alone don't wait for it.
    await eventually(lambda: cursor.durable_mark_delete == (1, 49))


async def test_an_ack_that_changes_nothing_waits_for_the_write_that_has_it() -> None:
    log, cursor = await opened_log({1: 10}, acked=[(1, 0)])
    done = Answers()
    cursor.ack([(1, 0)], done)  # durable already
    assert done == [None]
    log.bookkeeper.writers[0].held = True
    cursor.ack([(1, 1)])
    await asyncio.sleep(0)
    cursor.ack([(1, 1)], done)  # applied, not durable
    await asyncio.sleep(0)
    assert done == [None]
    log.bookkeeper.writers[0].held = False
    log.bookkeeper.writers[0].release()
    await until(lambda: done == [None, None])


async def test_a_failed_append_falls_back_to_the_node() -> None:
    log, cursor = await opened_log({1: 100}, acked=[(1, 0)])
    old = log.bookkeeper.writers[0]
    log.faults.append_failure_rate = 1.0
    done = Answers()
    cursor.ack([(1, 1), (1, 7)], done)
    cursor.ack_batch((1, 9), [0b110], done)
    await until(lambda: done == [None, None])
    node = node_of(log)
    assert (node.ledger_id, node.mark_delete) == (NO_LEDGER, (1, 1))
    await until(lambda: old.ledger_id in log.storage.deleted)
    log.faults.append_failure_rate = 0.0
    await ack_and_flush(cursor, [(1, 2)])
    assert node_of(log).ledger_id == log.bookkeeper.writers[-1].ledger_id != old.ledger_id
    again = await reopened(log)
    assert again.mark_delete == (1, 2)
    assert again.state.acked_in(1, 0, 10) == [0, 1, 2, 7]
    assert again.state.batch_ack_set((1, 9)) == [0b110]


async def test_no_bookies_at_all_means_the_node() -> None:
    log = FakeLog({1: 100})
    log.storage.is_unavailable = True
    cursor = await opened(log)
    await ack_and_flush(cursor, [(1, 3)])
    assert node_of(log).ledger_id == NO_LEDGER
    again = await reopened(log)
    assert again.state.acked_in(1, 0, 100) == [3]


async def test_nothing_takes_the_write_and_the_next_ack_tries_again() -> None:
    log, cursor = await opened_log({1: 100})
    log.storage.is_unavailable = log.fake_store.is_down = True
    done = Answers()
    cursor.ack([(1, 3)], done)
    await until(lambda: len(done) == 1)
    assert isinstance(done[0], CursorWriteError)
    steps = log.faults.steps
    for _ in range(50):
        await asyncio.sleep(0)
    assert log.faults.steps == steps  # no spinning
    assert cursor.state.is_acked((1, 3))
    log.storage.is_unavailable = log.fake_store.is_down = False
    cursor.ack([(1, 3)], done)
    await until(lambda: len(done) == 2)
    assert done[1] is None
    assert (await reopened(log)).state.is_acked((1, 3))


async def test_rotation_by_entries() -> None:
    log, cursor = await opened_log({1: 1000}, ManagedLedgerConfig(cursor_ledger_entries_max=10))
    for entry in range(0, 100, 2):
        await ack_and_flush(cursor, [(1, entry)])
    writers = log.bookkeeper.writers
    assert len(writers) == 5
    assert node_of(log).ledger_id == writers[-1].ledger_id
    await until(lambda: list(log.storage.ledgers) == [writers[-1].ledger_id])
    assert (await reopened(log)).state.acked_in(1, 0, 1000) == list(range(0, 100, 2))


async def test_rotation_by_age_only_with_a_write() -> None:
    log, cursor = await opened_log({1: 10}, acked=[(1, 0)])
    log.clock_ms += 5 * 3600 * 1000
    await cursor.flush()
    assert len(log.bookkeeper.writers) == 1
    await ack_and_flush(cursor, [(1, 1)])
    assert len(log.bookkeeper.writers) == 2


async def test_a_failed_rotation_keeps_the_old_ledger() -> None:
    log, cursor = await opened_log({1: 1000}, ManagedLedgerConfig(cursor_ledger_entries_max=3))
    for entry in range(50):
        log.storage.is_unavailable = entry >= 2
        await ack_and_flush(cursor, [(1, entry)])
    assert len(log.bookkeeper.writers) == 1
    assert node_of(log).ledger_id == log.bookkeeper.writers[0].ledger_id
    log.storage.is_unavailable = False
    assert (await reopened(log)).mark_delete == (1, 49)


async def test_snapshots_end_the_increments_before_a_recovery_has_too_many() -> None:
    log, cursor = await opened_log({1: 100_000})
    for entry in range(0, 6000, 2):
        await ack_and_flush(cursor, [(1, entry)])
    [ledger] = log.storage.ledgers.values()
    kinds = [decode_record(body, "test").kind for body in ledger.bodies]
    snapshots = [entry for entry, kind in enumerate(kinds) if kind is SectionKind.SNAPSHOT]
    assert len(ledger.bodies) == 3000
    assert max(b - a for a, b in pairwise(snapshots)) <= 1025
    again = await reopened(log)
    assert again.state.acked_in(1, 0, 100_000) == list(range(0, 6000, 2))


async def test_a_large_state_is_closed_in_its_ledger_and_found_again() -> None:
    log, cursor = await opened_log({1: 20_000_000})
    chosen = random.Random(1).sample(range(2, 9_000_000), 600_000)
    acked = [(1, 0), *((1, entry) for entry in chosen)]
    cursor.ack(acked)
    await ack_and_flush(cursor, [(1, 10_000_001)])
    cursor.ack([(1, 10_000_003)])
    await cursor.close()
    node = node_of(log)
    assert node.ledger_id == log.bookkeeper.writers[-1].ledger_id
    ledger = log.storage.ledgers[node.ledger_id]
    assert ledger.is_closed
    assert max(map(len, ledger.bodies)) <= 512 << 10
    again = await reopened(log)
    assert again.state.acked_above == len(acked) + 2 - 1  # (1, 0) is mark-delete
    assert again.state.is_acked((1, 10_000_003))


async def test_close_writes_the_node_and_deletes_the_ledger() -> None:
    log, cursor = await opened_log({1: 100})
    cursor.ack_cumulative((1, 4), {"a": 7})
    await cursor.flush()
    cursor.ack([(1, 6)])
    await cursor.close()
    await cursor.close()
    assert log.storage.ledgers == {}
    node = node_of(log)
    assert (node.ledger_id, node.mark_delete, node.properties) == (NO_LEDGER, (1, 4), {"a": 7})
    done = Answers()
    cursor.ack([(1, 5)], done)
    assert isinstance(done[0], CursorClosedError)
    with pytest.raises(CursorClosedError):
        await cursor.flush()
    again = await reopened(log)
    assert (again.mark_delete, again.state.properties) == ((1, 4), {"a": 7})
    assert again.state.is_acked((1, 6))


async def test_closing_an_untouched_cursor_writes_nothing() -> None:
    log, cursor = await opened_log({1: 100})
    puts = log.fake_store.puts
    await cursor.close()
    assert log.fake_store.puts == puts


async def test_close_with_the_store_down_leaves_it_in_the_ledger() -> None:
    log, cursor = await opened_log({1: 100}, acked=[(1, 0)])
    cursor.ack([(1, 1)])
    log.fake_store.is_down = True
    await cursor.close()
    assert (await reopened(log)).mark_delete == (1, 1)


async def test_close_with_everything_down_says_so() -> None:
    log, cursor = await opened_log({1: 100})
    done = Answers()
    cursor.ack([(1, 1)], done)
    log.fake_store.is_down = log.storage.is_unavailable = True
    with pytest.raises(CursorWriteError):
        await cursor.close()
    assert isinstance(done[0], CursorWriteError)


async def test_reset_backwards_and_forwards() -> None:
    log, cursor = await opened_log({1: 10, 3: 10})
    cursor.ack_cumulative((3, 4))
    await ack_and_flush(cursor, [(3, 8)])
    generation = cursor.state.generation
    await cursor.reset((1, 5))
    assert (cursor.mark_delete, cursor.state.first_unacked()) == ((1, 4), (1, 5))
    assert cursor.state.generation == generation + 1
    assert not cursor.state.is_acked((3, 8))
    assert (await reopened(log)).mark_delete == (1, 4)


@pytest.mark.parametrize(
    ("target", "first"),
    [
        (EARLIEST, (1, 0)),
        (LATEST, (3, 10)),
        ((1, 10), (3, 0)),  # the end of a ledger
        ((2, 5), (3, 0)),  # no such ledger
        ((3, 0), (3, 0)),
        ((0, 7), (1, 0)),  # trimmed
        ((3, 99), (3, 10)),
    ],
)
async def test_reset_targets(target: Position, first: Position) -> None:
    log, cursor = await opened_log({1: 10, 3: 10})
    cursor.ack_cumulative((1, 3))
    await cursor.reset(target)
    assert cursor.state.first_unacked() == first
    assert (await reopened(log)).state.first_unacked() == first


async def test_reset_into_a_batch() -> None:
    log, cursor = await opened_log({1: 10})
    await cursor.reset((1, 5), [0b1100])
    assert cursor.state.batch_ack_set((1, 5)) == [0b1100]
    assert cursor.state.first_unacked() == (1, 5)
    assert (await reopened(log)).state.batch_ack_set((1, 5)) == [0b1100]


async def test_reset_refuses_acks_meanwhile_and_holds_back_trimming() -> None:
    log, cursor = await opened_log({1: 10, 2: 10})
    cursor.ack_cumulative((2, 5))
    await cursor.flush()
    log.bookkeeper.writers[0].held = True
    resetting = asyncio.ensure_future(cursor.reset((1, 2)))
    await asyncio.sleep(0)
    assert cursor.durable_mark_delete == (1, 1)
    done = Answers()
    cursor.ack([(2, 6)], done)
    assert isinstance(done[0], CursorBusyError)
    with pytest.raises(CursorBusyError):
        await cursor.reset((1, 1))
    await until(lambda: len(log.storage.ledgers[1000].bodies) == 2)
    log.bookkeeper.writers[0].held = False
    log.bookkeeper.writers[0].release()
    await resetting
    cursor.ack([(1, 2)], done)
    await cursor.flush()
    assert done[1] is None
    assert cursor.mark_delete == (1, 2)


async def test_delete_waits_for_a_reset() -> None:
    """A topic deleted while a consumer seeks must not be left half deleted."""
    log, cursor = await opened_log({1: 10})
    cursor.ack_cumulative((1, 5))
    await cursor.flush()
    log.bookkeeper.writers[0].held = True
    resetting = asyncio.ensure_future(cursor.reset((1, 2)))
    await until(lambda: len(log.storage.ledgers[1000].bodies) == 2)
    deleting = asyncio.ensure_future(cursor.delete())
    await asyncio.sleep(0)
    assert not deleting.done()
    log.bookkeeper.writers[0].held = False
    log.bookkeeper.writers[0].release()
    await asyncio.gather(resetting, deleting)
    assert cursor.is_closed
    with pytest.raises(CursorClosedError):
        await cursor.reset((1, 1))


async def test_a_reset_overtaken_by_delete_is_refused() -> None:
    log, cursor = await opened_log({1: 10})
    cursor.ack_cumulative((1, 3))
    await cursor.flush()
    log.bookkeeper.writers[0].held = True
    cursor.ack([(1, 4)])
    await until(lambda: len(log.storage.ledgers[1000].bodies) == 2)
    resetting = asyncio.ensure_future(cursor.reset((1, 2)))
    await asyncio.sleep(0)
    log.bookkeeper.writers[0].held = False
    deleting = asyncio.ensure_future(cursor.delete())  # takes its first step before the reset
    log.bookkeeper.writers[0].release()
    with pytest.raises(CursorClosedError):
        await resetting
    await deleting
    assert cursor.is_closed


async def test_a_reset_that_cannot_be_stored_changes_nothing_here() -> None:
    log, cursor = await opened_log({1: 10})
    cursor.ack_cumulative((1, 5))
    await cursor.flush()
    log.faults.append_failure_rate, log.fake_store.is_down = 1.0, True
    with pytest.raises(CursorWriteError):
        await cursor.reset((1, 2))
    assert cursor.mark_delete == (1, 5)
    log.faults.append_failure_rate, log.fake_store.is_down = 0.0, False
    await cursor.flush()  # writes the whole state again: the failed reset must not come back
    assert (await reopened(log)).mark_delete == (1, 5)


async def test_a_cancelled_reset_leaves_the_cursor_usable() -> None:
    log, cursor = await opened_log({1: 10}, acked=[(1, 0)])
    log.bookkeeper.writers[0].held = True
    cursor.ack([(1, 1)])
    await asyncio.sleep(0)
    resetting = asyncio.ensure_future(cursor.reset((1, 0)))
    await asyncio.sleep(0)
    resetting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resetting
    cursor.ack([(1, 2)])
    await asyncio.sleep(0)
    assert len(log.storage.ledgers[1000].bodies) == 2  # still one write in flight
    log.bookkeeper.writers[0].held = False
    log.bookkeeper.writers[0].release()
    await cursor.flush()
    assert (await reopened(log)).mark_delete == (1, 2)


async def test_a_reset_cancelled_while_it_is_stored_does_not_come_back() -> None:
    log, cursor = await opened_log({1: 10})
    cursor.ack_cumulative((1, 5))
    await cursor.flush()
    writer = log.bookkeeper.writers[0]
    writer.held = True
    resetting = asyncio.ensure_future(cursor.reset((1, 0)))
    await until(lambda: len(log.storage.ledgers[1000].bodies) == 2)
    resetting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resetting
    writer.release()  # it is in the ledger now
    await ack_and_flush(cursor, [(1, 6)])
    assert cursor.mark_delete == (1, 6)
    assert (await reopened(log)).mark_delete == (1, 6)


async def test_a_callback_that_raises_costs_nobody_else_an_answer() -> None:
    cursor = await opened(FakeLog({1: 10}))
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def bad(_: BaseException | None) -> None:
        raise ValueError("a caller's bug")

    done = Answers()
    cursor.ack([(1, 0)], bad)
    cursor.ack([(1, 1)], done)
    await cursor.flush()
    assert done == [None]
    assert [str(context["exception"]) for context in reported] == ["a caller's bug"]


async def test_a_stale_owner_stops_and_reports() -> None:
    log, cursor = await opened_log({1: 100}, acked=[(1, 0)])
    new = await reopened(log)
    done = Answers()
    cursor.ack([(1, 1)], done)
    await until(lambda: len(done) == 1)
    assert isinstance(done[0], CursorFencedError)
    assert [type(error) for error in log.fenced] == [CursorFencedError]
    cursor.ack([(1, 2)], done)
    assert isinstance(done[1], CursorFencedError)
    steps = log.faults.steps
    await cursor.close()
    assert log.faults.steps == steps
    await ack_and_flush(new, [(1, 1)])
    assert (await opened(log.successor("s3"))).mark_delete == (1, 1)


async def test_a_stale_owner_without_a_ledger_cannot_write_the_node_either() -> None:
    log, cursor = await opened_log({1: 100})
    new = await reopened(log)
    await new.reset((1, 50))
    cursor.ack([(1, 0)])
    with pytest.raises(CursorFencedError):
        await cursor.flush()
    await until(lambda: log.storage.ledgers == {} or len(log.fenced) == 1)
    assert (await opened(log.successor("s3"))).mark_delete == (1, 49)


async def test_a_ledger_fenced_by_repair_only_is_replaced() -> None:
    """Auto-recovery may close the ledger of an idle writer; that takes nothing away from us."""
    log, cursor = await opened_log({1: 100}, acked=[(1, 0)])
    log.storage.recover(node_of(log).ledger_id, log.faults.rng)
    await ack_and_flush(cursor, [(1, 1)])
    await ack_and_flush(cursor, [(1, 2)])
    assert log.fenced == []
    assert (await reopened(log)).mark_delete == (1, 2)


async def test_a_log_that_lost_its_owner_makes_no_new_ledger() -> None:
    log, cursor = await opened_log({1: 100})
    log.is_owner = False
    cursor.ack([(1, 0)])
    with pytest.raises(CursorFencedError):
        await cursor.flush()
    assert log.storage.ledgers == {}


async def test_unavailable_ledger_fails_the_open_and_never_rewinds() -> None:
    log, cursor = await opened_log({1: 100})
    cursor.ack_cumulative((1, 50))
    await cursor.flush()
    log.storage.is_unavailable = True
    with pytest.raises(OpenFailedError, match=r"cursor sub of .* ledger 1000"):
        await reopened(log)
    log.storage.is_unavailable = False
    assert (await reopened(log)).mark_delete == (1, 50)


async def test_lost_or_empty_ledger_means_the_position_in_the_node() -> None:
    log, cursor = await opened_log({1: 100})
    cursor.ack_cumulative((1, 20))
    await cursor.flush()
    cursor.ack_cumulative((1, 50))
    await cursor.flush()
    ledger = log.storage.ledgers[1000]
    ledger.bodies.clear()
    ledger.confirmed = -1
    assert (await reopened(log)).mark_delete == (1, 20)
    log.storage.ledgers.clear()
    assert (await reopened(log)).mark_delete == (1, 20)


async def test_recovery_drops_what_the_log_does_not_have() -> None:
    log, cursor = await opened_log({1: 100, 2: 100})
    cursor.ack([(1, 7), (2, 7), (2, 90)])
    cursor.ack_batch((2, 95), [1])
    cursor.ack_batch((1, 95), [1])
    await cursor.flush()
    shorter = log.successor("s2")
    shorter.ledgers = {2: 50}
    again = await opened(shorter)
    assert again.state.acked_in(2, 0, 100) == [7]
    assert again.state.acked_above == 1
    assert again.state.batch_ack_set((2, 95)) is None
    assert again.state.batch_ack_set((1, 95)) is None
    assert again.state.first_unacked() == (2, 0)
