"""Cursors under crashes, failing bookies, lost replies and stale owners.

Whatever happens, for every acknowledged batch index (docs/spec/storage.md, "Safety", 37 to 39):

- what an owner answered as durable is acknowledged after the next recovery;
- nothing is acknowledged after a recovery that no client ever acknowledged;
- the properties of mark-delete are those of one acknowledgement, never a mixture or older ones than
  an answered one's;
- no recovery finds a position behind the `durable_mark_delete` of the owner before, which trimming
  goes by, whatever write failed;
- the node names an existing cursor ledger with a durable snapshot, or holds the position itself;
- once another owner has loaded the cursor, the earlier one makes nothing durable any more;
- whoever takes the node without having the log's list doesn't fence the one that has it;
- a cursor ledger that is lost takes the cursor back to the position in the node, not behind it, and
  nothing is skipped.

A seed replays exactly: ``MAGNETAR_SEED=17 MAGNETAR_SEEDS=1 pytest``.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor import (
    ack_state,
    acked_sections,
    cursor_format,
    cursor_store,
    cursor_writer,
)
from magnetar.managed_ledger.cursor.cursor import AckDone, Cursor, load_or_create_cursor
from magnetar.managed_ledger.cursor.cursor_store import NO_LEDGER, decode_node
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.position import Position
from magnetar.metadata.errors import MetadataError
from tests.simulation.simulator import seeds
from tests.unit.managed_ledger.cursor_doubles import (
    FakeLog,
    FakeNodes,
    Faults,
    Storage,
    cancel_all_tasks,
)

BATCH = 4  # every entry is a batch of so many
WHOLE = (1 << BATCH) - 1

Index = tuple[int, int, int]
Acked = frozenset[Index]


def acked_by(cursor: Cursor, log: FakeLog) -> Acked:
    """Every batch index that the cursor holds for acknowledged."""
    found: set[Index] = set()
    for position in log.all_positions():
        left = WHOLE
        if cursor.state.is_acked(position):
            left = 0
        elif (words := cursor.state.batch_ack_set(position)) is not None:
            left = words[0]
        found.update((*position, n) for n in range(BATCH) if not left >> n & 1)
    return frozenset(found)


class Owner:
    """One broker's cursor."""

    def __init__(self, world: "World", log: FakeLog, cursor: Cursor) -> None:
        self.world, self.log, self.cursor = world, log, cursor
        self.memory = acked_by(cursor, log)

    def ack(self, rng: random.Random) -> None:
        """A random acknowledgement; its answer is judged when it comes."""
        log, cursor = self.log, self.cursor
        expected: list[Acked] = []

        def done(error: BaseException | None) -> None:
            if error is None:
                self.world.on_durable(self, expected[0] if expected else self.memory)

        on_durable = done if rng.random() < 0.6 else None
        start = cursor.state.first_unacked()
        some = rng.choice(log.all_positions())
        kind = rng.random()
        if kind < 0.4:
            run = [start]
            for _ in range(rng.randint(0, 4)):
                run.append(log.offsets.next_position(run[-1]))
            cursor.ack(run, on_durable)
        elif kind < 0.65:
            cursor.ack([some, rng.choice(log.all_positions()), (99, 1)], on_durable)
        elif kind < 0.75:
            self.ack_with_properties(some, on_durable)
        elif kind < 0.95:
            cursor.ack_batch(some, [rng.randrange(WHOLE + 1)], on_durable)
        else:
            cursor.ack_cumulative_batch(some, [rng.randrange(WHOLE + 1)], on_durable)
        self.memory = acked_by(cursor, log)
        expected.append(self.memory)
        self.world.on_acked(self)

    def ack_with_properties(self, position: Position, on_durable: AckDone | None) -> None:
        """The same number under each name, so that a mixture of two acknowledgements shows."""
        world, rng = self.world, self.world.rng
        number = len(world.properties)
        width = rng.choice([1, 1, 1, 60])
        properties = {f"{i}".rjust(width): number for i in range(rng.choice([1, 1, 1, 1, 9]))}
        world.properties.append(properties)

        def done(error: BaseException | None) -> None:
            is_heard = self is world.current and not self.log.faults.is_killed
            if error is None and is_heard and not world.is_resetting and is_taken:
                world.durable_number = max(world.durable_number, number)
            if on_durable is not None:
                on_durable(error)

        is_taken = False
        self.cursor.ack_cumulative(position, properties, done)
        is_taken = self.cursor.state.properties == properties


class World:
    """Storage, the owners, and what must be true."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.storage, self.nodes = Storage(), FakeNodes()
        self.nodes.check = self.check_node
        ledgers = {n: self.rng.randint(1, 9) for n in sorted(self.rng.sample(range(1, 20), 4))}
        # Dice of its own. A rate this low means never by itself: nothing here goes by the clock.
        rate = random.Random(13 * seed + 1).choice([0.0, 0.0, 0.0001])
        config = ManagedLedgerConfig(
            cursor_ledger_entries_max=self.rng.choice([2, 5, 50]), mark_delete_rate=rate
        )
        self.log = FakeLog(ledgers, self.storage, self.nodes, self.faults(), config, "s0")
        self.current: Owner | None = None
        self.takeover = frozenset[Index]()  # what the current owner found
        self.durable = frozenset[Index]()
        self.ever = frozenset[Index]()
        self.maybe_resets: list[Acked] = []  # failed resets, any of which may have been stored
        self.is_resetting = False
        self.lost = set[int]()  # cursor ledgers
        self.properties: list[dict[str, int]] = [{}]  # of every acknowledgement that had any
        self.durable_number = 0  # of the last of them that was answered
        self.is_rewound = False  # since the owner was loaded
        self.sessions = 0
        self.tasks: list[asyncio.Future[Any]] = []

    def faults(self) -> Faults:
        rng = self.rng
        return Faults(
            rng=rng,
            crash_at=rng.randint(1, 60) if rng.random() < 0.7 else -1,
            unknown_rate=rng.choice([0, 0, 0.2, 0.6]),
            append_failure_rate=rng.choice([0, 0, 0.1, 0.5]),
            create_failure_rate=rng.choice([0, 0, 0.2, 0.7]),
            put_failure_rate=rng.choice([0, 0, 0, 0, 0.4]),
            delay_max=rng.choice([0, 2, 6]),
        )

    # -- judgement -------------------------------------------------------------------------------

    def check_node(self) -> None:
        for value, _ in self.nodes.nodes.values():
            node, _ = decode_node(value, "node")
            if node.ledger_id != NO_LEDGER and node.ledger_id not in self.lost:
                assert node.ledger_id in self.storage.ledgers, "the node names a deleted ledger"
                assert self.storage.ledgers[node.ledger_id].confirmed >= 0, "no snapshot yet"

    def on_acked(self, owner: Owner) -> None:
        if owner is self.current:
            self.ever |= owner.memory

    def on_durable(self, owner: Owner, acked: Acked) -> None:
        if owner.log.faults.is_killed:
            return  # it answers nobody any more
        if owner is self.current and self.is_resetting:
            return  # superseded: what waited for a write is answered together with the reset
        if owner is self.current:
            self.durable |= acked
            self.maybe_resets.clear()
        else:
            assert acked <= self.takeover, "a stale owner made something durable"

    def verify(self, found: Acked) -> None:
        """What a recovery found."""
        as_before = self.durable <= found <= self.ever
        if not (as_before or found in self.maybe_resets):
            raise AssertionError(
                f"lost {sorted(self.durable - found)}, invented {sorted(found - self.ever)}"
            )
        if not as_before:
            self.durable = self.ever = found
        self.durable |= found
        self.maybe_resets.clear()

    def verify_trimming(self, owner: Owner) -> None:
        """What the owner before might have trimmed, the one that is loaded has behind it."""
        before = self.current
        is_rewound, self.is_rewound = self.is_rewound, False
        if before is None or is_rewound:
            return
        trimmed = before.cursor.durable_mark_delete
        passed = {(*x, n) for x in before.log.all_positions() if x <= trimmed for n in range(BATCH)}
        assert passed <= owner.memory, f"{trimmed} was durable, {owner.cursor.mark_delete} is found"

    def verify_properties(self, found: dict[str, int], acked: Acked) -> None:
        """All of one acknowledgement, which isn't older than the last that was answered."""
        number = max(found.values(), default=0)
        assert found == self.properties[number], f"{found}, not {self.properties[number]}"
        if acked not in self.maybe_resets:
            assert number >= self.durable_number, f"{found}, {self.durable_number} was answered"
        self.durable_number = number

    # -- scenario --------------------------------------------------------------------------------

    async def finished(
        self, work: Coroutine[Any, Any, Any], log: FakeLog, cancel_after: int = -1
    ) -> bool:
        """False: it failed as it may, was cancelled, or its owner died."""
        task = asyncio.ensure_future(work)
        self.tasks.append(task)  # the loop holds no reference to what a dead owner waits for
        for tick in range(20_000):
            if task.done() or log.faults.is_killed:
                break
            if tick == cancel_after:
                task.cancel()
            await asyncio.sleep(0)
        else:
            raise AssertionError("nothing died, and the call never returned")
        if not task.done() or task.cancelled():
            return False
        if isinstance(task.exception(), ManagedLedgerError | MetadataError):
            return False
        task.result()  # anything else is a bug
        return True

    async def load(self, faults: Faults) -> Owner | None:
        self.sessions += 1
        log = self.log.successor(f"s{self.sessions}", faults)
        loaded: list[Cursor] = []

        async def load() -> None:
            loaded.append(await load_or_create_cursor(log, "sub", (0, -1), {}))

        if not await self.finished(load(), log):
            return None
        owner = Owner(self, log, loaded[0])
        self.verify_trimming(owner)
        self.verify_properties(loaded[0].state.properties, owner.memory)
        self.verify(owner.memory)
        self.current, self.takeover = owner, owner.memory
        return owner

    async def rival(self) -> None:
        """A process that lost the list while it was opening takes the node all the same, and would
        find out then. It may die at each step, or its writes come late.
        """
        self.sessions += 1
        log = self.log.rival(f"s{self.sessions}", self.faults())
        await self.finished(load_or_create_cursor(log, "sub", (0, -1), {}), log)
        log.faults.is_killed = True

    async def reset(self, owner: Owner, target: Position) -> None:
        image = frozenset(
            (*p, n) for p in owner.log.all_positions() if p < target for n in range(BATCH)
        )
        self.maybe_resets.append(image)
        self.is_resetting, self.durable_number = True, 0
        cancel_after = self.rng.choice([-1, -1, 0, 1, 3, 9])
        is_reset = await self.finished(owner.cursor.reset(target), owner.log, cancel_after)
        self.is_resetting = False
        if is_reset:
            assert owner is self.current
            owner.memory = self.durable = self.ever = image
            assert acked_by(owner.cursor, owner.log) == image
            self.maybe_resets.clear()

    async def act(self, owner: Owner) -> None:
        kind = self.rng.random()
        if kind < 0.8:
            owner.ack(self.rng)
        elif kind < 0.85:
            await self.finished(owner.cursor.flush(), owner.log)
        elif kind < 0.88:
            properties = {"a": str(self.rng.random())}
            await self.finished(owner.cursor.set_cursor_properties(properties), owner.log)
        elif kind < 0.93 and owner is self.current:
            await self.reset(owner, self.rng.choice(owner.log.all_positions()))
        elif kind >= 0.93:
            await self.burst(owner)
        for _ in range(self.rng.choice([0, 0, 1, 5, 30])):
            await asyncio.sleep(0)

    async def burst(self, owner: Owner) -> None:
        """Acknowledgements in every tick of writes, between slices too, and perhaps a crash as soon
        as the last one is answered.
        """
        for _ in range(self.rng.randint(2, 15)):
            owner.ack(self.rng)
            await asyncio.sleep(0)
        await self.finished(owner.cursor.flush(), owner.log)
        if self.rng.random() < 0.3:
            owner.log.faults.is_killed = True

    def lose_the_ledger(self) -> None:
        """Its metadata are gone for good: somebody deleted it, with no owner alive."""
        assert self.current is not None
        self.current.log.faults.is_killed = True
        self.nodes.apply_late(self.rng)
        for value, _ in self.nodes.nodes.values():
            node, _ = decode_node(value, "node")
            if node.ledger_id != NO_LEDGER:
                self.storage.ledgers.pop(node.ledger_id, None)  # or it is lost already
                self.lost.add(node.ledger_id)
                self.is_rewound, self.durable_number = True, 0
                passed = [x for x in self.log.all_positions() if x <= node.mark_delete]
                self.durable = frozenset((*x, n) for x in passed for n in range(BATCH))
                self.maybe_resets.clear()

    async def generation(self) -> None:
        """An owner loads the cursor and works until it dies, closes, or is overtaken."""
        if self.current is not None and self.rng.random() < 0.2:
            self.lose_the_ledger()
        stale = self.current
        if self.rng.random() < 0.3:  # the cursor ledger can't be read for a while
            self.storage.is_unavailable = True
            early = await self.load(Faults(random.Random(self.rng.random())))
            self.storage.is_unavailable = False
            if early is not None:
                early.log.faults.is_killed = True
        owner = await self.load(self.faults())
        if owner is None:
            return
        for _ in range(self.rng.randint(1, 60)):
            if owner.log.faults.is_killed or owner.cursor.is_closed:
                break
            if self.rng.random() < 0.05:
                await self.rival()
            await self.act(owner)
            if stale is not None and not stale.log.faults.is_killed and not stale.cursor.is_closed:
                await self.act(stale)
        assert not owner.log.fenced, "fenced by one who hasn't the list"
        if not owner.log.faults.is_killed and self.rng.random() < 0.3:
            if not owner.cursor.is_closed:
                owner.ack(self.rng)  # the close must store it, asked for a receipt or not
            memory = acked_by(owner.cursor, owner.log)
            was_fenced = bool(owner.log.fenced)
            if await self.finished(owner.cursor.close(), owner.log) and not (
                was_fenced or owner.log.fenced
            ):
                self.durable |= memory
        if self.rng.random() < 0.7:
            owner.log.faults.is_killed = True  # killed; else it lives on as a stale owner
        if self.rng.random() < 0.7:
            self.nodes.apply_late(self.rng)

    async def run(self) -> None:
        for _ in range(self.rng.randint(2, 8)):
            await self.generation()
            self.check_node()
        if self.current is not None:
            self.current.log.faults.is_killed = True
        self.nodes.apply_late(self.rng)
        owner = await self.load(Faults())  # healed: everything works, and is found again
        assert owner is not None
        for _ in range(10):
            owner.ack(self.rng)
        await owner.cursor.flush()
        memory = owner.memory
        again = await self.load(Faults())
        assert again is not None
        assert again.memory == memory
        names = [value for value, _ in self.nodes.nodes.values()]
        assert len(names) == 1
        await cancel_all_tasks()


def tiny_limits(change: Callable[[object, str, Any], object]) -> None:
    """Chunked snapshots, frequent ones, all in many slices, states too large for a node.

    Args:
        change: of an attribute: ``monkeypatch.setattr`` fits.
    """
    change(cursor_format, "CHUNK_BYTES_MAX", 60)
    change(cursor_format, "SLICE_WORK_MAX", 1)
    change(acked_sections, "_PACKED_BYTES_MIN", 0)
    change(cursor_format, "_PACKED_SETS_MIN", 1)
    change(cursor_format, "_SETS_PER_SECTION", 2)
    change(cursor_format, "_PROPERTIES_PART", 30)
    change(cursor_format, "PROPERTIES_BYTES_MAX", 60)
    change(ack_state, "_PROPERTIES_AT_ONCE", 2)
    change(ack_state, "_PROPERTIES_CHARACTERS_AT_ONCE", 20)
    change(cursor_store, "STATE_BYTES_MAX", 100)
    change(cursor_store, "NODE_BYTES_MAX", 500)
    change(cursor_writer, "INCREMENTS_MAX", 3)
    change(cursor_writer, "QUICK_WORK_MAX", 8)
    change(cursor_writer, "SLICE_WORK_MAX", 1)
    change(cursor_writer, "ROTATION_RETRY_ENTRIES", 3)


@pytest.fixture(params=["usual", "tiny limits"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tiny limits":
        tiny_limits(monkeypatch.setattr)


async def scripted(world: World, faults: Faults) -> None:
    """Creation, first ledger, increments, holes, rotation, reset, close; until it dies."""
    owner = await world.load(faults)
    if owner is None:
        return
    first, second = sorted(owner.log.ledgers)[:2]
    world.properties = [{}, {"n": 1}]
    script = [
        lambda: owner.cursor.ack([(first, 0)]),
        lambda: owner.cursor.ack([(second, 1), (second, 3)]),
        lambda: owner.cursor.ack_batch((second, 2), [0b0101]),
        lambda: owner.cursor.ack_cumulative((first, 2), {"n": 1}),
        lambda: owner.cursor.ack_batch((second, 2), [0b0001]),
        None,
        lambda: owner.cursor.ack([(first, 3), (first, 4)]),
        lambda: owner.cursor.ack_cumulative_batch((second, 0), [0b1000]),
    ]
    for step in script:
        if step is None:
            await world.reset(owner, (first, 1))
        else:
            step()
            owner.memory = acked_by(owner.cursor, owner.log)
            world.on_acked(owner)
            if await world.finished(owner.cursor.flush(), owner.log):
                world.on_durable(owner, owner.memory)
        if owner.log.faults.is_killed:
            return
    if await world.finished(owner.cursor.close(), owner.log):
        world.durable |= owner.memory


@pytest.mark.parametrize("append_failure_rate", [0.0, 0.4])
def test_a_crash_at_each_step(append_failure_rate: float, limits: None) -> None:
    """Step n of the script for every n, before and after each effect on storage."""

    async def crash_at(n: int) -> bool:
        world = World(1)
        world.log.ledgers = {3: 6, 5: 6}
        world.log.config = ManagedLedgerConfig(cursor_ledger_entries_max=3)
        faults = Faults(random.Random(n), n, append_failure_rate=append_failure_rate)
        await scripted(world, faults)
        is_crashed = faults.is_killed
        faults.is_killed = True
        for _ in range(2):
            owner = await world.load(Faults())
            assert owner is not None
            assert await world.finished(owner.cursor.flush(), owner.log)
        await cancel_all_tasks()
        return is_crashed

    steps = 0
    while asyncio.run(crash_at(steps + 1)):
        steps += 1
    assert steps > 30


@pytest.mark.parametrize("seed", seeds(100))
def test_durable_acknowledgements_survive_everything(seed: int, limits: None) -> None:
    asyncio.run(World(seed).run())
