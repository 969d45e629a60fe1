"""What a check finds, and how little it asks."""

import asyncio
import random
from typing import Any

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.ledger_checker import (
    CheckResult,
    LedgerChecker,
    ReplicaProblem,
)
from magnetar.bookkeeper.transport import ReadReply
from tests.unit.bookkeeper.replication.cluster import Cluster, virtual

Facts = list[tuple[int, str, ReplicaProblem, tuple[tuple[int, int], ...]]]


def facts(findings: list[CheckResult]) -> Facts:
    return [(f.fragment.first_entry, f.bookie, f.problem, f.runs) for f in findings]


class Checked(Cluster):
    """A cluster with a checker."""

    async def check(self, ledger_id: int, **options: Any) -> Facts:
        checker = LedgerChecker(self.pool, random.Random(1), self.config)
        registered = {name for name, bookie in self.bookies.items() if name not in self.gone}
        return facts(await checker.check(await self.metadata(ledger_id), registered, **options))

    gone: frozenset[str] = frozenset()

    def reads(self) -> int:
        return sum(len(client.reads) for client in self.clients.values())


def test_a_whole_ledger() -> None:
    async def scenario() -> None:
        async with Checked(5) as cluster:
            writer = await cluster.write(1000, (3, 3, 2))
            assert await cluster.check(writer.ledger_id) == []
            assert cluster.reads() == 6  # first and last entry of three members
            for empty in (await cluster.write(0), await cluster.write(3, (3, 1, 1))):
                assert await cluster.check(empty.ledger_id) == []
            every = frozenset(cluster.bookies)
            options: list[dict[str, Any]] = [{"listed": every}, {"every": every}, {"share": 1.0}]
            for option in options:
                assert await cluster.check(writer.ledger_id, **option) == []

    virtual(scenario)


def test_gone_bookies_are_not_asked() -> None:
    async def scenario() -> None:
        async with Checked(5) as cluster:
            writer = await cluster.write(10)
            first = writer.metadata.segments[0].bookies[0]
            cluster.gone = frozenset({first})
            assert await cluster.check(writer.ledger_id) == [(0, first, ReplicaProblem.GONE, ())]
            assert not cluster.clients[first].reads
            empty = await cluster.write(0)
            cluster.gone = frozenset(cluster.bookies)
            assert len(await cluster.check(empty.ledger_id)) == 3

    virtual(scenario)


def test_an_open_segment_is_only_asked_for_its_members() -> None:
    async def scenario() -> None:
        async with Checked(5) as cluster:
            writer = await cluster.write(10, close=False)
            first = writer.metadata.segments[0].bookies[0]
            cluster.bookies[first].ledgers.clear()
            every = frozenset(cluster.bookies)
            assert await cluster.check(writer.ledger_id, listed=every, every=every) == []
            cluster.gone = frozenset({first})
            assert await cluster.check(writer.ledger_id) == [(0, first, ReplicaProblem.GONE, ())]

    virtual(scenario)


def test_answers_and_what_they_mean() -> None:
    async def scenario() -> None:
        async with Checked(3) as cluster:
            writer = await cluster.write(10)
            ledger_id, name = writer.ledger_id, writer.metadata.segments[0].bookies[1]
            bookie = cluster.bookies[name]

            bookie.corrupt(ledger_id, 9)
            assert await cluster.check(ledger_id) == [(0, name, ReplicaProblem.CORRUPT, ((9, 10),))]
            bookie.corrupt(ledger_id, 9)  # flipped back
            assert await cluster.check(ledger_id) == []

            entries = bookie.ledgers[ledger_id].entries
            bookie.ledgers[ledger_id].entries = {}
            absent = [(0, name, ReplicaProblem.ABSENT, ((0, 1), (9, 10)))]
            assert await cluster.check(ledger_id) == absent
            bookie.limbo = True
            unknown = [(0, name, ReplicaProblem.UNKNOWN, ((0, 1), (9, 10)))]
            assert await cluster.check(ledger_id) == unknown
            bookie.limbo, bookie.ledgers[ledger_id].entries = False, entries

            bookie.up = False
            assert await cluster.check(ledger_id) == [(0, name, ReplicaProblem.SILENT, ((0, 1),))]
            bookie.up = True

            def failing(*_: Any, **__: Any) -> ReadReply:
                return ReadReply(codes.IO_ERROR, 0, [])

            bookie.read = failing  # type: ignore[method-assign]
            assert (await cluster.check(ledger_id))[0][2] is ReplicaProblem.CORRUPT

    virtual(scenario)


def test_foreign_packets_are_no_copies() -> None:
    async def scenario() -> None:
        async with Checked(3) as cluster:
            writer = await cluster.write(10)
            name = writer.metadata.segments[0].bookies[1]
            entries = cluster.bookies[name].ledgers[writer.ledger_id].entries
            entries[9] = entries[8]
            assert (await cluster.check(writer.ledger_id))[0][1:] == (
                name,
                ReplicaProblem.CORRUPT,
                ((9, 10),),
            )

    virtual(scenario)


def test_a_bookie_that_never_answers() -> None:
    async def scenario() -> None:
        async with Checked(3, ReplicationConfig(request_timeout_s=7)) as cluster:
            writer = await cluster.write(10)
            name = writer.metadata.segments[0].bookies[1]

            async def hang(*_: Any, **__: Any) -> Any:
                await asyncio.Event().wait()

            cluster.clients[name].read_entries = hang  # type: ignore[method-assign]
            began = asyncio.get_running_loop().time()
            assert await cluster.check(writer.ledger_id) == [
                (0, name, ReplicaProblem.SILENT, ((0, 1),))
            ]
            assert asyncio.get_running_loop().time() - began < 8

    virtual(scenario)


def test_what_is_missing_in_the_middle() -> None:
    """Not seen by the probes; by a list, or by reading everything."""

    async def scenario() -> None:
        async with Checked(4) as cluster:
            writer = await cluster.write(60, (4, 2, 2))
            ledger_id, name = writer.ledger_id, writer.metadata.segments[0].bookies[2]
            bookie = cluster.bookies[name]
            held = sorted(bookie.ledgers[ledger_id].entries)
            for entry_id in held[3:5]:
                del bookie.ledgers[ledger_id].entries[entry_id]
            gaps = tuple((entry_id, entry_id + 1) for entry_id in held[3:5])
            if gaps[0][1] == gaps[1][0]:
                gaps = ((gaps[0][0], gaps[1][1]),)
            assert await cluster.check(ledger_id) == []
            wanted = [(0, name, ReplicaProblem.ABSENT, gaps)]
            assert await cluster.check(ledger_id, listed={name}) == wanted
            assert await cluster.check(ledger_id, every={name}) == wanted
            bookie.corrupt(ledger_id, held[10])
            assert await cluster.check(ledger_id, listed={name}) == wanted  # lists don't read
            (found,) = await cluster.check(ledger_id, every={name})
            assert found[2] is ReplicaProblem.CORRUPT
            assert found[3] == tuple(sorted((*gaps, (held[10], held[10] + 1))))
            assert (ledger_id, held[10]) in cluster.clients[name].reported

            bookie.limbo = True  # can't list: everything from the first doubt on
            for options in ({"listed": {name}}, {"every": {name}}):
                (found,) = await cluster.check(ledger_id, **options)
                assert found[2] is ReplicaProblem.UNKNOWN
                assert found[3][0][0] == held[3]
                assert found[3][-1][1] == held[-1] + 1

    virtual(scenario)


def test_copies_that_are_read_and_not_listed_don_t_count() -> None:
    """They may be in memory only: a journal that waits for space gives no list."""

    async def scenario() -> None:
        async with Checked(3) as cluster:
            writer = await cluster.write(10)
            name = writer.metadata.segments[0].bookies[1]

            async def hang(ledger_id: int, *, creator: int = 0) -> Any:
                await asyncio.Event().wait()

            cluster.clients[name].list_entries = hang  # type: ignore[method-assign]
            silent = [(0, name, ReplicaProblem.SILENT, ())]
            assert await cluster.check(writer.ledger_id, listed={name}) == silent
            assert await cluster.check(writer.ledger_id, every={name}) == silent

    virtual(scenario)


def test_a_share_of_the_entries() -> None:
    async def scenario() -> None:
        async with Checked(3) as cluster:
            writer = await cluster.write(400, (1, 1, 1))
            assert await cluster.check(writer.ledger_id, share=0.1) == []
            assert 30 < cluster.reads() <= 42
            name = writer.metadata.segments[0].bookies[0]
            for entry_id in range(100, 300):
                cluster.bookies[name].corrupt(writer.ledger_id, entry_id)
            (found,) = await cluster.check(writer.ledger_id, share=0.1)
            assert found[2] is ReplicaProblem.CORRUPT

    virtual(scenario)


def test_findings_read_well() -> None:
    async def scenario() -> None:
        async with Checked(3) as cluster:
            writer = await cluster.write(10)
            name = writer.metadata.segments[0].bookies[1]
            for entry_id in (0, 2, 3, 5, 7, 9):
                del cluster.bookies[name].ledgers[writer.ledger_id].entries[entry_id]
            checker = LedgerChecker(cluster.pool, random.Random(1), cluster.config)
            metadata = await cluster.metadata(writer.ledger_id)
            (found,) = await checker.check(metadata, set(cluster.bookies), every={name})
            assert str(found) == f"segment 0: {name} misses entries (0, 2-3, 5, ...)"
            (found,) = await checker.check(metadata, set(cluster.bookies) - {name})
            assert str(found) == f"segment 0: {name} is not registered"
            cluster.bookies[name].up = False
            (found,) = await checker.check(metadata, set(cluster.bookies))
            silent = "is registered, but does not answer: UNAVAILABLE"
            assert str(found) == f"segment 0: {name} {silent}"

    virtual(scenario)
