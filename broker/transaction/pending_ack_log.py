"""asyncio shell of a subscription's `PendingAcks`: its log, and the answers that wait for records.

A record whose append failed may be stored all the same. So the log is opened again then, and says
what is pending; until that is done nothing is acknowledged in a transaction, and none is ended.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol, assert_never

from google.protobuf.message import DecodeError

from magnetar.broker.errors import (
    STORAGE_ERRORS,
    BrokerError,
    PersistenceError,
    ServiceNotReadyError,
    storage_errors,
)
from magnetar.broker.protocol.topic_name import PENDING_ACK_SUFFIX
from magnetar.broker.transaction.coordinator_records import acknowledgement_records
from magnetar.broker.transaction.pending_acks import (
    AcknowledgeCommitted,
    AppendRecord,
    EndApplied,
    PendingAck,
    PendingAckEffect,
    PendingAcks,
    RedeliverAborted,
    StoreCursor,
    TrimPendingAckLog,
)
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import PendingAckRecord
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import AckDone, Cursor
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.entry_form import HeadsInFront
from magnetar.managed_ledger.errors import ManagedLedgerNotFoundError
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.paths import encode_name

logger = logging.getLogger(__name__)

PENDING_ACKS: Final = "pulsar.subscription.pending.acks"
"""Property of the cursor's position, if a transaction has acknowledged something, at some time.
Its value says how the log is named."""
PULSARS_NAME: Final = 1
"""As Pulsar's brokers name it, and ours did until 2026-11. Subscription a-b of topic t has the same
as subscription b of topic t-a."""
OWN_NAME: Final = 2
"""No other subscription's log can have it."""
_CURSOR: Final = "__pending_ack_state"
_WITHOUT_HEADS: Final = HeadsInFront(0)
_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 1 << 20


def pending_ack_log_name(topic_log: str, subscription: str, naming: int = OWN_NAME) -> str:
    """Name of the managed ledger.

    Args:
        topic_log: name of the topic's managed ledger.
        naming: value of `PENDING_ACKS`.
    """
    # No encoded name has "%2D": "-" stays as it is, and "%" is written as "%25".
    separator = "-" if naming == PULSARS_NAME else "%2D"
    return f"{topic_log}{separator}{encode_name(subscription)}{PENDING_ACK_SUFFIX}"


class CommittedAcks(Protocol):
    """What a subscription does when a transaction ends."""

    cursor: Cursor

    async def note_pending_acks(self) -> None:
        """Store with the cursor that there are some, for the next load.

        Raises:
            BrokerError: perhaps not stored.
        """

    def acknowledge_committed(
        self, individual: Sequence[PendingAck], cumulative: PendingAck | None
    ) -> None:
        """Acknowledge at the cursor, what is acknowledged already too."""

    def redeliver_aborted(self, positions: Sequence[Position], *, is_last: bool) -> None:
        """Send these entries again; False: more follow soon."""


class PendingAckLog:
    """Acknowledgements in transactions of one subscription: made at the first one.

    ``open`` it before anything else.

    Attributes:
        ledger: None: it isn't open, or its end isn't known.
        replayed_ms: when reading it began and ended.
        commits, commits_s: of transactions with acknowledgements, and the time that they took.
    """

    def __init__(
        self,
        subscription: CommittedAcks,
        name: str,
        factory: ManagedLedgerFactory,
        config: ManagedLedgerConfig,
        run: Callable[[Coroutine[Any, Any, None]], object],
        *,
        is_new: bool,
    ) -> None:
        """Args:
        name: see `pending_ack_log_name`.
        is_new: the subscription has none yet.
        config: of the topic's log.
        run: runs something beside, until the broker ends.
        """
        self.name = name
        self._subscription, self._factory, self._run = subscription, factory, run
        self._config = replace(config, form=_WITHOUT_HEADS, create_if_missing=True)
        self.core = PendingAcks(subscription.cursor.state)
        # Where the cursor was when the log was opened first. Not where it is when it is opened
        # again: what is recorded since goes by what was forgotten then.
        self._passed: Position | None = None
        self.ledger: ManagedLedger | None = None
        self.replayed_ms = (0, 0)
        self.commits, self.commits_s = 0, 0.0
        self._cursor: Cursor | None = None  # of the log
        self._opening: asyncio.Task[None] | None = None
        self._is_new, self._is_closed = is_new, False
        self._recorded = 0  # records of this load
        self._unsent: list[Buffer] = []  # records of this turn
        self._is_scheduled = False  # a look at the core's effects
        self._waiting: dict[int, list[AckDone]] = {}  # for a record, by its number
        self._ending: dict[int, list[AckDone]] = {}  # for all of an end to be applied
        self._done: list[AckDone] = []  # whose end is
        self._is_applying = False  # the next slice is scheduled
        self._cut: asyncio.Future[None] | None = None  # done when no cut is under way

    # --- opening

    async def open(self) -> None:
        """Read what the log says, and do what follows of it.

        Raises:
            ServiceNotReadyError: it was closed.
            PersistenceError: it can't be read now.
        """
        if self.is_open:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._on_opened)
        await asyncio.shield(self._opening)

    def _on_opened(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # raised in its callers; they may all have gone

    async def _open(self) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal
        with storage_errors(f"open {self.name}"):
            if self._is_new:
                # What an earlier subscription of this name may have left.
                await self._factory.delete(self.name, self._config)
                await self._subscription.note_pending_acks()
                self._is_new = False
            try:
                log = await self._factory.open(self.name, self._config)
            except ManagedLedgerNotFoundError:  # its deletion was made up for
                log = await self._factory.open(self.name, self._config)
            start_ms = log.now_ms()
            cursor = await log.open_cursor(_CURSOR, EARLIEST)
            if self._passed is None:
                self._passed = self._subscription.cursor.durable_mark_delete
            core = PendingAcks(self._subscription.cursor.state, self._passed)
            aborted = await self._replay(log, cursor, core)
        if (refusal := self._refusal()) is not None:
            await log.close()
            raise refusal
        before, self.core, self._recorded = self.core, core, 0
        self.ledger, self._cursor = log, cursor
        self.replayed_ms = (start_ms, log.now_ms())
        core.on_replayed(before)
        self._perform()
        # Whose record isn't stored after all.
        aborted.append(sorted(set(before.positions).difference(core.positions, *aborted)))
        if again := [positions for positions in aborted if positions]:
            self._run(self._redeliver(again))

    async def _redeliver(self, parts: list[list[Position]]) -> None:
        """In a turn of the loop each."""
        state = self._subscription.cursor.state
        for number, positions in enumerate(parts, 1):
            left = [x for x in positions if not state.is_acked(x)]
            self._subscription.redeliver_aborted(left, is_last=number == len(parts))
            await asyncio.sleep(0)

    def _refusal(self) -> BrokerError | None:
        return ServiceNotReadyError(f"{self.name} is closed") if self._is_closed else None

    async def _replay(
        self, log: ManagedLedger, cursor: Cursor, core: PendingAcks
    ) -> list[list[Position]]:
        """Answers what aborted ones have to be sent again, once the core is in use."""
        aborted: list[list[Position]] = []
        position = cursor.state.first_unacked()
        while position <= log.last_confirmed:
            batch = await log.read(position, _READ_ENTRIES, _READ_BYTES)
            if batch is None:
                break
            for entry_id, body in enumerate(batch.bodies, batch.first):
                for record in _records(bytes(body), f"{self.name} {batch.ledger_id}:{entry_id}"):
                    core.replay(record, (batch.ledger_id, entry_id))
                    self._follow_replay(core, aborted)
                    while core.is_applying:
                        await asyncio.sleep(0)
                        core.apply_more()
                        self._follow_replay(core, aborted)
            position = log.offsets.next_position((batch.ledger_id, batch.last))
        return aborted

    def _follow_replay(self, core: PendingAcks, aborted: list[list[Position]]) -> None:
        for effect in core.take_effects():
            if isinstance(effect, RedeliverAborted):
                aborted.append(effect.positions)
            else:
                self._perform_one(effect)

    @property
    def is_open(self) -> bool:
        """Whether it takes calls at once."""
        return self.ledger is not None

    @property
    def is_unused(self) -> bool:
        """Whether no transaction has acknowledged anything yet: nothing is stored."""
        return self._is_new and self._opening is None

    # --- calls

    def acknowledge(
        self, transaction: TransactionId, acks: Sequence[PendingAck], done: AckDone
    ) -> None:
        """See `PendingAcks.acknowledge`; ``done`` when that is durable, or why not.

        Raises:
            BrokerError: refused; ``done`` isn't called.
        """
        self._require_open()
        number = self.core.acknowledge(transaction, acks)
        if number <= self._recorded:  # there was nothing to record
            done(None)
            return
        self._waiting.setdefault(number, []).append(done)
        if not self._is_scheduled:  # those of a turn share a record
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._perform_scheduled)

    def acknowledge_cumulative(
        self, transaction: TransactionId, ack: PendingAck, done: AckDone
    ) -> None:
        """See `PendingAcks.acknowledge_cumulative`, and ``acknowledge``."""
        self._require_open()
        self._answer_after(self.core.acknowledge_cumulative(transaction, ack), done)

    async def end(self, transaction: TransactionId, low_watermark: int, *, commit: bool) -> None:
        """Return when the end is durable and the cursor has followed.

        Raises:
            BrokerError: ask again.
        """
        if self.is_unused:  # what still comes of the transaction is refused, in this load
            self.core.end(transaction, commit=commit, low_watermark=low_watermark)
            return
        await self.open()
        self._require_open()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if ended.done():
                return  # whoever asked has gone
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        self.end_nowait(transaction, low_watermark, done, commit=commit)
        await ended

    def end_nowait(
        self, transaction: TransactionId, low_watermark: int, done: AckDone, *, commit: bool
    ) -> bool:
        """As ``end``; False if it isn't open: nothing was done, ``done`` isn't called."""
        if not self.is_open:
            return False
        number = self.core.end(transaction, commit=commit, low_watermark=low_watermark)
        if number:
            if commit:
                done = partial(self._on_committed, time.perf_counter(), done)
            self._ending.setdefault(number, []).append(done)
        self._perform()
        if not number:
            done(None)
        return True

    def _on_committed(self, begun_s: float, done: AckDone, error: BaseException | None) -> None:
        if error is None:
            self.commits += 1
            self.commits_s += time.perf_counter() - begun_s
        done(error)

    def _require_open(self) -> None:
        if not self.is_open:
            raise ServiceNotReadyError(f"{self.name} is being opened")

    def _answer_after(self, number: int, done: AckDone) -> None:
        if number <= self._recorded:
            self._perform()
            done(None)
            return
        self._waiting.setdefault(number, []).append(done)
        self._perform()

    async def forget_ended(self) -> None:
        """Return when no later load acknowledges again what has ended by now.

        Raises:
            BrokerError: perhaps it does.
        """
        if self.is_unused:
            return
        await self.open()
        while self.core.is_cutting:  # it may be older than the last end
            await self._finish_cut()
        await self._finish_cut()
        assert self._cursor is not None
        with storage_errors(f"trim {self.name}"):
            await self._cursor.flush()
        # The log has nothing of what was forgotten any more, and the cursor may go back.
        self._passed = EARLIEST

    async def _finish_cut(self) -> None:
        cut = self._cut = self._cut or asyncio.get_running_loop().create_future()
        self.core.cut()
        self._perform()
        await asyncio.shield(cut)

    # --- effects

    def _perform(self) -> None:
        """Perform the core's effects, and those of what they lead to."""
        is_first = not self._unsent
        while effects := self.core.take_effects():
            for effect in effects:
                if isinstance(effect, AppendRecord):
                    self._unsent.append(effect.record.SerializeToString())
                else:
                    self._perform_one(effect)
        if is_first and self._unsent:
            asyncio.get_running_loop().call_soon(self._append)
        if self.core.has_more and not self._is_applying:
            self._is_applying = True
            asyncio.get_running_loop().call_soon(self._apply_more)

    def _apply_more(self) -> None:
        self._is_applying = False
        if not self.is_open:
            return  # closed; or when it is open again, all is applied
        self.core.apply_more()
        self._perform()
        self._answer_ends()

    def _answer_ends(self) -> None:
        answered, self._done = self._done, []
        for done in answered:
            done(None)

    def _perform_scheduled(self) -> None:
        self._is_scheduled = False
        if self.is_open:
            self._perform()
            self._append()

    def _append(self) -> None:
        """At the end of a turn: its records share an append."""
        bodies, self._unsent = self._unsent, []
        if self.ledger is not None and bodies:
            self.ledger.append([b""] * len(bodies), bodies, self._on_appended)

    def _perform_one(self, effect: PendingAckEffect) -> None:
        match effect:
            case AcknowledgeCommitted(individual, cumulative):
                self._subscription.acknowledge_committed(individual, cumulative)
            case RedeliverAborted(positions, is_last):
                self._subscription.redeliver_aborted(positions, is_last=is_last)
            case EndApplied(number):
                self._done += self._ending.pop(number, ())
            case StoreCursor():
                self._run(self._store_cursor(self.core))
            case TrimPendingAckLog(upto):
                assert self._cursor is not None
                self._cursor.ack_cumulative(upto)
            case AppendRecord():
                raise AssertionError("appended in one go")
            case _:
                assert_never(effect)

    def _on_appended(
        self, ledger_id: int, first: int, count: int, error: BaseException | None
    ) -> None:
        if error is not None:
            self._on_failure(error)
            return
        if not self.is_open:
            return  # of a log that was given up
        recorded = self._recorded
        for entry_id in range(first, first + count):
            self._recorded += 1
            self.core.on_recorded((ledger_id, entry_id))
            if self.core.has_effects:  # before the next record: it may ask the cursor
                self._perform()
        self._perform()
        for number in range(recorded + 1, self._recorded + 1):
            for done in self._waiting.pop(number, ()):
                done(None)
        self._answer_ends()

    async def _store_cursor(self, core: PendingAcks) -> None:
        failure: BaseException | None = None
        try:
            await self._subscription.cursor.flush()
        except STORAGE_ERRORS as error:
            failure = error
            logger.warning("%s: isn't shortened, the cursor isn't stored: %s", self.name, error)
        if core is not self.core or not self.is_open:
            return
        core.on_cursor_stored(stored=failure is None)
        self._perform()
        if self._cut is not None:
            cut, self._cut = self._cut, None
            if failure is None:
                cut.set_result(None)
            else:
                cut.set_exception(PersistenceError(f"{self.name}: {failure}"))
                cut.exception()  # whoever waited may have gone

    def _on_failure(self, error: BaseException) -> None:
        """Whether the records under way are stored isn't known: the log tells when it is read."""
        log, self.ledger, self._cursor = self.ledger, None, None
        if log is None:
            return
        self._refuse(PersistenceError(f"{self.name}: {error}"))
        if not self._is_closed:
            logger.warning("%s: append failed, it is opened again: %s", self.name, error)
            self._run(self._open_again(log))

    async def _open_again(self, log: ManagedLedger) -> None:
        try:
            with storage_errors(f"close {self.name}"):
                await log.close()
            await self.open()
        except BrokerError as error:
            logger.warning("%s: the next transaction tries again: %s", self.name, error)

    def _refuse(self, error: BrokerError) -> None:
        waiting = [*self._waiting.values(), *self._ending.values()]
        self._waiting, self._ending = {}, {}
        self._unsent.clear()
        for done in chain.from_iterable(waiting):
            done(error)
        if self._cut is not None:
            cut, self._cut = self._cut, None
            cut.set_exception(error)
            cut.exception()

    # --- the end

    async def close(self) -> None:
        """Take no more calls; what isn't recorded is refused.

        Raises:
            LedgerError, ManagedLedgerError, MetadataError.
        """
        self._is_closed = True
        if self._opening is not None:
            await asyncio.wait([self._opening])
        log, self.ledger, self._cursor = self.ledger, None, None
        self._refuse(ServiceNotReadyError(f"{self.name} is closed"))
        if log is not None:
            await log.close()

    def reopen(self) -> None:
        """Take calls again: the next one opens it."""
        self._is_closed = False

    async def delete(self) -> None:
        """Close it, and delete the log.

        Raises:
            LedgerError, ManagedLedgerError, MetadataError.
        """
        await self.close()
        await self._factory.delete(self.name, self._config)


class UnstoredPendingAckLog(PendingAckLog):
    """Of a non-durable subscription: nothing of it is left when its last consumer goes, so a record
    counts at once, and nothing is read, cut or deleted."""

    async def open(self) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    @property
    def is_unused(self) -> bool:
        return False

    async def forget_ended(self) -> None:
        pass

    def _append(self) -> None:
        count, self._unsent = len(self._unsent), []
        self._on_appended(0, self._recorded, count, None)

    def _perform_one(self, effect: PendingAckEffect) -> None:
        if not isinstance(effect, TrimPendingAckLog):
            super()._perform_one(effect)

    async def delete(self) -> None:
        await self.close()


def _records(entry: bytes, where: str) -> Sequence[PendingAckRecord]:
    try:
        return acknowledgement_records(entry)
    except DecodeError as error:
        raise PersistenceError(f"{where}: not a record of acknowledgements: {error}") from error
