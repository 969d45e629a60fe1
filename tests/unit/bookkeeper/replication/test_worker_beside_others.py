"""Workers and what happens beside them: writers of open ledgers, other workers, the switch."""

import asyncio
import dataclasses
from typing import Any

import pytest

from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.metadata.store import CREATE_ONLY
from tests.unit.bookkeeper.replication.cluster import (
    MARKERS,
    Cluster,
    reason_of,
    until,
    until_async,
    virtual,
)

# Open ledgers


def test_an_idle_writer_is_fenced_after_the_grace_period() -> None:
    """10.3 (43), first half. The ledger is closed where its writer stood."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(10, close=False)
            lost = await cluster.lose_first(writer)
            worker = await cluster.add_worker()
            await asyncio.sleep(29)
            assert (await cluster.metadata(writer.ledger_id)).state is LedgerState.OPEN
            marker = await cluster.markers.read(writer.ledger_id)
            assert f"is open and names {lost}" in reason_of(marker)
            metadata = await cluster.repaired(writer.ledger_id)
            assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 9)
            cluster.assert_whole(metadata)
            assert worker.metrics.ledgers_recovered == 1

    virtual(scenario)


def test_a_writer_that_changes_its_ensemble_in_time_is_left_alone() -> None:
    """10.3 (43), second half."""

    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(10, close=False)
            lost = await cluster.lose_first(writer)
            await cluster.add_worker()
            await asyncio.sleep(20)
            await cluster.append(writer, 5)
            metadata = await cluster.repaired(writer.ledger_id)
            assert metadata.state is LedgerState.OPEN
            assert [s.first_entry for s in metadata.segments] == [0, 10]
            assert lost not in metadata.segments[0].bookies  # the closed one was repaired
            await cluster.append(writer, 5)  # the writer's own metadata is old by now
            cluster.bookies[writer.metadata.last_segment.bookies[0]].up = False
            await cluster.append(writer, 5)
            await writer.close()
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


def test_the_grace_period_begins_anew_with_another_segment() -> None:
    async def scenario() -> None:
        async with Cluster(6) as cluster:
            writer = await cluster.write(10, close=False)
            first = writer.metadata.last_segment.bookies[0]
            await cluster.lose(first)
            await cluster.add_worker()
            await asyncio.sleep(25)
            await cluster.append(writer, 1)
            second = writer.metadata.last_segment.bookies[0]
            await cluster.lose(second)
            await asyncio.sleep(25)
            assert (await cluster.metadata(writer.ledger_id)).state is LedgerState.OPEN
            await cluster.until_repaired()
            assert (await cluster.metadata(writer.ledger_id)).state is LedgerState.CLOSED

    virtual(scenario)


def test_an_open_ledger_without_entries_is_closed() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(0, close=False)
            lost = writer.metadata.segments[0].bookies[1]
            await cluster.lose(lost)
            await cluster.add_worker()
            metadata = await cluster.repaired(writer.ledger_id)
            assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, -1)
            assert lost not in metadata.segments[0].bookies

    virtual(scenario)


def test_closed_segments_of_an_open_ledger_do_not_wait() -> None:
    async def scenario() -> None:
        async with Cluster(7) as cluster:
            writer = await cluster.write(10, close=False)
            old = writer.metadata.last_segment.bookies[0]
            cluster.bookies[old].up = False
            await cluster.append(writer, 5)
            cluster.bookies[old].up = True
            newcomer = writer.metadata.last_segment.bookies[0]
            assert newcomer != old
            for lost in (old, newcomer):
                await cluster.lose(lost)
            await cluster.add_worker()
            await asyncio.sleep(10)
            segments = (await cluster.metadata(writer.ledger_id)).segments
            assert old not in segments[0].bookies
            assert newcomer in segments[1].bookies  # it is the writer's to change
            await cluster.until_repaired()
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


def test_a_recovery_that_cannot_decide_says_so() -> None:
    async def scenario() -> None:
        async with Cluster(6) as cluster:
            writer = await cluster.write(10, (2, 2, 1), close=False)
            lost = await cluster.lose_first(writer)
            worker = await cluster.add_worker()
            await until(lambda: worker.metrics.failures >= 2)
            reason = reason_of(await cluster.markers.read(writer.ledger_id))
            assert "it can't be closed" in reason
            await cluster.revive(lost)
            await cluster.until_repaired()

    virtual(scenario)


# Others at the same time


def test_the_ledger_is_deleted_meanwhile() -> None:
    config = ReplicationConfig(batch_entries=2)

    async def scenario() -> None:
        async with Cluster(5, config) as cluster:
            writer = await cluster.write(40)
            await cluster.lose_first(writer)
            worker = await cluster.add_worker()
            await until(lambda: worker.metrics.entries_copied >= 4)
            await cluster.client.delete_ledger(writer.ledger_id)
            await cluster.until_repaired()
            assert worker.metrics.failures == 0

    virtual(scenario)


def test_a_marker_of_a_deleted_ledger_is_cleared() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.markers.mark(77, ["b0"])
            await cluster.add_worker()
            await cluster.until_repaired()

    virtual(scenario)


def test_a_marker_made_again_during_the_repair() -> None:
    """10.3 (41): the second bookie was lost after the worker had looked at the ledger."""
    config = ReplicationConfig(batch_entries=2)

    async def scenario() -> None:
        async with Cluster(6, config) as cluster:
            writer = await cluster.write(40)
            first, second, _ = writer.metadata.segments[0].bookies
            await cluster.lose(first)
            again = False

            async def at_the_clear(kind: str, path: str) -> None:
                """Just before the marker's deletion arrives at the store."""
                nonlocal again
                if kind == "delete" and path.startswith(MARKERS + "0000") and not again:
                    again = True
                    await cluster.lose(second)

            cluster.server.before = at_the_clear
            await cluster.add_worker()
            await until(lambda: again)
            metadata = await cluster.repaired(writer.ledger_id)
            assert not {first, second} & set(metadata.segments[0].bookies)
            cluster.assert_whole(metadata)

    virtual(scenario)


def test_workers_share_the_ledgers() -> None:
    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writers = [await cluster.write(5) for _ in range(30)]
            lost = "b0"
            await cluster.lose(lost)
            workers = [await cluster.add_worker(seed=seed) for seed in range(3)]
            await cluster.until_repaired()
            for writer in writers:
                cluster.assert_whole(await cluster.metadata(writer.ledger_id))
            copied = [worker.metrics.entries_copied for worker in workers]
            named = sum("b0" in w.metadata.segments[0].bookies for w in writers)
            assert sum(copied) == 5 * named  # nothing twice
            assert all(copied)

    virtual(scenario)


@pytest.mark.parametrize("batch", range(8))
def test_two_workers_on_one_ledger_with_an_expired_lock(batch: int) -> None:
    """10.3 (41): the session of the first ends after so many batches; the second takes over while
    the first one, back with another session, goes on."""
    config = ReplicationConfig(batch_entries=5)

    async def scenario() -> None:
        async with Cluster(6, config) as cluster:
            writer = await cluster.write(40)
            lost = await cluster.lose_first(writer)
            first = await cluster.add_worker(seed=1)
            session = cluster.session_of(first)
            await until(lambda: first.metrics.entries_copied >= 5 * batch)
            old = session.session_id
            session.lose()
            cluster.server.expire(old)
            session.begin_again()
            await cluster.add_worker(seed=2)
            metadata = await cluster.repaired(writer.ledger_id)
            cluster.assert_whole(metadata)
            assert lost not in metadata.segments[0].bookies

    virtual(scenario)


def test_a_session_lost_right_before_the_cas() -> None:
    """The compare-and-set of a worker whose lock may be another's is refused by the store."""

    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(10)
            lost = await cluster.lose_first(writer)
            worker = await cluster.add_worker()
            session = cluster.session_of(worker)
            old = session.session_id
            hits: list[str] = []

            async def at_the_cas(kind: str, path: str) -> None:
                if kind == "put" and path.startswith("/ledgers/0") and not hits:
                    hits.append(path)
                    cluster.server.expire(old)

            cluster.server.before = at_the_cas
            await until(lambda: bool(hits))
            await asyncio.sleep(1)
            assert lost in (await cluster.metadata(writer.ledger_id)).segments[0].bookies
            session.lose()
            session.begin_again()
            await cluster.until_repaired()
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


def test_copies_that_were_collected_are_not_named() -> None:
    """A bookie that collects what it holds too much of takes the ledger's lock first. The worker
    lost that lock with its session, is back with another one, and must not finish as if nothing
    had happened: its copies are gone."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(10)
            lost = writer.metadata.segments[0].bookies[0]
            (target,) = set(cluster.bookies) - set(writer.metadata.segments[0].bookies)
            await cluster.lose(lost)
            client = cluster.clients[target]
            client.hold_adds = True
            worker = await cluster.add_worker()
            session = cluster.session_of(worker)
            await until(lambda: bool(client.requests))
            old = session.session_id
            session.lose()
            cluster.server.expire(old)
            session.begin_again()
            client.release()
            lock = await cluster.markers.lock(writer.ledger_id)
            assert lock is not None
            del cluster.bookies[target].ledgers[writer.ledger_id]
            await asyncio.sleep(1)
            assert lost in (await cluster.metadata(writer.ledger_id)).segments[0].bookies
            await lock.release()
            await cluster.until_repaired()
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


def test_the_writer_is_faster_at_the_end_of_the_grace_period() -> None:
    """10.3 (18), (43): its change comes between our look and our first step of the recovery."""

    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(10, close=False)
            lost = await cluster.lose_first(writer)
            changed = False

            async def before(kind: str, path: str) -> None:
                nonlocal changed
                if kind == "put" and path.startswith("/ledgers/0") and not changed:
                    changed = True
                    await cluster.append(writer, 3)

            await cluster.add_worker()
            cluster.server.before = before
            await cluster.until_repaired()
            assert changed
            metadata = await cluster.metadata(writer.ledger_id)
            assert metadata.state is LedgerState.OPEN
            assert [s.first_entry for s in metadata.segments] == [0, 10]
            assert lost not in metadata.segments[0].bookies + metadata.segments[1].bookies
            await cluster.append(writer, 3)

    virtual(scenario)


@pytest.mark.parametrize("after_cas", [False, True])
def test_a_worker_dies_around_the_cas(after_cas: bool) -> None:
    """10.3 (41). Its lock ends with its session; the next worker goes on where it stood."""
    config = ReplicationConfig(batch_entries=5, resume_bytes_min=1)

    async def scenario() -> None:
        async with Cluster(8, config) as cluster:
            writer = await cluster.write(40)
            lost = await cluster.lose_first(writer)
            first = await cluster.add_worker(seed=1)
            session, killed = cluster.session_of(first), asyncio.Event()

            async def at_the_cas(kind: str, path: str) -> None:
                if kind == "put" and path.startswith("/ledgers/0") and not after_cas:
                    killed.set()
                    await asyncio.Event().wait()

            def lose_answer(_: str, kind: str, path: str) -> bool:
                if kind == "put" and path.startswith("/ledgers/0") and not killed.is_set():
                    killed.set()
                return False

            cluster.server.before, cluster.server.lose_answer = at_the_cas, lose_answer
            await killed.wait()
            cluster.server.before = None
            copied = first.metrics.entries_copied
            assert copied == 40
            await first.close()
            await session.close()
            cluster.workers.remove(first)
            second = await cluster.add_worker(seed=2)
            metadata = await cluster.repaired(writer.ledger_id)
            assert lost not in metadata.segments[0].bookies
            cluster.assert_whole(metadata)
            # Not one entry twice: the marker told who had them.
            assert second.metrics.entries_copied == 0
            assert second.metrics.entries_resumed == (0 if after_cas else 40)

    virtual(scenario)


@pytest.mark.parametrize("kind", ["put", "delete"])
def test_lost_answers_of_every_write(kind: str) -> None:
    """Each write of a repair in turn happens, and its answer is lost."""

    async def scenario() -> None:
        for nth in range(30):
            async with Cluster(5) as cluster:
                writer = await cluster.write(10)
                await cluster.lose_first(writer)
                count = 0

                def lose(_: str, what: str, path: str, nth: int = nth) -> bool:
                    nonlocal count
                    count += what == kind
                    return what == kind and count == nth + 1

                cluster.server.lose_answer = lose
                await cluster.add_worker()
                await cluster.until_repaired()
                cluster.assert_whole(await cluster.metadata(writer.ledger_id))
                if count <= nth:
                    assert nth > 1
                    return
        raise AssertionError("there was always one more")

    virtual(scenario)


# The switch


def test_switched_off_in_the_middle_of_work() -> None:
    config = ReplicationConfig(batch_entries=2)

    async def scenario() -> None:
        async with Cluster(5, config) as cluster:
            writer = await cluster.write(100)
            lost = await cluster.lose_first(writer)
            worker = await cluster.add_worker()
            await until(lambda: worker.metrics.entries_copied >= 10)
            await cluster.markers.disable("an operator wants to look")
            await asyncio.sleep(1)
            copied = worker.metrics.entries_copied
            assert copied < 50
            await asyncio.sleep(2000)
            assert worker.metrics.entries_copied == copied
            assert worker.metrics.ledgers_under_repair == 0
            assert lost in (await cluster.metadata(writer.ledger_id)).segments[0].bookies
            await cluster.markers.enable()
            began = asyncio.get_running_loop().time()
            await cluster.until_repaired()
            assert asyncio.get_running_loop().time() - began < 30
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


def test_switched_off_from_the_start() -> None:
    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writers = [await cluster.write(5) for _ in range(10)]
            await cluster.markers.disable("not yet")
            await cluster.kill("b0")
            await cluster.mark_all("b0")
            worker = await cluster.add_worker()
            await asyncio.sleep(100)
            assert worker.metrics.entries_copied == 0
            await cluster.markers.enable()
            await cluster.until_repaired()
            for writer in writers:
                cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


# The worker itself


def test_an_idle_worker_sleeps() -> None:
    """Nothing but the slow look at all markers; a new one wakes it at once."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(5)
            worker = await cluster.add_worker()
            session = cluster.session_of(worker)
            await asyncio.sleep(100)
            calls, turn = 0, session._turn

            async def counted() -> None:
                nonlocal calls
                calls += 1
                await turn()

            session._turn = counted  # type: ignore[method-assign]
            await asyncio.sleep(3600)
            assert calls <= 4 * 4
            lost = writer.metadata.segments[0].bookies[0]
            await cluster.kill(lost)
            began = asyncio.get_running_loop().time()
            await cluster.mark_all(lost)
            await cluster.until_repaired()
            assert asyncio.get_running_loop().time() - began < 1

    virtual(scenario)


def test_another_lock_that_just_ended_is_not_ours() -> None:
    """Its end is told while ours is on its way to the store."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            path, other = cluster.markers.lock_path(7), cluster.server.new_store()
            rivals = 0

            async def before(kind: str, at: str) -> None:
                nonlocal rivals
                if kind == "put" and at == path and not rivals:
                    rivals = 1
                    await other.put(path, b"a rival", CREATE_ONLY, ephemeral=True)
                    await other.delete(path)

            cluster.server.before = before
            lock = await cluster.markers.lock(7)
            assert rivals
            assert lock is not None
            await cluster.store.delete(path)
            assert not lock.held

    virtual(scenario)


def test_a_lock_whose_session_ended_on_the_way_leaves_nothing() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            store = cluster.server.new_store()
            markers = UnderReplicationStore(store, cluster.clock)
            path = markers.lock_path(7)

            def lose(session: str, kind: str, at: str) -> bool:
                if session == store.session_id and kind == "put":
                    store.lose()  # the node is there, and its answer under way
                    store.begin_again()
                return False

            cluster.server.lose_answer = lose
            assert await markers.lock(7) is None
            cluster.server.lose_answer = lambda *_: False
            cluster.server.expire("session-2")
            assert await markers.lock(7) is not None
            assert await cluster.store.exists(path)

    virtual(scenario)


def test_ledgers_that_others_repaired_are_forgotten() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            worker = await cluster.add_worker()
            locks = []
            for ledger_id in range(50):
                locks.append(await cluster.markers.lock(ledger_id))
                await cluster.markers.mark(ledger_id, ["b0"])
            await until(lambda: worker.metrics.ledgers_waiting == 50)
            for ledger_id, lock in enumerate(locks):
                assert await cluster.markers.clear(ledger_id, 0)
                assert lock is not None
                await lock.release()
            await asyncio.sleep(400)
            assert not worker._known
            assert not worker._due

    virtual(scenario)


def test_a_lock_that_ends_wakes_who_waits_for_it() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(5)
            lost = writer.metadata.segments[0].bookies[0]
            path = cluster.markers.lock_path(writer.ledger_id)
            other = cluster.server.new_store()
            await other.put(path, b"another worker", CREATE_ONLY, ephemeral=True)
            await cluster.lose(lost)
            await cluster.add_worker()
            await asyncio.sleep(60)
            assert await cluster.marked() == [writer.ledger_id]
            began = asyncio.get_running_loop().time()
            await other.close()
            await cluster.until_repaired()
            assert asyncio.get_running_loop().time() - began < 1

    virtual(scenario)


def test_a_limit_on_bytes() -> None:
    config = ReplicationConfig(batch_bytes=10_000, bytes_per_s=100_000)

    async def scenario() -> None:
        async with Cluster(4, config) as cluster:
            writer = await cluster.write(100, body=bytes(10_000))
            await cluster.lose_first(writer)
            worker = await cluster.add_worker()
            began = asyncio.get_running_loop().time()
            await cluster.until_repaired()
            took = asyncio.get_running_loop().time() - began
            assert worker.metrics.bytes_copied / 100_000 == pytest.approx(took, rel=0.03)

    virtual(scenario)


def test_batches_are_bounded() -> None:
    config = ReplicationConfig(batch_bytes=30_000, batch_entries=7)

    async def scenario() -> None:
        async with Cluster(4, config) as cluster:
            small = await cluster.write(50)
            large = await cluster.write(20, body=bytes(10_000))
            huge = await cluster.write(3, body=bytes(100_000))
            await cluster.kill("b0")
            await cluster.mark_all("b0")
            await cluster.add_worker()
            await cluster.until_repaired()
            requests = [r for c in cluster.clients.values() for r in c.requests if r.recovery]
            assert requests
            for request in requests:
                assert len(request.entry_ids) <= 7
                assert request.body_bytes <= 30_000 or len(request.entry_ids) == 1
            for writer in (small, large, huge):
                cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


def test_a_bug_of_ours_does_not_end_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writers = [await cluster.write(5) for _ in range(8)]
            bad = writers[0].ledger_id
            await cluster.kill("b0")
            for writer in writers:
                await cluster.markers.mark(writer.ledger_id, ["b0"])
            worker = await cluster.add_worker(start=False)
            run = worker._repair.run

            async def faulty(ledger_id: int, *args: Any) -> Any:
                if ledger_id == bad:
                    raise ZeroDivisionError
                return await run(ledger_id, *args)

            worker._repair.run = faulty  # type: ignore[method-assign, assignment]
            worker.start()
            await until_async(lambda: only_left(cluster, bad))

    async def only_left(cluster: Cluster, ledger_id: int) -> bool:
        return await cluster.marked() == [ledger_id]

    virtual(scenario)
    assert "the repair of ledger" in caplog.text


def test_settings_are_checked() -> None:
    for wrong in (
        {"concurrent_ledgers": 0},
        {"batch_entries": 0},
        {"bytes_per_s": -1},
        {"backoff_min_s": 0.0},
        {"backoff_min_s": 400.0},
    ):
        with pytest.raises(ValueError, match=r"positive|pauses"):
            dataclasses.replace(ReplicationConfig(), **wrong)
