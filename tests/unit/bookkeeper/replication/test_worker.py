"""Workers on an in-memory cluster: what is repaired, what waits, and what the judge allows."""

import asyncio
import itertools
from typing import Any

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.ledger_metadata import begin_recovery
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.fragments import fragments_of
from tests.unit.bookkeeper.replication.cluster import (
    Cluster,
    is_replaced,
    reason_of,
    until,
    until_async,
    virtual,
)

QUORUMS = [(1, 1, 1), (2, 2, 2), (3, 3, 3), (3, 2, 2), (4, 3, 2), (4, 2, 1)]


@pytest.mark.parametrize("quorums", QUORUMS)
def test_a_lost_bookie_is_replaced(quorums: tuple[int, int, int]) -> None:
    async def scenario() -> None:
        async with Cluster(6) as cluster:
            writers = [await cluster.write(count, quorums) for count in (0, 1, 2, 7, 40)]
            lost = (await cluster.metadata(writers[-1].ledger_id)).segments[0].bookies[0]
            survivors = quorums[1] > 1
            if not survivors:  # its disk comes back for reading: the last resort as a source
                await cluster.store.delete(f"/ledgers/available/{lost}")
            else:
                await cluster.kill(lost)
            await cluster.mark_all(lost)
            worker = await cluster.add_worker()
            await cluster.until_repaired()
            for writer in writers:
                metadata = await cluster.metadata(writer.ledger_id)
                assert lost not in metadata.segments[0].bookies
                cluster.assert_whole(metadata)
            assert cluster.checked > 0
            assert worker.metrics.members_replaced > 0

    virtual(scenario)


def test_only_what_is_missing_is_copied() -> None:
    """E=4, Qw=2: the share of the lost bookie, half of all entries, and nothing else."""

    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(40, (4, 2, 2))
            lost = (await cluster.metadata(writer.ledger_id)).segments[0].bookies[1]
            await cluster.lose(lost)
            worker = await cluster.add_worker()
            await cluster.until_repaired()
            assert worker.metrics.entries_copied == 20
            assert sum(len(client.added_ids) for client in cluster.clients.values()) == 20

    virtual(scenario)


def test_every_segment_is_repaired() -> None:
    async def scenario() -> None:
        async with Cluster(6) as cluster:
            writer = await cluster.write(10, close=False)
            for _ in range(3):
                cluster.bookies[writer.metadata.last_segment.bookies[0]].up = False
                await cluster.append(writer, 5)
                for bookie in cluster.bookies.values():
                    bookie.up = True
            await writer.close()
            metadata = await cluster.metadata(writer.ledger_id)
            assert len(metadata.segments) == 4
            lost = metadata.segments[0].bookies[2]
            await cluster.lose(lost)
            await cluster.add_worker()
            metadata = await cluster.repaired(writer.ledger_id)
            assert all(lost not in segment.bookies for segment in metadata.segments)
            cluster.assert_whole(metadata)

    virtual(scenario)


def test_a_bookie_that_is_back_keeps_its_place() -> None:
    """Re-check before copy: nothing is missing any more."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(10)
            before = await cluster.metadata(writer.ledger_id)
            lost = before.segments[0].bookies[0]
            await cluster.lose(lost)
            await cluster.revive(lost)
            worker = await cluster.add_worker()
            await cluster.until_repaired()
            assert await cluster.metadata(writer.ledger_id) == before
            assert worker.metrics.entries_copied == 0

    virtual(scenario)


def test_a_bookie_that_misses_entries_gets_them_back() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(20)
            before = await cluster.metadata(writer.ledger_id)
            forgetful = before.segments[0].bookies[1]
            entries = cluster.bookies[forgetful].ledgers[writer.ledger_id].entries
            for entry_id in (3, 4, 11):
                del entries[entry_id]
            await cluster.markers.mark(writer.ledger_id, [forgetful])
            worker = await cluster.add_worker()
            after = await cluster.repaired(writer.ledger_id)
            assert after == before
            cluster.assert_whole(after)
            assert worker.metrics.entries_copied == 3

    virtual(scenario)


def test_a_fenced_bookie_gets_its_entries_back() -> None:
    """PR #4163: a repair isn't the writer that the fence is there for."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(20, close=False)
            await cluster.client.open_ledger(writer.ledger_id, b"secret", recover=True)
            before = await cluster.metadata(writer.ledger_id)
            forgetful = before.segments[0].bookies[1]
            ledger = cluster.bookies[forgetful].ledgers[writer.ledger_id]
            assert ledger.fenced
            del ledger.entries[3]
            await cluster.markers.mark(writer.ledger_id, [forgetful])
            await cluster.add_worker()
            await cluster.until_repaired()
            assert await cluster.metadata(writer.ledger_id) == before
            cluster.assert_whole(before)

    virtual(scenario)


def test_a_bookie_that_cannot_take_them_back_is_replaced() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(20)
            forgetful = writer.metadata.segments[0].bookies[1]
            del cluster.bookies[forgetful].ledgers[writer.ledger_id].entries[19]
            await cluster.make_read_only(forgetful)
            await cluster.markers.mark(writer.ledger_id, [forgetful])
            await cluster.add_worker()
            metadata = await cluster.repaired(writer.ledger_id)
            assert forgetful not in metadata.segments[0].bookies
            cluster.assert_whole(metadata)

    virtual(scenario)


def test_damaged_copies_that_stay_damaged_are_replaced() -> None:
    """A refill doesn't help, another bookie does."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(20)
            rotten = writer.metadata.segments[0].bookies[2]
            cluster.bookies[rotten].corrupt(writer.ledger_id, 7)
            cluster.clients[rotten].keeps_rot = True
            await cluster.markers.mark(writer.ledger_id, [], suspects=[rotten])
            await cluster.add_worker()
            metadata = await cluster.repaired(writer.ledger_id)
            assert rotten not in metadata.segments[0].bookies
            cluster.assert_whole(metadata)
            assert (writer.ledger_id, 7) in cluster.clients[rotten].reported

    virtual(scenario)


def test_uncertain_copies_of_an_open_segment_wait_for_its_end() -> None:
    """Nobody can tell yet what a bookie should hold of it; the marker isn't lost on the way."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(20, close=False)
            doubted = writer.metadata.segments[0].bookies[1]
            cluster.bookies[doubted].corrupt(writer.ledger_id, 7)
            await cluster.markers.mark(writer.ledger_id, [], suspects=[doubted])
            worker = await cluster.add_worker()
            await asyncio.sleep(1000)
            marker = await cluster.markers.read(writer.ledger_id)
            assert reason_of(marker) == (
                f"copies of {doubted} are in doubt, and segment 0 is still written to"
            )
            assert worker.metrics.entries_copied == 0
            await writer.close()
            await cluster.until_repaired()
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))
            assert worker.metrics.entries_copied == 1

    virtual(scenario)


@pytest.mark.parametrize("in_recovery", [False, True])
def test_who_came_back_with_gaps_stays_marked_until_they_are_filled(in_recovery: bool) -> None:
    """Whoever closes the ledger keeps the bookie in its last segment, and doesn't look back."""

    async def scenario() -> None:
        async with Cluster(3) as cluster:
            writer = await cluster.write(19, (3, 3, 2), close=False)
            await cluster.append(writer, 1)  # a recovery begins above the others
            returned = writer.metadata.segments[0].bookies[1]
            del cluster.bookies[returned].ledgers[writer.ledger_id].entries[7]
            if in_recovery:
                await cluster.ledgers.update(writer.ledger_id, begin_recovery)
            await cluster.markers.mark(writer.ledger_id, [returned])
            worker = await cluster.add_worker()
            await asyncio.sleep(1000)
            assert reason_of(await cluster.markers.read(writer.ledger_id)) == (
                f"segment 0: {returned} misses entries (7); it is still open"
            )
            assert worker.metrics.entries_copied == 0
            await cluster.client.open_ledger(writer.ledger_id, b"secret", recover=True)
            await cluster.until_repaired()
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))
            assert worker.metrics.entries_copied == 1

    virtual(scenario)


def test_a_ledger_that_stays_open_doesn_t_stay_marked() -> None:
    """As soon as every member says what it holds, and who came back lacks nothing of it."""

    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(20, (4, 2, 2), close=False)
            returned, other = writer.metadata.segments[0].bookies[1:3]
            await cluster.markers.mark(writer.ledger_id, [returned])

            async def hang(ledger_id: int, *, creator: int = 0) -> Any:
                await asyncio.Event().wait()

            listing = cluster.clients[other].list_entries
            cluster.clients[other].list_entries = hang  # type: ignore[method-assign]
            worker = await cluster.add_worker()
            await until(lambda: worker.metrics.failures >= 3)
            reason = reason_of(await cluster.markers.read(writer.ledger_id))
            assert reason.startswith(f"segment 0: {other} is registered, but does not answer")
            cluster.clients[other].list_entries = listing  # type: ignore[method-assign]
            await cluster.until_repaired()
            await cluster.append(writer, 1)  # nobody has fenced it

    virtual(scenario)


def test_what_a_bookie_hands_over_is_not_what_it_says() -> None:
    """Answers that are nobody's entries are no copies, however the bookie calls them."""

    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(10)
            lost, liar, honest = writer.metadata.segments[0].bookies
            entries = cluster.bookies[liar].ledgers[writer.ledger_id].entries
            entries[3], entries[4] = entries[4], entries[3]
            await cluster.lose(lost)
            await cluster.add_worker()
            await until_async(lambda: is_replaced(cluster, writer.ledger_id, lost))
            metadata = await cluster.metadata(writer.ledger_id)
            slot = metadata.segments[0].bookies.index(
                next(iter(set(metadata.segments[0].bookies) - {liar, honest}))
            )
            assert cluster.missing_of(fragments_of(metadata)[0], slot) == []

    virtual(scenario)


def test_a_corrupt_source_is_passed_over() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(30)
            lost, first, second = writer.metadata.segments[0].bookies
            for entry_id in (0, 5, 6, 29):
                cluster.bookies[first].corrupt(writer.ledger_id, entry_id)
            cluster.bookies[second].corrupt(writer.ledger_id, 8)
            await cluster.kill(lost)
            # Only the lost bookie: what else is bad is not this marker's business, if probes pass.
            await cluster.mark_all(lost)
            worker = await cluster.add_worker()
            await until_async(lambda: is_replaced(cluster, writer.ledger_id, lost))
            await worker.close()
            segment = (await cluster.metadata(writer.ledger_id)).segments[0]
            (target,) = set(segment.bookies) - {first, second}
            slot = segment.bookies.index(target)
            metadata = await cluster.metadata(writer.ledger_id)
            assert cluster.missing_of(fragments_of(metadata)[0], slot) == []
            assert (writer.ledger_id, 29) in cluster.clients[first].reported
            assert (writer.ledger_id, 8) in cluster.clients[second].reported

    virtual(scenario)


def test_an_entry_nobody_has_keeps_the_marker() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(10, (2, 2, 2))
            lost, other = writer.metadata.segments[0].bookies
            await cluster.kill(lost)
            entry = cluster.bookies[other].ledgers[writer.ledger_id].entries.pop(4)
            await cluster.mark_all(lost)
            worker = await cluster.add_worker()
            await until(lambda: worker.metrics.failures >= 3)
            reason = reason_of(await cluster.markers.read(writer.ledger_id))
            assert "entry 4 can't be read" in reason
            assert f"{other} does not have it" in reason
            assert lost in (await cluster.metadata(writer.ledger_id)).segments[0].bookies
            cluster.bookies[other].ledgers[writer.ledger_id].entries[4] = entry
            await cluster.until_repaired()  # backs off, doesn't give up
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


def test_back_off_grows() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            writer = await cluster.write(10, (2, 2, 2))
            await cluster.kill(writer.metadata.segments[0].bookies[0])
            await cluster.mark_all(writer.metadata.segments[0].bookies[0])
            worker = await cluster.add_worker()
            loop = asyncio.get_running_loop()
            times = []
            for count in range(1, 9):
                await until(lambda count=count: worker.metrics.failures >= count)  # type: ignore[misc]
                times.append(loop.time())
            pauses = [b - a for a, b in itertools.pairwise(times)]
            wanted = [9.375, 18.75, 37.5, 75, 150, 300, 300]
            assert pauses == pytest.approx(wanted, abs=0.1)
            marker = await cluster.markers.read(writer.ledger_id)
            assert "no bookie may take the place" in reason_of(marker)

    virtual(scenario)


def test_another_bookie_helps_at_once() -> None:
    async def scenario() -> None:
        async with Cluster(2) as cluster:
            writer = await cluster.write(10, (2, 2, 2))
            await cluster.lose_first(writer)
            worker = await cluster.add_worker()
            await until(lambda: worker.metrics.failures >= 6)
            began = asyncio.get_running_loop().time()
            await cluster.add_bookie()
            await cluster.until_repaired()
            assert asyncio.get_running_loop().time() - began < 3
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


def test_limbo_is_never_a_no() -> None:
    """10.3 (42): the only readable copy is on a bookie in limbo. What it has it gives; what it
    doesn't know it doesn't deny, so the ledger waits for the other bookie."""

    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(10, (2, 2, 2))
            lost, limbo = writer.metadata.segments[0].bookies
            await cluster.kill(lost)
            cluster.bookies[limbo].limbo = True
            entry = cluster.bookies[limbo].ledgers[writer.ledger_id].entries.pop(6)
            await cluster.mark_all(lost)
            worker = await cluster.add_worker()
            await until(lambda: worker.metrics.failures >= 1)
            reason = reason_of(await cluster.markers.read(writer.ledger_id))
            assert f"{limbo} can't say if it has it" in reason
            cluster.bookies[limbo].ledgers[writer.ledger_id].entries[6] = entry
            metadata = await cluster.repaired(writer.ledger_id)
            assert set(metadata.segments[0].bookies) == {limbo} | (
                set(metadata.segments[0].bookies) - {lost, limbo}
            )
            cluster.assert_whole(metadata)

    virtual(scenario)


def test_a_bookie_in_limbo_is_filled() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(25)
            limbo = writer.metadata.segments[0].bookies[0]
            cluster.bookies[limbo].lose_disk()
            await cluster.markers.mark(writer.ledger_id, [limbo])
            await cluster.add_worker()
            metadata = await cluster.repaired(writer.ledger_id)
            assert metadata.segments[0].bookies[0] == limbo
            cluster.assert_whole(metadata)

    virtual(scenario)


def test_a_target_that_fails_midway() -> None:
    """10.3 (42): another one is taken; the first one never enters the metadata."""
    config = ReplicationConfig(batch_entries=5)

    async def scenario() -> None:
        async with Cluster(5, config) as cluster:
            writer = await cluster.write(40)
            members = set(writer.metadata.segments[0].bookies)
            lost = writer.metadata.segments[0].bookies[0]
            for name in set(cluster.bookies) - members:
                cluster.clients[name].fail_adds_after = 3
            await cluster.lose(lost)
            worker = await cluster.add_worker()
            await until(lambda: worker.metrics.failures >= 1)  # both candidates died
            assert lost in (await cluster.metadata(writer.ledger_id)).segments[0].bookies
            reason = reason_of(await cluster.markers.read(writer.ledger_id))
            assert "did not take the copies: UNAVAILABLE" in reason
            for name in set(cluster.bookies) - members:
                cluster.clients[name].fail_adds_after = None
                cluster.bookies[name].up = True
            await cluster.until_repaired()
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))
            # Whichever was taken in the end had the first batches already.
            assert worker.metrics.entries_resumed >= 10

    virtual(scenario)


def test_a_target_without_room_is_asked_again() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(10)
            lost = writer.metadata.segments[0].bookies[0]
            (spare,) = set(cluster.bookies) - set(writer.metadata.segments[0].bookies)
            cluster.bookies[spare].refuse_adds = codes.TOO_MANY_REQUESTS
            await cluster.lose(lost)
            worker = await cluster.add_worker()
            client = cluster.clients[spare]
            await until(lambda: len(client.requests) >= 3)
            cluster.bookies[spare].refuse_adds = codes.OK
            await cluster.until_repaired()
            assert worker.metrics.failures == 0
            cluster.assert_whole(await cluster.metadata(writer.ledger_id))

    virtual(scenario)


def test_a_registered_bookie_that_is_silent_gets_time() -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(10)
            silent = writer.metadata.segments[0].bookies[0]
            cluster.bookies[silent].up = False
            await cluster.markers.mark(writer.ledger_id, [silent])
            worker = await cluster.add_worker()
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(30)
            marker = await cluster.markers.read(writer.ledger_id)
            assert f"{silent} is registered, but does not answer" in reason_of(marker)
            assert worker.metrics.entries_copied == 0
            await cluster.until_repaired()
            took = asyncio.get_running_loop().time() - began
            assert 60 <= took < 70
            assert silent not in (await cluster.metadata(writer.ledger_id)).segments[0].bookies

    virtual(scenario)
