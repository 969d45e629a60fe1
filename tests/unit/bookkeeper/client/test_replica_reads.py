"""Reads of unstriped ledgers: which replica, how much at a time, what is done about bad ones.

docs/spec/storage.md, "Batch reads", line by line: one request for a run; bytes bound it but never
the first entry; it ends before a missing entry, a bad digest and the segment's end; never beyond
the LAC.
"""

import asyncio
from collections.abc import Callable

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import (
    ClientConfig,
    LedgerConfig,
    ReadConfig,
    SpeculationConfig,
)
from magnetar.bookkeeper.errors import EntryDigestError, NoSuchEntryError
from magnetar.bookkeeper.service_info import ServiceInfo
from magnetar.bookkeeper.transport import ReadReply, ReadRequest
from tests.simulation.model_bookie import ModelBookieClient
from tests.unit.bookkeeper.client.conftest import Cluster, eventually
from tests.unit.bookkeeper.client.test_client import batch, entries, write

FAST = SpeculationConfig(5, 5)


def configure(cluster: Cluster, **changes: object) -> None:
    """A client with these settings of reads."""
    client = cluster.client
    config = ClientConfig(reads=ReadConfig(**changes))  # type: ignore[arg-type]  # by name
    cluster.client = BookKeeperClient(
        *(cluster.store, cluster.pool, client._placement),
        clock=lambda: 0,
        rng=client._rng,
        config=config,
    )


async def three_copies(cluster: Cluster, count: int = 20) -> AsyncLedgerWriter:
    writer = await cluster.client.create_ledger(LedgerConfig(3, 3, 2))
    await write(writer, count)
    return writer


def members(cluster: Cluster, writer: AsyncLedgerWriter) -> list[ModelBookieClient]:
    return [cluster.clients[bookie] for bookie in writer.metadata.last_segment.bookies]


class Hung:
    """Holds the reads of one bookie until the test lets them go."""

    def __init__(self, client: ModelBookieClient) -> None:
        self.asked = 0
        self.cancelled = 0
        self.open = asyncio.Event()
        self._read = client.read_entries
        client.read_entries = self.read  # type: ignore[method-assign]

    async def read(self, request: ReadRequest) -> ReadReply:
        self.asked += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await self._read(request)


# ---- batches (4.4)


async def test_one_request_brings_the_run(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer = await three_copies(cluster)
    run = await writer.reader().read(5, 19, 1 << 20)
    assert run.bodies == entries(5, 15)
    assert [read for client in members(cluster, writer) for read in client.reads] == [(5, 15)]


async def test_bytes_bound_the_run_but_not_the_first_entry(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer = await three_copies(cluster)
    size = 36 + sum(len(part[0]) for part in batch(0, 1))
    reader = writer.reader()
    assert len((await reader.read(0, 19, 3 * size)).bodies) == 3
    assert len((await reader.read(0, 19, 3 * size - 1)).bodies) == 2
    assert len((await reader.read(0, 19, 0)).bodies) == 1


async def test_the_clients_own_limit_holds(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    cluster.client._config = ClientConfig(read_bytes_max=1)
    writer = await three_copies(cluster)
    assert len((await writer.reader().read(0, 19, 1 << 30)).bodies) == 1


async def test_a_missing_entry_ends_the_run_and_is_read_elsewhere(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer = await three_copies(cluster)
    reader = writer.reader()
    first = members(cluster, writer)[reader._start]
    del first.bookie.ledgers[writer.ledger_id].entries[7]
    run = await reader.read(0, 19, 1 << 20)
    assert len(run.bodies) == 7
    run = await reader.read(7, 19, 1 << 20)  # "no such entry" of one isn't the last word
    assert run.bodies == entries(7, 13)


async def test_no_entry_is_asked_for_above_the_last_confirmed(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer = await three_copies(cluster)
    for client in members(cluster, writer):
        client.hold_adds = True
    writer.append(*batch(20, 5))
    for client in members(cluster, writer)[:1]:
        client.release()  # one copy of 20..24: stored, but not confirmed
    reader = writer.reader()
    with pytest.raises(NoSuchEntryError, match="above the last confirmed"):
        await reader.read(15, 20, 1 << 20)
    for _ in range(3):  # from each replica
        run = await reader.read(15, 19, 1 << 20)
        assert run.bodies == entries(15, 5)
        reader._start = (reader._start + 1) % 3


async def test_a_bad_digest_later_on_shortens_the_run(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer = await three_copies(cluster)
    reader = writer.reader()
    bad = members(cluster, writer)[reader._start]
    bad.bookie.corrupt(writer.ledger_id, 4)
    assert len((await reader.read(0, 19, 1 << 20)).bodies) == 4
    run = await reader.read(4, 19, 1 << 20)  # first now: the next replica gives it
    assert run.bodies == entries(4, 16)
    assert reader.corrupt_replicas == 2


# ---- bad copies


async def test_a_bad_copy_is_reported_once_and_counted(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer = await three_copies(cluster)
    for client in members(cluster, writer)[:2]:
        client.bookie.corrupt(writer.ledger_id, 3)
    reader = writer.reader()
    for start in (0, 1, 2, 0, 1):
        reader._start = start
        run = await reader.read(3, 3, 1 << 20)
        assert run.bodies == entries(3, 1)
    metrics = cluster.client.replicas.metrics
    await eventually(lambda: metrics.reported == 2)
    assert metrics.corrupt >= 3
    reports = [client.reports for client in members(cluster, writer)]
    assert reports == [[(writer.ledger_id, 3)], [(writer.ledger_id, 3)], []]


async def test_a_report_that_fails_is_sent_again(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 3)
    (bookie,) = members(cluster, writer)
    bookie.bookie.corrupt(writer.ledger_id, 1)
    answers = iter([codes.UNAVAILABLE, codes.OK])
    told: list[int] = []

    async def report(ledger_id: int, entry_id: int) -> int:
        told.append(entry_id)
        return next(answers)

    bookie.report_corrupt = report  # type: ignore[method-assign]
    for count in (1, 2):
        with pytest.raises(EntryDigestError):
            await writer.reader().read(1, 1, 100)
        await eventually(lambda count=count: len(told) == count)
        await eventually(lambda: not cluster.client.replicas._reports)
    assert cluster.client.replicas.metrics.reported == 1


# ---- which replica


@pytest.fixture
async def zones(cluster: Cluster) -> Cluster:
    """b0, b1 in zone a, b2 in zone b; the client is in zone b."""
    cluster.add_bookies(3)
    for name, zone in {"b0": "a", "b1": "a", "b2": "b"}.items():
        cluster.pool.infos[name] = ServiceInfo(name, f"/{zone}/ud1")
    configure(cluster, reorder=True, network_location="/b/ud7", pending_max=5)
    return cluster


async def asked(cluster: Cluster, writer: AsyncLedgerWriter) -> list[str]:
    """Who is asked for an entry, in order."""
    order: list[str] = []

    def note(name: str) -> Callable[[int], None]:
        return lambda _first: order.append(name)

    for name, client in cluster.clients.items():
        client.on_read = note(name)
    run = await writer.reader().read(2, 2, 1 << 20)
    assert run.bodies == entries(2, 1)
    return order


async def test_the_own_zone_is_asked_first(zones: Cluster) -> None:
    writer = await three_copies(zones)
    assert await asked(zones, writer) == ["b2"]


async def test_a_busy_neighbour_is_left_alone(zones: Cluster) -> None:
    writer = await three_copies(zones)
    zones.clients["b2"].pending_requests = 6
    assert await asked(zones, writer) in (["b0"], ["b1"])
    zones.clients["b0"].pending_requests = 9
    assert await asked(zones, writer) == ["b1"]
    zones.clients["b1"].pending_requests = 9  # all busy: the own zone again
    assert await asked(zones, writer) == ["b2"]


async def test_a_failure_is_remembered(zones: Cluster) -> None:
    writer = await three_copies(zones)
    zones.bookies["b2"].up = False
    assert (await asked(zones, writer))[0] == "b2"
    zones.bookies["b2"].up = True
    assert (await asked(zones, writer))[0] in ("b0", "b1")
    assert zones.client.replicas.metrics.fell_over == 1


async def test_who_is_not_registered_is_asked_last(zones: Cluster) -> None:
    writer = await three_copies(zones)
    zones.pool.remove("b2")
    zones.pool.use(zones.clients["b2"])  # reachable, but nobody says that it is there
    assert (await asked(zones, writer))[0] in ("b0", "b1")


async def test_striped_reads_stay_in_the_zone_where_they_can(zones: Cluster) -> None:
    zones.add_bookies(1)
    zones.pool.infos["b3"] = ServiceInfo("b3", "/b/ud2")
    writer = await zones.client.create_ledger(LedgerConfig(4, 3, 2))
    await write(writer, 20)
    for client in zones.clients.values():
        client.reads.clear()
    await writer.reader().read(0, 19, 1 << 20)
    assert not zones.clients["b0"].reads
    assert not zones.clients["b1"].reads


async def test_without_stickiness_reads_rotate(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    configure(cluster, sticky=False)
    writer = await three_copies(cluster)
    reader = writer.reader()
    for entry_id in range(6):
        await reader.read(entry_id, entry_id, 100)
    assert [len(client.reads) for client in members(cluster, writer)] == [2, 2, 2]


# ---- speculation


async def test_a_slow_replica_is_not_waited_for(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    configure(cluster, speculation=FAST)
    writer = await three_copies(cluster)
    reader = writer.reader()
    hung = Hung(members(cluster, writer)[reader._start])
    async with asyncio.timeout(30):
        run = await reader.read(0, 19, 1 << 20)
    assert run.bodies == entries(0, 20)
    metrics = cluster.client.replicas.metrics
    assert metrics.speculative >= 1
    assert metrics.speculative_won == 1
    await eventually(lambda: hung.cancelled == 1)
    run = await reader.read(0, 19, 1 << 20)  # and not asked first any more
    assert hung.asked == 1


async def test_a_corrupt_rival_does_not_win(cluster: Cluster) -> None:
    cluster.add_bookies(2)
    configure(cluster, speculation=FAST)
    writer = await cluster.client.create_ledger(LedgerConfig(2, 2, 2))
    await write(writer, 5)
    reader = writer.reader()
    clients = members(cluster, writer)
    hung = Hung(clients[reader._start])
    rival = clients[1 - reader._start]
    rival.bookie.corrupt(writer.ledger_id, 0)
    read = asyncio.create_task(reader.read(0, 4, 1 << 20))
    await eventually(lambda: bool(rival.reads))
    assert not read.done()
    hung.open.set()
    run = await read
    assert run.bodies == entries(0, 5)
    assert reader.corrupt_replicas == 1


async def test_slow_bookies_are_asked_later_for_a_while(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    configure(cluster, speculation=FAST, reorder=True)
    writer = await three_copies(cluster)
    slow = members(cluster, writer)[writer.reader()._start]
    hung = Hung(slow)
    await writer.reader().read(0, 0, 100)
    assert hung.asked == 1
    await writer.close()
    other = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    for start in range(3):
        other._start = start
        await other.read(0, 0, 100)
    assert hung.asked == 1


async def test_one_replica_costs_no_task_and_no_timer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is switched on: with one bookie there is nobody to choose from or to race with."""
    cluster.add_bookies(1)
    configure(cluster, speculation=FAST, reorder=True, pending_max=1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 5)
    loop = asyncio.get_running_loop()

    def never(*_args: object, **_options: object) -> object:
        raise AssertionError("something was scheduled")

    with monkeypatch.context() as patch:
        for name in ("create_task", "call_soon", "call_later", "call_at", "create_future"):
            patch.setattr(loop, name, never)
        run = await writer.reader().read(0, 4, 1 << 20)
    assert run.bodies == entries(0, 5)
