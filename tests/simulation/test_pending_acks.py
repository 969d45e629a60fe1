"""Acknowledgements in transactions beside plain ones, under failing appends, crashes and resets.

After each step:

- an acknowledgement is refused if and only if one of its messages is taken, by the cursor or by a
  transaction; a cumulative one by what else is cumulative; each one after its transaction's end;
- what a commit was answered for is acknowledged, whatever crashed since, until a reset;
- nothing is acknowledged that no client acknowledged, or whose transaction wasn't committed;
- what waits for the end of a transaction is what the durable records say, and isn't delivered;
- an abort sends again what was pending and isn't acknowledged, and nothing else;
- an end is applied in slices, of which each is small, and answered with the last one; what isn't
  applied yet is pending; a crash between two loses nothing of it;
- a cut copies what is live in small slices; a crash between two, or an end, loses nothing of it;
- a cumulative acknowledgement that the cursor had passed before a load holds nobody up after it.

And a log whose records are durable is never longer than a few times what is live.
Replay one seed: MAGNETAR_SEED=41 MAGNETAR_SEEDS=1 pytest FILE
"""

import random
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import assert_never

import pytest

from magnetar.broker.errors import InvalidTransactionStatusError, TransactionConflictError
from magnetar.broker.transaction import pending_acks
from magnetar.broker.transaction.pending_acks import (
    AcknowledgeCommitted,
    AppendRecord,
    EndApplied,
    PendingAck,
    PendingAcks,
    RedeliverAborted,
    StoreCursor,
    TrimPendingAckLog,
)
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import PendingAckRecord
from magnetar.managed_ledger.cursor.ack_state import AckState, mask_to_words
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.simulation.plant import Plant, planted
from tests.simulation.simulator import seeds

STEPS = 300
BATCH = 4
LOG = LedgerOffsets([(1, 8), (2, 8)])
ENTRIES = [(ledger_id, entry_id) for ledger_id in (1, 2) for entry_id in range(8)]
_CUT_WEIGHT_MIN = 12
_APPLIED_AT_ONCE = 2
_COPIED_AT_ONCE = 2  # in every second world; in the others all is

Message = tuple[Position, int]


def size_of(position: Position) -> int:
    """Every second entry is a batch."""
    return BATCH if position[1] % 2 else 1


def messages_of(ack: PendingAck) -> set[Message]:
    size = size_of(ack.position)
    return {(ack.position, n) for n in range(size) if not ack.left >> n & 1}


def covered_by(ack: PendingAck) -> set[Message]:
    before = {(at, n) for at in ENTRIES if at < ack.position for n in range(size_of(at))}
    return before | messages_of(ack)


@dataclass
class Ack:
    transaction: TransactionId
    acks: list[PendingAck]
    cumulative: bool


@dataclass
class End:
    transaction: TransactionId
    commit: bool


@dataclass
class Model:
    """What the records say, one after another."""

    holders: dict[Message, TransactionId] = field(default_factory=dict)
    cumulative: tuple[TransactionId, PendingAck] | None = None

    def apply(self, said: Ack | End | None) -> None:
        match said:
            case Ack(transaction, acks, True):
                self.cumulative = (transaction, acks[0])
            case Ack(transaction, acks, False):
                self.holders |= {each: transaction for ack in acks for each in messages_of(ack)}
            case End(transaction):
                self.holders = {m: t for m, t in self.holders.items() if t != transaction}
                if self.cumulative is not None and self.cumulative[0] == transaction:
                    self.cumulative = None

    def of(self, transaction: TransactionId) -> set[Message]:
        return {each for each, holder in self.holders.items() if holder == transaction}

    def acked_by(self, transaction: TransactionId) -> set[Message]:
        """What its commit acknowledges."""
        held = self.of(transaction)
        if self.cumulative is not None and self.cumulative[0] == transaction:
            held |= covered_by(self.cumulative[1])
        return held

    @property
    def open(self) -> set[TransactionId]:
        return {*self.holders.values()} | ({self.cumulative[0]} if self.cumulative else set())


class World:
    """One subscription, its log and its cursor; `step` does something at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cursor = AckState(LOG, (1, -1))
        self.stored = deepcopy(self.cursor.image())
        self.log: list[tuple[PendingAckRecord, Ack | End | None]] = []  # None: a copy
        self.first = self.durable_first = 0  # of the log, as trimmed
        self.appending: deque[tuple[PendingAckRecord, Ack | End | None]] = deque()
        self.storing = False
        self.acks = PendingAcks(self.cursor)
        self.model = Model()
        self.decided: dict[TransactionId, bool] = {}
        self.ended: set[TransactionId] = set()  # what this load was told
        self.watermark = -1
        self.newest = 0
        # Ends that are durable and not applied yet: what they hold, and what a commit acknowledges.
        self.applying: dict[TransactionId, tuple[End, set[Message]]] = {}
        self.asked: dict[int, TransactionId] = {}  # whose end isn't answered, by number
        self.forgotten = 0  # records of before the last reset
        self.passed = EARLIEST  # cumulative ones up to here say nothing
        self.must: set[Message] = set()  # answered commits, and those of a log that was read
        self.may: set[Message] = set()

    # --- steps

    def step(self) -> None:
        steps: dict[Callable[[], None], float] = {
            self.ack: 20,
            self.ack_cumulative: 4,
            self.end: 12,
            self.ack_plainly: 3,
            self.record: 30,
            self.apply_more: 15,
            self.store: 20,
            self.write_cursor: 3,
            self.lose_end: 1,
            self.fail_append: 1,
            self.crash: 1,
            self.reset: 0.5,
        }
        [chosen] = self.rng.choices(list(steps), list(steps.values()))
        chosen()
        self.check()

    def check(self) -> None:
        acked = self.acked()
        assert self.must <= acked, f"lost: {self.must - acked}"
        assert acked <= self.may, f"never committed: {acked - self.may}"
        for at in ENTRIES:
            held = [(at, n) in self.model.holders for n in range(size_of(at))]
            done = [(at, n) in acked for n in range(size_of(at))]
            assert [self.acks.is_pending(at, n) for n in range(len(held))] == held, f"pending {at}"
            withheld = all(done) or self.acks.withheld_in(at[0], at[1], 1) == [at[1]]
            all_taken = all(x or y for x, y in zip(held, done, strict=True))
            assert withheld == all_taken, f"delivered {at}"
            if any(held) and not withheld:
                left = sum(1 << n for n, x in enumerate(held) if not x and not done[n])
                assert self.acks.batch_ack_set(at) == mask_to_words(left)

    def acked(self) -> set[Message]:
        found = set()
        for at in ENTRIES:
            left = (1 << size_of(at)) - 1
            if self.cursor.is_acked(at):
                left = 0
            elif (words := self.cursor.batch_ack_set(at)) is not None:
                left &= words[0]
            found |= messages_of(PendingAck(at, left))
        return found

    def some_ack(self) -> PendingAck:
        at = self.rng.choice(ENTRIES)
        left = self.rng.randrange((1 << BATCH) - 1) if size_of(at) > 1 else 0
        return PendingAck(at, left, size_of(at) if left else 0)

    def transaction(self) -> TransactionId:
        if self.rng.random() < 0.2:
            self.newest += 1
        return TransactionId(0, max(self.newest - self.rng.randrange(4), 0))

    def late(self, transaction: TransactionId) -> bool:
        return transaction in self.ended or transaction.least <= self.watermark

    def ack(self) -> None:
        transaction = self.transaction()
        acks = [self.some_ack() for _ in range(self.rng.randint(1, 2))]
        taken, conflict = set(self.model.holders), False
        acked = self.acked()
        for ack in acks:
            whole = {(ack.position, n) for n in range(size_of(ack.position))}
            done = acked & messages_of(ack) if ack.left else whole <= acked
            conflict |= bool(messages_of(ack) & taken or done)
            taken |= messages_of(ack)

        def call() -> int:
            if conflict or self.rng.random() < 0.5:
                return self.acks.acknowledge(transaction, acks)
            numbers = {self.acks.acknowledge(transaction, [ack]) for ack in acks}
            assert len(numbers) == 1, "a record each"
            return numbers.pop()

        self.try_ack(Ack(transaction, acks, False), call, conflict)

    def ack_cumulative(self) -> None:
        transaction, ack = self.transaction(), self.some_ack()
        if ack.left:  # the first of a batch
            kept = self.rng.randint(1, BATCH - 1)
            ack = PendingAck(ack.position, (1 << BATCH) - (1 << kept), BATCH)
        conflict = ack.position <= self.cursor.mark_delete
        if self.model.cumulative is not None:
            holder, known = self.model.cumulative
            conflict |= holder != transaction or not covered_by(ack) > covered_by(known)
        said = Ack(transaction, [ack], True)
        self.try_ack(said, lambda: self.acks.acknowledge_cumulative(transaction, ack), conflict)

    def try_ack(self, said: Ack, call: Callable[[], int], conflict: bool) -> None:
        try:
            number = call()
        except InvalidTransactionStatusError:
            assert self.late(said.transaction)
            assert not self.acks.take_effects()
            return
        except TransactionConflictError:
            assert conflict, f"refused: {said}"
            assert not self.acks.take_effects(), "recorded, and refused"
            return
        assert not conflict, f"taken twice: {said}"
        assert not self.late(said.transaction)
        assert number
        self.model.apply(said)
        self.perform(said)

    def end(self) -> None:
        transaction = self.transaction()
        commit = self.decided.setdefault(transaction, self.rng.random() < 0.6)
        low = self.watermark
        while low + 1 in {x.least for x in self.decided}:
            low += 1
        low = low if self.rng.random() < 0.5 else -1
        self.watermark = max(low, self.watermark)
        ends = [
            End(each, commit and each == transaction)
            for each in self.model.open
            if (each == transaction or each.least <= low) and not self.is_ending(each)
        ]
        self.ended.add(transaction)
        is_open = transaction in self.model.open or transaction in self.applying
        number = self.acks.end(transaction, commit=commit, low_watermark=low)
        assert (number > 0) == is_open, "answered before it is applied"
        if number:
            assert self.asked.setdefault(number, transaction) == transaction
        self.perform(*ends)

    def is_ending(self, transaction: TransactionId) -> bool:
        return transaction in self.applying or any(
            isinstance(x, End) and x.transaction == transaction for _, x in self.appending
        )

    def lose_end(self) -> None:
        """It never comes here; a later one tells by its low watermark."""
        transaction = self.transaction()
        self.decided.setdefault(transaction, False)

    def ack_plainly(self) -> None:
        ack = self.some_ack()
        if self.rng.random() < 0.2:
            self.may |= covered_by(PendingAck(ack.position))
            self.cursor.ack_cumulative(ack.position)
            return
        self.may |= messages_of(ack)
        self.cursor.ack_batch(ack.position, mask_to_words(ack.left))

    # --- storage

    def perform(self, *said: Ack | End) -> None:
        """Effects of a call; ``said`` belongs to the first records that it appends."""
        left = list(said)
        for effect in self.acks.take_effects():
            match effect:
                case AppendRecord(record):
                    about: Ack | End | None = None
                    if left:
                        about = next(x for x in left if _is_about(record, x))
                        left.remove(about)
                    if isinstance(about, End) and about.commit:
                        self.may |= self.model.acked_by(about.transaction)
                    self.appending.append((record, about))
                case AcknowledgeCommitted(individual, cumulative):
                    self.commit(individual, cumulative)
                case RedeliverAborted():
                    raise AssertionError("redelivered, and no abort was recorded")
                case EndApplied(number):
                    self.answer(number)
                case StoreCursor():
                    self.storing = True
                case TrimPendingAckLog(upto):
                    assert upto[1] >= self.first - 1
                    self.first = upto[1] + 1
                case _:
                    assert_never(effect)
        assert not left, f"no record of {left}"

    def commit(self, individual: list[PendingAck], cumulative: PendingAck | None) -> None:
        for ack in individual:
            self.cursor.ack_batch(ack.position, mask_to_words(ack.left))
        if cumulative is not None:
            words = mask_to_words(cumulative.left)
            self.cursor.ack_cumulative_batch(cumulative.position, words)

    def record(self) -> None:
        """The oldest append is durable."""
        if not self.appending:
            return
        record, said = self.appending.popleft()
        self.log.append((record, said))
        if isinstance(said, End):
            self.applying[said.transaction] = (said, self.model.acked_by(said.transaction))
        self.acks.on_recorded((9, len(self.log) - 1))
        self.follow(said.transaction if isinstance(said, End) else None)

    def apply_more(self) -> None:
        """The next turn of the loop."""
        if self.acks.has_more:
            appended = len(self.appending)
            self.acks.apply_more()
            self.follow(next(iter(self.applying), None))
            copied = sum(len(x.positions) for x, _ in list(self.appending)[appended:])
            assert copied < 2 * pending_acks.COPIED_AT_ONCE, "not a slice"

    def follow(self, transaction: TransactionId | None) -> None:
        """What is released now belongs to this transaction, and is acknowledged or sent again."""
        held = self.model.holders
        released = {each for each in held if not self.acks.is_pending(*each)}
        assert {held[each] for each in released} <= {transaction}, "released before its end"
        assert len({at for at, _ in released}) <= _APPLIED_AT_ONCE, "not a slice"
        self.model.holders = {x: y for x, y in held.items() if x not in released}
        again: set[Position] = set()
        if transaction is not None and not self.applying[transaction][0].commit:
            again = {at for at, _ in released if not self.cursor.is_acked(at)}
        effects = self.acks.take_effects()
        sent = [at for x in effects if isinstance(x, RedeliverAborted) for at in x.positions]
        assert sorted(sent) == sorted(again), "redelivered"
        self.acks._effects = [x for x in effects if not isinstance(x, RedeliverAborted)]
        if transaction is not None and transaction not in self.acks.transactions:
            said, acked = self.applying.pop(transaction)
            assert not self.model.of(transaction), "it has not ended"
            self.model.apply(said)
            if said.commit:
                self.must |= acked
        self.perform()

    def answer(self, number: int) -> None:
        transaction = self.asked.pop(number, None)
        assert transaction not in self.applying, "answered before the last slice"

    def store(self) -> None:
        """The answer to a write of the cursor that was asked for."""
        if not self.storing:
            return
        self.storing = False
        stored = self.rng.random() < 0.8
        if stored:
            self.write_cursor()
        self.acks.on_cursor_stored(stored=stored)
        self.perform()
        if self.rng.random() < 0.5:
            self.durable_first = self.first

    def write_cursor(self) -> None:
        self.stored = deepcopy(self.cursor.image())

    def fail_append(self) -> None:
        """Some of the appends under way fail: the log is opened again, the cursor stays."""
        for _ in range(self.rng.randint(0, len(self.appending))):
            record, said = self.appending.popleft()
            self.log.append((record, said))
        self.load()

    def crash(self) -> None:
        self.cursor = AckState(LOG, (1, -1))
        self.cursor.adopt(deepcopy(self.stored))
        self.passed = self.cursor.mark_delete
        self.fail_append()

    def load(self) -> None:
        self.appending.clear()
        self.applying.clear()
        self.asked.clear()
        self.storing, self.watermark = False, -1
        self.ended.clear()
        self.first = self.rng.choice([self.first, self.durable_first])
        self.durable_first = self.first
        self.model = Model()
        for number, (record, said) in enumerate(self.log):
            if isinstance(said, Ack) and said.cumulative and said.acks[0].position <= self.passed:
                self.log[number] = (record, None)  # for ever
                continue
            if isinstance(said, End) and said.commit and number >= self.forgotten:
                self.must |= self.model.acked_by(said.transaction)
            self.model.apply(said)
        self.acks = PendingAcks(self.cursor, self.passed)
        for number, (record, _) in enumerate(self.log[self.first :], self.first):
            self.acks.replay(record, (9, number))
            while self.acks.is_applying and self.rng.random() < 0.5:
                self.acks.apply_more()
        while self.acks.is_applying:
            self.acks.apply_more()
        for effect in self.acks.take_effects():
            if isinstance(effect, AcknowledgeCommitted):
                self.commit(effect.individual, effect.cumulative)
            else:
                assert isinstance(effect, RedeliverAborted)  # nobody has it yet
        self.acks.on_replayed()
        self.perform()

    def reset(self) -> None:
        """The consumer seeks: no crash may bring back what ended before."""
        for _ in range(2):  # a cut that is under way may be older than an end
            self.acks.cut()
            self.perform()
            self.finish()
        at = self.rng.choice(ENTRIES)
        image = self.cursor.image_for_reset(at)
        self.stored = deepcopy(image)
        self.cursor.adopt(image)
        self.must = {(x, n) for x in ENTRIES if x < at for n in range(size_of(x))}
        self.may = set(self.must)
        self.forgotten = len(self.log)
        self.passed = EARLIEST

    def finish(self) -> None:
        """Storage answers everything."""
        while self.appending or self.acks.is_cutting:
            self.record()
            self.apply_more()
            self.store()
            if not (self.appending or self.storing) and self.acks.is_cutting:
                self.acks.cut()
                self.perform()
        self.durable_first = self.first
        live = len(self.acks.positions) + 2 * len(self.acks.transactions)
        assert self.weight() <= _CUT_WEIGHT_MIN + 5 * live + 20, "the log grows"

    def weight(self) -> int:
        return sum(1 + len(record.positions) for record, _ in self.log[self.first :])

    def heal(self) -> None:
        while self.appending or self.acks.is_applying:
            self.record()
            self.apply_more()
        assert not self.asked, "never answered"
        self.finish()
        self.check()


def test_what_comes_behind_a_cut_is_in_a_record_behind_it() -> None:
    acks, transaction = PendingAcks(AckState(LOG, (1, -1))), TransactionId(0, 1)
    records = []
    for at in ENTRIES[:3]:
        records.append(acks.acknowledge(transaction, [PendingAck(at)]))
        if len(records) == 2:
            acks.cut()
    assert records == [1, 1, 3]  # 2 is the copy


def _is_about(record: PendingAckRecord, said: Ack | End) -> bool:
    kind = record.operation == PendingAckRecord.ACK
    same = (record.mostBits, record.leastBits) == said.transaction
    return same and kind == isinstance(said, Ack)


def _small(plant: Plant) -> None:
    plant.set(pending_acks, "CUT_WEIGHT_MIN", _CUT_WEIGHT_MIN)
    plant.set(pending_acks, "APPLIED_AT_ONCE", _APPLIED_AT_ONCE)


def _copied_slowly(plant: Plant) -> None:
    plant.set(pending_acks, "COPIED_AT_ONCE", _COPIED_AT_ONCE)


def run(seed: int) -> None:
    world = World(seed)
    with planted(_small), planted(_copied_slowly if seed % 2 else lambda _: None):
        for _ in range(STEPS):
            world.step()
        world.heal()


@pytest.mark.parametrize("seed", seeds(80))
def test_what_was_committed_is_acknowledged_and_nothing_else(seed: int) -> None:
    run(seed)
