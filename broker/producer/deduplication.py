"""A stored topic that drops what its producers send again.

Rules: docs/spec/wire-protocol.md, "Deduplication".

What is known of the producers survives the broker: every thousand entries it is stored with the
cursor ``pulsar.dedup``, as the properties that go with its mark-delete position, and the entries
behind that position tell the rest when the topic is loaded again. So the cursor's position and
properties always belong together, and are stored together.

An append may fail and its entries turn up in the log all the same: the answer was lost, and the
ledger's end can't be found just then (`ManagedLedger.is_undecided`). Until the end is definite and
what is in front of it was read, no producer is let in (``seeks_end``): an id comes again only when
it is known whether its first copy is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from magnetar.broker.errors import STORAGE_ERRORS, PersistenceError, TopicFencedError
from magnetar.broker.producer.producer import Producer, PublishBatch
from magnetar.broker.producer.sequence_ids import NEW, STORED, DuplicateRun, SequenceIds
from magnetar.broker.protocol.entry_header import (
    FLAG_BATCH,
    FLAG_CHUNK,
    FLAG_LAST_CHUNK,
    FLAG_MARKER,
    FLAG_TRANSACTION,
    parse_header,
)
from magnetar.broker.protocol.framing import MalformedFrameError, parse_entry_body
from magnetar.broker.transaction.markers import end_in, transaction_of
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.errors import ManagedLedgerTerminatedError
from magnetar.managed_ledger.position import LATEST, Position

if TYPE_CHECKING:
    from magnetar.broker.topic.persistent_topic import PersistentTopic

logger = logging.getLogger(__name__)

DEDUPLICATION_CURSOR: Final = "pulsar.dedup"
_REPLAY_ENTRIES: Final = 200
_REPLAY_BYTES: Final = 4 << 20
_SEEK_S: Final = 5.0
"""Pause between searches for an end; a producer that comes asks at once."""
_PRODUCER_WAITS_S: Final = 10.0
"""Then it is told to come again."""


def _last_id(first: int, highest: int, head: bytes) -> int:
    """Sequence id of an entry's last message, at the least.

    Clients for C++ and Python don't send the highest of a batch; ids ascend, so it can't be lower
    than if each were the one before plus one. Without that, a client that cuts its messages into
    other batches when it starts over would store the end of its last batch again.
    """
    if head[3] & FLAG_BATCH:
        return max(first + parse_header(head).message_count - 1, highest)
    return max(first, highest)


@dataclass(slots=True, eq=False)
class _FilteredBatch:
    """A batch on its way: its new runs are in the log's hands, the others wait for their turn."""

    batch: PublishBatch
    runs: list[DuplicateRun]
    after: _FilteredBatch | None = None
    """The same producer's next batch."""
    failed: bool = False
    """An entry before was lost: the client sends all that follows again."""


@dataclass(frozen=True, slots=True)
class Duplicates:
    """What was answered and not stored since the last entry that was stored.

    Attributes:
        producer: the last one that sent such entries.
        entries: of that producer.
        last_id: the highest sequence id of the producer that is stored.
        at_ms: when the last one came, since 1970.
    """

    producer: str
    entries: int
    last_id: int
    at_ms: int


class Deduplication:
    """What one topic knows of its producers' sequence ids, and the answers to what they repeat.

    Made when the topic's policy asks for it; it notes what is stored from then on (``on_stored``),
    and judges (``publish``) once ``start`` has read what was stored before.
    """

    def __init__(self, topic: PersistentTopic) -> None:
        self._topic = topic
        self._ids = SequenceIds()
        self._cursor: Cursor | None = None
        self._tails: dict[
            Producer, _FilteredBatch
        ] = {}  # the last batch that isn't answered in full
        self._may_come_again = set[str]()  # names of producers, by aborted transactions
        self._noted: Position | None = None  # everything up to it is in `_ids`
        self._entries_since = 0  # noted since the last snapshot
        self._snapshot_ms = topic.service.clock()
        self._is_storing = False
        self.status = "Initialized"
        """As TopicStats name it."""
        self.judges = False
        self._dropped: tuple[Position, Duplicates] | None = None  # and the log's end then
        self.seeks_end = False
        """Failed entries may be stored: nothing is taken until that is known."""
        self._reading = asyncio.Lock()  # one replay at a time
        self._wanted = asyncio.Event()  # a producer waits for the end
        self._found = asyncio.Event()

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest that is stored; -1: none is known."""
        return self._ids.last(producer_name) if self.judges else -1

    async def start(self) -> None:
        """Learn what earlier owners of the topic stored.

        Raises:
            LedgerError, ManagedLedgerError, MetadataError: it can't be read; judging nothing yet.
        """
        self.status = "Recovering"
        try:
            ledger = self._topic.ledger
            async with self._reading:
                if ledger.is_undecided:  # since before there was de-duplication
                    self._seek_end()
                cursor = await ledger.open_cursor(DEDUPLICATION_CURSOR, LATEST)
                for name, sequence_id in cursor.state.properties.items():
                    self._ids.stored(name, sequence_id)
                # Entries stored meanwhile are noted as they are stored.
                await self._replay(cursor.mark_delete, ledger.last_confirmed)
                self._cursor = cursor
        except BaseException:  # also when the topic is closed meanwhile
            self.status = "Failed"
            raise
        self.judges, self.status = True, "Enabled"

    async def _replay(self, after: Position, upto: Position) -> None:
        ledger = self._topic.ledger
        position, count = ledger.offsets.next_position(after), 0
        while position <= upto:
            if (run := await ledger.read(position, _REPLAY_ENTRIES, _REPLAY_BYTES)) is None:
                break
            for head, body in zip(run.heads, run.bodies, strict=True):
                self._replay_entry(head, bytes(body))
            count += len(run)
            self._note((run.ledger_id, run.last), len(run))
            position = ledger.offsets.next_position((run.ledger_id, run.last))
            await asyncio.sleep(0)
        if count:
            logger.info("%s: read %d entries for de-duplication", self._topic.name, count)

    def _replay_entry(self, head: bytes, body: bytes) -> None:
        flags = parse_header(head).flags
        if flags & FLAG_MARKER:
            if (found := end_in(body)) is not None:
                self.on_transaction_end(found[0], commit=found[1])
            return
        if flags & FLAG_CHUNK and not flags & FLAG_LAST_CHUNK:
            return
        try:
            metadata, _ = parse_entry_body(body)
        except MalformedFrameError:
            return  # no client can read it, so none sends it again
        last = _last_id(metadata.sequence_id, metadata.highest_sequence_id, head)
        if flags & FLAG_TRANSACTION:
            self._ids.stored_in(transaction_of(metadata), metadata.producer_name, last)
        else:
            self._ids.stored(metadata.producer_name, last)

    # --- entries

    def publish(self, batch: PublishBatch) -> None:
        """Give what is new to the log, answer the rest; every entry in its turn."""
        producer = batch.producer
        last_ids = batch.last_ids = list(
            map(_last_id, batch.sequence_ids, batch.highest_ids, batch.heads)
        )
        runs = self._ids.sift(producer.name, batch.sequence_ids, last_ids, batch.unfinished)
        sifted = _FilteredBatch(batch, runs)
        before = self._tails.get(producer)
        self._tails[producer] = sifted
        if before is not None:
            before.after = sifted
        append = self._topic.append
        done = partial(self._on_appended, sifted)
        heads, bodies = batch.heads, cast("list[bytes | memoryview]", batch.bodies)
        if len(runs) == 1:
            if runs[0].verdict == NEW:
                append(heads, bodies, done)
        else:
            for verdict, start, end in runs:
                if verdict == NEW:
                    append(heads[start:end], bodies[start:end], done)
        if before is None:
            self._answer_others(sifted)

    def _on_appended(
        self,
        sifted: _FilteredBatch,
        ledger_id: int,
        first_entry_id: int,
        count: int,
        error: BaseException | None,
    ) -> None:
        sifted.failed = sifted.failed or error is not None
        self._topic.on_appended_batch(sifted.batch, ledger_id, first_entry_id, count, error)
        self._answer_others(sifted)

    def _answer_others(self, sifted: _FilteredBatch) -> None:
        """Answer the repeated entries whose turn has come."""
        while True:
            batch = sifted.batch
            for run in sifted.runs:
                if batch.answered >= run.end:
                    continue
                if run.verdict == NEW:
                    return  # the log answers next
                self._answer(sifted, run)
            if self._tails.get(batch.producer) is sifted:
                del self._tails[batch.producer]
                if self._may_come_again:
                    self._forget_given_of(batch.producer.name)
            if sifted.after is None:
                return
            sifted.after.failed = sifted.after.failed or sifted.failed
            sifted = sifted.after

    def _answer(self, sifted: _FilteredBatch, run: DuplicateRun) -> None:
        count = run.end - run.start
        error: Exception | None = None
        if sifted.failed:
            error = TopicFencedError("An earlier message was lost")
        elif run.verdict != STORED:
            error = PersistenceError(
                "The message was sent before, and it is not yet known whether it is stored"
            )
        else:
            self._note_dropped(sifted.batch.producer.name, count)
        self._topic.on_not_appended(sifted.batch, count, error)

    def _note_dropped(self, producer: str, entries: int) -> None:
        end, last_id = self._topic.ledger.last_confirmed, self._ids.last(producer)
        if self._dropped is not None and self._dropped[0] == end:
            before = self._dropped[1]
            entries += before.entries if before.producer == producer else 0
        told = Duplicates(producer, entries, last_id, self._topic.service.clock())
        self._dropped = end, told

    def dropped(self) -> Duplicates | None:
        """What came last, if it was sent before; None: something was stored since."""
        if self._dropped is None or self._dropped[0] != self._topic.ledger.last_confirmed:
            return None
        return self._dropped[1]

    def on_stored(self, batch: PublishBatch, offset: int, count: int, position: Position) -> None:
        """Entries ``offset .. offset + count`` of a batch are durable, the last at ``position``."""
        unfinished: Container[int] = batch.unfinished
        transactions = batch.transactions
        last_ids = batch.last_ids or batch.highest_ids
        for index in range(offset + count - 1, offset - 1, -1):
            if index in unfinished:
                continue
            last = max(batch.sequence_ids[index], last_ids[index])
            if transactions is not None and index in transactions:
                self._ids.stored_in(transactions[index], batch.producer.name, last)
                continue
            self._ids.stored(batch.producer.name, last)
            if transactions is None:
                break  # those before it in the batch have lower ids
        self._note(position, count)
        config = self._topic.service.config
        if self._entries_since >= config.broker_deduplication_entries_interval:
            self.snapshot()

    def on_transaction_end(self, transaction: TransactionId, *, commit: bool) -> None:
        """What an aborted transaction stored may come again."""
        names = self._ids.end_transaction(transaction, commit=commit)
        self._may_come_again |= names
        for name in names - {producer.name for producer in self._tails}:
            self._forget_given_of(name)

    def _forget_given_of(self, name: str) -> None:
        """REQUIRES: nothing of the producer is on its way to the log."""
        if name in self._may_come_again:
            self._may_come_again.discard(name)
            self._ids.forget_given_of(name)

    def on_settled(self) -> None:
        """Entries were failed, and nothing is on its way to the log any more."""
        if self._topic.ledger.is_undecided:
            self._seek_end()
        else:
            self._ids.forget_given()

    # --- entries in doubt

    async def wait_end(self) -> None:
        """Returns at once unless ``seeks_end``.

        Raises:
            TopicFencedError: the end wasn't found in time; come again.
        """
        if not self.seeks_end:
            return
        self._wanted.set()
        try:
            async with asyncio.timeout(_PRODUCER_WAITS_S):
                await self._found.wait()
        except TimeoutError:
            message = "It is not yet known which of the messages sent before are stored"
            raise TopicFencedError(message) from None

    def _seek_end(self) -> None:
        if not self.seeks_end:
            self.seeks_end = True
            self._found.clear()
            self._wanted.clear()
            self._topic.evict_producers(TopicFencedError("The topic is recovering"))
            self._topic.service.run(self._find_end())

    async def _find_end(self) -> None:
        topic, told = self._topic, False
        try:
            # Else the topic is unloaded, and the next load reads all; or no producer asks any more.
            while topic.ledger.is_open and topic.deduplication is self:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SEEK_S):
                        await self._wanted.wait()
                self._wanted.clear()
                try:
                    await topic.ledger.find_end()
                    await self._catch_up()
                except ManagedLedgerTerminatedError:
                    break
                except STORAGE_ERRORS as error:
                    if not told:
                        logger.warning("%s: no producer until all is known: %s", topic.name, error)
                    told = True
                    continue
                logger.info("%s: what was in doubt is known, accepting producers", topic.name)
                break
        finally:
            self.seeks_end = False
            self._found.set()

    async def _catch_up(self) -> None:
        """Learn what is in the log and wasn't reported; the rest may come again."""
        async with self._reading:
            if (cursor := self._cursor) is not None:
                after = cursor.mark_delete if self._noted is None else self._noted
                await self._replay(
                    max(after, cursor.mark_delete), self._topic.ledger.last_confirmed
                )
            self._ids.forget_given()

    def _note(self, position: Position, count: int) -> None:
        if self._noted is None or position > self._noted:
            self._noted = position
        self._entries_since += count

    # --- snapshots

    def snapshot(self) -> None:
        """Store what is known, unless nothing was learnt since, or it is just being stored."""
        cursor, position = self._cursor, self._noted
        if cursor is None or position is None or self._is_storing or cursor.is_closed:
            return
        if (transactions := self._topic.transactions) is not None:
            # What open transactions stored is read again: it isn't in the snapshot.
            position = min(position, transactions.buffer.readable)
        if position <= cursor.mark_delete:
            return
        self._is_storing, self._entries_since = True, 0
        self._snapshot_ms = self._topic.service.clock()
        names_max = self._topic.service.config.broker_deduplication_max_number_of_producers
        cursor.ack_cumulative(position, self._ids.snapshot(names_max), self._on_snapshot)

    def _on_snapshot(self, error: BaseException | None) -> None:
        self._is_storing = False
        if error is not None:
            # Nothing is lost: the next load reads more entries.
            logger.warning("%s: no de-duplication snapshot: %s", self._topic.name, error)

    def sweep(self, now_ms: int) -> None:
        """Now and then: a snapshot if one is due, and an end to producers that stay away."""
        interval_s = self._topic.policies.deduplication_snapshot_s
        if interval_s > 0 and now_ms - self._snapshot_ms >= interval_s * 1000:
            self.snapshot()
        self._ids.note_users(self._topic.producers, now_ms)
        minutes = (
            self._topic.service.config.broker_deduplication_producer_inactivity_timeout_minutes
        )
        if gone := self._ids.evict(now_ms - minutes * 60_000):
            logger.debug("%s: forgot %d idle producers", self._topic.name, gone)
