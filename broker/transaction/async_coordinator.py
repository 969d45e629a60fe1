"""Shell of `Coordinator`: its log, its clock, and the participants of its transactions."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
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

LOG_NAME: Final = "pulsar/system/persistent/__transaction_log_{}"
_CURSOR: Final = "transaction.subscription"
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


class Participants(Protocol):
    """Where messages and acknowledgements of transactions are."""

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
    """

    since_ms: int
    errors: dict[tuple[str, ...], str] = field(default_factory=dict)


class AsyncCoordinator:
    """One that is open; closed for good when its log fails.

    Attributes:
        log: None before it is opened.
        ends: under way, by sequence.
        replayed_ms: when reading the log began and ended.

    Args:
        start_task: runs a coroutine in the background.
    """

    def __init__(
        self,
        core: Coordinator,
        participants: Participants,
        now_ms: Callable[[], int],
        start_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.core: Final = core
        self.is_closed = self._is_running = False
        self._participants = participants
        self._now_ms = now_ms
        self._start_task = start_task
        self.log: ManagedLedger | None = None
        self.ends: Final[dict[int, EndUnderWay]] = {}
        self.replayed_ms = (0, 0)
        self._cursor: Cursor | None = None
        self._held: list[Buffer] = []  # entries that aren't appended yet
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
                case AppendEntry(entry, may_wait):
                    self._held.append(entry)
                    is_due = is_due or not may_wait
                case Answer(request, result):
                    cast(OnAnswer, request)(result)
                case EndParticipants():
                    self._start_task(self._end(effect))
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
            self.log.append([b""] * len(entries), entries, self._on_appended)

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
            self.core.on_appended((ledger_id, number))
        self.run()

    # --- participants

    async def _end(self, effect: EndParticipants) -> None:
        name, participants = effect.transaction, self._participants
        commit, low_watermark = effect.commits, effect.low_watermark
        errors = self.ends.setdefault(name.least, EndUnderWay(self._now_ms())).errors
        end_one = partial(self._end_one, commit=commit, low_watermark=low_watermark)
        ends = iter(
            [
                *(
                    ((topic,), partial(participants.end_partition, topic, name))
                    for topic in effect.partitions
                ),
                *(
                    (each, partial(participants.end_subscription, *each, name))
                    for each in effect.subscriptions
                ),
            ]
        )
        found: list[Exception | None] = []

        async def end_some() -> None:
            for participant, end in ends:
                found.append(await end_one(participant, end, errors))

        count = min(ENDS_AT_ONCE, len(effect.partitions) + len(effect.subscriptions))
        await asyncio.gather(*(end_some() for _ in range(count)))
        if self.is_closed:
            return
        error = next(filter(None, found), None)
        if error is None:
            del self.ends[name.least]
            self.core.on_participants_done(name.least)
        elif self.core.on_participants_failed(name.least, self._now_ms()) == 1:
            is_known = isinstance(error, (BrokerError, *STORAGE_ERRORS))
            text = "the end of transaction %s is sent again: %s"
            logger.warning(text, name, error, exc_info=None if is_known else error)
        self.run()

    async def _end_one(
        self,
        participant: tuple[str, ...],
        end: Callable[..., Coroutine[Any, Any, None]],
        errors: dict[tuple[str, ...], str],
        *,
        commit: bool,
        low_watermark: int,
    ) -> Exception | None:
        """Why it has to be asked again."""
        try:
            async with self._outstanding:
                await end(commit=commit, low_watermark=low_watermark)
        except Exception as error:  # whatever it was: it is the participant that must end
            errors[participant] = str(error)
            return error
        errors.pop(participant, None)
        return None

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
