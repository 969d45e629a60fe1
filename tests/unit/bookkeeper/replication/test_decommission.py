"""Taking bookies out of a cluster."""

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import pytest

from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.decommission import (
    DecommissionState,
    RecoverState,
    decommission,
    ledgers_of,
    recover_bookies,
    without,
)
from magnetar.bookkeeper.replication.errors import BookieRegisteredError
from magnetar.bookkeeper.replication.ledger_checker import LedgerChecker
from magnetar.bookkeeper.replication.ledger_repair import LedgerRepair
from magnetar.bookkeeper.replication.metrics import ReplicationMetrics
from magnetar.bookkeeper.replication.registrations import read_registered, read_start
from magnetar.bookkeeper.replication.replicator import ReplicationThrottle, Replicator
from tests.unit.bookkeeper.replication.cluster import Cluster, until, virtual

COOKIE = "/ledgers/cookies/b0"


async def run(cluster: Cluster, bookie: str = "b0") -> list[DecommissionState]:
    states = decommission(
        bookie, cluster.store, cluster.ledgers, cluster.markers, config=cluster.config
    )
    return [state async for state in states]


async def named(cluster: Cluster, bookie: str) -> list[int]:
    return [i async for i in ledgers_of(cluster.ledgers, {bookie})]


def test_a_running_bookie_is_refused() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            await cluster.store.put(COOKIE, b"cookie")
            with pytest.raises(BookieRegisteredError, match="stop it first"):
                await run(cluster)
            await cluster.make_read_only("b0")
            with pytest.raises(BookieRegisteredError):
                await run(cluster)
            assert await cluster.store.exists(COOKIE)

    virtual(scenario)


def test_all_it_held_is_elsewhere_before_its_cookie_goes() -> None:
    async def scenario() -> None:
        async with Cluster(5) as cluster:
            await cluster.store.put(COOKIE, b"cookie")
            writers = [await cluster.write(5) for _ in range(40)]
            open_ledger = await cluster.write(5, (5, 3, 2), close=False)  # on all of them
            await cluster.kill("b0")
            await cluster.add_bookie()
            ids = await named(cluster, "b0")
            assert open_ledger.ledger_id in ids
            cookie_seen: list[bool] = []
            await cluster.add_worker()
            states = []
            runs = decommission("b0", cluster.store, cluster.ledgers, cluster.markers)
            async for state in runs:
                states.append(state)
                cookie_seen.append(await cluster.store.exists(COOKIE))
            assert cookie_seen == [True] * (len(states) - 1) + [False]
            assert states[0].ledgers == states[0].ledgers_left == len(ids)
            assert states[-1] == DecommissionState(len(ids), 0, {}, done=True)
            left = [state.ledgers_left for state in states]
            assert left == sorted(left, reverse=True)
            # The last one to wait was the open one, and it said why.
            reasons = [s.waiting.get(open_ledger.ledger_id, "") for s in states]
            assert any("is open and names b0" in reason for reason in reasons)
            assert await named(cluster, "b0") == []
            for writer in (*writers, open_ledger):
                cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


def test_nothing_to_do() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            await cluster.kill("b0")  # no cookie either: it was half decommissioned before
            assert [state.done for state in await run(cluster)] == [False, True]

    virtual(scenario)


def test_it_says_when_auto_recovery_is_off() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(5, (4, 3, 3))
            await cluster.kill("b0")
            await cluster.add_bookie()
            await cluster.markers.disable("zone a is down")
            await cluster.add_worker()
            states = decommission("b0", cluster.store, cluster.ledgers, cluster.markers)
            async with aclosing(states):
                first = await anext(states)
                assert first.waiting == {
                    writer.ledger_id: "auto-recovery is switched off: zone a is down"
                }
                asyncio.get_running_loop().call_later(
                    100, lambda: asyncio.ensure_future(cluster.markers.enable())
                )
                assert [state.done async for state in states][-1]

    virtual(scenario)


def test_it_says_why_a_ledger_waits() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(5, (4, 4, 4))
            await cluster.kill("b0")
            await cluster.add_worker()
            states = decommission("b0", cluster.store, cluster.ledgers, cluster.markers)
            async with aclosing(states):
                assert (await anext(states)).waiting == {writer.ledger_id: "waits for a worker"}
                reason = (await anext(states)).waiting[writer.ledger_id]
                assert "no bookie may take the place of b0" in reason

    virtual(scenario)


def test_a_bookie_that_is_started_meanwhile_keeps_its_cookie() -> None:
    """10.3 (44)."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            await cluster.store.put(COOKIE, b"cookie")
            await cluster.write(5, (4, 4, 4))
            await cluster.kill("b0")
            task = asyncio.ensure_future(run(cluster))
            await asyncio.sleep(20)
            await cluster.revive("b0")
            with pytest.raises(BookieRegisteredError):
                await task
            assert await cluster.store.exists(COOKIE)

    virtual(scenario)


def test_a_cookie_written_anew_stays() -> None:
    """The bookie was started, and stopped again before anybody looked."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            await cluster.store.put(COOKIE, b"cookie")
            await cluster.write(5, (4, 4, 4))
            await cluster.kill("b0")
            task = asyncio.ensure_future(run(cluster))
            await asyncio.sleep(3)
            await cluster.store.put(COOKIE, b"cookie, other place")
            await cluster.add_bookie()
            await cluster.add_worker()
            with pytest.raises(BookieRegisteredError, match="started again"):
                await task
            assert await cluster.store.exists(COOKIE)

    virtual(scenario)


def test_a_late_writer_is_found_in_the_end() -> None:
    """It chose the bookie before it knew that it was gone."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(5, (4, 4, 4))
            metadata = await cluster.metadata(writer.ledger_id)
            await cluster.kill("b0")
            task = asyncio.ensure_future(run(cluster))
            await asyncio.sleep(3)

            def late(ledger_id: int) -> LedgerMetadata:
                return replace(
                    metadata,
                    ledger_id=ledger_id,
                    state=LedgerState.OPEN,
                    last_entry=-1,
                    length=0,
                    creator_token=99,
                )

            await cluster.ledgers.create(late)
            await cluster.add_bookie()
            await cluster.add_worker()
            assert (await task)[-1].done
            assert await named(cluster, "b0") == []

    virtual(scenario)


def test_markers_that_vanish_are_made_again() -> None:
    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(5, (5, 3, 3))
            await cluster.kill("b0")
            await cluster.add_bookie()
            task = asyncio.ensure_future(run(cluster))
            await asyncio.sleep(3)
            cluster.server.on_change = lambda *_: None  # what follows is no repair
            await cluster.store.delete(cluster.markers.marker_path(writer.ledger_id))
            await asyncio.sleep(20)
            assert await cluster.marked() == [writer.ledger_id]
            await cluster.add_worker()
            assert (await task)[-1].done
            assert await named(cluster, "b0") == []

    virtual(scenario)


def test_a_ledger_that_is_deleted_meanwhile() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(5, (4, 4, 4))
            await cluster.kill("b0")
            task = asyncio.ensure_future(run(cluster))
            await asyncio.sleep(3)
            await cluster.client.delete_ledger(writer.ledger_id)
            await cluster.add_worker()
            assert (await task)[-1].done

    virtual(scenario)


# By hand


def repair_of(cluster: Cluster, bookies: set[str], **config: float) -> LedgerRepair:
    settings = ReplicationConfig(**config)  # type: ignore[arg-type]
    placement, metrics = RandomPlacement(random.Random(3)), ReplicationMetrics()
    registered = partial(read_registered, cluster.store)
    return LedgerRepair(
        cluster.markers,
        cluster.ledgers,
        cluster.pool,
        placement,
        LedgerChecker(cluster.pool, random.Random(1), settings),
        Replicator(
            *(cluster.ledgers, cluster.pool, placement, ReplicationThrottle(0), settings, metrics),
            partial(read_start, cluster.store),
        ),
        rng=random.Random(1),
        config=settings,
        client_config=ClientConfig(),
        metrics=metrics,
        registered=without(bookies, registered),
        is_stopped=lambda: False,
    )


def test_running_bookies_are_emptied() -> None:
    async def scenario() -> None:
        async with Cluster(6) as cluster:
            writers = [await cluster.write(5) for _ in range(20)]
            still_open = await cluster.write(5, (6, 3, 2), close=False)
            leaving = {"b0", "b1"}
            states = [
                state async for state in recover_bookies(leaving, repair_of(cluster, leaving))
            ]
            assert [state.done for state in states] == list(range(1, len(states) + 1))
            skipped = [state for state in states if state.problem]
            assert skipped == [
                RecoverState(still_open.ledger_id, len(states), len(states), "open: skipped")
            ]
            for writer in writers:
                metadata = await cluster.metadata(writer.ledger_id)
                assert not leaving & set(metadata.segments[0].bookies)
                cluster.assert_whole(metadata)
            assert (await cluster.metadata(still_open.ledger_id)).state is LedgerState.OPEN
            assert await cluster.marked() == []
            assert not any(cluster.clients[name].added_ids for name in leaving)

    virtual(scenario)


def test_open_ledgers_are_closed_when_told() -> None:
    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(5, (4, 3, 2), close=False)
            leaving = {writer.metadata.segments[0].bookies[0]}
            repair = repair_of(cluster, leaving, open_ledger_grace_s=0)
            states = recover_bookies(leaving, repair, open_ledgers=True)
            assert [state.problem async for state in states] == [""]
            metadata = await cluster.metadata(writer.ledger_id)
            assert metadata.state is LedgerState.CLOSED
            cluster.assert_whole(metadata)

    virtual(scenario)


def test_the_grace_of_all_open_ledgers_is_one() -> None:
    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writers = [await cluster.write(5, (5, 3, 2), close=False) for _ in range(20)]
            closed = await cluster.write(5, (5, 3, 2))
            began = asyncio.get_running_loop().time()
            await cluster.add_bookie()
            repair = repair_of(cluster, {"b0"})
            states = recover_bookies({"b0"}, repair, open_ledgers=True)
            found = [state async for state in states]
            assert asyncio.get_running_loop().time() - began < 40
            assert [state.problem for state in found] == [""] * 21
            assert [state.done for state in found] == list(range(1, 22))
            assert found[0].ledger_id == closed.ledger_id  # it needn't wait for the others
            for writer in (*writers, closed):
                metadata = await cluster.metadata(writer.ledger_id)
                assert metadata.state is LedgerState.CLOSED
                cluster.assert_whole(metadata)

    virtual(scenario)


def test_a_dry_run_changes_nothing() -> None:
    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(5, (5, 3, 3))
            before = await cluster.metadata(writer.ledger_id)
            states = recover_bookies({"b0"}, repair_of(cluster, {"b0"}), dry_run=True)
            assert [state.problem async for state in states] == ["would repair 1 segments"]
            assert await cluster.metadata(writer.ledger_id) == before
            assert await cluster.marked() == []

    virtual(scenario)


def test_only_the_ledgers_asked_for() -> None:
    async def scenario() -> None:
        async with Cluster(6) as cluster:
            first, second = [await cluster.write(5, (5, 5, 5)) for _ in range(2)]
            bookie = next(
                iter(
                    set(first.metadata.segments[0].bookies)
                    & set(second.metadata.segments[0].bookies)
                )
            )
            repair = repair_of(cluster, {bookie})
            ids = [second.ledger_id]
            states = [s async for s in recover_bookies({bookie}, repair, ledger_ids=ids)]
            assert [s.ledger_id for s in states] == ids
            assert await named(cluster, bookie) == [first.ledger_id]

    virtual(scenario)


def test_what_is_in_the_way_is_told() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            await cluster.write(5)
            states = recover_bookies({"b0"}, repair_of(cluster, {"b0"}))
            (problem,) = [state.problem async for state in states]
            assert "no bookie may take the place of b0" in problem
            worker = await cluster.add_worker()  # b0 is there: for a worker all is well
            await until(lambda: worker.metrics.ledgers_cleared == 1)

    virtual(scenario)
