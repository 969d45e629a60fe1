"""Seeded schedules against the dispatch cores: each entry is explained as the model knows.

The model keeps its own books: who has what, permits, limits with their hysteresis, hashes that
drain, owners of chunks. Only how full the delayed index is, how many entries are set aside, and
when a new active consumer begins, it asks the core.
"""

import pytest

from magnetar.broker.dispatch import key_shared
from magnetar.broker.dispatch.explanation import Explanation, Reason
from magnetar.broker.dispatch.interfaces import ConsumerState, Deliver, DispatchLimits
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.protocol.entry_header import (
    FLAG_FIRST_CHUNK,
    FLAG_LAST_CHUNK,
    FLAG_MARKER,
    EntryHeader,
    parse_header,
)
from magnetar.managed_ledger.position import Position
from tests.simulation.simulator import seeds
from tests.simulation.test_dispatch import (
    STEPS,
    TICK_MS,
    KeySharedWorld,
    SharedWorld,
    SingleActiveWorld,
    SplitKeySharedWorld,
    StickyKeySharedWorld,
    picked,
)

SEEDS = seeds(4)
_NOTHING: set[Reason | None] = {None}
AHEAD = 3
"""Entries that may be set aside, for each consumer."""


class ExplainedWorld(SharedWorld):
    """A shared world that knows why each entry isn't delivered."""

    def __init__(self, seed: int) -> None:
        self.is_full = False
        self.full: set[ConsumerState] = set()
        self.owners: dict[int, ConsumerState] = {}  # of chunked messages
        self.checked = 0
        self.sent_ms: dict[Position, int] = {}
        self.told: set[Reason] = set()
        super().__init__(seed)

    def turn(self, *, answer_reads: bool) -> None:
        self.note()
        super().turn(answer_reads=answer_reads)

    def check_delivery(self, effect: Deliver) -> None:
        super().check_delivery(effect)
        self.note()
        for _, position in picked(effect):
            self.sent_ms[position] = self.now_ms
            entry = parse_header(self.head_of(position))
            if entry.flags & FLAG_FIRST_CHUNK:
                self.owners[entry.chunk_uuid_hash] = effect.consumer
            if entry.flags & FLAG_LAST_CHUNK:
                self.owners.pop(entry.chunk_uuid_hash, None)

    def note(self) -> None:
        """Limits hold from the limit on until half of it is free."""
        limits, total = self.limits, 0
        for consumer in self.permits:
            held = sum(
                self.messages_at(at) for at, owner in self.owner.items() if owner is consumer
            )
            total += held
            if 0 < limits.unacked_per_consumer <= held:
                self.full.add(consumer)
            elif held <= limits.unacked_per_consumer // 2:
                self.full.discard(consumer)
        if 0 < limits.unacked_per_subscription <= total:
            self.is_full = True
        elif 2 * total < limits.unacked_per_subscription or not self.permits:
            self.is_full = False
        self.full &= self.permits.keys()
        self.owners = {of: one for of, one in self.owners.items() if one in self.permits}

    def stall_of(self, consumer: ConsumerState) -> Reason | None:
        if consumer in self.full:
            return Reason.CONSUMER_UNACKED_LIMIT
        return Reason.NO_PERMITS if self.permits[consumer] <= 0 else None

    def stall(self) -> set[Reason | None]:
        """Of all; of several consumers' reasons the core names a frequent one."""
        if self.is_full:
            return {Reason.SUBSCRIPTION_UNACKED_LIMIT}
        found = {self.stall_of(consumer) for consumer in self.permits}
        return _NOTHING if None in found else found

    def expected(self, position: Position) -> tuple[set[Reason | None], ConsumerState | None]:
        """Possible reasons, and the consumer that the entry depends on if there is just one."""
        entry = parse_header(self.head_of(position))
        if entry.flags & FLAG_MARKER:
            return {Reason.FILTERED}, None
        if (owner := self.owner.get(position)) is not None:
            return {Reason.PENDING}, owner
        if entry.deliver_at_ms > self.now_ms:
            return {Reason.DELAYED}, None
        reason, consumer = self.expected_of_one(position, entry)
        found = self.stall() | self.index_limit() | self.ahead_limit(position)
        if reason is not None:
            found = found | {reason}
        step_ms = 1 if self.limits.delay_strict else TICK_MS // 8
        if -(-entry.deliver_at_ms // step_ms) * step_ms > self.now_ms:
            found = found | {Reason.DELAYED}  # if it was put away before
        if self.reading is None:
            found = found - _NOTHING
            assert found, "not delivered, and nothing stops it"
        return found, consumer if self.stall() == _NOTHING and found == {reason} else None

    def expected_of_one(
        self, position: Position, entry: EntryHeader
    ) -> tuple[Reason | None, ConsumerState | None]:
        """What stops this entry, though it stops not all: parts follow the first one."""
        owner = self.owners.get(entry.chunk_uuid_hash)
        return (None, None) if owner is None else (self.stall_of(owner), owner)

    def index_limit(self) -> set[Reason | None]:
        """What stops new entries alone."""
        limit = self.limits.delayed_index_bytes
        if 0 < limit <= self.core.delayed.memory_bytes and self.core.delayed.count:
            return {Reason.DELAYED_INDEX_LIMIT}
        return set()

    def ahead_limit(self, position: Position) -> set[Reason | None]:
        """What stops entries that weren't read."""
        return set()

    def check_explanations(self) -> None:
        if not self.permits:
            return
        for position in self.ledger.positions():
            if position not in self.cursor.acked:
                entry = parse_header(self.head_of(position))
                found = self.core.explain(position, entry, self.now_ms)
                if found is not None:
                    self.told.add(found.reason)
                check(found, *self.expected(position), f"{position}")
                check_since(found, self.sent_ms.get(position, 0))
                self.checked += 1
        self.check_next()
        self.core.sample(self.now_ms)

    def check_next(self) -> None:
        """What the subscription says: its next entry is one that nobody has."""
        cursor = self.cursor
        unread = cursor.first_unacked_from(self.core.read_position or cursor.first_unacked())
        following = self.core.next_entry(unread)
        undelivered = {
            at
            for at in self.must_arrive() - self.cursor.acked - self.owner.keys()
            if parse_header(self.head_of(at)).deliver_at_ms <= self.now_ms - TICK_MS
        }
        assert following not in self.owner
        assert following is not None or not undelivered


def check(
    found: Explanation | None,
    reasons: set[Reason | None],
    consumer: ConsumerState | None,
    where: str,
) -> None:
    assert (None if found is None else found.reason) in reasons, where
    if found is not None and consumer is not None:
        assert found.consumer == consumer.name, where


def check_since(found: Explanation | None, sent_ms: int) -> None:
    """A pending entry, from samples alone: the moment is never too early."""
    if found is not None and found.reason is Reason.PENDING:
        assert found.since_ms == 0 or (found.since_ms or 0) >= sent_ms


class ExplainedKeyShared(ExplainedWorld, KeySharedWorld):
    """What is set aside with its hash has the hash's reason, whatever stops all."""

    def expected_of_one(
        self, position: Position, entry: EntryHeader
    ) -> tuple[Reason | None, ConsumerState | None]:
        assert isinstance(self.core, KeySharedDispatcher)
        slot_of = self.core.selector.slot_of
        slot = slot_of(self.key_at(position))
        owner = self.core.selector.owner(slot)
        for at, holder in self.owner.items():
            if holder is not owner and slot_of(self.key_at(at)) == slot:
                return Reason.DRAINING_HASH, holder
        if owner is None:
            return Reason.HASH_WITHOUT_CONSUMER, None
        return self.stall_of(owner), owner


class ExplainedSplit(ExplainedKeyShared, SplitKeySharedWorld):
    pass


class ExplainedSticky(ExplainedKeyShared, StickyKeySharedWorld):
    pass


class ExplainedAhead(ExplainedKeyShared):
    """Few entries may be set aside."""

    def ahead_limit(self, position: Position) -> set[Reason | None]:
        core = self.core
        assert isinstance(core, KeySharedDispatcher)
        is_far = core._stuck_count >= AHEAD * len(self.permits)
        return {Reason.LOOK_AHEAD_LIMIT} if is_far and core.is_unread(position) else set()


def test_entries_behind_many_that_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_shared, "_LOOK_AHEAD_PER_CONSUMER", AHEAD)
    told = set[Reason]()
    for seed in SEEDS:
        world = ExplainedAhead(seed)
        for _ in range(STEPS // 2):
            world.step()
            world.check_explanations()
        told |= world.told
    assert Reason.LOOK_AHEAD_LIMIT in told


WORLDS = [ExplainedWorld, ExplainedKeyShared, ExplainedSplit, ExplainedSticky]


@pytest.mark.parametrize("make", WORLDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_undelivered_entry_is_explained(seed: int, make: type[ExplainedWorld]) -> None:
    world = make(seed)
    for step in range(STEPS // 2):
        world.step()
        if step % 4 == 0:
            world.check_explanations()
    assert world.checked


class ExplainedSingleActive(SingleActiveWorld):
    def __init__(self, seed: int) -> None:
        self.sent_ms: dict[Position, int] = {}
        super().__init__(seed)
        if seed % 2:  # by chance, none of the first twelve has a delay at a change
            self.failover = True
            self.core = SingleActiveDispatcher(
                DispatchLimits(read_entries_max=3, failover_delay_ms=1000),
                failover=True,
                topic="t",
                partition_index=self.partition,
            )

    def check_delivery(self, effect: Deliver) -> None:
        super().check_delivery(effect)
        for _, position in picked(effect):
            self.sent_ms[position] = self.now_ms

    def expected(self, position: Position) -> set[Reason | None]:
        active = self.core.active
        assert active is not None
        if parse_header(self.head_of(position)).flags & FLAG_MARKER:
            return {Reason.FILTERED}
        if self.core.next_deadline_ms() is not None:
            return {Reason.FAILOVER_DELAY}
        if position in self.received:
            return {Reason.PENDING}
        if self.permits[active] <= 0:
            return {Reason.NO_PERMITS}
        assert self.reading is not None, "not delivered, and nothing stops it"
        return _NOTHING

    def check_explanations(self) -> None:
        if not self.permits:
            return
        for position in self.ledger.positions():
            if position not in self.cursor.acked:
                entry = parse_header(self.head_of(position))
                found = self.core.explain(position, entry, self.now_ms)
                reasons = self.expected(position)
                consumer = None if Reason.FILTERED in reasons else self.core.active
                check(found, reasons, consumer, f"{position}")
                check_since(found, self.sent_ms.get(position, 0))
        self.core.sample(self.now_ms)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_undelivered_entry_of_a_single_active_consumer(seed: int) -> None:
    world = ExplainedSingleActive(seed)
    for _ in range(STEPS):
        world.step()
        world.check_explanations()
