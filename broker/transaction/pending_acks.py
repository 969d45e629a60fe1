"""Acknowledgements of one subscription that wait for the end of their transactions.

Calls in, effects out; no clock, socket or task. An acknowledgement is checked, then recorded, then
answered, so a record is never one of a refused acknowledgement. The end of a transaction is a
record, too, and the cursor follows it: a replay after a crash acknowledges once more.

The end of a transaction with very many acknowledgements is applied in slices, one in a turn of the
loop. What isn't applied yet stays pending: it isn't delivered, and nobody else can acknowledge it.

Invariants: no two transactions have acknowledged the same message; at most one has acknowledged
cumulatively. Nothing of an end is applied before its record is durable, and an end is done, for who
asked for it and for a cut, with its last slice. Of the log only what is behind the last cut is
needed: a cut writes the acknowledgements of open transactions anew, waits for the ends in front of
the last copy to be done, and then for the cursor to be stored. What a cut has to copy is what is
live when it begins, and is copied in slices, too. What ends before its copy needs none: the cut
waits for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from typing import Final, Protocol, TypeAlias

from magnetar.broker.errors import InvalidTransactionStatusError, TransactionConflictError
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import PendingAckRecord
from magnetar.managed_ledger.cursor.ack_state import mask_to_words, words_to_mask
from magnetar.managed_ledger.position import EARLIEST, Position, format_position

CUT_WEIGHT_MIN: Final = 1_000
"""Weight of the log, in records and positions, below which it isn't cut."""
_CUT_FACTOR: Final = 4
"""Times the weight of what is live."""
_RECORD_WEIGHT_MAX: Final = 10_000
"""Positions and words of ack sets in one record: some 300 kB."""
_EXTENDED_MAX: Final = 100
"""Positions of a record and of a call that may still go into it."""
_ENDED_MAX: Final = 1_000
"""Ends that are remembered, to refuse what comes late; the oldest are forgotten."""
_STALE_MAX: Final = 100
APPLIED_AT_ONCE: Final = 200
"""Acknowledgements of an end in a slice."""
_WORDS_AT_ONCE: Final = 2_048
"""Of their ack sets, but for one acknowledgement."""
COPIED_AT_ONCE: Final = 500
"""Positions and words of ack sets after which a cut goes on in the next turn; and in a record."""
_WHOLE: Final = -1
_ACK: Final = PendingAckRecord.ACK
_COMMIT: Final = PendingAckRecord.COMMIT
_ABORT: Final = PendingAckRecord.ABORT
_CUMULATIVE: Final = PendingAckRecord.CUMULATIVE


class AckedView(Protocol):
    """What is asked of the cursor's state."""

    @property
    def mark_delete(self) -> Position: ...
    def is_acked(self, position: Position) -> bool: ...
    def batch_ack_set(self, position: Position) -> list[int] | None: ...


@dataclass(slots=True)
class PendingAck:
    """An entry, or some messages of a batch.

    Attributes:
        left: bit set: this message of the batch isn't acknowledged; 0: the whole entry is.
        batch_size: messages of the batch; 0: not said, as by the Go client, so others can't
            acknowledge the rest of it until the transaction has ended.
    """

    position: Position
    left: int = 0
    batch_size: int = 0

    @property
    def mask(self) -> int:
        """Bit set: this message is acknowledged; without a size, all are that aren't left."""
        if not self.left or not self.batch_size:
            return ~self.left
        return ((1 << self.batch_size) - 1) & ~self.left

    @property
    def weight(self) -> int:
        """Positions and words in a record."""
        return 1 + (self.left.bit_length() + 63) // 64


@dataclass(slots=True)
class AppendRecord:
    """Append to the log; ``on_recorded`` when it is durable. In the order of these effects."""

    record: PendingAckRecord


@dataclass(slots=True)
class AcknowledgeCommitted:
    """Acknowledge at the cursor; what is acknowledged already, or trimmed, is ignored there."""

    individual: list[PendingAck]
    cumulative: PendingAck | None


@dataclass(slots=True)
class RedeliverAborted:
    """Send these entries again, with what isn't acknowledged or pending of them.

    Attributes:
        is_last: no more of this transaction follow.
    """

    positions: list[Position]
    is_last: bool = True


@dataclass(slots=True)
class EndApplied:
    """The end with this number is durable, and all of it is applied: who asked is answered."""

    number: int


@dataclass(slots=True)
class StoreCursor:
    """Make durable what was acknowledged at the cursor until now; then ``on_cursor_stored``."""


@dataclass(slots=True)
class TrimPendingAckLog:
    """Nothing up to this position of the log is needed any more."""

    upto: Position


PendingAckEffect: TypeAlias = (
    AppendRecord
    | AcknowledgeCommitted
    | RedeliverAborted
    | EndApplied
    | StoreCursor
    | TrimPendingAckLog
)


@dataclass(slots=True)
class _Acks:
    """Of one transaction."""

    individual: dict[Position, PendingAck] = field(default_factory=dict)
    cumulative: PendingAck | None = None

    @property
    def weight(self) -> int:
        return 1 + len(self.individual)


@dataclass(slots=True)
class _End:
    """The record of a transaction's end is under way, or it is durable and being applied.

    Attributes:
        number: of its record; 0: of an earlier load, nobody waits.
        left: what isn't applied yet, the first one at the end; filled when the record is durable.
        redelivers: an entry of an aborted one is sent again.
    """

    number: int
    transaction: TransactionId
    acks: _Acks
    commit: bool
    left: list[Position] = field(default_factory=list)
    redelivers: bool = False

    def take_slice(self) -> list[PendingAck]:
        some, words = list[PendingAck](), 0
        # Out of the dictionary one by one: to free it as a whole takes as long as a slice.
        while self.left and len(some) < APPLIED_AT_ONCE and words <= _WORDS_AT_ONCE:
            ack = self.acks.individual.pop(self.left.pop())
            some.append(ack)
            if ack.left:
                words += ack.weight - 1
        return some


_Copies: TypeAlias = Iterator[tuple[TransactionId, _Acks, list[PendingAck]]]


@dataclass(slots=True)
class _Cut:
    """A log that is being cut behind the record ``after``, once ``copied`` is recorded, too.

    Attributes:
        copies: what isn't copied yet, in parts that are a record each; None: all is copied.
        weight: of what is in front of it.
    """

    after: int
    weight: int
    position: Position
    copies: _Copies | None
    copied: int = 0
    is_storing: bool = False


class PendingAcks:
    """Which messages wait for the end of a transaction, and what the log of them says.

    Calls that append answer the number of the record that has to be durable before the client is
    answered, of an end the number of its `EndApplied`; 0: none. One object, since a check, a record
    and its effect go by the same state.
    """

    def __init__(self, cursor: AckedView, passed: Position = EARLIEST) -> None:
        """Args:
        passed: durable mark-delete position that is behind what the log is about to tell.
            Cumulative acknowledgements up to it are forgotten, as Pulsar's brokers do: they hold
            nobody else up any more.
        """
        self._cursor, self._passed = cursor, passed
        self.committed_count = self.aborted_count = 0
        """Transactions that ended since the log was opened."""
        self._open: dict[TransactionId, _Acks] = {}
        # By coordinator, a heap of the sequences of open ones, and of some that aren't any more.
        self._sequences: dict[int, list[int]] = {}
        self._ends: dict[TransactionId, _End] = {}  # in the order of their records
        self._applying: dict[TransactionId, _End] = {}  # the same, of durable ones
        self._cumulative: TransactionId | None = None  # the one that has acknowledged so
        # Of all transactions, by ledger and entry: messages, and the size of the batch.
        self._pending: dict[int, dict[int, tuple[int, int]]] = {}
        self.low_watermarks: Final[dict[int, int]] = {}
        """By coordinator: transactions up to this sequence have ended."""
        self._told: dict[TransactionId, None] = {}  # of this load, in the order of their ends
        self._appended = self._recorded = 0  # records of this load
        self._last = EARLIEST  # the last record of the log
        self._weight = self._live = 0  # of the log behind the last cut, and of what is needed of it
        self._cut: _Cut | None = None
        self._effects: list[PendingAckEffect] = []
        self._extensible: dict[TransactionId, tuple[int, PendingAckRecord]] = {}
        """Number and record of acknowledgements that aren't taken yet: more go into the same."""

    # --- acknowledgements

    def acknowledge(self, transaction: TransactionId, acks: Sequence[PendingAck]) -> int:
        """Acknowledge entries and parts of batches with the commit of a transaction: all or none.

        Raises:
            TransactionConflictError: one is acknowledged already, or pending, also in the same
                transaction.
            InvalidTransactionStatusError: the transaction has ended.
        """
        self.check(transaction, acks, {})
        self._hold(transaction, acks)
        return self._record_acks(transaction, acks)

    def check(
        self, transaction: TransactionId, acks: Iterable[PendingAck], taken: dict[Position, int]
    ) -> None:
        """Whether ``acknowledge`` would take them; raises as it does.

        Args:
            taken: masks of others that are to be acknowledged with them; these are put there, too.
        """
        self._require_open(transaction)
        for ack in acks:
            position, mask = ack.position, ack.mask
            before = taken.get(position, 0)
            self._check(transaction, ack, before)
            taken[position] = before | mask

    def _record_acks(self, transaction: TransactionId, acks: Sequence[PendingAck]) -> int:
        number, record = self._extensible.get(transaction, (0, None))
        if record is not None and max(len(record.positions), len(acks)) <= _EXTENDED_MAX:
            _put(record, acks)
            self._weight += len(acks)
            return number
        for some in _in_records(acks):
            record = _record(_ACK, transaction, some)
            self._append(record)
            self._extensible[transaction] = self._appended, record
        return self._appended

    def _check(self, transaction: TransactionId, ack: PendingAck, taken: int) -> None:
        position = ack.position
        if self._cursor.is_acked(position) or (ack.left and self._is_left_out(ack)):
            raise TransactionConflictError(f"{format_position(position)} was acknowledged before")
        if (entries := self._pending.get(position[0])) and position[1] in entries:
            taken |= entries[position[1]][0] & ~self._named_again(transaction, position)
        if taken and ack.mask & taken:
            raise TransactionConflictError(
                f"{format_position(position)} is acknowledged in a transaction that hasn't ended"
            )

    def _named_again(self, transaction: TransactionId, position: Position) -> int:
        """What a transaction has acknowledged of a batch without its size: Go's client names that
        again with each further message of the batch."""
        acks = self._open.get(transaction)
        own = None if acks is None else acks.individual.get(position)
        return 0 if own is None or not own.left or own.batch_size else own.mask

    def _is_left_out(self, ack: PendingAck) -> bool:
        """Whether a message of a part of a batch is acknowledged at the cursor."""
        if (words := self._cursor.batch_ack_set(ack.position)) is None:
            return False
        left = words_to_mask(words)
        if ack.batch_size:
            return ack.mask & ~left != 0
        return left & ~ack.left == 0

    def acknowledge_cumulative(self, transaction: TransactionId, ack: PendingAck) -> int:
        """Acknowledge everything up to a position, of a batch a part, with the commit.

        Raises:
            TransactionConflictError: it is acknowledged already, another transaction has
                acknowledged cumulatively, or this one as far.
            InvalidTransactionStatusError: the transaction has ended.
        """
        self._require_open(transaction)
        if ack.position <= self._cursor.mark_delete:
            raise TransactionConflictError(
                f"{format_position(ack.position)} is not behind the mark-delete position "
                f"{format_position(self._cursor.mark_delete)}"
            )
        if not self._extends(transaction, ack):
            raise TransactionConflictError(
                f"{format_position(ack.position)}: transaction {self._cumulative} has acknowledged "
                "cumulatively and hasn't ended"
            )
        self._hold_cumulative(transaction, ack)
        self._append(_record(_ACK, transaction, (ack,), cumulative=True))
        return self._appended

    def _extends(self, transaction: TransactionId, ack: PendingAck) -> bool:
        if self._cumulative is None:
            return True
        if self._cumulative != transaction or (acks := self._open.get(transaction)) is None:
            return False
        known = acks.cumulative
        assert known is not None
        if ack.position != known.position:
            return ack.position > known.position
        return known.left & ~ack.left != 0 and ack.left & ~known.left == 0

    def _require_open(self, transaction: TransactionId) -> None:
        known = self._is_ending(transaction) or transaction in self._told
        if known or self._is_finished(transaction):
            raise InvalidTransactionStatusError(f"Transaction {transaction} has ended")

    def _is_ending(self, transaction: TransactionId) -> bool:
        return transaction in self._ends or transaction in self._applying

    def _is_finished(self, transaction: TransactionId) -> bool:
        return transaction.least <= self.low_watermarks.get(transaction.most, -1)

    def _acks_of(self, transaction: TransactionId) -> _Acks:
        if (acks := self._open.get(transaction)) is None:
            acks = self._open[transaction] = _Acks()
            self._live += acks.weight
            sequences = self._sequences.setdefault(transaction.most, [])
            heappush(sequences, transaction.least)
            if len(sequences) > 2 * len(self._open) + _STALE_MAX:
                sequences[:] = sorted(x.least for x in self._open if x.most == transaction.most)
        return acks

    def _hold(self, transaction: TransactionId, acks: Iterable[PendingAck]) -> None:
        pending, individual = self._pending, None
        for ack in acks:
            if not (mask := ack.mask):  # a part without a message
                continue
            if individual is None:
                individual = self._acks_of(transaction).individual
            position = ledger_id, entry_id = ack.position
            if (known := individual.get(position)) is None:
                individual[position] = ack
                self._live += 1
            else:  # other messages of the batch
                left = known.left & ack.left
                individual[position] = PendingAck(position, left, ack.batch_size)
            if (entries := pending.get(ledger_id)) is None:
                entries = pending[ledger_id] = {}
            if (before := entries.get(entry_id)) is not None:
                mask |= before[0]
            entries[entry_id] = (mask, ack.batch_size)

    def _hold_cumulative(self, transaction: TransactionId, ack: PendingAck) -> None:
        acks = self._acks_of(transaction)
        acks.cumulative, self._cumulative = ack, transaction

    # --- ends

    def end(self, transaction: TransactionId, *, commit: bool, low_watermark: int = -1) -> int:
        """The coordinator has ended a transaction: what still comes of it is refused.

        One that is unknown is done already, or has acknowledged nothing here.

        Args:
            low_watermark: transactions of the same coordinator up to this sequence have ended;
                what they left behind is aborted.
        """
        number = self._end(transaction, commit=commit)
        self._told[transaction] = None
        self._finish(transaction.most, low_watermark)
        while (first := next(iter(self._told), None)) is not None and (
            len(self._told) > _ENDED_MAX or self._is_finished(first)
        ):
            del self._told[first]
        return number

    def _finish(self, most: int, low_watermark: int) -> None:
        if low_watermark <= self.low_watermarks.get(most, -1):
            return
        self.low_watermarks[most] = low_watermark
        sequences = self._sequences.get(most)
        while sequences and sequences[0] <= low_watermark:
            self._end(TransactionId(most, heappop(sequences)), commit=False)

    def _end(self, transaction: TransactionId, *, commit: bool) -> int:
        known = self._ends.get(transaction) or self._applying.get(transaction)
        if known is not None:
            return known.number
        if (acks := self._open.pop(transaction, None)) is None:
            return 0
        self._live -= acks.weight
        operation = _COMMIT if commit else _ABORT
        cumulative = acks.cumulative is not None
        self._append(_record(operation, transaction, (), cumulative=cumulative))
        self._ends[transaction] = _End(self._appended, transaction, acks, commit)
        return self._appended

    def _begin_applying(self, end: _End) -> None:
        end.left = list(end.acks.individual)[::-1]
        self._applying[end.transaction] = end
        if len(end.left) <= APPLIED_AT_ONCE:  # small ones don't wait for large ones
            self._apply(end)

    @property
    def is_applying(self) -> bool:
        """Whether an end is durable, and some of it is left to ``apply_more``."""
        return bool(self._applying)

    @property
    def has_more(self) -> bool:
        """Whether ``apply_more`` has something to do, in a later turn of the loop."""
        return bool(self._applying) or (self._cut is not None and self._cut.copies is not None)

    def apply_more(self) -> None:
        """Apply the next slice of ends, the oldest end first, and copy the next one of a cut."""
        end = next(iter(self._applying.values()), None)
        if end is not None:
            self._apply(end)
        if self._cut is not None:
            self._copy_more(self._cut)

    def _apply(self, end: _End) -> None:
        some = end.take_slice()
        self._release(some)
        is_last = not end.left
        if is_last:
            del self._applying[end.transaction]
            if self._cumulative == end.transaction:
                self._cumulative = None
        if end.commit:
            cumulative = end.acks.cumulative if is_last else None
            self._effects.append(AcknowledgeCommitted(some, cumulative))
        else:
            positions = [x.position for x in some if not self._cursor.is_acked(x.position)]
            end.redelivers |= bool(positions)
            if positions or (is_last and end.redelivers):
                self._effects.append(RedeliverAborted(positions, is_last))
        if is_last and end.number:
            self._effects.append(EndApplied(end.number))

    def _release(self, acks: Iterable[PendingAck]) -> None:
        for ack in acks:
            ledger_id, entry_id = ack.position
            entries = self._pending[ledger_id]
            mask, size = entries[entry_id]
            if mask := mask & ~ack.mask:
                entries[entry_id] = (mask, size)
            else:
                del entries[entry_id]
                if not entries:
                    del self._pending[ledger_id]

    # --- the log

    def _append(self, record: PendingAckRecord) -> None:
        self._appended += 1
        self._weight += 1 + len(record.positions)
        self._effects.append(AppendRecord(record))

    def on_recorded(self, position: Position) -> None:
        """The next record is durable, at a position of the log."""
        self._recorded += 1
        self._last = position
        end = next(iter(self._ends.values()), None)
        if end is not None and end.number == self._recorded:
            del self._ends[end.transaction]
            self.committed_count += end.commit
            self.aborted_count += not end.commit
            self._begin_applying(end)
        self._go_on_cutting()

    def replay(self, record: PendingAckRecord, position: Position) -> None:
        """Take a record of an earlier load, in the log's order, before any other call.

        Pulsar's brokers record refused acknowledgements as well; what is pending in front of one
        tells that it was refused. A record that was copied at a cut says nothing new. An end may
        leave something for ``apply_more``; the next record does that first.
        """
        while self._applying:
            self.apply_more()
        self._last = position
        self._weight += 1 + len(record.positions)
        transaction = TransactionId(record.mostBits, record.leastBits)
        if record.operation != _ACK:
            if (acks := self._open.pop(transaction, None)) is not None:
                self._live -= acks.weight
                self._begin_applying(_End(0, transaction, acks, record.operation == _COMMIT))
            return
        for ack in map(_ack_of, record.positions):
            ledger_id, entry_id = ack.position
            if record.ackType == _CUMULATIVE:
                if ack.position > self._passed and self._extends(transaction, ack):
                    self._hold_cumulative(transaction, ack)
            else:
                taken = self._pending.get(ledger_id, {}).get(entry_id, (0, 0))[0]
                if taken:
                    taken &= ~self._named_again(transaction, ack.position)
                if not ack.mask & taken:
                    self._hold(transaction, (ack,))

    def on_replayed(self, before: "PendingAcks | None" = None) -> None:
        """All records of the log were taken, and no end is being applied.

        Args:
            before: of the same subscription, when the log wasn't open; it was told of ends.
        """
        if before is not None:
            self._told.update(before._told)
            for most, low_watermark in before.low_watermarks.items():
                self._finish(most, low_watermark)
        self._cut_if_long()

    def cut(self) -> None:
        """Cut the log, however short it is, or try again to store the cursor for the cut under way.

        Once one that began behind an end is done, no replay acknowledges this end again.
        """
        if self._cut is None:
            self._begin_cut()
        else:
            self._store_if_copied(self._cut)

    @property
    def is_cutting(self) -> bool:
        """Whether the log is being cut."""
        return self._cut is not None

    def _cut_if_long(self) -> None:
        if self._cut is None and self._weight > CUT_WEIGHT_MIN + _CUT_FACTOR * self._live:
            self._begin_cut()

    def _begin_cut(self) -> None:
        """Begin to write what is live anew. What ends from now on is recorded behind it."""
        after, weight = self._appended, self._weight
        self._extensible.clear()  # what came later would be in no copy
        # As it is now: what is acknowledged from now on, of the same batch too, has its own record.
        live = [(*item, list(item[1].individual.values())) for item in self._open.items()]
        for transaction, acks, _ in live:
            if acks.cumulative is not None:
                self._append(_record(_ACK, transaction, (acks.cumulative,), cumulative=True))
        self._cut = _Cut(after, weight, self._last, _in_copies(live))
        self._copy_more(self._cut)

    def _copy_more(self, cut: _Cut) -> None:
        if cut.copies is not None:
            weight = 0
            for transaction, acks, some in cut.copies:
                if self._open.get(transaction) is acks:
                    self._append(_record(_ACK, transaction, some))
                weight += sum(ack.weight for ack in some)
                if weight >= COPIED_AT_ONCE:
                    break
            else:
                cut.copies, cut.copied = None, self._appended
        self._store_if_copied(cut)

    def _go_on_cutting(self) -> None:
        if (cut := self._cut) is None:
            self._cut_if_long()
            return
        if self._recorded <= cut.after:
            cut.position = self._last
        self._store_if_copied(cut)

    def _store_if_copied(self, cut: _Cut) -> None:
        if cut.copies is not None or self._recorded < cut.copied or cut.is_storing:
            return
        oldest = next(iter(self._applying.values()), None)
        # What isn't applied yet would be lost with the log: its end, or what it ends.
        if oldest is None or oldest.number > cut.copied:
            cut.is_storing = True
            self._effects.append(StoreCursor())

    def on_cursor_stored(self, *, stored: bool) -> None:
        """The answer to `StoreCursor`; False: it failed; the next record or `cut` tries again."""
        assert self._cut is not None
        if not stored:
            self._cut.is_storing = False
            return
        cut, self._cut = self._cut, None
        self._weight -= cut.weight
        if cut.position != EARLIEST:
            self._effects.append(TrimPendingAckLog(cut.position))

    @property
    def has_effects(self) -> bool:
        """Whether ``take_effects`` answers any."""
        return bool(self._effects)

    def take_effects(self) -> list[PendingAckEffect]:
        effects, self._effects = self._effects, []
        self._extensible.clear()
        return effects

    # --- questions

    @property
    def transactions(self) -> list[TransactionId]:
        """Those that haven't ended."""
        return [*self._open, *self._ends, *self._applying]

    def cumulative_of(self, transaction: TransactionId) -> Position | None:
        """Up to where it has acknowledged cumulatively, if it has."""
        acks = self._open.get(transaction)
        return None if acks is None or acks.cumulative is None else acks.cumulative.position

    def batch_size(self, position: Position) -> int:
        """Messages of an entry of which some are pending; 0: none is, or that isn't known."""
        return self._pending.get(position[0], {}).get(position[1], (0, 0))[1]

    @property
    def positions(self) -> list[Position]:
        """Entries of which something is pending."""
        return [(x, entry_id) for x, entries in self._pending.items() for entry_id in entries]

    def is_pending(self, position: Position, batch_index: int = -1) -> bool:
        """Whether something of an entry waits for the end of a transaction.

        Args:
            batch_index: ask for one message of a batch; -1: any of the entry.
        """
        mask, _ = self._pending.get(position[0], {}).get(position[1], (0, 0))
        return mask != 0 if batch_index < 0 else mask >> batch_index & 1 == 1

    def acknowledged_by(self, position: Position, batch_index: int = -1) -> TransactionId | None:
        """The transaction that has acknowledged an entry, or the last messages left of it, and
        hasn't ended.

        Args:
            batch_index: ask for one message of a batch; -1: the whole entry.
        """
        if batch_index >= 0:
            wanted, is_pending = 1 << batch_index, self.is_pending(position, batch_index)
        else:
            wanted = _WHOLE
            is_pending = self.is_pending(position) and not self._left(position)
        ends = chain(self._ends.values(), self._applying.values())
        ended = ((end.transaction, end.acks) for end in ends)
        for transaction, acks in chain(self._open.items(), ended):
            ack, last = acks.individual.get(position), acks.cumulative
            if is_pending and ack is not None and ack.mask & wanted:
                return transaction
            if last is not None and (position < last.position or _covers(last, position, wanted)):
                return transaction
        return None

    def withheld_in(self, ledger_id: int, first: int, count: int) -> list[int]:
        """Entries among ``first .. first + count - 1`` that have nothing to deliver: all that the
        cursor has left of them is pending. Ascending."""
        if (entries := self._pending.get(ledger_id)) is None:
            return []
        end = first + count
        if count < len(entries):
            some = [entry_id for entry_id in range(first, end) if entry_id in entries]
        else:
            some = sorted(entry_id for entry_id in entries if first <= entry_id < end)
        return [entry_id for entry_id in some if not self._left((ledger_id, entry_id))]

    def batch_ack_set(self, position: Position) -> list[int] | None:
        """Words of the messages of a batch that may be delivered; None: all."""
        if not self.is_pending(position):
            return self._cursor.batch_ack_set(position)
        return mask_to_words(self._left(position))

    def _left(self, position: Position) -> int:
        """REQUIRES: something of it is pending."""
        mask, size = self._pending[position[0]][position[1]]
        left = ~mask if mask < 0 else ((1 << size) - 1) & ~mask
        words = self._cursor.batch_ack_set(position)
        return left if words is None else left & words_to_mask(words)


def _covers(ack: PendingAck, position: Position, wanted: int) -> bool:
    """Whether it has acknowledged all wanted messages of its entry."""
    return position == ack.position and (not ack.left or (wanted > 0 and not wanted & ack.left))


def _in_copies(live: Iterable[tuple[TransactionId, _Acks, list[PendingAck]]]) -> _Copies:
    for transaction, acks, individual in live:
        for some in _in_records(individual, COPIED_AT_ONCE):
            yield transaction, acks, some


def _in_records(
    acks: Iterable[PendingAck], weight_max: int = _RECORD_WEIGHT_MAX
) -> Iterator[list[PendingAck]]:
    """As many as a record may hold."""
    some: list[PendingAck] = []
    weight = 0
    for ack in acks:
        more = ack.weight if ack.left else 1
        if some and weight + more > weight_max:
            yield some
            some, weight = [], 0
        some.append(ack)
        weight += more
    if some:
        yield some


def _record(
    operation: "PendingAckRecord.Operation.ValueType",
    transaction: TransactionId,
    acks: Sequence[PendingAck],
    *,
    cumulative: bool = False,
) -> PendingAckRecord:
    record = PendingAckRecord(
        operation=operation, mostBits=transaction.most, leastBits=transaction.least
    )
    record.ackType = _CUMULATIVE if cumulative else PendingAckRecord.INDIVIDUAL
    _put(record, acks)
    return record


def _put(record: PendingAckRecord, acks: Sequence[PendingAck]) -> None:
    for ack in acks:
        stored = record.positions.add(ledgerId=ack.position[0], entryId=ack.position[1])
        if ack.left:
            stored.ackSet.extend(mask_to_words(ack.left))
        if ack.batch_size:
            stored.batchSize = ack.batch_size


def _ack_of(stored: "PendingAckRecord.Position") -> PendingAck:
    return PendingAck(
        (stored.ledgerId, stored.entryId), words_to_mask(stored.ackSet), stored.batchSize
    )
