"""asyncio shell of a topic's transaction buffer: looks at the log's entries, stores the markers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from magnetar.broker.errors import (
    BrokerError,
    NotAllowedError,
    PersistenceError,
    TopicFencedError,
    storage_errors,
)
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.buffer_recovery import (
    LOOK_BYTES,
    LOOK_ENTRIES,
    TRANSACTIONS_PROPERTY,
    look_to_end,
    next_unseen,
    recover_buffer,
)
from magnetar.broker.transaction.markers import end_marker, snapshot_marker
from magnetar.broker.transaction.stored_ends import ENDS_PROPERTY, with_end
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import TransactionSnapshot
from magnetar.broker.transaction.view import TransactionView
from magnetar.managed_ledger.append_core import AppendDone
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import format_position

if TYPE_CHECKING:
    from magnetar.broker.transaction.async_coordinator import OnEnded

logger = logging.getLogger(__name__)

TRANSACTION_PROPERTIES: Final = (TRANSACTIONS_PROPERTY, ENDS_PROPERTY)


class TransactionalTopic(Protocol):
    """What transactions need of a topic."""

    full_name: str
    ledger: ManagedLedger
    terminated: bool

    def append_markers(self, heads: list[bytes], bodies: list[Buffer], on_done: AppendDone) -> None:
        """Store entries of the broker's own; see `ManagedLedger.append`.

        Raises:
            TopicTerminatedError: ``on_done`` isn't called.
        """

    def on_transaction_end(self, transaction: TransactionId, *, commit: bool) -> None:
        """Its end is stored, and known to the buffer."""

    def on_readable(self) -> None:
        """More of the log may be delivered."""


_Marker: TypeAlias = "tuple[bytes, bytes, OnEnded]"
"""Head and body to be appended; the last tells that they are stored, or why that isn't known."""


@dataclass(slots=True, eq=False)
class _End:
    """One that waits for nothing but the log.

    It doesn't know its marker, which knows it: a cycle for each transaction would be left to the
    collector, which takes a turn of 50 ms for 4,000 of them.

    Attributes:
        ended: made when somebody else asks for the same end.
    """

    transaction: TransactionId
    low_watermark: int
    commit: bool
    done: OnEnded
    ended: asyncio.Future[None] | None = None


class TopicTransactions:
    """Transactions of one topic; there is one once the topic had a transaction.

    ``start`` or ``recover`` it before it is asked for anything.

    Attributes:
        recovered_ms: when reading the log began and ended.
        snapshot_ms: when the last snapshot of this load was stored; 0: there was none.
    """

    def __init__(
        self,
        topic: TransactionalTopic,
        now_ms: Callable[[], int],
        run: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Args:
        run: runs something beside, until the broker ends.
        """
        self._topic, self._ledger = topic, topic.ledger
        self._now_ms, self._run = now_ms, run
        self.buffer = TopicTransactionBuffer(self._ledger.last_confirmed)
        self.view = TransactionView(self._ledger, self.buffer)
        self.is_starting = True
        self.recovered_ms, self.snapshot_ms = (0, 0), 0
        self._looking: asyncio.Task[None] | None = None
        self._is_storing = False
        self._ends: dict[TransactionId, asyncio.Future[None] | _End] = {}
        self._markers: list[_Marker] = []  # to be appended at the end of this turn

    # --- beginning

    async def start(self) -> None:
        """The topic's first transaction: store that it may have some.

        Raises:
            LedgerError, ManagedLedgerError, MetadataError.
        """
        position = format_position(self._ledger.last_confirmed)
        await self._ledger.update_properties(
            lambda before: {**before, TRANSACTIONS_PROPERTY: position}
        )
        self.is_starting = False
        self.advance()

    async def recover(self) -> None:
        """Learn what is in the log, from its newest snapshot on.

        Raises:
            LedgerError, ManagedLedgerError, MetadataError.
        """
        start_ms = self._now_ms()
        await recover_buffer(self._ledger, self.buffer)
        self.recovered_ms = (start_ms, self._now_ms())
        self.is_starting = False

    # --- entries

    def advance(self) -> None:
        """Look at what is new in the log; at once if the cache has it."""
        if self.is_starting or self._looking is not None or self._has_seen_all():
            return
        ledger, buffer = self._ledger, self.buffer
        while (position := next_unseen(self._ledger, self.buffer)) is not None:
            batch = ledger.read_nowait(position, LOOK_ENTRIES, LOOK_BYTES)
            if batch is None:
                self._looking = asyncio.get_running_loop().create_task(look_to_end(ledger, buffer))
                self._looking.add_done_callback(self._on_looked)
                return
            buffer.on_entries(batch)
        buffer.on_trimmed(ledger.offsets.first_position())
        self._store_due()

    def _has_seen_all(self) -> bool:
        """Whether everything that is stored was looked at."""
        seen, stored = self.buffer.noted, self._ledger.last_confirmed
        return seen == stored or next_unseen(self._ledger, self.buffer) is None

    def _on_looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            logger.warning("%s: can't look for transactions: %s", self._topic.full_name, error)
            return  # the next entry tries again, and so does who waits for an end
        self.advance()
        self._topic.on_readable()

    async def _caught_up(self) -> None:
        """Returns when everything that is stored was looked at."""
        self.advance()
        while not self._has_seen_all():
            if self._looking is None:
                raise PersistenceError(f"{self._topic.full_name}: its entries can't be read now")
            await asyncio.wait((self._looking,))

    # --- snapshots

    def _store_due(self) -> None:
        if (
            not (self._is_storing or self._topic.terminated)
            and (due := self.buffer.due()) is not None
        ):
            self._is_storing = True
            self._run(self._store(due))

    async def _store(self, snapshot: TransactionSnapshot) -> None:
        try:
            now_ms = self._now_ms()
            await self._append(*snapshot_marker(snapshot, now_ms))
            self.snapshot_ms = now_ms
        except Exception as error:  # the log says it all; the next load reads more of it
            logger.info("%s: no snapshot of transactions: %s", self._topic.full_name, error)
        finally:
            self._is_storing = False

    async def close(self) -> None:
        """Store what is known, so that the next owner reads little."""
        if self._looking is not None:
            self._looking.cancel()
        if self.is_starting or self._is_storing or self._topic.terminated:
            return
        if not self._has_seen_all():
            return
        if self.buffer.has_news:
            await self._store(self.buffer.snapshot())

    # --- what clients and coordinators ask

    def check_send(self, transaction: TransactionId) -> None:
        """Raises NotAllowedError: the transaction has ended, or is just being ended."""
        if transaction in self._ends or self.buffer.has_ended(transaction):
            raise NotAllowedError(
                f"Transaction [{transaction}] has been ended. Please use a new transaction to send"
                " message."
            )

    async def end(self, transaction: TransactionId, low_watermark: int, *, commit: bool) -> None:
        """Return when the end is stored.

        Args:
            low_watermark: all transactions of its coordinator up to this one have ended.

        Raises:
            BrokerError: ask again.
        """
        await self._end_once(transaction, commit=commit)
        await self._end_late(transaction.most, low_watermark)

    async def _end_late(self, most: int, low_watermark: int) -> None:
        while (late := self.buffer.on_finished(most, low_watermark)) is not None:
            logger.warning(
                "%s: aborting transaction %s, which has ended elsewhere: its messages came late",
                self._topic.full_name,
                late,
            )
            await self._end_once(late, commit=False)

    def end_nowait(
        self, transaction: TransactionId, low_watermark: int, done: OnEnded, *, commit: bool
    ) -> bool:
        """See `LocalParticipant`."""
        if self.is_starting or self._topic.terminated or transaction in self._ends:
            return False
        self.advance()
        if not self._has_seen_all() or self.buffer.has_ended(transaction):
            return False
        head, body = end_marker(transaction, self._now_ms(), commit=commit)
        end = self._ends[transaction] = _End(transaction, low_watermark, commit, done)
        self._append_soon((head, body, partial(self._on_end_stored, end)))
        return True

    def _on_end_stored(self, end: _End, error: BaseException | None) -> None:
        if error is None:
            self.advance()
            if not self._has_seen_all():
                self._run(self._follow(end))
                return
            self._topic.on_transaction_end(end.transaction, commit=end.commit)
            if self.buffer.on_finished(end.transaction.most, end.low_watermark) is not None:
                self._run(self._follow(end))
                return
        self._finish(end, error)

    async def _follow(self, end: _End) -> None:
        """What comes behind a stored end, where it has to be waited for."""
        failure: Exception | None = None
        try:
            await self._caught_up()
            self._topic.on_transaction_end(end.transaction, commit=end.commit)
            await self._end_late(end.transaction.most, end.low_watermark)
        except Exception as error:
            failure = error
        self._finish(end, failure)

    def _finish(self, end: _End, error: BaseException | None) -> None:
        del self._ends[end.transaction]
        if end.ended is not None:
            if error is None:
                end.ended.set_result(None)
            else:
                end.ended.set_exception(error)
                end.ended.exception()  # who waited may have gone
        end.done(error)

    def _append_soon(self, marker: _Marker) -> None:
        """Those of one turn share an append."""
        if not self._markers:
            asyncio.get_running_loop().call_soon(self._append_markers)
        self._markers.append(marker)

    def _append_markers(self) -> None:
        markers, self._markers = self._markers, []
        told = iter(markers)

        def on_done(ledger_id: int, first: int, count: int, error: BaseException | None) -> None:
            failure = None if error is None else PersistenceError(f"{name}: {error}")
            for _, _, stored in islice(told, count):
                stored(failure)

        name = self._topic.full_name
        bodies: list[Buffer] = [body for _, body, _ in markers]
        try:
            self._topic.append_markers([head for head, _, _ in markers], bodies, on_done)
        except BrokerError as refused:
            for _, _, stored in markers:
                stored(refused)

    async def _append(self, head: bytes, body: bytes) -> None:
        """Returns when the marker is stored. Raises BrokerError: that isn't known."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def stored(error: BaseException | None) -> None:
            if done.done():
                return  # whoever asked has gone
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._append_soon((head, body, stored))
        await done

    async def _end_once(self, transaction: TransactionId, *, commit: bool) -> None:
        """However often it is asked for meanwhile."""
        ended = self._ends.get(transaction)
        if ended is None:
            ended = asyncio.ensure_future(self._end(transaction, commit=commit))
            self._ends[transaction] = ended
            ended.add_done_callback(lambda _: self._ends.pop(transaction, None))
        elif isinstance(ended, _End):
            if ended.ended is None:
                ended.ended = asyncio.get_running_loop().create_future()
            ended = ended.ended
        await asyncio.shield(ended)

    def stats(self) -> dict[str, int]:
        """Pulsar's names; counts since the topic was loaded."""
        return {
            "ongoingTxnCount": len(self.buffer.open),
            "abortedTxnCount": self.buffer.aborted_count,
            "committedTxnCount": self.buffer.committed_count,
        }

    async def _end(self, transaction: TransactionId, *, commit: bool) -> None:
        if self.is_starting:
            raise TopicFencedError(f"{self._topic.full_name} doesn't know its transactions yet")
        await self._caught_up()
        buffer, terminated = self.buffer, self._topic.terminated
        if transaction not in buffer.open and (terminated or buffer.has_ended(transaction)):
            return  # asked again, since the answer was lost; or nothing of it can come any more
        # Of one without entries as well: they may be on their way, and what comes later is late.
        if terminated:
            with storage_errors(f"store the end of transaction {transaction}"):
                await self._ledger.update_properties(
                    lambda before: with_end(before, transaction, commit=commit)
                )
            buffer.on_stored_end(transaction, commit=commit)
        else:
            await self._append(*end_marker(transaction, self._now_ms(), commit=commit))
            await self._caught_up()
        self._topic.on_transaction_end(transaction, commit=commit)
