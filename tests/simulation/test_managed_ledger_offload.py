"""Owners of one managed ledger whose closed ledgers go to an object store, and a hostile world.

As ``test_managed_ledger.py``, with copies: bookies forget a ledger as soon as its copy is complete.
Judged are invariant 40, in the moment of each write of the list (whatever it calls complete equals
what was acknowledged, and bookies lose a ledger only after the list says so), and at the end 36 and
33: a fresh owner reads every acknowledged entry, and the store holds the copies that the list names
and no others.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.ledger_reader import EntryRun
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.ledger_metadata import decode
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.entry_form import HeadsInFront
from magnetar.managed_ledger.factory import FactoryConfig, ManagedLedgerFactory
from magnetar.managed_ledger.ledger_rows import LedgerRows
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.managed_ledger.offload.block_offloader import BlockOffloader
from magnetar.managed_ledger.offload.config import OffloadConfig, OffloadMetrics
from magnetar.managed_ledger.offload.context import CopyState
from magnetar.managed_ledger.offload.copy_format import CopyIndex
from magnetar.managed_ledger.offload.copy_reader import CopyReader
from magnetar.managed_ledger.position import EARLIEST
from tests.nightly import NIGHTLY
from tests.simulation.ledger_world import SimulatedStore
from tests.simulation.managed_ledger_world import HEAD, Broker, LogWorld
from tests.simulation.simulator import FaultRates, Node, Simulator, run_simulation, seeds
from tests.simulation.test_managed_ledger_takeover import HeldNode

T = TypeVar("T")
OFFLOAD = OffloadConfig("sim", (), threshold_bytes=0, deletion_lag_ms=0, block_bytes=200)


class ObjectStore:
    """The object store: one for all nodes, durable, and down at times."""

    def __init__(self) -> None:
        self.up = True
        self.failing = False
        self.objects: dict[str, bytes] = {}
        self.deleted: set[str] = set()  # names that were asked to be deleted, there or not
        self.late: dict[str, Node] = {}  # objects that came after that, and who brought them

    def remove(self, name: str) -> None:
        self.deleted.add(name)
        self.objects.pop(name, None)

    def add(self, name: str, data: bytes, node: Node) -> None:
        self.objects.setdefault(name, data)
        if name in self.deleted:
            self.late[name] = node

    def __str__(self) -> str:
        return "objects"


class SimulatedObjects:
    """One node's way to the store: every call takes time, fails at times, and its node may die."""

    def __init__(self, node: Node, world: "OffloadWorld") -> None:
        self.node, self.world = node, world

    async def call(self, handle: Callable[[], T], *, may_fail: bool = True) -> T:
        def answer() -> tuple[T | OSError]:
            if (
                may_fail
                and self.world.object_store.failing
                and self.world.simulator.rng.random() < 0.5
            ):
                return (OSError("the store is down"),)
            return (handle(),)

        reply = await self.world.simulator.network.call(
            self.node, self.world.object_store, answer, 600_000.0, lossless=True
        )
        assert reply is not None
        if isinstance(reply[0], OSError):
            raise reply[0]
        return reply[0]

    async def create(self, name: str) -> "SimulatedUpload":
        await self.call(lambda: None)
        return SimulatedUpload(self, name)

    async def size(self, name: str) -> int | None:
        objects = self.world.object_store.objects
        found = await self.call(lambda: len(objects[name]) if name in objects else -1)
        return None if found < 0 else int(found)

    async def read(self, name: str, offset: int, size: int) -> bytes:
        found = await self.call(lambda: self.world.object_store.objects.get(name))
        if found is None:
            raise FileNotFoundError(name)
        return bytes(found[offset : offset + size])

    async def delete(self, name: str) -> None:
        # A fenced owner that can't delete in a few attempts leaks: docs/guides/offload.md says so.
        await self.call(lambda: self.world.object_store.remove(name), may_fail=False)


class SimulatedUpload:
    """What isn't complete is nowhere else."""

    def __init__(self, objects: SimulatedObjects, name: str) -> None:
        self._objects, self._name = objects, name
        self._data = bytearray()
        self._completing: asyncio.Future[None] | None = None  # goes on when its caller is cancelled

    async def write(self, buffers: Sequence[Buffer]) -> None:
        self._data += b"".join(buffers)

    async def end_block(self) -> None:
        await self._objects.call(lambda: None)

    async def sync(self) -> None:
        world = self._objects.world
        if world.slow_ms_max:  # long enough for another owner to come and look
            await world.simulator.sleep_ms(world.simulator.rng.uniform(0, world.slow_ms_max))
        await self._objects.call(lambda: None)

    async def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])

    async def complete(self) -> None:
        data, object_store, node = (
            bytes(self._data),
            self._objects.world.object_store,
            self._objects.node,
        )
        call = self._objects.call(lambda: object_store.add(self._name, data, node))
        self._completing = asyncio.ensure_future(call)
        await asyncio.shield(self._completing)

    async def abort(self) -> None:
        if self._completing is not None:
            await asyncio.wait([self._completing])


class OffloadWorld(LogWorld):
    """Judges every write of the list, and every ledger that bookies lose."""

    def __init__(self, simulator: Simulator, bookie_count: int) -> None:
        super().__init__(simulator, bookie_count)
        self.object_store = ObjectStore()
        self.slow_ms_max = 0.0
        self.completed = 0
        self.released = 0

    def objects_of(self, node: Node) -> SimulatedObjects:
        return SimulatedObjects(node, self)

    def on_list(self, before: ManagedLedgerInfo, info: ManagedLedgerInfo) -> None:
        super().on_list(before, info)
        listed = [*info.ledgers, *info.apart]
        for ledger in listed:
            old = before.find(ledger.ledger_id)
            was = None if old is None or old.offload is None else old.offload.state
            if ledger.offload is None:
                self._check(was in (None, CopyState.STARTED), f"40: forgot the copy of {ledger}")
                continue
            state = ledger.offload.state
            if state is CopyState.COMPLETE and was is not CopyState.COMPLETE:
                self.completed += 1
                self._check_copy(ledger.ledger_id, ledger.offload.copy.name)
            if state is CopyState.ONLY and was is not CopyState.ONLY:
                self.released += 1
                self._check(was is CopyState.COMPLETE, f"40: released in state {was}")
        known = self.known_ledgers()
        for ledger in listed:
            is_released = ledger.offload is not None and ledger.offload.is_only
            if ledger.closed_ms and not is_released:
                self._check(ledger.ledger_id in known, f"40: bookies lost {ledger}")

    def known_ledgers(self) -> set[int]:
        """Ids of those that have metadata."""
        return {
            decode_id(path, value)
            for path, (value, _) in self.registry.nodes.items()
            if path.rpartition("/")[2].startswith("L")
        }

    def _check_copy(self, ledger_id: int, name: str) -> None:
        objects = self.object_store.objects
        if f"{name}.index" not in objects or f"{name}.data" not in objects:
            self._check(False, f"40: complete is {name}, there are {sorted(objects)}")
            return
        index = CopyIndex.decode(objects[f"{name}.index"], name)
        bodies = [bytes(x) for x in entries_of(index, objects[f"{name}.data"])]
        for payload, position in self.acked_at.items():
            if position[0] == ledger_id:
                self._check(
                    position[1] < len(bodies) and bodies[position[1]] == HEAD + payload,
                    f"40: {payload!r} was acked at {position}; its copy is different",
                )

    def check_list(self) -> None:
        """As before, for the ledgers that bookies have."""
        info = self.stored()
        assert info is not None
        kept = [x for x in info.ledgers if x.offload is None or not x.offload.is_only]
        bare = replace(info, ledgers=LedgerRows(replace(x, offload=None) for x in kept))
        original = self.stored
        self.stored = lambda: bare  # type: ignore[method-assign]
        super().check_list()
        self.stored = original  # type: ignore[method-assign]

    def check_object_store(self) -> None:
        """The copies that the list names, and nothing else."""
        info = self.stored()
        assert info is not None
        listed = [*info.ledgers, *info.apart]
        named = {x.offload.copy.name for x in listed if x.offload is not None}
        doomed = {x.name for x in info.doomed_copies}
        # A copy that came when another owner had deleted it stays if who brought it died just then
        # (docs/guides/offload.md): nobody else knows of it.
        orphans = {name for name, node in self.object_store.late.items() if not node.alive}
        there = {x.rpartition(".")[0] for x in self.object_store.objects.keys() - orphans}
        self._check(there <= named | doomed, f"leaked copies: {sorted(there - named - doomed)}")
        only = [x for x in listed if x.offload is not None and x.offload.is_complete]
        for ledger in only:
            assert ledger.offload is not None
            self._check_copy(ledger.ledger_id, ledger.offload.copy.name)


@cache
def decode_id(path: str, value: bytes) -> int:
    return decode(value).ledger_id


def entries_of(index: CopyIndex, data: bytes) -> list[bytes]:
    """All entries of a copy, by its reader."""

    class Here:
        async def read(self, name: str, offset: int, size: int) -> bytes:
            return data[offset : offset + size]

    reader = CopyReader(index, Here(), "data", OffloadMetrics())  # type: ignore[arg-type]
    found: list[bytes] = []
    while len(found) < index.entries:
        reading = reader.read(len(found), index.entries - 1, 1 << 20)
        try:
            reading.send(None)
        except StopIteration as answer:
            run: EntryRun = answer.value
            found += [bytes(x) for x in run.bodies]
    return found


class OffloadBroker(Broker):
    def __init__(
        self, world: OffloadWorld, config: ManagedLedgerConfig, node: Node | None = None
    ) -> None:
        super().__init__(world, config, node)
        objects = world.objects_of(self.node)
        offloader = BlockOffloader("sim", lambda _: objects, 2, OffloadMetrics())
        self.factory = ManagedLedgerFactory(
            *(world.client(self.node), SimulatedStore(self.node, world), EntryCache(1 << 16)),
            FactoryConfig(),
            lambda: 1 + int(self.simulator.loop.now * 1000),
            self.simulator.rng,
            [offloader],
        )


def config_of(simulator: Simulator, *, with_trimming: bool = False) -> ManagedLedgerConfig:
    kept = 0 if with_trimming else -1
    return ManagedLedgerConfig(
        form=HeadsInFront(len(HEAD)),
        ledger_entries_max=simulator.rng.choice([1, 3, 8]),
        ledger_age_min_ms=0,
        retention_ms=kept,
        retention_bytes=kept,
        offload=OFFLOAD,
    )


async def verify(world: OffloadWorld, brokers: list[Broker]) -> None:
    """A fresh owner reads everything; what nobody needs is gone in the end."""
    config = replace(brokers[0].config, ledger_entries_max=100)
    # Nothing is trimmed while it is read for the first time: that would leave gaps.
    last = OffloadBroker(world, replace(config, retention_ms=-1, retention_bytes=-1))
    log = await last.open()
    cursor = log.cursors.get("sub")
    found = await last.read_all(EARLIEST)
    consumed = EARLIEST if cursor is None else cursor.mark_delete
    world.check_log(found, brokers, consumed)
    last.append(3)
    while last.reported < 3:
        await world.simulator.sleep_ms(10)
    log.configure(config)
    await world.simulator.sleep_ms(2000)
    for _ in range(400):
        log.sweep(int(world.simulator.loop.now * 1000))
        await world.simulator.sleep_ms(50)
        if not log.offloads._is_passing and not log.offloads._is_due(log.lists.info):
            break
    else:
        world.simulator.check(False, "liveness: there is always something to offload")
    found = await last.read_all(EARLIEST)
    world.check_log(found, [*brokers, last], consumed)
    await log.close()
    world.check_list()
    world.check_object_store()


async def crash_while_offloading(simulator: Simulator, steps: int, entries_max: int) -> bool:
    """An owner that copies and releases dies at its n-th network step; another takes over."""
    world = OffloadWorld(simulator, 1)
    config = replace(config_of(simulator), ledger_entries_max=entries_max)
    first = OffloadBroker(world, config)
    first.node.steps_to_crash = steps

    async def write() -> None:
        await first.open()
        for _ in range(2):
            first.append(entries_max + 1)
            await simulator.sleep_ms(100)

    writing = simulator.start(write())
    await simulator.sleep_ms(3000)
    has_crashed = not first.node.alive
    simulator.check(has_crashed or writing.done(), "the writer hangs")
    simulator.check(has_crashed or world.released > 0, "nothing was offloaded")
    await verify(world, [first])
    return has_crashed


@pytest.mark.parametrize("entries_max", [1, 4])
def test_crash_after_every_step_of_offloads(entries_max: int) -> None:
    """In CI after every second one, and of the other half with the other size."""
    crashes = 0
    stride = 1 if NIGHTLY else 2
    for steps in itertools.count(entries_max // 4, stride):
        if not run_simulation(
            steps,
            lambda simulator, n=steps: crash_while_offloading(simulator, n, entries_max),  # type: ignore[misc]
        ):
            break
        crashes += 1
    assert crashes > 60 // stride


async def come_and_go(simulator: Simulator) -> None:
    """Up to three owners, one after the other or at once; faults, then none."""
    rng = simulator.rng
    simulator.network.faults = FaultRates(
        delay_ms_max=rng.choice([2.0, 20.0]),
        message_loss=rng.choice([0.0, 0.02]),
        metadata_unknown=rng.choice([0.0, 0.1, 0.4, 0.6]),
        metadata_ms_max=rng.choice([1.0, 20.0]),
    )
    world = OffloadWorld(simulator, 1)
    world.slow_ms_max = rng.choice([0.0, 300.0, 1500.0])
    config = config_of(simulator, with_trimming=rng.random() < 0.5)
    brokers: list[Broker] = []

    async def serve() -> None:
        await simulator.sleep_ms(rng.uniform(0, 3000))
        broker = OffloadBroker(world, config)
        brokers.append(broker)
        if rng.random() < 0.4:
            broker.node.steps_to_crash = rng.randrange(400)
        log = await broker.open()
        for _ in range(40):
            if not broker.node.alive:
                return
            broker.append(rng.randint(1, 3))
            if rng.random() < 0.3:
                broker.acknowledge()
            if rng.random() < 0.1:
                log.sweep(int(simulator.loop.now * 1000))
            if rng.random() < 0.03:
                broker.node.paused_until = simulator.loop.now + rng.uniform(0, 2)
            if rng.random() < 0.05:
                world.object_store.failing = not world.object_store.failing
            if broker.is_fenced:
                break
            await simulator.sleep_ms(rng.choice([0.0, 5.0, 50.0, 1500.0]))
        await log.close()

    for _ in range(rng.randint(1, 3)):
        simulator.start(serve())
    await simulator.sleep_ms(30_000)
    simulator.network.faults = FaultRates()
    world.object_store.failing, world.slow_ms_max = False, 0.0
    for bookie in world.bookies.values():
        bookie.refuse_adds = codes.OK
    await simulator.sleep_ms(60_000)
    await verify(world, brokers)


@pytest.mark.parametrize("seed", seeds(20))
def test_owners_come_and_go_while_ledgers_are_copied(seed: int) -> None:
    run_simulation(seed, come_and_go)


async def come_late(simulator: Simulator, *, closes: bool = False) -> None:
    """An owner brings its copy when the next one has deleted it, and hasn't told the list yet.

    Args:
        closes: the log is closed while the copy gets its names.
    """
    world, loop = OffloadWorld(simulator, 1), simulator.loop
    config = replace(config_of(simulator), ledger_entries_max=1)
    nodes = [HeldNode(f"owner-{n}", lambda: loop.now) for n in range(2)]
    old, new = (OffloadBroker(world, config, x) for x in nodes)
    log = await old.open()
    old.append(2)
    while not any(x.offload for x in (world.stored() or ManagedLedgerInfo()).ledgers):
        await simulator.sleep_ms(1)
    nodes[0].is_held = True  # it is answered that the copy is listed, and begins it later
    opening = simulator.start(new.open())
    deletions = simulator.rng.choice([1, 2])  # of the index; and of the data
    while len(world.object_store.deleted) < deletions:
        await simulator.sleep_ms(0.05)  # no answer takes less than 0.1
    nodes[1].is_held = True
    nodes[0].go_on()
    if closes:
        while not world.object_store.late:
            await simulator.sleep_ms(0.05)
        await simulator.sleep_ms(simulator.rng.uniform(0, 15))
        await log.close()
    while log.offloads._is_passing:
        await simulator.sleep_ms(1)
    simulator.check(bool(world.object_store.late), "no copy came late")
    nodes[1].go_on()
    await opening
    await simulator.sleep_ms(2000)
    await verify(world, [old, new])


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize("closes", [False, True])
def test_a_copy_comes_when_the_next_owner_has_deleted_it(seed: int, closes: bool) -> None:
    run_simulation(seed, lambda simulator: come_late(simulator, closes=closes))


def test_a_lost_only_copy_is_an_error_for_ever() -> None:
    """The list says that bookies' copy is no more, and the other one can't be read: no gap."""

    async def scenario(simulator: Simulator) -> None:
        world = OffloadWorld(simulator, 1)
        config = replace(config_of(simulator), ledger_entries_max=3)
        broker = OffloadBroker(world, config)
        await broker.open()
        broker.append(10)
        await simulator.sleep_ms(3000)
        simulator.check(world.released > 0, "nothing was offloaded")
        world.object_store.objects.clear()
        taker = OffloadBroker(world, config)
        log = await taker.open()
        for _ in range(5):
            try:
                batch = await log.read(EARLIEST, 100, 1 << 16)
                simulator.check(False, f"read {batch} from nowhere")
            except LedgerError as error:
                simulator.check("no such object" in str(error), str(error))
        simulator.check(log.offsets.entry_count == len(broker.sent), "an entry was given up")

    run_simulation(3, scenario)
