"""Where copies come from: as few requests as the stripes allow, and whoever still has an entry."""

import random
from collections import Counter
from typing import Any

import pytest

from magnetar.bookkeeper.packet import encode_head
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.copy_source import CopySource
from magnetar.bookkeeper.replication.errors import UnreadableEntryError
from magnetar.bookkeeper.replication.fragments import Fragment, Run, fragments_of, join_runs
from magnetar.bookkeeper.replication.replica_reader import ReplicaStatus, examine_replica
from magnetar.bookkeeper.transport import ReadReply
from tests.simulation.simulator import seeds
from tests.unit.bookkeeper.replication.cluster import Cluster, virtual

COUNT = 400
CONFIG = ReplicationConfig(batch_entries=100)
STRIPED = [(5, 3, 3), (4, 2, 2), (3, 2, 2), (5, 1, 1)]


class Counted:
    """A ledger in a cluster, and the reads that its bookies were asked for."""

    def __init__(self, cluster: Cluster, config: ReplicationConfig = CONFIG) -> None:
        self.cluster, self.config = cluster, config
        self.reads: Counter[str] = Counter()

    async def write(self, quorums: tuple[int, int, int], count: int = COUNT) -> Fragment:
        writer = await self.cluster.write(count, quorums)
        self.ledger_id = writer.ledger_id
        for name, client in self.cluster.clients.items():
            self._count(name, client)
        return fragments_of(await self.cluster.metadata(self.ledger_id))[0]

    def _count(self, name: str, client: Any) -> None:
        read = client.read_entries

        async def read_entries(*args: Any, **options: Any) -> ReadReply:
            self.reads[name] += 1
            reply: ReadReply = await read(*args, **options)
            return reply

        client.read_entries = read_entries

    def drop(self, bookie: str, entry_id: int) -> None:
        self.cluster.bookies[bookie].ledgers[self.ledger_id].entries.pop(entry_id, None)

    def rot(self, bookie: str, entry_id: int) -> None:
        entries = self.cluster.bookies[bookie].ledgers[self.ledger_id].entries
        if entry_id in entries:
            entries[entry_id] = entries[entry_id][:-1] + b"?"

    async def copied(
        self, fragment: Fragment, slot: int, runs: list[Run] | None = None
    ) -> dict[int, bytes]:
        """What a replicator gets, whatever it asks for first."""
        source = CopySource(self.cluster.pool, fragment, slot, self.config, "")
        got: dict[int, bytes] = {}
        async for ids, packets in source.batches(runs or list(fragment.runs_of(slot))):
            assert len(ids) == len(packets) > 0
            assert ids == sorted(ids)
            assert len(ids) <= self.config.batch_entries
            assert len(ids) == 1 or sum(map(len, packets)) <= self.config.batch_bytes
            got.update(zip(ids, packets, strict=True))
        return got

    def assert_as_written(self, got: dict[int, bytes], runs: list[Run]) -> None:
        assert sorted(got) == [entry for run in runs for entry in range(*run)]
        written = self.cluster.written[self.ledger_id]
        assert all(packet[36:] == written[entry] for entry, packet in got.items())


@pytest.mark.parametrize("quorums", [*STRIPED, (3, 3, 3)])
def test_a_share_comes_in_a_few_requests(quorums: tuple[int, int, int]) -> None:
    async def scenario() -> None:
        async with Cluster(6) as cluster:
            counted = Counted(cluster)
            fragment = await counted.write(quorums)
            lost = fragment.bookies[2]
            if quorums[1] > 1:  # else there is no other copy
                cluster.bookies[lost].up = False
            got = await counted.copied(fragment, 2)
            counted.assert_as_written(got, list(fragment.runs_of(2)))
            batches = -(-fragment.count_of(2) // CONFIG.batch_entries)
            assert sum(counted.reads.values()) <= batches * quorums[1] + 1
            if quorums[1] > 1:
                assert lost not in counted.reads

    virtual(scenario)


@pytest.mark.parametrize("seed", seeds(12))
def test_whoever_has_an_entry_is_found(seed: int) -> None:
    """Each entry is somewhere, be it only at the bookie that is to be replaced."""

    async def scenario() -> None:
        rng = random.Random(seed)
        quorums = rng.choice([*STRIPED, (3, 3, 3)])
        async with Cluster(6) as cluster:
            config = ReplicationConfig(
                batch_entries=rng.choice((1, 7, 100)),
                batch_bytes=rng.choice((1, 2000, 4_000_000)),
                parallel_reads=rng.choice((1, 3)),
            )
            counted = Counted(cluster, config)
            fragment = await counted.write(quorums, 120)
            slot = rng.randrange(fragment.ensemble_size)
            for entry_id in range(120):
                owners = [fragment.bookies[n] for n in fragment.slots_of(entry_id)]
                spared = rng.choice(owners)
                for owner in owners:
                    if owner != spared and rng.random() < 0.3:
                        rng.choice((counted.drop, counted.rot))(owner, entry_id)
            runs = list(fragment.runs_of(slot))
            counted.assert_as_written(await counted.copied(fragment, slot), runs)
            holes = join_runs((e, e + 1) for run in runs for e in range(*run) if rng.random() < 0.3)
            if holes:
                got = await counted.copied(fragment, slot, holes)
                counted.assert_as_written(got, holes)

    virtual(scenario)


def test_no_copy_is_made_of_another_ledger_with_the_id() -> None:
    """Its packets are intact, and the bookie that has them is the first one that is asked."""

    async def scenario() -> None:
        async with Cluster(6) as cluster:
            counted = Counted(cluster)
            fragment = await counted.write((3, 3, 3), 10)
            for bookie in fragment.bookies[:2]:
                ledger = cluster.bookies[bookie].ledgers[fragment.ledger_id]
                ledger.creator = fragment.creator + 1
                for entry_id in ledger.entries:
                    head = encode_head(fragment.ledger_id, entry_id, -1, 300, b"head", b"theirs")
                    ledger.entries[entry_id] = head + b"theirs"
            got = await counted.copied(fragment, 2)
            counted.assert_as_written(got, list(fragment.runs_of(2)))

    virtual(scenario)


@pytest.mark.parametrize("quorums", [(5, 3, 3), (3, 3, 3)])
def test_what_nobody_has_is_named(quorums: tuple[int, int, int]) -> None:
    async def scenario() -> None:
        async with Cluster(6) as cluster:
            counted = Counted(cluster)
            fragment = await counted.write(quorums)
            cluster.bookies[fragment.bookies[2]].up = False
            lost = fragment.nth_of(2, 50)
            for number, slot in enumerate(fragment.slots_of(lost)):
                (counted.drop, counted.rot)[number % 2](fragment.bookies[slot], lost)
            with pytest.raises(UnreadableEntryError, match=f"entry {lost} can't be read") as info:
                await counted.copied(fragment, 2)
            for slot in fragment.slots_of(lost):
                assert fragment.bookies[slot] in str(info.value)

    virtual(scenario)


@pytest.mark.parametrize("quorums", STRIPED)
def test_all_copies_of_a_bookie_are_read_in_a_few_requests(quorums: tuple[int, int, int]) -> None:
    async def scenario() -> None:
        async with Cluster(6) as cluster:
            counted = Counted(cluster)
            fragment = await counted.write(quorums)
            bookie, runs = fragment.bookies[1], list(fragment.runs_of(1))

            async def examine() -> tuple[ReplicaStatus, list[Run]]:
                counted.reads.clear()
                return await examine_replica(
                    *(cluster.pool, bookie, counted.ledger_id, runs, CONFIG),
                    stripe=fragment.stripe_of(1),
                )

            assert await examine() == (ReplicaStatus.GOOD, [])
            assert counted.reads == {bookie: -(-fragment.count_of(1) // CONFIG.batch_entries)}
            gone, rotten = fragment.nth_of(1, 3), fragment.nth_of(1, 40)
            counted.drop(bookie, gone)
            counted.rot(bookie, rotten)
            answer, bad = await examine()
            assert answer is ReplicaStatus.CORRUPT
            assert bad == [(gone, gone + 1), (rotten, rotten + 1)]
            cluster.bookies[bookie].limbo = True
            answer, bad = await examine()
            assert answer is ReplicaStatus.UNKNOWN
            assert all(fragment.owns(1, entry) for run in bad for entry in range(*run))

    virtual(scenario)
