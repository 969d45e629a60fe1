"""Deferred adds on real bookies, in process and over gRPC: power cuts, restarts, a slow disk."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie import deferred_sync
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.bookkeeper.transport_grpc.bookie_server import BookieServer
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.remote_bookie import BookieAddress, RemoteBookieClient
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.integration.bookie_node import KEY, Node, Registry, request
from tests.integration.bookkeeper_network import entries_server, eventually
from tests.memory_file_system import FileSystemCall, MemoryFileSystem
from tests.memory_store import MemoryStore

LEDGER = 7


class Machine:
    """One bookie on a disk in memory that can be stopped and lose its power."""

    def __init__(self, path: Path, store: EmbeddedMetadataStore, *, remote: bool) -> None:
        self.node = Node(path, store)
        self.client: BookieClient
        self._remote = remote
        self._fs = MemoryFileSystem()
        self._index = MemoryStore(self._fs)
        self._disk_works = threading.Event()
        self.is_writing = threading.Event()  # while the disk doesn't work
        self._closers: list[Callable[[], object]] = []

    async def start(self) -> None:
        fs, node = self._fs, self.node
        self._disk_works.set()
        self.bookie = await open_bookie(node.config, fs, node.store, index=self._index)
        fs.on_call = self._on_call
        if not self._remote:
            self.client = self.bookie
            return
        server, entries = BookieServer("b1", TransportConfig()), entries_server(TransportConfig())
        ports = [await each.listen("127.0.0.1", 0) for each in (server, entries)]
        server.serve(self.bookie, "")
        entries.serve(self.bookie, "")

        async def resolve(_bookie_id: str) -> BookieAddress:
            return BookieAddress("127.0.0.1", ports[0], ("127.0.0.1", ports[1]))

        remote = RemoteBookieClient("b1", resolve, TransportConfig())
        self.client = remote
        self._closers += [server.close, entries.close, remote.close]

    def _on_call(self, call: FileSystemCall) -> None:
        if call.sync_point == "journal.group" and not self._disk_works.is_set():
            self.is_writing.set()
            assert self._disk_works.wait(30)

    def stop_disk(self) -> None:
        """The next journal write takes until ``let_disk_work``."""
        self.is_writing.clear()
        self._disk_works.clear()

    def let_disk_work(self) -> None:
        self._disk_works.set()

    async def power_cut(self, rng: random.Random) -> None:
        """Go on with what the disk had at this moment."""
        fs = self._fs.crash(rng)
        index = self._index.crash(rng, fs)
        await self.stop()
        self._fs, self._index = fs, index
        await self.start()

    async def stop(self) -> None:
        self._disk_works.set()
        while self._closers:
            await self._closers.pop()()  # type: ignore[misc]  # both give coroutines
        await self.bookie.close()

    async def add(self, first: int, count: int = 1, ledger_id: int = LEDGER) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_done(_request: AddRequest, code: int) -> None:
            answer.set_result(code)

        deferred = request(ledger_id, range(first, first + count), body, on_done)
        deferred.deferred_sync = True
        self.client.add_entries(deferred)
        return await answer

    async def held(self) -> set[int]:
        runs = await self.client.list_entries(LEDGER)
        return {entry_id for first, end in runs for entry_id in range(first, end)}


def body(entry_id: int) -> bytes:
    return b"body %d" % entry_id * 30


@pytest.fixture(params=["in process", "over the network"])
async def machine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Machine]:
    store = EmbeddedMetadataStore.open(None)
    machine = Machine(tmp_path / "b1", store, remote=request.param == "over the network")
    await machine.start()
    yield machine
    await machine.stop()
    await store.close()


async def test_acknowledged_before_it_is_durable_and_readable_at_once(machine: Machine) -> None:
    machine.stop_disk()
    async with asyncio.timeout(30):
        assert [await machine.add(first, 2) for first in (0, 2, 4)] == [codes.OK] * 3
    reply = await machine.client.read_entries(ReadRequest(LEDGER, 0, 10, 1 << 20))
    assert [bytes(packet)[-len(body(n)) :] for n, packet in enumerate(reply.packets)] == [
        body(n) for n in range(6)
    ]


async def test_force_waits_for_the_disk(machine: Machine) -> None:
    machine.stop_disk()
    assert await machine.add(0, 3) == codes.OK
    forces = [
        asyncio.create_task(machine.client.force(LEDGER, 0, master_key=KEY)) for _ in range(3)
    ]
    assert await machine.add(3) == codes.OK
    assert not any(force.done() for force in forces)
    machine.let_disk_work()
    assert await asyncio.gather(*forces) == [codes.OK] * 3
    await eventually(lambda: not machine.bookie.storage.journal.queued_bytes)
    assert await machine.client.force(LEDGER, 0, master_key=KEY) == codes.OK  # nothing to do


@pytest.mark.parametrize("seed", range(8))
async def test_a_power_cut_takes_what_was_not_forced_at_most(machine: Machine, seed: int) -> None:
    rng = random.Random(seed)
    forced = acknowledged = -1
    for _ in range(rng.randrange(1, 12)):
        count = rng.randrange(1, 5)
        assert await machine.add(acknowledged + 1, count) == codes.OK
        acknowledged += count
        if rng.random() < 0.4:
            assert await machine.client.force(LEDGER, 0, master_key=KEY) == codes.OK
            forced = acknowledged
    await eventually(lambda: machine.bookie.storage.journal.in_flight is None)
    machine.stop_disk()
    before = acknowledged
    for _ in range(3):
        assert await machine.add(acknowledged + 1) == codes.OK
        acknowledged += 1
    await machine.power_cut(rng)
    held = await machine.held()
    assert set(range(forced + 1)) <= held
    assert not held & set(range(before + 1, acknowledged + 1))  # the disk never saw them
    # It can't vouch for what it acknowledged in its former life, whatever it has.
    assert await machine.client.force(LEDGER, 0, master_key=KEY) in (
        codes.UNKNOWN_LEDGER_STATE,
        codes.NO_LEDGER,
    )
    assert await machine.add(acknowledged + 1) == codes.OK
    again = await machine.client.force(LEDGER, forced + 1, master_key=KEY)
    assert again == codes.UNKNOWN_LEDGER_STATE
    again = await machine.client.force(LEDGER, acknowledged + 1, master_key=KEY)
    assert again == codes.OK


async def test_who_may_force(machine: Machine) -> None:
    assert await machine.client.force(LEDGER, 0, master_key=KEY) == codes.NO_LEDGER
    assert await machine.add(5) == codes.OK
    assert await machine.client.force(LEDGER, 5, master_key=b"x" * 20) == codes.UNAUTHORIZED
    assert await machine.client.force(LEDGER, 4, master_key=KEY) == codes.UNKNOWN_LEDGER_STATE
    assert await machine.client.force(LEDGER, 5, master_key=KEY) == codes.OK


async def test_a_failed_disk_fails_the_force(machine: Machine) -> None:
    machine.stop_disk()
    assert await machine.add(0) == codes.OK
    force = asyncio.create_task(machine.client.force(LEDGER, 0, master_key=KEY))
    waiting = machine.bookie._deferred._newest
    await eventually(
        lambda: machine.is_writing.is_set() and any(add.waiting for add in waiting.values())
    )
    machine._fs.faults.fail_at = machine._fs.call_count - 1  # the write that waits
    machine.let_disk_work()
    assert await force == codes.IO_ERROR
    assert machine.bookie.error is not None


async def test_fenced_ledgers_take_no_deferred_adds(machine: Machine) -> None:
    assert await machine.add(0) == codes.OK
    await machine.client.read_lac(LEDGER, fence=True, master_key=KEY)
    assert await machine.add(1) == codes.FENCED
    assert await machine.client.force(LEDGER, 0, master_key=KEY) == codes.OK


async def test_a_deleted_ledger_is_forgotten(machine: Machine) -> None:
    for ledger_id in (1, 2):
        assert await machine.add(0, ledger_id=ledger_id) == codes.OK
        assert await machine.client.force(ledger_id, 0, master_key=KEY) == codes.OK
    assert (await GarbageCollector(machine.bookie, Registry(2)).collect()).ledgers_dropped == 1
    assert list(machine.bookie._deferred._first) == [2]
    assert await machine.client.force(2, 0, master_key=KEY) == codes.OK
    assert await machine.client.force(1, 0, master_key=KEY) == codes.NO_LEDGER


async def test_of_very_many_ledgers_the_idle_ones_are_forgotten(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody says that a ledger was closed: what is kept of them must be bounded all the same."""
    monkeypatch.setattr(deferred_sync, "LEDGERS_MAX", 3)
    known = machine.bookie._deferred._first
    for ledger_id in range(10):
        assert await machine.add(0, ledger_id=ledger_id) == codes.OK
        assert await machine.client.force(ledger_id, 0, master_key=KEY) == codes.OK
    assert await machine.add(1, ledger_id=7) == codes.OK  # still written to
    assert await machine.client.force(7, 0, master_key=KEY) == codes.OK
    assert await machine.add(0, ledger_id=10) == codes.OK
    assert await machine.client.force(10, 0, master_key=KEY) == codes.OK
    assert set(known) == {7, 9, 10}
    # As after a restart: it can't vouch for them, but goes on with what comes.
    assert await machine.client.force(8, 0, master_key=KEY) == codes.UNKNOWN_LEDGER_STATE
    assert await machine.add(1, ledger_id=8) == codes.OK
    assert await machine.client.force(8, 1, master_key=KEY) == codes.OK
    machine.stop_disk()
    for ledger_id in range(20, 25):  # none of these is durable: all of them are needed
        assert await machine.add(0, ledger_id=ledger_id) == codes.OK
    forces = [
        asyncio.create_task(machine.client.force(ledger_id, 0, master_key=KEY))
        for ledger_id in range(22, 25)
    ]
    machine.let_disk_work()
    assert await asyncio.gather(*forces) == [codes.OK] * 3


async def test_a_writer_faster_than_the_disk_waits_for_it(
    tmp_path: Path,
) -> None:
    """Above half of what the journal may queue, they are answered when they are durable."""
    store = EmbeddedMetadataStore.open(None)
    machine = Machine(tmp_path / "b1", store, remote=False)
    config = machine.node.config
    storage = replace(config.storage, journal_queue_bytes_max=4000)
    machine.node.config = replace(config, storage=storage)
    await machine.start()
    machine.stop_disk()
    answered = [asyncio.create_task(machine.add(entry_id)) for entry_id in range(10)]
    await eventually(lambda: any(task.done() for task in answered))
    await asyncio.sleep(0)
    early = sum(task.done() for task in answered)
    assert 0 < early < 10
    machine.let_disk_work()
    assert await asyncio.gather(*answered) == [codes.OK] * 10
    assert await machine.client.force(LEDGER, 0, master_key=KEY) == codes.OK
    await machine.stop()
    await store.close()
