"""Which transactions a batch of the sink consists of: decided by the order of a log. Pure.

Each task writes in a transaction of its own, and the driver commits those of the batch. Drivers
die between two commits, and one that was thought dead may go on. So what is decided is a record of
a topic, and the first record counts, whoever wrote it (decision 0082):

1. A task appends `Began` before its first row.
2. The driver appends `Commits` when all transactions of the batch are there and open. It is void if
   the batch, or a later one, has a valid one already, or if an earlier `Aborts` names one of its
   transactions.
3. Only what the log decides is carried out: transactions of the valid `Commits` are committed. A
   transaction is aborted only when its batch is decided without it, or behind an `Aborts`.
4. `Done` follows when all of them are committed. The record of the latest batch is kept until the
   next one is decided.

The procedures are generators of steps; whoever runs them (`sink_commits.py`, or a simulation that
kills them) sends the answers.
"""

import json
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.position import Position
from magnetar.pipeline.errors import PartlyWrittenError, WriteError

MARGIN_MS: Final = 60_000
"""Clocks of the driver, of tasks and of brokers differ by less."""


class TaskTransaction(NamedTuple):
    """What one task has written.

    Attributes:
        partition: one that it has written to; the coordinator is asked with it.
        expires_ms: when the coordinator aborts it, by the task's clock, since the epoch.
    """

    id: TransactionId
    partition: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Began:
    """A task is about to write in this transaction."""

    batch: int
    id: TransactionId


@dataclass(frozen=True, slots=True)
class Commits:
    """The batch is these transactions."""

    batch: int
    transactions: tuple[TaskTransaction, ...]


@dataclass(frozen=True, slots=True)
class Aborts:
    """An attempt at the batch has failed: no later record may commit these."""

    batch: int
    ids: tuple[TransactionId, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """All transactions of the batch are committed."""

    batch: int


@dataclass(frozen=True, slots=True)
class Read:
    """A driver reads up to here."""

    batch: int


Record: TypeAlias = Began | Commits | Aborts | Done | Read


def encode_record(record: Record) -> bytes:
    kind = type(record).__name__.lower()
    fields = [getattr(record, name) for name in record.__slots__]
    return json.dumps([kind, *fields]).encode()


def decode_record(data: bytes) -> Record:
    """
    Raises:
        WriteError: no such record; another program writes to the topic.
    """
    try:
        match json.loads(data):
            case ["began", int(batch), [int(most), int(least)]]:
                return Began(batch, TransactionId(most, least))
            case ["commits", int(batch), list(found)]:
                written = (TaskTransaction(TransactionId(*id_), *more) for id_, *more in found)
                return Commits(batch, tuple(written))
            case ["aborts", int(batch), list(found)]:
                return Aborts(batch, tuple(TransactionId(*id_) for id_ in found))
            case ["done", int(batch)]:
                return Done(batch)
            case ["read", int(batch)]:
                return Read(batch)
    except (ValueError, TypeError):
        pass
    raise WriteError(f"no record of the sink: {data[:80]!r}; does something else write there?")


class CommitLog:
    """What the records up to some place decide."""

    def __init__(self, records: Iterable[tuple[Position, Record]]) -> None:
        self.latest = -1
        """The highest batch that is decided."""
        self._decided: dict[int, tuple[Position, Commits]] = {}
        self._began: dict[TransactionId, int] = {}
        self._chosen: set[TransactionId] = set()
        self._aborted: set[TransactionId] = set()
        self._done: set[int] = set()
        for position, record in records:
            self._on_record(position, record)

    def _on_record(self, position: Position, record: Record) -> None:
        match record:
            case Began(batch, id_):
                self._began[id_] = batch
            case Aborts(_, ids):
                self._aborted |= set(ids) - self._chosen
            case Commits(batch, transactions):
                is_void = any(each.id in self._aborted for each in transactions)
                if batch > self.latest and not is_void:
                    self.latest = batch
                    self._decided[batch] = position, record
                    self._chosen |= {each.id for each in transactions}
            case Done(batch):
                self._done.add(batch)

    def decided(self, batch: int) -> tuple[Position, Commits] | None:
        """Where it is decided, and what; None: it isn't."""
        return self._decided.get(batch)

    def is_done(self, batch: int) -> bool:
        return batch in self._done

    def began(self, batch: int) -> list[TransactionId]:
        """Of all attempts at it."""
        return [id_ for id_, number in self._began.items() if number == batch]

    def aborted(self, batch: int) -> list[TransactionId]:
        """Those of the batch that no record commits any more."""
        return [
            id_
            for id_ in self.began(batch)
            if id_ not in self._chosen and (batch <= self.latest or id_ in self._aborted)
        ]


# --- steps; what each is answered with


@dataclass(frozen=True, slots=True)
class ReadLog:
    """All records that are kept: ``list[tuple[Position, Record]]``."""


@dataclass(frozen=True, slots=True)
class Append:
    """None, once it is durable."""

    record: Record


@dataclass(frozen=True, slots=True)
class CheckOpen:
    """``list[bool]``: whether each is open."""

    transactions: tuple[TaskTransaction, ...]


@dataclass(frozen=True, slots=True)
class CommitAll:
    """``list[bool]``: whether each was committed by this step; else the coordinator has forgotten
    it, or is aborting it.
    """

    transactions: tuple[TaskTransaction, ...]


@dataclass(frozen=True, slots=True)
class AbortAll:
    """None. One that isn't there any more is as good as aborted."""

    ids: tuple[TransactionId, ...]


@dataclass(frozen=True, slots=True)
class TellTime:
    """Milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ForgetBefore:
    """None. Records in front of the position aren't needed any more."""

    position: Position


Step: TypeAlias = ReadLog | Append | CheckOpen | CommitAll | AbortAll | TellTime | ForgetBefore
Steps: TypeAlias = Generator[Step, Any, bool]


def commit_batch(batch: int, transactions: tuple[TaskTransaction, ...]) -> Steps:
    """All transactions of a batch are committed, or those that an earlier driver decided on.

    Returns:
        Whether these are the ones; else the batch was decided before, with others.
    Raises:
        PartlyWrittenError: its transactions timed out after the decision.
        WriteError: nothing of the batch is committed.
    """
    log = CommitLog((yield ReadLog()))
    if log.decided(batch) is None:
        if log.latest > batch:
            raise WriteError(
                f"batch {log.latest} is written already, and this is batch {batch}. Was a "
                "checkpoint deleted, or do two queries share a producerName? Choose another one"
            )
        yield from _require_open(batch, transactions)
        yield Append(Commits(batch, transactions))
        log = CommitLog((yield ReadLog()))
    if (decided := log.decided(batch)) is None:
        raise WriteError(f"batch {batch} was given up by another driver; nothing of it is written")
    position, commits = decided
    if not log.is_done(batch):
        yield from _carry_out(commits)
        yield Append(Done(batch))
    left = [id_ for number in range(batch + 1) for id_ in log.aborted(number)]
    if left:
        yield AbortAll(tuple(left))
    yield ForgetBefore(position)
    return commits.transactions == transactions


def _require_open(
    batch: int, transactions: tuple[TaskTransaction, ...]
) -> Generator[Step, Any, None]:
    """Before the decision: behind it, one that has timed out would leave the others alone."""
    are_open = yield CheckOpen(transactions)
    now_ms = yield TellTime()
    late = [
        each
        for each, is_open in zip(transactions, are_open, strict=True)
        if not is_open or each.expires_ms - MARGIN_MS < now_ms
    ]
    if late:
        raise WriteError(
            f"batch {batch}: transaction {late[0].id} timed out before the batch was complete. "
            "Nothing of it is written. Make transactionTimeoutMs longer than a batch takes"
        )


def _carry_out(commits: Commits) -> Generator[Step, Any, None]:
    are_committed = yield CommitAll(commits.transactions)
    now_ms = yield TellTime()
    lost = [
        each
        for each, is_committed in zip(commits.transactions, are_committed, strict=True)
        # Forgotten before its time: an earlier driver committed it, nobody aborts what is decided.
        if not is_committed and each.expires_ms - MARGIN_MS < now_ms
    ]
    if lost:
        raise PartlyWrittenError(
            f"batch {commits.batch}: a driver decided to commit {len(commits.transactions)} "
            f"transactions and died; {len(lost)} of them, {lost[0].id} first, have ended since: "
            "committed, or timed out. The batch may be written in part. Compare the topics with "
            "the source; another producerName writes the batch anew"
        )


def abort_batch(batch: int, ids: Iterable[TransactionId]) -> Steps:
    """An attempt at a batch has failed: nothing of it is written unless it was decided before.

    Returns:
        Whether nothing is.
    """
    log = CommitLog((yield ReadLog()))
    if log.decided(batch) is None:
        named = dict.fromkeys([*ids, *log.began(batch)])
        yield Append(Aborts(batch, tuple(named)))
        log = CommitLog((yield ReadLog()))
    is_undecided = log.decided(batch) is None
    if is_undecided:
        yield AbortAll(tuple(log.aborted(batch)))
    return is_undecided
