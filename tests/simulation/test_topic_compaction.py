"""Compactions of one log whose owners crash at any step, are replaced, and meet every failure.

The product's own shells run on virtual time, with the core of the process that compacts in place of
the process. A reader of the compacted view may get what the last compaction left or what the one
before did, and what came later; never a mix, never less.

Replay one seed: MAGNETAR_SEED=41 MAGNETAR_SEEDS=1 pytest tests/simulation/test_topic_compaction.py
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import pytest

from magnetar.bookkeeper.bookie_client import BookieClient, EntryFiles
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.transport import StoredRun
from magnetar.broker.compaction.compacted_view import CompactedView
from magnetar.broker.compaction.compaction_places import CompactionPlaces
from magnetar.broker.compaction.compaction_process import CompactionWork, Question, answers
from magnetar.broker.compaction.process_link import CompactionProcess, Given, Keep
from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.broker.compaction.work_frames import (
    CHOOSE,
    NOTE,
    NOTE_STORED,
    TAKE,
    TAKE_STORED,
    LocatedEntries,
    encode_runs,
)
from magnetar.broker.errors import STORAGE_ERRORS, CompactionProcessError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.framing import encode_body, parse_entry_body
from magnetar.broker.protocol.stored_entries import PULSAR_ENTRIES
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.offload.config import NO_OFFLOAD
from magnetar.managed_ledger.orphan_ledgers import COMPACTION_CURSOR
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.errors import OutcomeUnknownError, StoreUnreachableError
from tests.nightly import NIGHTLY
from tests.simulation.ledger_world import SimulatedStore
from tests.simulation.managed_ledger_world import NAME
from tests.simulation.simulator import FaultRates, Node, Simulator, run_simulation, seeds
from tests.simulation.test_managed_ledger_offload import (
    OFFLOAD,
    OffloadBroker,
    OffloadWorld,
    SimulatedObjects,
)

T = TypeVar("T")
Found = list[tuple[Position, bytes]]

KEYS: Final = "abcde"
RATE: Final = 10**12
"""Bytes a second of a process that reads by itself: more than any run has."""


@dataclass(slots=True)
class Failure:
    """The ``at``-th call of a kind fails.

    Attributes:
        where: "metadata", "network" (a message from or to a bookie), "storage" (either), "process",
            "objects" (the store of copies), "files" (what was located isn't there).
        is_lost: the call has its effect, and nobody is told.
        lasts: all calls after it fail, too.
    """

    where: str = ""
    is_lost: bool = False
    lasts: bool = False
    at: int = -1
    calls: int = 0
    on: bool = False

    def meets(self, where: str) -> bool:
        kinds = ("metadata", "network") if self.where == "storage" else (self.where,)
        if not self.on or where not in kinds:
            return False
        self.calls += 1
        return self.calls - 1 == self.at or (self.lasts and self.calls > self.at)


@dataclass(slots=True)
class InlineProcess(CompactionProcess):
    """Without a process."""

    failure: Failure
    files: "SimulatedFiles | None" = None
    work: CompactionWork = field(init=False)

    def __post_init__(self) -> None:
        self.work = CompactionWork(-1, retains_keyless=False, read=self._stored)

    def _stored(self, run: StoredRun, bytes_per_s: int) -> list[bytes] | None:
        assert bytes_per_s == RATE
        return None if self.files is None else self.files.read(run)

    async def note(self, ledger_id: int, first: int, entries: Given) -> int:
        if isinstance(entries, LocatedEntries):
            return await self._ask_located(NOTE_STORED, ledger_id, entries, _drop)
        await self._ask((NOTE, ledger_id, first, entries), _drop)
        return len(entries)

    async def choose(self) -> int:
        await self._ask((CHOOSE, 0, 0, ()), _drop)
        return self.work.removed

    async def take(self, ledger_id: int, first: int, entries: Given, keep: Keep) -> int:
        if isinstance(entries, LocatedEntries):
            return await self._ask_located(TAKE_STORED, ledger_id, entries, keep)
        await self._ask((TAKE, ledger_id, first, entries), keep)
        return len(entries)

    async def _ask_located(
        self, kind: int, ledger_id: int, entries: LocatedEntries, keep: Keep
    ) -> int:
        question = (kind, ledger_id, entries.first, encode_runs(entries))
        return entries.count(await self._ask(question, keep))

    async def _ask(self, question: Question, keep: Keep) -> int:
        if self.failure.meets("process"):
            raise CompactionProcessError("the process that compacts has ended")
        last = 0
        for _, number, kept in answers(self.work, question, lambda job: job()):
            last = number
            if self.files is not None:
                await self.files.pause()
            if kept:
                await keep(kept)
        return last

    def kill(self) -> None:
        pass


class SimulatedFiles(EntryFiles):
    """What bookies have of entries, for a process that reads it itself: some of it isn't known,
    and some of it moves between look-up and read.
    """

    def __init__(self, world: "CompactionWorld") -> None:
        self._world = world
        self.given = self.gone = 0  # runs

    async def pause(self) -> None:
        simulator = self._world.simulator
        if simulator.rng.random() < 0.3:
            await simulator.sleep_ms(simulator.rng.uniform(0, 5))

    async def locate(
        self, ledger_id: int, first: int, last: int, bytes_max: int, *, creator: int = 0
    ) -> list[StoredRun]:
        await self.pause()
        rng, packets = self._world.simulator.rng, self._packets(ledger_id)
        runs: list[StoredRun] = []
        while rng.random() < 0.7:
            ids = range(first, min(last, first + rng.randint(0, 3)) + 1)
            sizes = [len(packets[each]) for each in ids if each in packets]
            if not ids or len(sizes) < len(ids):
                break
            runs.append(StoredRun(ledger_id, first, "a file", 0, sizes))
            first = ids[-1] + 1
        return runs

    def read(self, run: StoredRun) -> list[bytes] | None:
        packets = self._packets(run.ledger_id)
        ids = range(run.first, run.first + len(run.sizes))
        failure = self._world.failure
        is_gone = failure.meets("files") or self._world.simulator.rng.random() < 0.1
        if is_gone or not packets.keys() >= set(ids):
            self.gone += 1
            return None
        self.given += 1
        return [packets[each][PACKET_HEADER_BYTES:] for each in ids]

    def _packets(self, ledger_id: int) -> dict[int, bytes]:
        (bookie,) = self._world.bookies.values()
        ledger = bookie.ledgers.get(ledger_id)
        return {} if ledger is None else ledger.entries


async def _drop(kept: Sequence[Buffer]) -> None:
    raise AssertionError(f"an answer has {len(kept)} entries")


class FailingStore(SimulatedStore):
    def __init__(self, node: Node, world: "CompactionWorld") -> None:
        super().__init__(node, world)
        self._compactions = world

    async def _call(self, handle: Callable[[], T]) -> T:
        failure = self._compactions.failure
        fails = failure.meets("metadata")
        if fails and not failure.is_lost:
            raise StoreUnreachableError("/", "connection loss")
        reply = await super()._call(handle)
        if fails:
            raise OutcomeUnknownError("/")
        return reply


class FailingObjects(SimulatedObjects):
    world: "CompactionWorld"

    async def call(self, handle: Callable[[], T], *, may_fail: bool = True) -> T:
        failure = self.world.failure
        fails = failure.meets("objects")
        if fails and not failure.is_lost:
            raise OSError("the store is down")
        reply = await super().call(handle, may_fail=may_fail)
        if fails:
            raise OSError("no answer")
        return reply


class CompactionWorld(OffloadWorld):
    """Checks what readers of the compacted view get."""

    def __init__(self, simulator: Simulator, bookie_count: int) -> None:
        super().__init__(simulator, bookie_count)
        self.failure = Failure()
        self.files = SimulatedFiles(self)
        self.settled: dict[Position, bytes] = {}
        """What fresh owners have read of the log."""
        transmit = simulator.network.transmit

        def transmit_or_not(deliver: Callable[[], None], lossless: bool) -> None:
            if lossless or not self.failure.meets("network"):
                transmit(deliver, lossless)

        simulator.network.transmit = transmit_or_not  # type: ignore[method-assign]  # the fault

    def make_store(self, node: Node) -> SimulatedStore:
        return FailingStore(node, self)

    def make_clients(self, node: Node, layout: Layout) -> Sequence[BookieClient]:
        clients = super().make_clients(node, layout)
        for client in clients:
            client.files = self.files
        return clients

    def objects_of(self, node: Node) -> SimulatedObjects:
        return FailingObjects(node, self)

    def _check_copy(self, ledger_id: int, name: str) -> None:
        """What it holds is judged by those that read it."""
        objects = self.object_store.objects
        self._check({f"{name}.index", f"{name}.data"} <= objects.keys(), f"40: {name} isn't there")

    def entries(self) -> dict[Position, bytes]:
        """All of the log that is known, by position; trimmed ones, too."""
        known = self.settled | {position: body for body, position in self.acked_at.items()}
        return dict(sorted(known.items()))

    def check_changing_view(self, before: dict[Position, bytes], found: Found) -> None:
        """What was read of a view from its beginning, while compactions and messages came.

        Args:
            before: all that was acknowledged when it began.
        """
        positions = [position for position, _ in found]
        self._check(positions == sorted(set(positions)), f"a view's positions: {positions}")
        read = {key_and_value(body)[0]: position for position, body in found}
        now = self.entries()
        for key, newest in {key_and_value(body)[0]: at for at, body in before.items()}.items():
            # A reader that is slow doesn't hear of a key's end, as in Pulsar: a compaction drops
            # what removes a key.
            has_ended = any(
                at >= newest and key_and_value(body) == (key, b"") for at, body in now.items()
            )
            is_read = read.get(key, EARLIEST) >= newest
            self._check(is_read or has_ended, f"{key}: {read.get(key)} is read, not {newest}")

    def check_view(self, found: Found, horizon: Position) -> None:
        """A view at rest: what survived up to the horizon, and all that is behind it."""
        entries = self.entries()
        newest = {key_and_value(body)[0]: at for at, body in entries.items() if at <= horizon}
        expected = [
            (at, body)
            for at, body in entries.items()
            if at > horizon or (newest[key_and_value(body)[0]] == at and key_and_value(body)[1])
        ]
        there, asked = [at for at, _ in found], [at for at, _ in expected]
        self._check(there == asked, f"the view up to {horizon} is {there}, not {asked}")
        self._check(found == expected, f"the view up to {horizon} has other bodies")


def key_and_value(body: bytes) -> tuple[str, bytes]:
    metadata, payload = parse_entry_body(body)
    return metadata.partition_key, bytes(payload)


class CompactingBroker(OffloadBroker):
    """An owner of the log, which compacts it."""

    world: CompactionWorld

    def __init__(
        self, world: CompactionWorld, config: ManagedLedgerConfig, node: Node | None = None
    ) -> None:
        super().__init__(world, config, node)
        self.compaction: TopicCompaction

    async def open_once(self) -> ManagedLedger:
        log = await super().open_once()
        try:  # before anything is trimmed
            await log.open_cursor(COMPACTION_CURSOR, EARLIEST)
        except STORAGE_ERRORS:
            await log.close()
            self.is_fenced = False
            raise
        clock, places = lambda: int(self.simulator.loop.now * 1000), CompactionPlaces(lambda: RATE)
        self.compaction = TopicCompaction(
            *(NAME, -1, log, clock, lambda cursor: None, places),
            start_process=lambda partition, _: InlineProcess(self.world.failure, self.world.files),
        )
        return log

    @property
    def cursor(self) -> Cursor:
        assert self.log is not None
        return self.log.cursors[COMPACTION_CURSOR]

    def publish(self, count: int) -> None:
        rng = self.simulator.rng
        heads: list[bytes] = []
        bodies: list[bytes] = []
        for _ in range(count):
            metadata = pb.MessageMetadata(
                producer_name=str(self.number),
                sequence_id=len(self.sent) + len(bodies),
                publish_time=1,
                partition_key=rng.choice(KEYS),
            )
            value = b"" if rng.random() < 0.15 else b"value"
            heads.append(make_header(metadata, len(value)))
            bodies.append(encode_body(metadata, value))
        self.append_entries(heads, bodies)

    async def publish_all(self, count: int) -> None:
        self.publish(count)
        while self.reported < len(self.sent):
            await self.simulator.sleep_ms(5)

    async def compact(self) -> None:
        """One run, to its end."""
        self.compaction.begin()
        run = self.compaction._run
        assert run is not None
        await asyncio.wait([run])

    def consume(self) -> None:
        """Its subscription needs nothing of what is there: what is compacted may be trimmed."""
        log = self.log
        assert log is not None
        if (cursor := log.cursors.get("sub")) is not None and not cursor.is_closed:
            self.world.consumed = max(self.world.consumed, log.last_confirmed)
            cursor.ack_cumulative(log.last_confirmed)
        log.sweep(int(self.simulator.loop.now * 1000))

    async def view(self, *, pause_ms: float = 0) -> Found:
        """All of it, by reads of random length.

        Args:
            pause_ms: at most, between two reads.

        Raises:
            LedgerError: a read failed again and again.
        """
        log = self.log
        assert log is not None
        view = CompactedView(
            *(log, lambda: self.compaction.current, self.cursor),
            *(None, lambda: self.cursor.mark_delete),
        )
        found: Found = []
        position, failures = EARLIEST, 0
        while True:
            try:
                batch = view.read_nowait(position, self.simulator.rng.randint(1, 5), 1 << 16)
                if batch is None:
                    batch = await view.read(position, self.simulator.rng.randint(1, 5), 1 << 16)
            except STORAGE_ERRORS:
                failures += 1
                if failures == 50:
                    raise
                await self.simulator.sleep_ms(50)
                continue
            if batch is None:
                return found
            await self.simulator.sleep_ms(self.simulator.rng.uniform(0, pause_ms))
            found += [
                ((batch.ledger_id, batch.first + i), bytes(x)) for i, x in enumerate(batch.bodies)
            ]
            position = (batch.ledger_id, batch.last + 1)

    async def stop(self) -> None:
        await self.compaction.stop()
        assert self.log is not None
        await self.log.close()


def config_of(simulator: Simulator, *, keeps_all: bool = False) -> ManagedLedgerConfig:
    kept = -1 if keeps_all else 0
    return ManagedLedgerConfig(
        form=PULSAR_ENTRIES,
        ledger_entries_max=simulator.rng.choice([1, 3, 8]),
        ledger_age_min_ms=0,
        retention_ms=kept,
        retention_bytes=kept,
        offload=simulator.rng.choice([OFFLOAD, NO_OFFLOAD]),
    )


async def settle(world: CompactionWorld, config: ManagedLedgerConfig) -> None:
    """A fresh owner: it sees the view that was left, and compacts without a fault."""
    # Nothing is trimmed before it was read.
    kept = ManagedLedgerConfig(
        form=PULSAR_ENTRIES,
        ledger_entries_max=3,
        ledger_age_min_ms=0,
        retention_ms=-1,
        offload=config.offload,
    )
    owner = CompactingBroker(world, kept)
    log = await owner.open()
    world.settled |= dict(await owner.read_all())
    compacted = owner.compaction.current
    world.check_view(await owner.view(), (-1, -1) if compacted is None else compacted.horizon)
    await owner.publish_all(4)
    log.configure(config)
    for _ in range(2):
        before = world.entries()
        found, _ = await asyncio.gather(owner.view(pause_ms=50), owner.compact())
        world.check_changing_view(before, found)
        world.simulator.check(owner.compaction.status == "SUCCESS", owner.compaction.last_error)
        assert owner.compaction.current is not None
        world.check_view(await owner.view(), owner.compaction.current.horizon)
        await owner.publish_all(3)
        owner.consume()
    await settle_copies(world, log)
    assert owner.compaction.current is not None
    world.check_view(await owner.view(), owner.compaction.current.horizon)  # from the copy
    await owner.stop()
    world.check_object_store()


async def settle_copies(world: CompactionWorld, log: ManagedLedger) -> None:
    """What is to be copied is, what is in copies bookies have forgotten, and nothing else is there:
    neither a compacted ledger nor the copy of one that was replaced.
    """
    for _ in range(400):
        log.sweep(int(world.simulator.loop.now * 1000))
        await world.simulator.sleep_ms(50)
        info, offloads = log.lists.info, log.offloads
        if not offloads._is_passing and not offloads._is_due(info) and not info.doomed:
            break
    else:
        world.simulator.check(False, "liveness: there is always something to offload")
    rows = [x for x in log.lists.info.apart if x.ledger_id in world.known_ledgers()]
    world.simulator.check(not rows, f"bookies have {rows}")
    expected = 1 if log.config.offload is OFFLOAD and log.offloads.apart is not None else 0
    found = [x for x in log.lists.info.apart if x.offload is not None and x.offload.is_only]
    empty = log.offloads.apart is not None and not log.offloads.apart.entries
    world.simulator.check(len(found) == expected or empty, f"{log.lists.info.apart}")


async def crash_while_compacting(simulator: Simulator, steps: int) -> bool:
    """An owner dies at its n-th network step; another takes over. False: it never came to that."""
    world = CompactionWorld(simulator, 1)
    config = config_of(simulator)
    first = CompactingBroker(world, config)
    first.node.steps_to_crash = steps

    async def work() -> None:
        await first.open()
        for _ in range(2):
            await first.publish_all(8)
            await first.compact()
            first.consume()
        await first.stop()

    working = simulator.start(work())
    await simulator.sleep_ms(5000)
    has_crashed = not first.node.alive
    simulator.check(has_crashed or working.done(), "the owner hangs")
    await settle(world, config)
    return has_crashed


def test_crash_after_every_step_of_compactions() -> None:
    """In CI after every eighth one."""
    crashes = 0
    stride = 1 if NIGHTLY else 8
    for steps in itertools.count(10, stride):
        if not run_simulation(steps, lambda each, n=steps: crash_while_compacting(each, n)):  # type: ignore[misc]
            break
        crashes += 1
    assert crashes > 100 // stride


FAILURES: Final = (
    *(("metadata", is_lost, lasts) for is_lost in (False, True) for lasts in (False, True)),
    *(("network", True, lasts) for lasts in (False, True)),
    *(("storage", is_lost, True) for is_lost in (False, True)),
    *(("objects", is_lost, lasts) for is_lost in (False, True) for lasts in (False, True)),
    ("process", False, False),
    ("files", False, True),
)


async def fail_at(simulator: Simulator, failure: Failure, *, dies: bool) -> bool:
    """A call of the third compaction fails. False: there are fewer calls.

    Args:
        dies: the owner does so when all is well again.
    """
    world = CompactionWorld(simulator, 1)
    config = config_of(simulator)
    if failure.where == "objects":
        config = replace(config, offload=OFFLOAD)
    owner = CompactingBroker(world, config)
    await owner.open()
    for _ in range(2):
        await owner.publish_all(8)
        await owner.compact()
        owner.consume()
        await simulator.sleep_ms(1000)
        await owner.publish_all(8)
    before = world.entries()
    failure.on, world.failure = True, failure
    await owner.compact()
    if config.offload is OFFLOAD:  # copies are made, and those of the ledger before deleted
        await simulator.sleep_ms(1000)
    failure.on = False
    has_failed = failure.calls > failure.at
    simulator.check(has_failed or owner.compaction.status == "SUCCESS", owner.compaction.last_error)
    world.check_changing_view(before, await owner.view())
    if dies:
        await simulator.sleep_ms(1000)  # what it has begun is over
        owner.node.alive = False
        await settle(world, config)
        return has_failed
    for _ in range(2):  # cursors are stored, and then is trimmed what they don't need
        owner.consume()
        await simulator.sleep_ms(30_000)
    if not owner.is_fenced:
        world.check_changing_view(before, await owner.view())
        await owner.compact()
        simulator.check(owner.compaction.status == "SUCCESS", owner.compaction.last_error)
        assert owner.compaction.current is not None
        world.check_view(await owner.view(), owner.compaction.current.horizon)
    await owner.stop()
    await settle(world, config)
    return has_failed


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize(("where", "is_lost", "lasts"), FAILURES)
def test_every_call_of_a_compaction_fails(
    where: str, is_lost: bool, lasts: bool, dies: bool
) -> None:
    """In CI every sixth one."""
    first = 0 if NIGHTLY else 3 * dies
    for at in itertools.count(first, 1 if NIGHTLY else 6):
        failure = Failure(where, is_lost, lasts, at)
        if not run_simulation(at, lambda each, failure=failure: fail_at(each, failure, dies=dies)):  # type: ignore[misc]
            break
    assert at > 4


async def come_and_go(simulator: Simulator) -> None:
    """Up to three owners, one after the other or at once; readers; faults, then none."""
    rng = simulator.rng
    simulator.network.faults = FaultRates(
        delay_ms_max=rng.choice([2.0, 20.0]),
        message_loss=rng.choice([0.0, 0.02]),
        metadata_unknown=rng.choice([0.0, 0.1, 0.4]),
        metadata_ms_max=rng.choice([1.0, 20.0]),
    )
    world = CompactionWorld(simulator, 1)
    config = config_of(simulator, keeps_all=rng.random() < 0.3)

    async def look(broker: CompactingBroker) -> None:
        before = world.entries()
        with suppress(*STORAGE_ERRORS):
            found = await broker.view()
            if broker.is_owner:
                world.check_changing_view(before, found)

    async def serve() -> None:
        await simulator.sleep_ms(rng.uniform(0, 3000))
        broker = CompactingBroker(world, config)
        if rng.random() < 0.4:
            broker.node.steps_to_crash = rng.randrange(600)
        await broker.open()
        world.settled |= dict(await broker.read_all())
        for _ in range(30):
            if not broker.node.alive or broker.is_fenced:
                break
            broker.publish(rng.randint(1, 4))
            what = rng.random()
            if what < 0.3 and not broker.compaction.is_running:
                broker.compaction.begin()
            elif what < 0.5:
                simulator.start(look(broker))
            elif what < 0.6:
                broker.consume()
            elif what < 0.63:
                broker.node.paused_until = simulator.loop.now + rng.uniform(0, 2)
            await simulator.sleep_ms(rng.choice([0.0, 5.0, 50.0, 1500.0]))
        await broker.stop()

    for _ in range(rng.randint(1, 3)):
        simulator.start(serve())
    await simulator.sleep_ms(30_000)
    simulator.network.faults = FaultRates()
    await simulator.sleep_ms(60_000)
    await settle(world, config)


@pytest.mark.parametrize("seed", seeds(10))
def test_owners_come_and_go_while_they_compact(seed: int) -> None:
    run_simulation(seed, come_and_go)
