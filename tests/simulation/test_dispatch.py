"""Seeded schedules against the dispatch cores: nothing lost, nothing twice, nothing after its ack.

Safety is checked at every delivery; at the end the faults stop and everything must arrive.
``MAGNETAR_SEEDS`` sets how many schedules run.
"""

import functools
import random
import zlib
from collections.abc import Iterable

import pytest

from magnetar.broker.dispatch.interfaces import (
    ConsumerState,
    Deliver,
    DispatchLimits,
    DispatchReadRequest,
    NotifyActive,
    SkipEntries,
)
from magnetar.broker.dispatch.key_selector import HashRing, SplitRanges, StickyRanges
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.dispatch.unacked_budget import UnackedBudget
from magnetar.broker.protocol.entry_header import (
    FLAG_CHUNK,
    FLAG_FIRST_CHUNK,
    FLAG_LAST_CHUNK,
    FLAG_MARKER,
    parse_header,
)
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.position import Position
from magnetar.metadata.loop_turns import run_at_once
from tests.simulation.simulator import seeds
from tests.unit.broker.dispatch.doubles import MemoryCursor, MemoryLedger, choose_active, head

SEEDS = seeds(20)
STEPS = 400
TICK_MS = 1000


class World:
    """A log that grows, a cursor, a clock; what both simulations share."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ledger = MemoryLedger()
        self.ledger.ledgers[10] = []
        self.cursor = MemoryCursor(self.ledger)
        self.now_ms = 1_800_000_000_000
        self.reading: tuple[DispatchReadRequest, Position] | None = None
        self.chunks = 0
        self.plain = self.rng.random() < 0.4  # whole batches of single messages: the fast path

    def append(self) -> None:
        rng = self.rng
        if rng.random() < 0.05:
            self.ledger.ledgers[max(self.ledger.ledgers) + 1] = []
        kind = 1.0 if self.plain else rng.random()
        if kind < 0.1:
            self.ledger.append(head(flags=FLAG_MARKER))
        elif kind < 0.25:
            self.ledger.append(head(rng.randint(2, 30)))
        elif kind < 0.35:
            self.ledger.append(head(deliver_at_ms=self.now_ms + rng.randint(-2000, 9000)))
        elif kind < 0.45:
            self.chunks += 1
            count = rng.randint(2, 4)
            for index in range(count):
                flags = FLAG_CHUNK | (FLAG_FIRST_CHUNK if index == 0 else 0)
                flags |= FLAG_LAST_CHUNK if index == count - 1 else 0
                self.ledger.append(head(flags=flags, chunk=self.chunks))
        else:
            for _ in range(rng.randint(1, 12)):
                self.ledger.append()

    def head_of(self, position: Position) -> bytes:
        return self.ledger.ledgers[position[0]][position[1]][0]

    def messages_at(self, position: Position) -> int:
        """Those that nobody has acknowledged."""
        if (words := self.cursor.partly.get(position)) is not None:
            return sum(word.bit_count() for word in words)
        return parse_header(self.head_of(position)).message_count

    def ack_in_batch(self) -> tuple[Position, bool] | None:
        """Some messages of a batch are acknowledged; where, and whether none is left."""
        pool = [
            at
            for at in self.ledger.positions()
            if at not in self.cursor.acked and parse_header(self.head_of(at)).message_count > 1
        ]
        if not pool:
            return None
        position = self.rng.choice(pool)
        left = self.rng.getrandbits(parse_header(self.head_of(position)).message_count)
        return position, self.cursor.ack_batch(position, [left])

    def seek(self) -> None:
        """The cursor moves, back or ahead; REQUIRES: its consumers were sent away."""
        if positions := self.ledger.positions():
            target = self.rng.choice(positions)
            self.cursor.acked = {at for at in positions if at < target}
            self.cursor.partly.clear()

    def trim(self) -> None:
        """The first ledger goes, if all of it is acknowledged; a read of it may be under way."""
        first = min(self.ledger.ledgers)
        entries = range(len(self.ledger.ledgers[first]))
        if len(self.ledger.ledgers) > 1 and all((first, x) in self.cursor.acked for x in entries):
            del self.ledger.ledgers[first]

    def must_arrive(self) -> set[Position]:
        return {
            position
            for position in self.ledger.positions()
            if not parse_header(self.head_of(position)).flags & FLAG_MARKER
        }

    def markers(self) -> set[Position]:
        return set(self.ledger.positions()) - self.must_arrive()


def picked(effect: Deliver) -> Iterable[tuple[int, Position]]:
    batch = effect.batch
    picks = range(len(batch.heads)) if effect.picks is None else effect.picks
    return [(index, (batch.ledger_id, batch.first + index)) for index in picks]


class SharedWorld(World):
    """A model of every client beside the core under test."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.limits = DispatchLimits(
            read_entries_max=self.rng.choice([3, 20, 1000]),
            round_robin_messages=self.rng.choice([1, 5, 20]),
            unacked_per_consumer=self.rng.choice([0, 40]),
            unacked_per_subscription=self.rng.choice([0, 90, 1]),
            delay_tick_ms=TICK_MS,
            delay_strict=self.rng.random() < 0.5,
            delayed_index_bytes=self.rng.choice([0, 1, 450]),  # full with one entry, with three
        )
        self.core = self.make_core()
        self.permits: dict[ConsumerState, int] = {}
        self.owner: dict[Position, ConsumerState] = {}
        self.nacks: dict[Position, int] = {}
        self.names = 0

    def make_core(self) -> SharedDispatcher:
        return SharedDispatcher(self.limits)

    def turn(self, *, answer_reads: bool) -> None:
        """What the shell does; a missing cache makes reads end in a later step."""
        core = self.core
        for _ in range(1000):
            if self.reading is not None:
                if not answer_reads:
                    return
                request, position = self.reading
                self.reading = None
            elif (wanted := core.next_read()) is not None:
                request = wanted
                position = request.position or self.cursor.state.first_unacked()
                if position <= self.ledger.last_confirmed and self.rng.random() < 0.2:
                    self.reading = (request, position)
                    continue
            else:
                return
            batch = self.ledger.read_nowait(position, request.entries_max, 1 << 20)
            if batch is None:
                core.on_nothing(request, position)
                if not request.replay:
                    return
                continue
            acked = self.cursor.state.acked_in(batch.ledger_id, batch.first, len(batch.heads))
            core.on_entries(request, batch, acked, self.cursor.state.batch_ack_set, self.now_ms)
            self.check_effects()
        raise AssertionError("the dispatcher makes no progress")

    def check_effects(self) -> None:
        for effect in self.core.take_effects():
            if isinstance(effect, SkipEntries):
                assert set(effect.positions) <= self.markers()
                self.cursor.ack(effect.positions)
                continue
            assert isinstance(effect, Deliver)
            self.check_delivery(effect)

    def check_delivery(self, effect: Deliver) -> None:
        consumer = effect.consumer
        assert consumer in self.permits, "delivered to a consumer that left"
        counts = effect.redelivery_counts
        messages = 0
        for nth, (index, position) in enumerate(picked(effect)):
            entry = parse_header(self.head_of(position))
            assert self.permits[consumer] - messages > 0, "sent without permits"
            assert position not in self.cursor.acked, "sent after its ack"
            assert position not in self.owner, "sent while pending"
            assert not entry.flags & FLAG_MARKER
            assert entry.deliver_at_ms <= self.now_ms, "sent before its time"
            assert (counts[nth] if counts else 0) == self.nacks.get(position, 0)
            assert (effect.ack_sets or {}).get(index) == self.cursor.partly.get(position)
            self.owner[position] = consumer
            messages += self.messages_at(position)
        assert messages == effect.messages
        self.permits[consumer] -= messages

    def check_books(self) -> None:
        for consumer, permits in self.permits.items():
            held = [position for position, owner in self.owner.items() if owner is consumer]
            assert consumer.permits == permits
            assert set(consumer.pending) == set(held)
            assert consumer.unacked == sum(map(self.messages_at, held))
        assert self.core.unacked == sum(consumer.unacked for consumer in self.permits)
        for position in self.core.replay:
            assert position not in self.owner

    def step(self) -> None:
        rng, kind = self.rng, self.rng.random()
        consumers = list(self.permits)
        if kind < 0.2:
            self.append()
        elif kind < 0.27 or not consumers:
            self.join()
        elif kind < 0.31:
            self.leave(rng.choice(consumers))
        elif kind < 0.5:
            consumer, permits = rng.choice(consumers), rng.choice([1, 3, 10, 100])
            self.permits[consumer] += permits
            self.core.on_flow(consumer, permits)
        elif kind < 0.75:
            self.acknowledge(rng.choice(consumers))
        elif kind < 0.85:
            self.nack(rng.choice(consumers))
        elif kind < 0.9:
            self.now_ms += rng.randint(1, 3000)
            self.core.on_tick(self.now_ms)
        elif kind < 0.92:
            self.skip()
        elif kind < 0.93:
            for consumer in consumers:
                self.leave(consumer)
            self.seek()
        elif kind < 0.95:
            self.trim()
        elif (acked := self.ack_in_batch()) is not None:
            self.on_acked_in_batch(*acked)
        self.turn(answer_reads=rng.random() < 0.5)

    def join(self) -> None:
        self.names += 1
        joiner = ConsumerState(f"c{self.names}", self.rng.choice([0, 0, 0, 1]))
        self.core.add_consumer(joiner)
        self.permits[joiner] = 0

    def skip(self) -> None:
        """Expiry, or an operator: everything up to somewhere is acknowledged."""
        if positions := self.ledger.positions():
            upto = self.rng.choice(positions[: len(positions) // 2 + 1])
            skipped = [at for at in positions if at <= upto]
            self.cursor.ack(skipped)
            self.core.on_mark_delete(upto)
            self.forget(skipped)

    def on_acked_in_batch(self, position: Position, is_whole: bool) -> None:
        if is_whole:
            self.core.on_acked(None, [position])
            self.forget([position])
        else:
            self.core.on_batch_acked(position, self.messages_at(position))

    def forget(self, acked: Iterable[Position]) -> None:
        for position in acked:
            self.owner.pop(position, None)
            self.nacks.pop(position, None)
            self.cursor.partly.pop(position, None)

    def leave(self, consumer: ConsumerState) -> None:
        self.core.remove_consumer(consumer)
        del self.permits[consumer]
        self.owner = {at: owner for at, owner in self.owner.items() if owner is not consumer}
        if not self.permits:
            self.nacks.clear()

    def acknowledge(self, consumer: ConsumerState) -> None:
        rng = self.rng
        pool = [at for at, owner in self.owner.items() if owner is consumer or rng.random() < 0.05]
        if rng.random() < 0.1:  # a late ack of something that isn't pending any more
            pool += rng.sample(self.ledger.positions(), min(2, len(self.ledger.positions())))
        if not pool:
            return
        positions = rng.sample(pool, rng.randint(1, len(pool)))
        if rng.random() < 0.05:
            positions.append((99_999, 2**64 - 5))  # a lying client
        self.cursor.ack(positions)
        self.core.on_acked(consumer, positions)
        self.forget(positions)

    def nack(self, consumer: ConsumerState) -> None:
        rng = self.rng
        mine = [at for at, owner in self.owner.items() if owner is consumer]
        others = [at for at, owner in self.owner.items() if owner is not consumer][:2]
        if rng.random() < 0.3:
            self.core.redeliver(consumer, None)
            chosen = mine
        else:
            chosen = rng.sample(mine, rng.randint(0, len(mine)))
            self.core.redeliver(consumer, [*chosen, *others])
        for position in chosen:
            del self.owner[position]
            self.nacks[position] = self.nacks.get(position, 0) + 1

    def heal(self) -> None:
        """No more faults: whoever is left acknowledges all; one consumer has permits for all."""
        if not self.permits:
            self.join()
        for _ in range(100 + len(self.ledger.positions())):
            self.now_ms += 2000
            self.core.on_tick(self.now_ms)
            for consumer in self.permits:
                self.permits[consumer] += 1000
                self.core.on_flow(consumer, 1000)
            self.turn(answer_reads=True)
            positions = list(self.owner)
            self.cursor.ack(positions)
            self.core.on_acked(None, positions)
            self.owner.clear()
            if self.must_arrive() <= self.cursor.acked:
                break
        assert self.must_arrive() <= self.cursor.acked, "lost"
        self.turn(answer_reads=True)
        assert self.cursor.state.backlog == 0, "a marker was not skipped"
        assert self.core.unacked == 0
        assert not self.core.replay


@pytest.mark.parametrize("seed", SEEDS)
def test_shared_sends_everything_to_one_consumer_at_a_time(seed: int) -> None:
    world = SharedWorld(seed)
    for step in range(STEPS):
        world.step()
        if step % 8 == 0:
            world.check_books()
    world.heal()


KEYS = 12


def key_of(body: Buffer) -> int:
    """Every entry has one of a few keys, scattered over the slots."""
    return zlib.crc32(bytes(body)) % KEYS * 7_919


class KeySharedWorld(SharedWorld):
    """As Shared, and the order of every key."""

    selector: type[HashRing | SplitRanges] = HashRing

    def make_core(self) -> KeySharedDispatcher:
        return KeySharedDispatcher(self.limits, self.selector(), key_of, draining=True)

    def key_at(self, position: Position) -> int:
        return key_of(self.ledger.ledgers[position[0]][position[1]][1])

    def check_delivery(self, effect: Deliver) -> None:
        arriving = self.must_arrive() - self.cursor.acked
        by_key: dict[int, list[Position]] = {}
        for position in sorted(arriving):
            if not parse_header(self.head_of(position)).deliver_at_ms:
                by_key.setdefault(self.key_at(position), []).append(position)
        now = {position for _, position in picked(effect)}
        for position in now:
            key = self.key_at(position)
            others = [at for at in self.owner if self.key_at(at) == key]
            assert all(self.owner[at] is effect.consumer for at in others), "key at two consumers"
            if parse_header(self.head_of(position)).deliver_at_ms:
                continue  # out of order by its producer's wish
            for at in by_key[key]:
                if at < position:
                    assert at in self.owner or at in now, "overtaken within a key"
        super().check_delivery(effect)


@pytest.mark.parametrize("seed", SEEDS)
def test_key_shared_keeps_the_order_of_every_key(seed: int) -> None:
    world = KeySharedWorld(seed)
    for step in range(STEPS // 2):
        world.step()
        if step % 8 == 0:
            world.check_books()
    world.heal()


class SplitKeySharedWorld(KeySharedWorld):
    """Slots are split between consumers, not hashed on a ring."""

    selector = SplitRanges


QUARTERS = [(first, first + 0x3FFF) for first in range(0, 0x10000, 0x4000)]


class StickyKeySharedWorld(KeySharedWorld):
    """Consumers bring the ranges of slots that they want; some slots may be nobody's."""

    def make_core(self) -> KeySharedDispatcher:
        self.ranges = StickyRanges()
        return KeySharedDispatcher(self.limits, self.ranges, key_of, draining=True)

    def free(self) -> list[tuple[int, int]]:
        return [each for each in QUARTERS if self.ranges.conflict([each]) is None]

    def join(self) -> None:
        if free := self.free():
            self.ranges.offer(self.rng.sample(free, self.rng.randint(1, len(free))))
            super().join()

    def check_delivery(self, effect: Deliver) -> None:
        mine = run_at_once(self.ranges.ranges())[effect.consumer]
        for _, position in picked(effect):
            slot = self.key_at(position) % 0x10000 or 1
            assert any(first <= slot <= last for first, last in mine), "not its slot"
        super().check_delivery(effect)

    def heal(self) -> None:
        while self.free():
            self.join()
        super().heal()


class UnorderedKeySharedWorld(SharedWorld):
    """``allowOutOfOrderDelivery``: a slot moves at once, and nothing is said of the order."""

    def make_core(self) -> KeySharedDispatcher:
        return KeySharedDispatcher(self.limits, HashRing(), key_of, draining=False)


@pytest.mark.parametrize(
    "make", [SplitKeySharedWorld, StickyKeySharedWorld, UnorderedKeySharedWorld]
)
@pytest.mark.parametrize("seed", SEEDS[: len(SEEDS) // 2])
def test_the_other_modes_of_key_shared_lose_nothing(seed: int, make: type[SharedWorld]) -> None:
    world = make(seed)
    for step in range(STEPS // 2):
        world.step()
        if step % 8 == 0:
            world.check_books()
    world.heal()


class SingleActiveWorld(World):
    """One active consumer: order, and nothing after its ack."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.failover = self.rng.random() < 0.7
        self.partition = self.rng.choice([-1, 0, 3])
        limits = DispatchLimits(
            read_entries_max=self.rng.choice([3, 1000]),
            failover_delay_ms=self.rng.choice([0, 1000]),
        )
        self.core = SingleActiveDispatcher(
            limits, failover=self.failover, topic="t", partition_index=self.partition
        )
        self.permits: dict[ConsumerState, int] = {}
        self.told: dict[ConsumerState, bool] = {}
        self.received: list[Position] = []  # since the last rewind, by the active consumer
        self.names = 0

    def turn(self, *, answer_reads: bool) -> None:
        core = self.core
        self.check_effects()
        for _ in range(1000):
            if self.reading is not None:
                if not answer_reads:
                    return
                request, position = self.reading
                self.reading = None
            elif (wanted := core.next_read()) is not None:
                request = wanted
                position = request.position or self.cursor.state.first_unacked()
                if position <= self.ledger.last_confirmed and self.rng.random() < 0.3:
                    self.reading = (request, position)
                    continue
            else:
                return
            batch = self.ledger.read_nowait(position, request.entries_max, 1 << 20)
            if batch is None:
                core.on_nothing(request, position)
                return
            acked = self.cursor.state.acked_in(batch.ledger_id, batch.first, len(batch.heads))
            core.on_entries(request, batch, acked, self.cursor.state.batch_ack_set, self.now_ms)
            self.check_effects()
        raise AssertionError("the dispatcher makes no progress")

    def check_effects(self) -> None:
        for effect in self.core.take_effects():
            match effect:
                case SkipEntries(positions):
                    assert set(positions) <= self.markers()
                    self.cursor.ack(positions)
                case NotifyActive(consumer, is_active):
                    assert self.failover
                    self.told[consumer] = is_active
                case Deliver():
                    self.check_delivery(effect)

    def check_delivery(self, effect: Deliver) -> None:
        consumer = effect.consumer
        assert consumer is choose_active(list(self.permits), "t", self.partition)
        assert not self.failover or self.told[consumer], "messages before ACTIVE_CONSUMER_CHANGE"
        messages, wanted = 0, self.must_arrive()
        for index, position in picked(effect):
            assert self.permits[consumer] - messages > 0
            assert (effect.ack_sets or {}).get(index) == self.cursor.partly.get(position)
            assert position not in self.cursor.acked
            assert position in wanted, "a marker was sent"
            assert not self.received or position > self.received[-1], "out of order"
            between = [
                at
                for at in wanted
                if at < position and (not self.received or at > self.received[-1])
            ]
            assert all(at in self.cursor.acked for at in between), "a gap"
            self.received.append(position)
            messages += self.messages_at(position)
        assert messages == effect.messages
        self.permits[consumer] -= messages

    def step(self) -> None:
        rng, kind = self.rng, self.rng.random()
        consumers = list(self.permits)
        active = self.core.active
        if kind < 0.3:
            self.append()
        elif not consumers or (kind < 0.36 and self.failover):
            self.names += 1
            joiner = ConsumerState(f"c{rng.randint(0, 99)}-{self.names}", rng.choice([0, 0, 1]))
            self.permits[joiner] = 0
            self.core.add_consumer(joiner, self.now_ms)
        elif kind < 0.4:
            self.leave(rng.choice(consumers))
        elif kind < 0.65:
            consumer, permits = rng.choice(consumers), rng.choice([1, 5, 50])
            self.permits[consumer] += permits
            self.core.on_flow(consumer, permits)
        elif kind < 0.85 and self.received:
            if rng.random() < 0.5:
                upto = rng.choice(self.received)
                self.cursor.ack([at for at in self.ledger.positions() if at <= upto])
            else:
                self.cursor.ack([rng.choice(self.received)])
        elif kind < 0.9:
            consumer = rng.choice(consumers)
            self.core.redeliver(consumer, None, rng.choice([None, 7]))
            if consumer is active:
                self.received.clear()
        elif kind < 0.95:
            self.now_ms += rng.randint(1, 1500)
            generation = self.core.generation
            self.core.on_tick(self.now_ms)
            if self.core.generation != generation:
                self.received.clear()
        elif kind < 0.96:
            for leaver in consumers:
                self.leave(leaver)
            self.seek()
            self.received.clear()
        elif kind < 0.98:
            self.trim()
        else:
            self.ack_in_batch()
        if self.core.active is not active:
            self.received.clear()
        self.turn(answer_reads=rng.random() < 0.5)

    def leave(self, consumer: ConsumerState) -> None:
        self.core.remove_consumer(consumer, self.now_ms)
        del self.permits[consumer]
        self.told.pop(consumer, None)

    def heal(self) -> None:
        if not self.permits:
            last = ConsumerState("last")
            self.permits[last] = 0
            self.core.add_consumer(last, self.now_ms)
            self.received.clear()
        self.turn(answer_reads=True)
        self.now_ms += 10_000
        self.core.on_tick(self.now_ms)
        active = self.core.active
        assert active is not None
        self.core.redeliver(active, None)
        self.received.clear()
        permits = 100_000 + max(0, -active.permits)
        self.permits[active] += permits
        self.core.on_flow(active, permits)
        for _ in range(len(self.ledger.positions()) + 10):
            self.turn(answer_reads=True)
        assert self.must_arrive() <= self.cursor.acked | set(self.received), "lost"


@pytest.mark.parametrize("seed", SEEDS)
def test_single_active_keeps_the_order_and_loses_nothing(seed: int) -> None:
    world = SingleActiveWorld(seed)
    for _ in range(STEPS):
        world.step()
    world.heal()


@pytest.mark.parametrize("seed", SEEDS[: len(SEEDS) // 2])
def test_dispatchers_that_share_a_budget(seed: int) -> None:
    """The sum is exact, the right ones wait and read nothing, whoever may go on is woken."""
    rng = random.Random(seed)
    budget = UnackedBudget(rng.choice([1, 30, 120]), rng.choice([0.05, 0.16, 0.5]))
    worlds = [rng.choice([SharedWorld, KeySharedWorld])(3 * seed + nth) for nth in range(3)]
    woken: set[SharedDispatcher] = set()
    for world in worlds:
        budget.join(world.core, functools.partial(woken.add, world.core))
    for step in range(STEPS):
        waited = {world.core for world in worlds if world.core.waits_for_broker}
        woken.clear()
        rng.choice(worlds).step()
        assert budget.total == sum(world.core.unacked for world in worlds)
        if budget.is_exceeded:
            assert 2 * budget.total >= budget.limit
        else:
            assert budget.total < budget.limit
        for core in (world.core for world in worlds):
            if core.waits_for_broker:
                assert budget.is_exceeded
                assert core.unacked > budget.limit_of_each // 2
                assert core.next_read() is None
            else:
                assert not budget.is_exceeded or core.unacked <= budget.limit_of_each
                assert core not in waited or core in woken
        if step % 8 == 0:
            for world in worlds:
                world.check_books()
    for world in worlds:
        world.heal()
    assert budget.total == 0
    assert not budget.is_exceeded
