"""Core of a coordinator: which transactions there are, and what its log says of them.

Calls in, effects out. A call is decided by all that was appended before it, stored or not; its
answer leaves once that is stored. So an append that fails, or whose outcome isn't known, is the end
of the coordinator: ``fail``, then another one that replays the log.

Two answers don't wait for their record. That of a new transaction: its sequence is one of those
that a stored record says are given out, so nobody gets it again. And that of an end: the decision
is stored, participants have it, and a replay tells them once more.
"""

import sys
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias, TypeVar

from magnetar.broker.errors import (
    BrokerError,
    InvalidTransactionStatusError,
    NotAllowedError,
    TransactionNotFoundError,
)
from magnetar.broker.transaction import transaction_records_pb2 as pb
from magnetar.broker.transaction.coordinator_metrics import CoordinatorMetrics
from magnetar.broker.transaction.coordinator_records import (
    encode_group,
    encode_new,
    encode_partitions,
    encode_status,
    encode_subscriptions,
    entry_records,
)
from magnetar.broker.transaction.transaction_deadlines import TransactionDeadlines
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.position import Position

Record: TypeAlias = pb.TransactionRecord
Status: TypeAlias = "pb.TransactionRecord.Status.ValueType"
Request: TypeAlias = object
"""What the caller knows a request by."""

REPLAY_MIN: Final = 4000
REPLAY_FACTOR: Final = 4
"""A replay reads about so many records, or so many for each transaction that hasn't ended."""
TIMEOUTS_A_TURN: Final = 500
IN_FLIGHT_MAX: Final = 1000
"""Appends that aren't confirmed: above, time-outs wait."""
ENDING_MAX: Final = 1000
"""Transactions whose participants are being asked: above, time-outs and repetitions wait."""
RETRY_MS: Final = 1000
_RETRY_DOUBLINGS_MAX: Final = 4
"""Participants that can't end a transaction are asked again after 1, 2, 4, 8, 16, 16, ... s."""
NAME_CHARACTERS_MAX: Final = 1 << 18
"""Of all partitions and subscriptions of a transaction: one entry may have them several times."""
_COPIES_AN_APPEND: Final = 4
_TRIM_STEP: Final = 100
_STEPS_A_CALL: Final = 1000
SEQUENCES_AHEAD: Final = 1000
"""A record says that up to so many are given out, more than are; a replay leaves them out."""
UINT64: Final = (1 << 64) - 1
_FEW_NAMES: Final = 8
"""Partitions or subscriptions of a transaction that are looked through one by one."""
_Name = TypeVar("_Name")


@dataclass(slots=True)
class AppendEntry:
    """To the end of the log, perhaps joined with others; ``on_appended`` tells of all, in order.

    Attributes:
        may_wait: nothing waits for it: the next entries may come first, to be appended with it.
    """

    entry: bytes
    may_wait: bool


@dataclass(slots=True)
class EndParticipants:
    """All of them are to end the transaction: then call ``on_participants_done``, or ``_failed``.

    Attributes:
        subscriptions: topic and subscription.
        low_watermark: transactions of this coordinator up to this sequence have ended.
    """

    transaction: TransactionId
    commits: bool
    partitions: tuple[str, ...]
    subscriptions: tuple[tuple[str, str], ...]
    low_watermark: int


@dataclass(slots=True)
class Answer:
    """To one request: the transaction, or why not."""

    request: Request
    result: TransactionId | BrokerError


@dataclass(slots=True)
class Trim:
    """Entries in front of this position aren't needed any more."""

    before: Position


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One that hasn't ended, at a moment.

    Attributes:
        status: ``OPEN``, ``COMMITTING`` or ``ABORTING``.
        timeout_ms: how long it may be open, from its start.
        owner: role; empty: everyone may use it.
        subscriptions: topic and subscription.
    """

    transaction: TransactionId
    status: str
    start_ms: int
    timeout_ms: int
    owner: str
    partitions: tuple[str, ...]
    subscriptions: tuple[tuple[str, str], ...]


Effect: TypeAlias = AppendEntry | EndParticipants | Answer | Trim


@dataclass(slots=True)
class _Transaction:
    """``first``: number of the entry from which on the log tells all of it."""

    sequence: int
    first: int
    position: Position | None  # of that entry; None: not stored yet
    start_ms: int
    timeout_ms: int
    owner: str
    status: Status = Record.OPEN
    partitions: Collection[str] = ()  # see `_with_more`
    subscriptions: Collection[tuple[str, str]] = ()
    name_characters: int = 0  # of both
    failures: int = 0  # of its participants to end it

    @property
    def deadline_ms(self) -> int:
        return self.start_ms + self.timeout_ms


@dataclass(slots=True, eq=False)
class _Append(AppendEntry):
    """One object for the effect and for what follows of it."""

    transaction: _Transaction
    number: int
    taken: int  # what its record says of ``Coordinator._taken``
    answers: list[Answer]
    begins_end: bool


class Coordinator:
    """Transactions of one coordinator.

    Attributes:
        number: the coordinator's.
        metrics: counted from the replay on; what the replay sees isn't.

    Args:
        open_max: transactions that haven't ended; more are not answered. 0: no limit.
    """

    def __init__(self, number: int, open_max: int = 0) -> None:
        self.number = number
        self._open_max = open_max
        self.metrics = CoordinatorMetrics()
        self._next = 0  # sequence
        self._taken = self._stored_taken = 0  # records say that lower sequences are given out
        self._lowest = 0  # no transaction that hasn't ended has a lower sequence
        self._live: OrderedDict[int, _Transaction] = OrderedDict()  # by ``first``
        self._deadlines = TransactionDeadlines()
        self._next_entry = 0  # numbers count from the first record of the replay
        self._trimmed = 0
        self._last: tuple[int, Position] | None = None  # stored entry
        self._copies: deque[tuple[int, int, Position | None]] = deque()
        """Not stored yet: the copy's number, and where the entries begin that it replaces."""
        self._in_flight: deque[_Append] = deque()
        self._awaited: _Append | None = None  # the last in flight that something waits for
        self._waiting: dict[int, list[Request]] = {}  # by sequence: for its end
        self._resumed: dict[int, None] = {}  # whose participants are to be ended after a replay
        self._again = TransactionDeadlines()  # whose participants couldn't end it
        self._asked = 0  # ``EndParticipants`` without an outcome
        self._effects: list[Effect] = []

    def __len__(self) -> int:
        """Transactions that haven't ended."""
        return len(self._live)

    # --- questions

    def times_of(self, sequence: int) -> tuple[int, int] | None:
        """When a transaction began and when it times out, in ms; None: there is none."""
        found = self._live.get(sequence)
        return None if found is None else (found.start_ms, found.deadline_ms)

    @property
    def last_sequence(self) -> int:
        """Of the newest transaction; -1: there was none."""
        return self._next - 1

    def describe(self, sequence: int) -> TransactionDescription | None:
        """None: it has ended, or never was."""
        found = self._live.get(sequence)
        return None if found is None else self._described(found)

    def sequences(self) -> list[int]:
        """Of those that haven't ended, in the order of the log."""
        return list(self._live)

    def begun_before(self, time_ms: int, sequences: Iterable[int]) -> list[TransactionDescription]:
        """Of these, those that haven't ended and began before then."""
        some = (self._live.get(sequence) for sequence in sequences)
        return [self._described(x) for x in some if x is not None and x.start_ms < time_ms]

    def _described(self, transaction: _Transaction) -> TransactionDescription:
        return TransactionDescription(
            self._id_of(transaction),
            Record.Status.Name(transaction.status),
            transaction.start_ms,
            transaction.timeout_ms,
            transaction.owner,
            tuple(transaction.partitions),
            tuple(transaction.subscriptions),
        )

    # --- the log

    def begin_behind(self, sequence: int) -> None:
        """All up to it were given out, and have ended; before anything else is called."""
        self._next = self._lowest = sequence + 1

    def replay(self, entry: bytes, position: Position) -> None:
        """Take the next entry of the log; all of them before anything else is called.

        Raises:
            google.protobuf.message.DecodeError: it isn't one.
        """
        for record in entry_records(entry):
            number, self._next_entry = self._next_entry, self._next_entry + 1
            self._last = (number, position)
            self._lowest = min(self._lowest, record.leastBits) if number else record.leastBits
            given = record.maxLocalTxnId if record.HasField("maxLocalTxnId") else record.leastBits
            self._next = max(self._next, given + 1)
            if record.operation == Record.NEW:
                self._replay_new(record, number, position)
            elif (transaction := self._live.get(record.leastBits)) is not None:
                self._replay_change(transaction, record)

    def _replay_new(self, record: Record, number: int, position: Position) -> None:
        if (known := self._live.get(record.leastBits)) is not None:  # its copy: all is here again
            known.first, known.position = number, position
            self._live.move_to_end(record.leastBits)
            return
        transaction = _Transaction(
            *(record.leastBits, number, position),
            *(record.startTime, as_signed(record.timeoutMs), sys.intern(record.owner)),
        )
        self._live[transaction.sequence] = transaction
        self._deadlines.add(transaction.sequence, transaction.deadline_ms)

    def _replay_change(self, transaction: _Transaction, record: Record) -> None:
        pairs = [(each.topic, each.subscription) for each in record.subscriptions]
        transaction.name_characters += _name_characters(record.partitions, pairs)
        _add_participants(transaction, record.partitions, pairs)
        if record.operation != Record.UPDATE:
            return
        sequence = transaction.sequence
        if transaction.status == Record.OPEN:
            self._deadlines.remove(sequence, transaction.deadline_ms)
            transaction.status = record.newStatus
            self._resumed[sequence] = None
        if record.newStatus in (Record.COMMITTED, Record.ABORTED):
            del self._live[sequence]
            self._resumed.pop(sequence, None)

    def start(self) -> None:
        """The log is read. All else was done on the way: a million of them would hold the loop."""
        self._taken = self._stored_taken = self._next

    def on_appended(self, position: Position, count: int = 1) -> None:
        """The oldest entries that weren't stored yet are, together at one position of the log."""
        for _ in range(count):
            append = self._in_flight.popleft()
            transaction = append.transaction
            if append is self._awaited:
                self._awaited = None
            self._last = (append.number, position)
            self._stored_taken = append.taken
            if transaction.first == append.number:
                transaction.position = position
            if self._copies and self._copies[0][0] == append.number:
                self._copies.popleft()
            self._effects += append.answers
            if append.begins_end:
                self._end_participants(transaction)
        self._trim()

    def fail(self, error: BrokerError) -> None:
        """Answer all that wait. Nothing is called after this but ``take_effects``."""
        requests = [each.request for append in self._in_flight for each in append.answers]
        for waiting in self._waiting.values():
            requests += waiting
        self._effects += [Answer(request, error) for request in requests]

    def drop(self, count: int) -> None:
        """After ``fail``: forget so many transactions, so that no turn frees all of them."""
        for _ in range(min(count, len(self._live))):
            self._live.popitem()

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # --- requests

    def new(self, request: Request, now_ms: int, timeout_ms: int, owner: str = "") -> None:
        """Begin a transaction. Above the limit there is no answer, as with Pulsar.

        Args:
            timeout_ms: counts from now; with 0 or less it is aborted at once.
            owner: role; empty: everyone may use it.
        """
        if 0 < self._open_max <= len(self._live):
            self.metrics.refused += 1
            return
        self.metrics.created += 1
        sequence, self._next = self._next, self._next + 1
        transaction = _Transaction(
            *(sequence, self._next_entry, None, now_ms, timeout_ms, sys.intern(owner))
        )
        self._live[sequence] = transaction
        answer = Answer(request, self._id_of(transaction))
        if self._taken - sequence <= SEQUENCES_AHEAD // 2:  # early: the next ones don't wait
            self._taken = sequence + SEQUENCES_AHEAD
        if sequence < self._stored_taken:
            self._effects.append(answer)
            self._append(transaction, self._new_record(transaction))
        else:
            self._append(transaction, self._new_record(transaction), answer)
        if timeout_ms > 0:
            self._deadlines.add(sequence, transaction.deadline_ms)
        else:
            self._time_out(transaction)

    def add_partitions(
        self, request: Request, sequence: int, partitions: Iterable[str], caller: str | None = None
    ) -> None:
        """Register partitions before the first message goes there.

        Args:
            caller: role; None: may use every transaction.
        """
        if (transaction := self._open_one(request, sequence, caller)) is None:
            return
        added = [each for each in partitions if each not in transaction.partitions]
        self._add(request, transaction, added, ())

    def add_subscriptions(
        self,
        request: Request,
        sequence: int,
        subscriptions: Iterable[tuple[str, str]],
        caller: str | None = None,
    ) -> None:
        """Register pairs of a topic and a subscription before the first acknowledgement."""
        if (transaction := self._open_one(request, sequence, caller)) is None:
            return
        added = [each for each in subscriptions if each not in transaction.subscriptions]
        self._add(request, transaction, (), added)

    def end(
        self, request: Request, sequence: int, *, commits: bool, caller: str | None = None
    ) -> None:
        """Commit or abort; answered once all participants have it. May be repeated."""
        if (transaction := self._find(request, sequence, caller)) is None:
            return
        if transaction.status == Record.OPEN:
            self._deadlines.remove(sequence, transaction.deadline_ms)
            self._begin_end(transaction, commits=commits)
        elif commits != (transaction.status == Record.COMMITTING):
            self._answer_status(request, transaction)
            return
        self._waiting.setdefault(sequence, []).append(request)

    def on_participants_done(self, sequence: int) -> None:
        """All participants have the end of the transaction, and keep it."""
        self._asked -= 1
        self._finish(sequence)

    def on_participants_failed(self, sequence: int, now_ms: int) -> int:
        """Some can't end it now: all are asked again later; returns how often that was."""
        self._asked -= 1
        transaction = self._live[sequence]
        delay_ms = RETRY_MS << min(transaction.failures, _RETRY_DOUBLINGS_MAX)
        self.metrics.stuck += not transaction.failures
        transaction.failures += 1
        self._again.add(sequence, now_ms + delay_ms)
        return transaction.failures

    def _finish(self, sequence: int) -> None:
        transaction = self._live.pop(sequence)  # nobody may find it, or copy it, behind its end
        commits = transaction.status == Record.COMMITTING
        ended = Record.COMMITTED if commits else Record.ABORTED
        self.metrics.on_ended(transaction.start_ms, commits=commits)
        self.metrics.stuck -= transaction.failures > 0
        record = self._status_record(transaction, transaction.status, ended)
        name = self._id_of(transaction)
        self._effects += [Answer(request, name) for request in self._waiting.pop(sequence, ())]
        self._append(transaction, record)

    # --- time

    def next_deadline_ms(self) -> int | None:
        """When ``on_tick`` has something to do; None: not before another call."""
        if len(self._in_flight) >= IN_FLIGHT_MAX or self._asked >= ENDING_MAX:
            return None
        if self._resumed:
            return 0
        due_ms = (self._deadlines.next_ms(), self._again.next_ms())
        return min((each for each in due_ms if each is not None), default=None)

    def on_tick(self, now_ms: int) -> None:
        """Abort what has timed out, ask participants again: at most ``TIMEOUTS_A_TURN``."""
        count_max = min(
            *(TIMEOUTS_A_TURN, IN_FLIGHT_MAX - len(self._in_flight)), ENDING_MAX - self._asked
        )
        while self._resumed and count_max > 0:
            self._end_participants(self._live[self._resumed.popitem()[0]])
            count_max -= 1
        for sequence in self._again.take(now_ms, count_max):
            self._end_participants(self._live[sequence])
            count_max -= 1
        for sequence in self._deadlines.take(now_ms, count_max):
            self._time_out(self._live[sequence])

    # --- parts

    def _id_of(self, transaction: _Transaction) -> TransactionId:
        return TransactionId(self.number, transaction.sequence)

    def _find(self, request: Request, sequence: int, caller: str | None) -> _Transaction | None:
        transaction = self._live.get(sequence)
        if transaction is None:
            name = TransactionId(self.number, sequence)
            error = TransactionNotFoundError(f"Transaction {name} has ended, or never was")
            self._answer(Answer(request, error))
        elif caller is not None and transaction.owner not in ("", caller):
            name = self._id_of(transaction)
            text = f"Client ({caller}) is neither the owner of the transaction {name}"
            self._answer(Answer(request, NotAllowedError(f"{text} nor a super user")))
            return None
        return transaction

    def _open_one(self, request: Request, sequence: int, caller: str | None) -> _Transaction | None:
        transaction = self._find(request, sequence, caller)
        if transaction is not None and transaction.status != Record.OPEN:
            self._answer_status(request, transaction)
            return None
        return transaction

    def _add(
        self,
        request: Request,
        transaction: _Transaction,
        partitions: Sequence[str],
        subscriptions: Sequence[tuple[str, str]],
    ) -> None:
        """Of the one or the other, unless they are too many; then the request is answered."""
        characters = transaction.name_characters + _name_characters(partitions, subscriptions)
        if characters > NAME_CHARACTERS_MAX:
            text = f"Transaction {self._id_of(transaction)} has too many partitions, subscriptions"
            self._answer(Answer(request, NotAllowedError(text)))
            return
        transaction.name_characters = characters
        _add_participants(transaction, partitions, subscriptions)
        answer = Answer(request, self._id_of(transaction))
        if partitions:
            self._append(transaction, self._partitions_record(transaction, partitions), answer)
        elif subscriptions:
            record = self._subscriptions_record(transaction, subscriptions)
            self._append(transaction, record, answer)
        else:
            self._answer(answer)

    def _answer_status(self, request: Request, transaction: _Transaction) -> None:
        status = Record.Status.Name(transaction.status)
        text = f"Transaction {self._id_of(transaction)} is {status}"
        self._answer(Answer(request, InvalidTransactionStatusError(text)))

    def _answer(self, answer: Answer) -> None:
        """Behind the answers to what is appended: it may be the reason of this one."""
        (self._effects if self._awaited is None else self._awaited.answers).append(answer)

    def _time_out(self, transaction: _Transaction) -> None:
        self.metrics.timed_out += 1
        self._begin_end(transaction, commits=False)

    def _begin_end(self, transaction: _Transaction, *, commits: bool) -> None:
        transaction.status = Record.COMMITTING if commits else Record.ABORTING
        record = self._status_record(transaction, Record.OPEN, transaction.status)
        self._append(transaction, record, begins_end=True)

    def _end_participants(self, transaction: _Transaction) -> None:
        if not transaction.partitions and not transaction.subscriptions:
            self._finish(transaction.sequence)
            return
        self._asked += 1
        self._effects.append(
            EndParticipants(
                self._id_of(transaction),
                transaction.status == Record.COMMITTING,
                tuple(transaction.partitions),
                tuple(transaction.subscriptions),
                self.low_watermark(),
            )
        )

    def low_watermark(self) -> int:
        """All transactions up to this sequence have ended.

        A lower one is right, too: a few steps in each call, so that none takes long.
        """
        for _ in range(_STEPS_A_CALL):
            if self._lowest == self._next or self._lowest in self._live:
                break
            self._lowest += 1
        return self._lowest - 1

    # --- records

    def _new_record(self, transaction: _Transaction) -> bytes:
        return encode_new(
            *(transaction.sequence, self.number, self._taken - 1),
            *(transaction.start_ms, transaction.timeout_ms, transaction.owner),
        )

    def _partitions_record(self, transaction: _Transaction, names: Iterable[str]) -> bytes:
        return encode_partitions(transaction.sequence, self.number, self._taken - 1, names)

    def _subscriptions_record(
        self, transaction: _Transaction, names: Iterable[tuple[str, str]]
    ) -> bytes:
        return encode_subscriptions(transaction.sequence, self.number, self._taken - 1, names)

    def _status_record(self, transaction: _Transaction, expected: Status, new: Status) -> bytes:
        return encode_status(transaction.sequence, self.number, self._taken - 1, expected, new)

    def _append(
        self,
        transaction: _Transaction,
        record: bytes,
        *answers: Answer,
        begins_end: bool = False,
    ) -> None:
        self._append_entry(transaction, record, list(answers), begins_end=begins_end)
        if self._next_entry - self._trimmed > REPLAY_MIN:
            self._copy_oldest()

    def _copy_oldest(self) -> None:
        """Write those anew in front of which the log has become long."""
        for _ in range(_COPIES_AN_APPEND):
            if not self._live:
                return
            oldest = next(iter(self._live.values()))
            if self._next_entry - oldest.first <= max(REPLAY_MIN, REPLAY_FACTOR * len(self._live)):
                return
            self._copy(oldest)

    def _append_entry(
        self,
        transaction: _Transaction,
        entry: bytes,
        answers: list[Answer],
        *,
        begins_end: bool = False,
    ) -> None:
        may_wait = not (begins_end or answers)
        append = _Append(
            *(entry, may_wait, transaction, self._next_entry, self._taken, answers, begins_end)
        )
        self._next_entry += 1
        self.metrics.appended += 1
        self._in_flight.append(append)
        if not may_wait:
            self._awaited = append
        self._effects.append(append)

    def _copy(self, transaction: _Transaction) -> None:
        """All of it in one entry, at the log's end."""
        records = [self._new_record(transaction)]
        if transaction.partitions:
            records.append(self._partitions_record(transaction, transaction.partitions))
        if transaction.subscriptions:
            records.append(self._subscriptions_record(transaction, transaction.subscriptions))
        if transaction.status != Record.OPEN:
            records.append(self._status_record(transaction, Record.OPEN, transaction.status))
        self._copies.append((self._next_entry, transaction.first, transaction.position))
        transaction.first, transaction.position = self._next_entry, None
        self._live.move_to_end(transaction.sequence)
        self._append_entry(transaction, encode_group(records), [])

    def _trim(self) -> None:
        assert self._last is not None
        number: int
        position: Position | None
        number, position = self._last  # stays: it tells which sequences were given out
        if self._copies:
            _, number, position = self._copies[0]
        elif self._live:
            oldest = next(iter(self._live.values()))
            number, position = oldest.first, oldest.position
        if position is not None and number - self._trimmed >= _TRIM_STEP:
            self._trimmed = number
            self._effects.append(Trim(position))


def _add_participants(
    transaction: _Transaction,
    partitions: Sequence[str],
    subscriptions: Sequence[tuple[str, str]],
) -> None:
    """Names are shared by all transactions that have them."""
    if partitions:
        names = map(sys.intern, partitions)
        transaction.partitions = _with_more(transaction.partitions, names)
    if subscriptions:
        pairs = ((sys.intern(topic), sys.intern(name)) for topic, name in subscriptions)
        transaction.subscriptions = _with_more(transaction.subscriptions, pairs)


def _with_more(known: Collection[_Name], more: Iterable[_Name]) -> Collection[_Name]:
    """Each once, in order. A tuple of a few names takes a quarter of the memory of a dict."""
    found: dict[_Name, None] = known if isinstance(known, dict) else dict.fromkeys(known)
    found.update(dict.fromkeys(more))
    return tuple(found) if len(found) <= _FEW_NAMES else found


def _name_characters(partitions: Sequence[str], subscriptions: Sequence[tuple[str, str]]) -> int:
    return sum(map(len, chain(partitions, chain.from_iterable(subscriptions))))


def as_signed(number: int) -> int:
    """What Java means by a ``uint64``."""
    return number - (1 << 64) if number >> 63 else number
