"""Seeded schedules of storage, rates, resets and a broker's limit: what is told of each position of
a log, and of a subscription, is what the model knows.

Its consumers take whatever they get, so nothing else holds messages back.
"""

import asyncio
import random
from typing import Any, cast

import pytest

from magnetar.broker.dispatch.explanation import Reason
from magnetar.broker.dispatch.unacked_budget import UnackedBudget
from magnetar.broker.policies.effective import Rate
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.rate_limits.rate_limiter import RateLimiter
from magnetar.broker.subscription.consumer import EXCLUSIVE, SHARED, Consumer
from magnetar.broker.subscription.message_explanation import NO_MESSAGE, explain_message
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.position import Position
from tests.manual_clock import ManualLoop
from tests.simulation.simulator import seeds
from tests.unit.broker.dispatch.builders import Bench, FakeSink, settle

SEEDS = seeds(4)
STEPS = 100
_ALL = 1_000_000_000
_PARTS = 3


class StoredWorld:
    """A subscription with one consumer, over storage that answers, is silent or fails."""

    def __init__(self, seed: int, sub_type: int) -> None:
        self.rng = random.Random(seed)
        self.sub_type = sub_type
        self.bench = Bench([1])
        self.ledger, self.cursor = self.bench.ledger, self.bench.cursor
        self.ledger.cached = False
        self.ledger.read_error = ManagedLedgerError("no bookie answers")
        self.loop = ManualLoop()
        self.is_limited = seed % 2 == 1
        if self.is_limited:
            limiter = RateLimiter(Rate(20, 0), cast("Any", self.loop))
            self.bench.topic.rate_limits.dispatch = limiter
            self.bench.subscription.policies_changed()
        self.storage = "answers"
        self.trimmed: set[Position] = set()
        self.joined: tuple[Consumer, FakeSink] | None = None
        self.told: set[Reason] = set()

    async def begin(self) -> None:
        self.joined = await self.bench.consumer(self.sub_type, permits=_ALL)

    @property
    def held(self) -> set[Position]:
        """What the consumer has. One that comes anew gets all of it again."""
        return set() if self.joined is None else set(self.joined[1].got) - self.cursor.acked

    def undelivered(self) -> list[Position]:
        done = self.held | self.cursor.acked
        return [each for each in self.ledger.positions() if each not in done]

    async def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.3:
            for _ in range(self.rng.randint(1, 8)):
                self.ledger.append()
        elif kind < 0.4:
            self.ledger.ledgers[max(self.ledger.ledgers) + 1] = []
        elif kind < 0.65:
            self.acknowledge()
        elif kind < 0.72:
            self.trim()
        elif kind < 0.82:
            self.turn_storage(self.rng.choice(["answers", "silent", "fails"]))
        elif kind < 0.9:
            await self.come_again()
        elif kind < 0.94:
            await self.reset()
        else:
            self.loop.advance(500)
        self.bench.subscription.wake()
        self.check_coming()
        await settle()

    def check_coming(self) -> None:
        """Before its dispatcher has its turn."""
        is_free = self.storage == "answers" and not self.is_limited and not self.waits_for_storage
        if self.joined is None or not is_free:
            return
        for before, position in enumerate(coming := self.undelivered()):
            found = self.bench.subscription.explain_entry(position, None)
            assert found.reason is Reason.DELIVERING
            assert coming[0] < self.read_position or found.details["entriesBefore"] == before
            self.told.add(found.reason)

    @property
    def read_position(self) -> Position:
        return self.bench.subscription.read_position

    def turn_storage(self, to: str) -> None:
        """What it is asked meanwhile has its new state."""
        self.storage = to
        self.ledger.fail_reads = _ALL if to == "fails" else 0
        (self.ledger.may_read.clear if to == "silent" else self.ledger.may_read.set)()

    async def come_again(self) -> None:
        """Also so that nothing waits for the next try to read."""
        if self.joined is not None:
            self.bench.subscription.remove_consumer(self.joined[0])
            self.joined = None
            await settle()
        if self.rng.random() < 0.8:
            await self.begin()

    def acknowledge(self) -> None:
        if self.joined is not None and (held := sorted(self.held)):
            count = self.rng.randint(1, len(held))
            chosen = held[:count] if self.rng.random() < 0.5 else self.rng.sample(held, count)
            self.bench.subscription.acknowledge(self.joined[0], chosen)

    def trim(self) -> None:
        first = min(self.ledger.ledgers)
        entries = {(first, entry) for entry in range(len(self.ledger.ledgers[first]))}
        if len(self.ledger.ledgers) > 1 and entries <= self.cursor.acked:
            del self.ledger.ledgers[first]
            self.trimmed |= entries
            self.cursor.acked -= entries

    async def reset(self) -> None:
        """To somewhere, while the store that is to keep it takes its time."""
        may_store = asyncio.Event()
        reset = self.cursor.reset

        async def late(*arguments: Any) -> None:
            await may_store.wait()
            await reset(*arguments)

        target = self.rng.choice(self.ledger.positions() or [self.ledger.last_confirmed])
        cast("Any", self.cursor).reset = late
        moving = asyncio.ensure_future(self.bench.subscription.reset(target))
        try:
            await settle()
            found = self.bench.subscription.explain(None)
            assert found.reason is Reason.RESETTING
            self.told.add(found.reason)
        finally:
            may_store.set()
            await moving
            del cast("Any", self.cursor).reset
        self.joined = None  # it was sent away

    # --- what is told

    def withheld(self) -> set[Reason]:
        """Why what was not delivered isn't."""
        if self.joined is None:
            return {Reason.NO_CONSUMER}
        by_storage = {"answers": set(), "silent": {Reason.READING}, "fails": {Reason.READ_FAILED}}
        # A read that began before may be the one that is waited for.
        late = {Reason.READ_FAILED, Reason.READING} if self.waits_for_storage else set()
        return (
            by_storage[self.storage] | late | ({Reason.RATE_LIMITED} if self.is_limited else set())
        )

    @property
    def waits_for_storage(self) -> bool:
        """It failed, and is asked again later; or was silent."""
        dispatcher = cast("Any", self.bench.subscription)._dispatcher
        return dispatcher is not None and (dispatcher._retry or dispatcher.reading) is not None

    async def check(self) -> None:
        found, undelivered = self.bench.subscription.explain(None), self.undelivered()
        self.told.add(found.reason)
        if undelivered:
            assert found.reason in self.withheld(), found
        elif self.cursor.backlog:
            assert found.reason in (Reason.PENDING, Reason.NO_CONSUMER), found
        else:
            assert found.reason is Reason.CAUGHT_UP
        for position in self.positions():
            await self.check_position(position)

    def positions(self) -> list[Position]:
        """One of each kind, and of those behind the end and the last one of a ledger."""
        last = self.ledger.last_confirmed
        kinds: list[list[Position]] = [
            sorted(each) for each in (self.trimmed, self.held, self.cursor.acked)
        ]
        kinds += [self.undelivered(), [(last[0], last[1] + 1), (last[0] + 9, 0)], [NO_MESSAGE]]
        full = [at for at, entries in self.ledger.ledgers.items() if at < last[0] and entries]
        kinds.append([(at, len(self.ledger.ledgers[at])) for at in full])
        return [self.rng.choice(each) for each in kinds if each]

    def expected(self, position: Position) -> set[Reason]:
        if position == NO_MESSAGE:
            return {Reason.NOT_FOUND}
        if position > self.ledger.last_confirmed:
            return {Reason.PAST_END}
        if position[0] not in self.ledger.ledgers:
            return {Reason.TRIMMED}
        if position[1] >= len(self.ledger.ledgers[position[0]]):
            return {Reason.NOT_FOUND}
        if position in self.cursor.acked:
            return {Reason.ACKNOWLEDGED}
        if position in self.held:
            return {Reason.PENDING}
        unreadable = {Reason.READ_FAILED} if self.storage == "fails" else set[Reason]()
        return self.withheld() | unreadable

    async def check_position(self, position: Position) -> None:
        expected = self.expected(position)
        if self.storage == "silent" and position in self.ledger.positions():
            return  # whoever asks waits, too
        found = await explain_message(self.bench.subscription, position)
        assert found.reason in expected, (position, found)
        self.told.add(found.reason)


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED])
def test_what_is_told_of_each_position_is_what_became_of_it(sub_type: int) -> None:
    async def run(seed: int) -> set[Reason]:
        world = StoredWorld(seed, sub_type)
        await world.begin()
        for _ in range(STEPS):
            await world.step()
            await world.check()
        world.turn_storage("answers")
        world.bench.subscription.fenced = True
        assert world.bench.subscription.explain(None).reason is Reason.CLOSING
        return world.told

    told = set[Reason]().union(*(asyncio.run(run(seed)) for seed in SEEDS))
    assert told >= {
        *(Reason.TRIMMED, Reason.NOT_FOUND, Reason.PAST_END, Reason.ACKNOWLEDGED, Reason.PENDING),
        *(Reason.READING, Reason.READ_FAILED, Reason.RATE_LIMITED, Reason.RESETTING),
        *(Reason.NO_CONSUMER, Reason.CAUGHT_UP, Reason.DELIVERING),
    }


def stored_part(bench: Bench, message: int, part: int) -> Position:
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=message,
        publish_time=1,
        uuid=f"m{message}",
        chunk_id=part,
        num_chunks_from_msg=_PARTS,
    )
    return bench.ledger.append(make_header(metadata), body=encode_body(metadata, b"x"))


@pytest.mark.parametrize("seed", SEEDS)
async def test_parts_wait_for_those_that_are_not_there(seed: int) -> None:
    """Not stored yet, or acknowledged: a client never gets them together."""
    rng, bench = random.Random(seed), Bench([1])
    consumer, sink = await bench.consumer(SHARED, permits=_ALL)
    parts: dict[Position, tuple[int, int]] = {}
    begun, told = dict.fromkeys(range(3), 0), set[Reason]()
    for _ in range(STEPS):
        if rng.random() < 0.7 or not parts:
            message = rng.choice(list(begun))
            parts[stored_part(bench, message, begun[message])] = message, begun[message]
            begun[message] += 1
            if begun[message] == _PARTS:
                begun[max(begun) + 1] = 0
                del begun[message]
        else:
            gone = rng.choice(list(parts))
            del parts[gone]
            bench.subscription.acknowledge(consumer, [gone])
        bench.subscription.wake()
        await settle()
        assert parts.keys() <= set(sink.got)
        for position, (message, _) in parts.items():
            there = {part for of, part in parts.values() if of == message}
            missing = [part + 1 for part in range(_PARTS) if part not in there]
            found = await explain_message(bench.subscription, position)
            told.add(found.reason)
            assert found.reason is (Reason.INCOMPLETE if missing else Reason.PENDING)
            assert found.details.get("missingParts", []) == missing
    assert told == {Reason.INCOMPLETE, Reason.PENDING}


class SharedLimit:
    """Subscriptions of one broker, whose consumers have permits for everything."""

    LIMIT, SHARE = 60, 0.25

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        budget = UnackedBudget(self.LIMIT, self.SHARE)
        self.benches = [Bench([1]) for _ in range(4)]
        for bench in self.benches:
            bench.service.unacked_budget = budget
        self.consumers: list[tuple[Consumer, FakeSink]] = []
        self.is_exceeded = False
        self.waiting: set[int] = set()

    def held(self, nth: int) -> set[Position]:
        return set(self.consumers[nth][1].got) - self.benches[nth].cursor.acked

    async def step(self) -> None:
        nth = self.rng.randrange(len(self.benches))
        bench, held = self.benches[nth], sorted(self.held(nth))
        if self.rng.random() < 0.6 or not held:
            bench.ledger.append()
            bench.subscription.wake()
        else:
            bench.subscription.acknowledge(self.consumers[nth][0], [self.rng.choice(held)])
        await settle()
        self.note()

    def note(self) -> None:
        """The limit holds from when it is reached until half of it is free; for each subscription
        from its share on until half of that is.
        """
        counts = [len(self.held(nth)) for nth in range(len(self.benches))]
        if sum(counts) >= self.LIMIT:
            self.is_exceeded = True
        elif 2 * sum(counts) < self.LIMIT:
            self.is_exceeded = False
        each = int(self.LIMIT * self.SHARE)
        if not self.is_exceeded:
            self.waiting.clear()
            return
        for nth, count in enumerate(counts):
            if count > each:
                self.waiting.add(nth)
            elif count <= each // 2:
                self.waiting.discard(nth)

    def check(self) -> bool:
        """Whether somebody waits."""
        waits = False
        for nth, bench in enumerate(self.benches):
            found = bench.subscription.explain(None).reason
            left = [x for x in bench.ledger.positions() if x not in bench.cursor.acked]
            if set(left) - self.held(nth):
                assert nth in self.waiting
                assert found is Reason.BROKER_UNACKED_LIMIT
                waits = True
            else:
                assert found in (Reason.PENDING, Reason.CAUGHT_UP)
        return waits


@pytest.mark.parametrize("seed", SEEDS)
async def test_who_waits_for_the_brokers_limit_is_told_so(seed: int) -> None:
    world = SharedLimit(seed)
    for bench in world.benches:
        world.consumers.append(await bench.consumer(SHARED, permits=_ALL))
    waited = 0
    for _ in range(4 * STEPS):
        await world.step()
        waited += world.check()
    assert waited
