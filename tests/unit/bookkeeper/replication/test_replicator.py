"""What a repair may write over, which targets it takes, and where it reads."""

import dataclasses
import json
import random
from collections.abc import Collection, Sequence

import pytest

from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.placement.isolation import IsolationPlacement
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata, LedgerState
from magnetar.bookkeeper.replication.copy_source import _distance
from magnetar.bookkeeper.replication.errors import (
    FragmentChangedError,
    NoTargetError,
    RepairStoppedError,
)
from magnetar.bookkeeper.replication.fragments import fragments_of
from magnetar.bookkeeper.replication.replicator import _with_target
from magnetar.bookkeeper.service_info import RACKS_PATH
from tests.unit.bookkeeper.replication.cluster import Cluster, until, virtual

COPIED = LedgerMetadata(
    ledger_id=1,
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=2,
    segments=(EnsembleSegment(0, ("a", "b")), EnsembleSegment(10, ("a", "c"))),
    state=LedgerState.CLOSED,
    last_entry=19,
    length=200,
)


def go_on() -> None:
    """Nothing stops the repair."""


def named(metadata: LedgerMetadata | None) -> list[tuple[str, ...]]:
    assert metadata is not None
    return [segment.bookies for segment in metadata.segments]


@pytest.mark.parametrize(
    ("index", "wanted"), [(0, [("n", "b"), ("a", "c")]), (1, [("a", "b"), ("n", "c")])]
)
def test_one_slot_of_one_segment(index: int, wanted: list[tuple[str, ...]]) -> None:
    fragment = fragments_of(COPIED)[index]
    assert named(_with_target(COPIED, fragment, 0, "n", go_on)) == wanted


def test_twice_is_once() -> None:
    fragment = fragments_of(COPIED)[0]
    once = _with_target(COPIED, fragment, 0, "n", go_on)
    assert once is not None
    assert _with_target(once, fragment, 0, "n", go_on) is None


OPEN = dataclasses.replace(COPIED, state=LedgerState.OPEN, last_entry=-1, length=0)


def test_the_writer_may_have_gone_on() -> None:
    fragment = fragments_of(OPEN)[0]
    longer = dataclasses.replace(OPEN, segments=(*OPEN.segments, EnsembleSegment(15, ("d", "e"))))
    assert named(_with_target(longer, fragment, 0, "n", go_on))[0] == ("n", "b")
    closed = dataclasses.replace(longer, state=LedgerState.CLOSED, last_entry=30)
    assert named(_with_target(closed, fragment, 0, "n", go_on))[0] == ("n", "b")


@pytest.mark.parametrize(
    "segments",
    [
        (
            EnsembleSegment(0, ("x", "b")),
            EnsembleSegment(10, ("a", "c")),
        ),  # another worker was faster
        (
            EnsembleSegment(0, ("a", "n")),
            EnsembleSegment(10, ("a", "c")),
        ),  # it gave the target another slot
        (EnsembleSegment(0, ("a", "b")), EnsembleSegment(12, ("a", "c"))),  # it ends elsewhere
        (EnsembleSegment(0, ("a", "b")),),
    ],
)
@pytest.mark.parametrize("state", [LedgerState.CLOSED, LedgerState.OPEN])
def test_a_segment_that_is_another_one_stays(
    segments: tuple[EnsembleSegment, ...], state: LedgerState
) -> None:
    base = COPIED if state is LedgerState.CLOSED else OPEN
    changed = dataclasses.replace(base, segments=segments)
    with pytest.raises(FragmentChangedError):
        _with_target(changed, fragments_of(COPIED)[0], 0, "n", go_on)


def test_the_last_segment_of_an_open_ledger_stays() -> None:
    with pytest.raises(FragmentChangedError):
        _with_target(OPEN, fragments_of(COPIED)[1], 0, "n", go_on)


def test_a_segment_that_is_gone() -> None:
    other = dataclasses.replace(COPIED, segments=(EnsembleSegment(0, ("a", "b")),))
    with pytest.raises(FragmentChangedError):
        _with_target(other, fragments_of(COPIED)[1], 0, "n", go_on)


def test_the_check_comes_first() -> None:
    def stop() -> None:
        raise RepairStoppedError("the lock is lost")

    with pytest.raises(RepairStoppedError):
        _with_target(COPIED, fragments_of(COPIED)[0], 0, "n", stop)


class FirstPlacement(RandomPlacement):
    """Always the first one that isn't excluded."""

    def replace_bookie(
        self, slot: int, ensemble: Sequence[str], write_quorum: int, candidates: Collection[str]
    ) -> str | None:
        return min(candidates, default=None)


def test_a_target_that_failed_is_not_taken_again() -> None:
    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(10)
            members = writer.metadata.segments[0].bookies
            bad, good = sorted(set(cluster.bookies) - set(members))
            cluster.bookies[bad].up = False  # still registered
            await cluster.kill(members[0])
            await cluster.mark_all(members[0])
            worker = await cluster.add_worker(placement=FirstPlacement(random.Random(1)))
            await cluster.until_repaired()
            assert worker.metrics.failures == 0
            metadata = await cluster.metadata(writer.ledger_id)
            assert metadata.segments[0].bookies[0] == good

    virtual(scenario)


def test_copies_stay_in_the_groups_that_the_ledger_names() -> None:
    package = "org.apache.pulsar.bookie.rackawareness"
    policy = {
        "policyClass": f"{package}.IsolatedBookieEnsemblePlacementPolicy",
        "properties": {"isolationBookieGroups": "ssd"},
    }

    async def scenario() -> None:
        async with Cluster(6) as cluster:
            cluster.client.custom_metadata = {
                "EnsemblePlacementPolicyConfig": json.dumps(policy).encode()
            }
            writer = await cluster.write(10)
            metadata = writer.metadata
            members = metadata.segments[0].bookies
            *foreign, spare = sorted(set(cluster.bookies) - set(members))
            groups = {
                name: {bookie: {"rack": "/r"} for bookie in found}
                for name, found in (("ssd", members), ("hdd", foreign))
            }
            await cluster.store.put(RACKS_PATH, json.dumps(groups).encode(), -1)
            await cluster.make_read_only(spare)
            await cluster.lose(members[0])
            pool = await cluster.new_pool(cluster.server.new_store())
            placement = IsolationPlacement(FirstPlacement(random.Random(1)), None, pool.groups_of)
            worker = await cluster.add_worker(placement=placement)
            await until(lambda: worker.metrics.failures > 0)
            marker = await cluster.markers.read(writer.ledger_id)
            assert marker is not None
            assert "no bookie may take the place" in marker.reason
            replicator = worker._repair.replicator
            with pytest.raises(NoTargetError):  # it got copies before the groups were changed
                replicator.choose_target(metadata, fragments_of(metadata)[0], 0, (), foreign[0])
            await cluster.add_bookie()  # in no group: the ssd group has too few
            repaired = await cluster.repaired(writer.ledger_id)
            assert repaired.segments[0].bookies == ("b6", *members[1:])

    virtual(scenario)


@pytest.mark.parametrize("keeps_rot", [False, True])
def test_old_copies_are_read_before_they_count(keeps_rot: bool) -> None:
    """10.3 (44): a lost bookie returns with old data and is chosen again. One of its copies has
    rotted, which nobody had reason to look for."""

    async def scenario() -> None:
        async with Cluster(5) as cluster:
            writer = await cluster.write(10, (2, 2, 2))
            old, stays = writer.metadata.segments[0].bookies
            first, *others = sorted(set(cluster.bookies) - {old, stays})
            for name in others:
                await cluster.make_read_only(name)
            await cluster.lose(old)
            worker = await cluster.add_worker()
            await cluster.until_repaired()
            assert worker.metrics.entries_copied == 10

            cluster.bookies[old].corrupt(writer.ledger_id, 4)
            cluster.clients[old].keeps_rot = keeps_rot
            await cluster.revive(old)
            await cluster.lose(first)
            if keeps_rot:
                await until(lambda: worker.metrics.failures > 0)
                marker = await cluster.markers.read(writer.ledger_id)
                assert marker is not None
                assert f"{old} did not take the copies: it keeps damaged" in marker.reason
                await cluster.add_bookie()
            metadata = await cluster.repaired(writer.ledger_id)
            assert (old in metadata.segments[0].bookies) is not keeps_rot
            cluster.assert_whole(metadata)
            if not keeps_rot:
                assert worker.metrics.entries_copied == 11
                assert worker.metrics.entries_resumed == 9

    virtual(scenario)


def test_near_is_before_far() -> None:
    assert _distance("/z1/u1", "/z1/u1") == 0
    assert _distance("/z1/u1", "/z1/u2") == 1
    assert _distance("/z1/u1", "/z2/u1") == 2
    assert _distance("", "/z2/u1") == 2
    assert _distance("/z1/u1", "") == 2
