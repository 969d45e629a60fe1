"""Shell of `Coordinator`: its log, its clock, and the participants of its transactions."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, assert_never, cast

from google.protobuf.message import DecodeError

from magnetar.broker.errors import (
    STORAGE_ERRORS,
    BrokerError,
    CoordinatorNotFoundError,
    PersistenceError,
    storage_errors,
)
from magnetar.broker.transaction.coordinator import (
    Answer,
    AppendEntry,
    Coordinator,
    EndParticipants,
    TransactionDescription,
    Trim,
)
from magnetar.broker.transaction.coordinator_metrics import CoordinatorsMetrics
from magnetar.broker.transaction.coordinator_records import in_groups
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.entry_form import HeadsInFront
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST

logger = logging.getLogger(__name__)

OnAnswer: TypeAlias = Callable[[TransactionId | BrokerError], None]
"""Called once with the transaction, or why not; never for a new one above the limit."""

OnEnded: TypeAlias = Callable[[BaseException | None], None]
"""Called once: the participant has the end, and keeps it; or why it has to be asked again."""

LOG_NAME: Final = "pulsar/system/persistent/__transaction_log_{}"
_CURSOR: Final = "transaction.subscription"
MAX_SEQUENCE_PROPERTY: Final = "max_local_txn_id"
"""Of the log's managed ledger, as Pulsar's brokers have it: sequences up to it were given out."""
_NO_HEADS: Final = HeadsInFront(0)  # entries are records only, as Pulsar's
_OUTSTANDING_MAX: Final = 1000
ENDS_AT_ONCE: Final = 50
"""Of one transaction: thousands would hold up the loop."""
_READ_ENTRIES: Final = 500
_DROPPED_A_TURN: Final = 1000
_LOOKED_AT_A_TURN: Final = 200
_COMPARED_A_TURN: Final = 2000
_SPARSE: Final = 4
"""Sequences for one that hasn't ended; above, those that have aren't looked at one by one."""
_READ_BYTES: Final = 1 << 20
_HELD_S: Final = 0.01
"""How long an entry for which nothing waits is kept back, to be appended with the next ones."""


class LocalParticipant(Protocol):
    """A topic or a subscription that is on this broker."""

    def end_nowait(
        self, transaction: TransactionId, low_watermark: int, done: OnEnded, *, commit: bool
    ) -> bool:
        """End a transaction, if nothing but the log has to be waited for.

        Args:
            low_watermark: all transactions of its coordinator up to this one have ended.

        Returns:
            False: it has to wait for more; nothing was done, ``done`` isn't called.
        """


class Participants(Protocol):
    """Where messages and acknowledgements of transactions are."""

    def end_nowait(
        self,
        participant: tuple[str, ...],
        transaction: TransactionId,
        done: OnEnded,
        *,
        commit: bool,
        low_watermark: int,
    ) -> bool:
        """Begin the end at a topic, or a topic's subscription, that is here and ready for it.

        Returns:
            False: it isn't; ``done`` isn't called. Ask by one of the methods below.
        """

    async def end_partition(
        self, topic: str, transaction: TransactionId, *, commit: bool, low_watermark: int
    ) -> None:
        """Return when the topic has the end, and keeps it. Raises BrokerError: ask again."""

    async def end_subscription(
        self,
        topic: str,
        subscription: str,
        transaction: TransactionId,
        *,
        commit: bool,
        low_watermark: int,
    ) -> None:
        """The same of a subscription."""


@dataclass(slots=True)
class EndUnderWay:
    """The end of a transaction that not all participants have yet.

    Attributes:
        errors: by topic, or topic and subscription: why the last request failed.
        waiting: participants that haven't answered the last request.
        failure: the last of their errors.
        sent_s: when the last request was sent, by the counter of seconds.
    """

    since_ms: int
    commit: bool
    errors: dict[tuple[str, ...], str] = field(default_factory=dict)
    waiting: int = 0
    failure: BaseException | None = None
    sent_s: float = 0


class AsyncCoordinator:
    """One that is open; closed for good when its log fails.

    Attributes:
        log: None before it is opened.
        ends: under way, by sequence.
        replayed_ms: when reading the log began and ended.

    Args:
        start_task: runs a coroutine in the background.
        metrics: of all coordinators of the broker.
    """

    def __init__(
        self,
        core: Coordinator,
        participants: Participants,
        now_ms: Callable[[], int],
        start_task: Callable[[Coroutine[Any, Any, None]], object],
        metrics: CoordinatorsMetrics,
    ) -> None:
        self.core: Final = core
        self.is_closed = self._is_running = False
        self._participants = participants
        self._now_ms = now_ms
        self._start_task = start_task
        self._metrics = metrics
        self.log: ManagedLedger | None = None
        self.ends: Final[dict[int, EndUnderWay]] = {}
        self.replayed_ms = (0, 0)
        self._cursor: Cursor | None = None
        self._held: list[bytes] = []  # entries that aren't appended yet
        self._held_since_s = 0.0
        self._joined: deque[int] = deque()  # of each appended one, how many it is for the core
        self._holding: asyncio.TimerHandle | None = None  # appends them
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms: int | None = None  # of the timer
        self._outstanding = asyncio.Semaphore(_OUTSTANDING_MAX)

    async def open(
        self, ledgers: ManagedLedgerFactory, config: ManagedLedgerConfig, number: int
    ) -> None:
        """Read the log; nothing else may be called before this returns.

        Raises:
            PersistenceError: it can't be read now, or isn't one.
        """
        start_ms = self._now_ms()
        with storage_errors(f"open coordinator {number} of transactions"):
            log = await ledgers.open(LOG_NAME.format(number), replace(config, form=_NO_HEADS))
            self.log, self._cursor = log, await log.open_cursor(_CURSOR, EARLIEST)
            self.core.begin_behind(int(log.properties.get(MAX_SEQUENCE_PROPERTY, -1)))
            await self._replay(log, self._cursor)
        log.on_fenced = lambda _: self.close()
        self.replayed_ms = (start_ms, self._now_ms())
        self.core.start()
        self.run()

    async def _replay(self, log: ManagedLedger, cursor: Cursor) -> None:
        ledger_id, entry_id = cursor.mark_delete
        end = log.last_confirmed
        while (ledger_id, entry_id) < end:
            batch = await log.read((ledger_id, entry_id + 1), _READ_ENTRIES, _READ_BYTES)
            if batch is None:
                return
            for number, body in enumerate(batch.bodies, batch.first):
                try:
                    self.core.replay(bytes(body), (batch.ledger_id, number))
                except DecodeError as error:
                    where = f"{log.name}, entry {batch.ledger_id}:{number}"
                    raise PersistenceError(f"{where} is no record of transactions") from error
            ledger_id, entry_id = batch.ledger_id, batch.last

    def close(self) -> None:
        """Answer all requests with an error: the client looks for the coordinator's next owner."""
        if not self.is_closed:
            self.is_closed = True
            for timer in (self._timer, self._holding):
                if timer is not None:
                    timer.cancel()
            self.core.fail(CoordinatorNotFoundError("The coordinator has moved: look it up again"))
            for effect in self.core.take_effects():
                if isinstance(effect, Answer):
                    cast(OnAnswer, effect.request)(effect.result)

    async def close_log(self) -> None:
        """After ``close``: another broker can open it without recovery."""
        if self.log is not None:
            self._append_held()
            try:
                await self.log.close()
            except STORAGE_ERRORS as error:
                logger.warning("%s: not closed: %s", self.log.name, error)
        for _ in range(0, len(self.core), _DROPPED_A_TURN):  # a million would hold the loop
            self.core.drop(_DROPPED_A_TURN)
            await asyncio.sleep(0)

    def run(self) -> None:
        """After each call of ``core``: what has come of it follows at the end of this turn.

        So requests of one turn share an append.
        """
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_running = False
        if self.is_closed:
            return
        is_due = False
        for effect in self.core.take_effects():
            match effect:
                case AppendEntry():
                    if not self._held:
                        self._held_since_s = time.perf_counter()
                    self._held.append(effect.entry)
                    is_due = is_due or not effect.may_wait
                case Answer():
                    cast(OnAnswer, effect.request)(effect.result)
                case EndParticipants():
                    self._end(effect)
                case Trim((ledger_id, entry_id)):
                    assert self._cursor is not None
                    self._cursor.ack_cumulative((ledger_id, entry_id - 1))
                case _:
                    assert_never(effect)
        if is_due:
            self._append_held()
        elif self._held and self._holding is None:
            self._holding = asyncio.get_running_loop().call_later(_HELD_S, self._hold_no_longer)
        self.core.metrics.measure(self._now_ms())
        self._set_timer()

    def _hold_no_longer(self) -> None:
        self._holding = None
        self._append_held()

    def _append_held(self) -> None:
        entries, self._held = self._held, []
        if entries:
            assert self.log is not None
            held_s = time.perf_counter() - self._held_since_s
            bodies, left = list[Buffer](), len(entries)
            for body, count in in_groups(entries):
                bodies.append(body)
                self._joined.append(count)
                left -= count
                self._metrics.on_joined(count, len(body), held_s, is_last=not left)
            self.log.append([b""] * len(bodies), bodies, self._on_appended)

    def _on_appended(
        self, ledger_id: int, first: int, count: int, error: BaseException | None
    ) -> None:
        if self.is_closed:
            return
        if error is not None:
            assert self.log is not None
            logger.warning("%s: given up until the next request: %s", self.log.name, error)
            self._held.clear()  # nothing may be stored behind what is perhaps lost
            self.close()
            return
        for number in range(first, first + count):
            self.core.on_appended((ledger_id, number), self._joined.popleft())
        self.run()

    # --- participants

    def _end(self, effect: EndParticipants) -> None:
        name, commit, low_watermark = effect.transaction, effect.commits, effect.low_watermark
        participants: list[tuple[str, ...]] = [(topic,) for topic in effect.partitions]
        participants += effect.subscriptions
        end = self.ends.setdefault(name.least, EndUnderWay(self._now_ms(), commit))
        end.waiting, end.failure = len(participants), None
        end.sent_s = time.perf_counter()
        self._metrics.under_way += end.waiting
        if len(participants) <= ENDS_AT_ONCE:  # more would hold the loop
            participants = [
                participant
                for participant in participants
                if not self._participants.end_nowait(
                    *(participant, name, partial(self._on_ended, name, participant)),
                    commit=commit,
                    low_watermark=low_watermark,
                )
            ]
        left = iter(participants)
        for _ in range(min(ENDS_AT_ONCE, len(participants))):
            self._start_task(self._end_some(effect, left))

    async def _end_some(
        self, effect: EndParticipants, participants: Iterator[tuple[str, ...]]
    ) -> None:
        for participant in participants:
            await self._end_one(effect, participant)

    async def _end_one(self, effect: EndParticipants, participant: tuple[str, ...]) -> None:
        topic, subscription = participant[0], participant[1:]
        participants, name = self._participants, effect.transaction
        commit, low_watermark = effect.commits, effect.low_watermark
        error: Exception | None = None
        try:
            async with self._outstanding:
                if subscription:
                    await participants.end_subscription(
                        topic, subscription[0], name, commit=commit, low_watermark=low_watermark
                    )
                else:
                    await participants.end_partition(
                        topic, name, commit=commit, low_watermark=low_watermark
                    )
        except Exception as failed:  # whatever it was: it is the participant that must end
            error = failed
        self._on_ended(name, participant, error)

    def _on_ended(
        self, name: TransactionId, participant: tuple[str, ...], error: BaseException | None
    ) -> None:
        end = self.ends[name.least]
        end.waiting -= 1
        took_s = time.perf_counter() - end.sent_s
        self._metrics.on_end(participant[0], took_s, commit=end.commit, failed=error is not None)
        if error is None:
            end.errors.pop(participant, None)
        else:
            end.errors[participant], end.failure = str(error), error
        if end.waiting or self.is_closed:
            return
        error = end.failure
        if error is None:
            del self.ends[name.least]
            self.core.on_participants_done(name.least)
        elif self.core.on_participants_failed(name.least, self._now_ms()) == 1:
            is_known = isinstance(error, (BrokerError, *STORAGE_ERRORS))
            text = "the end of transaction %s is sent again: %s"
            logger.warning(text, name, error, exc_info=None if is_known else error)
        self.run()

    # --- questions

    async def begun_before(
        self, time_ms: int, count_max: int, after: int = -1
    ) -> list[TransactionDescription]:
        """Those that haven't ended and began before then: the oldest ones, at most so many.

        Args:
            after: only those behind this sequence.
        """
        core, found = self.core, list[TransactionDescription]()
        first = max(after, core.low_watermark()) + 1
        sequences: Sequence[int] = range(first, core.last_sequence + 1)
        if len(sequences) > _SPARSE * len(core):  # one is open for long, others came and went
            sequences = await self._lowest_from(first, count_max)
        for start in range(0, len(sequences), _LOOKED_AT_A_TURN):
            found += core.begun_before(time_ms, sequences[start : start + _LOOKED_AT_A_TURN])
            if len(found) >= count_max:
                break
            await asyncio.sleep(0)  # there may be a million
        return found[:count_max]

    async def _lowest_from(self, first: int, count: int) -> list[int]:
        """The lowest sequences from there on of those that haven't ended."""
        known, found = self.core.sequences(), list[int]()
        for start in range(0, len(known), _COMPARED_A_TURN):
            some = [each for each in known[start : start + _COMPARED_A_TURN] if each >= first]
            found = sorted(found + some)[:count]
            await asyncio.sleep(0)
        return found

    # --- time

    def _set_timer(self) -> None:
        due_ms = self.core.next_deadline_ms()
        if due_ms == self._due_ms and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_ms = due_ms
        if due_ms is not None:
            delay_s = max(0, due_ms - self._now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.core.on_tick(self._now_ms())
        self.run()
