"""The append path of one managed ledger: calls in, effects out; no clock, task, socket or chance.

Batches of entries go to the current ledger, are confirmed in order by its watermark, and survive
the end of a ledger: planned (it is full) or forced (an append failed).

States, with Pulsar's names for the same in brackets::

    NO_LEDGER  [ClosedLedger]    nothing is written; the next append asks for a ledger
    CREATING   [CreatingLedger]  appends queue until a ledger is created and listed
    OPEN       [LedgerOpened]    appends go to the current ledger, behind what was queued
    SWITCHING  [ClosingLedger]   the current ledger is full: appends queue until all it got is
                                 confirmed and the next ledger is listed
    ENDING     [ClosingLedger]   an append failed: appends queue until the end of the ledger is
                                 definite
    UNDECIDED  [WriteFailed]     the end couldn't be found: what was pending was failed; the next
                                 append asks again
    STOPPED                      closed, terminated or fenced; see `AppendCore.refusal`

Three rules keep a log in order without gaps or repeats (docs/spec/storage.md,
"Owners of a log" and "Appends to a log"):

- Only the current ledger is written, and it becomes current when it is listed and everything of
  its predecessor is confirmed. So no acknowledged entry can lie behind a lost one.
- A batch is re-sent only above the *definite* end of the ledger that failed: what is below was
  durable all along and is acknowledged at its old position.
- Batches are finished strictly in the order they came, failures included.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.errors import AppendFailedError, ManagedLedgerFencedError

AppendDone: TypeAlias = Callable[[int, int, int, BaseException | None], None]
"""(ledger id, first entry id, count, error): see `ManagedLedger.append`."""

EMPTY_LEDGERS_MAX = 3
"""After so many ledgers in a row that took no entry at all, pending appends fail."""
CREATE_RETRY_MS = 1000
"""How long a failed creation ahead of need is left alone while the current ledger still serves."""
PAUSE_MS_MAX = 10_000
"""Longest wait before another ledger while none can be made or takes entries."""


class AppendState(Enum):
    """See the module's text."""

    NO_LEDGER = "NO_LEDGER"
    CREATING = "CREATING"
    OPEN = "OPEN"
    SWITCHING = "SWITCHING"
    ENDING = "ENDING"
    UNDECIDED = "UNDECIDED"
    STOPPED = "STOPPED"


# Python 3.11 pays for every member read of an Enum.
_NO_LEDGER = AppendState.NO_LEDGER
_CREATING = AppendState.CREATING
_OPEN = AppendState.OPEN
_SWITCHING = AppendState.SWITCHING
_ENDING = AppendState.ENDING
_UNDECIDED = AppendState.UNDECIDED
_STOPPED = AppendState.STOPPED


@dataclass(slots=True)
class PendingBatch:
    """Entries of one `AppendCore.append` that go to one ledger."""

    heads: list[bytes]
    bodies: list[Buffer]
    on_done: AppendDone
    entry_bytes: int
    first: int = -1
    """Entry id of the first of them; -1 until they are sent."""
    confirmed: int = 0
    """How many of them were reported; always a prefix."""
    sent_s: float = 0.0
    """The shell's note for metrics: when it wrote them."""

    def split(self, count: int) -> "PendingBatch":
        """Keeps the first ``count`` entries and returns the others as an unsent batch."""
        rest = PendingBatch(self.heads[count:], self.bodies[count:], self.on_done, 0)
        rest.entry_bytes = sum(map(len, rest.heads)) + sum(map(len, rest.bodies))
        del self.heads[count:], self.bodies[count:]
        self.entry_bytes -= rest.entry_bytes
        return rest


@dataclass(slots=True)
class AppendsDone:
    """Entries reached their fate: report it. Durable ones carry their buffers for the cache."""

    on_done: AppendDone
    ledger_id: int
    first: int
    count: int
    error: BaseException | None
    heads: list[bytes]
    bodies: list[Buffer]
    entry_bytes: int
    sent_s: float = 0.0
    """Of the batch; see there."""


@dataclass(slots=True)
class WriteBatch:
    """Append to the writer of a ledger, in the order of these effects."""

    ledger_id: int
    batch: PendingBatch


@dataclass(slots=True)
class CreateLedger:
    """Create a ledger and list it; answer: on_ledger_ready or on_create_failed."""

    after_ms: int = 0
    """Not before so many milliseconds are over."""


@dataclass(slots=True)
class CloseLedger:
    """All that this ledger ever got is confirmed: close it at leisure. No answer."""

    ledger_id: int


@dataclass(slots=True)
class EndLedger:
    """Make the end of a failed ledger definite; answer: on_ledger_ended or on_end_failed."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class GoOn:
    """Call ``go_on`` in the next turn of the loop: more is queued than one turn should write."""


Effect: TypeAlias = WriteBatch | CreateLedger | CloseLedger | EndLedger | GoOn


@dataclass(frozen=True, slots=True)
class RotationLimits:
    """When a ledger is full: docs/spec/storage.md, "Rotation"."""

    entries_max: int
    bytes_max: int
    age_min_ms: int
    age_max_ms: int
    unstored_bytes: int = 0
    """Of each entry: they don't count."""

    def is_full(self, entries: int, size: int, age_ms: int) -> bool:
        """Entries and bytes don't count while the ledger is younger than ``age_min_ms``."""
        if age_ms >= self.age_max_ms:
            return entries > 0
        return age_ms >= self.age_min_ms and (entries >= self.entries_max or size >= self.bytes_max)

    def is_nearly_full(self, entries: int, size: int, age_ms: int) -> bool:
        """Time to create the next ledger, so that the switch doesn't wait for it."""
        return age_ms >= self.age_min_ms and (
            entries * 8 >= self.entries_max * 7 or size * 8 >= self.bytes_max * 7
        )


@dataclass(slots=True, eq=False, repr=False)
class AppendCore:
    """Decides where entries go and when they are reported.

    After every call the shell performs ``take_effects()`` in order, and then reports
    ``take_done()`` in order: so whatever a report's callback appends finds all writes done.
    """

    limits: RotationLimits
    turn_entries: int = 256
    """Of what was queued, so many and the rest of their batch are written at once."""
    state: AppendState = field(default=_NO_LEDGER, init=False)
    refusal: BaseException | None = field(default=None, init=False)
    """Why appends are refused; None while they are accepted."""
    current: int = field(default=-1, init=False)
    """The ledger that is written; -1 without one."""
    next_entry: int = field(default=0, init=False)
    current_bytes: int = field(default=0, init=False)
    empty_ledger_count: int = field(default=0, init=False)
    """How many ledgers in a row failed before their first entry was confirmed."""
    pending_bytes: int = field(default=0, init=False)
    pending_entries: int = field(default=0, init=False)
    _acked: int = field(default=-1, init=False)
    _created_ms: int = field(default=0, init=False)
    _next: int = field(default=-1, init=False)
    _next_created_ms: int = field(default=0, init=False)
    _creating: bool = field(default=False, init=False)
    _create_after_ms: int = field(default=0, init=False)
    _create_failures: int = field(default=0, init=False)  # in a row
    _paused_until_ms: int = field(default=0, init=False)
    _create_error: BaseException | None = field(default=None, init=False)
    _want_ledger: bool = field(default=False, init=False)
    # Lists: an empty deque is 760 bytes, of which every idle log would have two.
    _sent: list[PendingBatch] = field(default_factory=list, init=False)
    _queued: list[PendingBatch] = field(default_factory=list, init=False)
    _effects: list[Effect] = field(default_factory=list, init=False)
    _done: list[AppendsDone] = field(default_factory=list, init=False)

    @property
    def oldest_sent_s(self) -> float:
        """The shell's note on the oldest batch that isn't confirmed; 0: none is written."""
        return self._sent[0].sent_s if self._sent else 0.0

    # Orders

    def append(
        self, heads: list[bytes], bodies: list[Buffer], on_done: AppendDone, now_ms: int
    ) -> PendingBatch | None:
        """Accepts entries; the core owns both lists from now on.

        Returns:
            The batch to write to ``current`` at once, before any effect: the common case, without
            an effect object. None when there is nothing to write now.
        """
        if not heads:
            return None
        entry_bytes = sum(map(len, heads)) + sum(map(len, bodies))
        batch = PendingBatch(heads, bodies, on_done, entry_bytes)
        if self.refusal is not None:
            self._fail(batch, self.refusal)
            return None
        self.pending_bytes += entry_bytes
        self.pending_entries += len(heads)
        if self.state is _OPEN and not self._queued:
            self._assign(batch, now_ms)
            return batch
        self._queued.append(batch)
        if self.state is _UNDECIDED:
            self.seek_end()
        elif self.state is _NO_LEDGER:
            self._advance(now_ms)
        return None

    def go_on(self, now_ms: int) -> None:
        """Assigns what was queued while there was no ledger, `turn_entries` or a batch more."""
        if self.state is not _OPEN:
            return  # whoever opens the next ledger goes on
        waiting, self._queued = self._queued, []
        entries = 0
        for taken, batch in enumerate(waiting):
            if self.state is not _OPEN or entries >= self.turn_entries:
                self._queued += waiting[taken:]  # behind what the last one left over
                break
            self._assign(batch, now_ms)
            entries += len(batch.heads)
            self._effects.append(WriteBatch(self.current, batch))
        if self._queued and self.state is _OPEN:
            self._effects.append(GoOn())

    def rotate(self, now_ms: int) -> None:
        """Leaves a non-empty current ledger for a new one, even without appends to come."""
        if self.refusal is not None or self.state in (_ENDING, _UNDECIDED):
            return
        if self.state is _OPEN:
            if not self.next_entry:
                return
            self.state = _SWITCHING
        self._want_ledger = True
        self._advance(now_ms)

    def seek_end(self) -> None:
        """Asks again for an end that couldn't be found; without it, the next append asks."""
        if self.state is _UNDECIDED:
            self.state = _ENDING
            self._effects.append(EndLedger(self.current))

    def close_if_idle(self, now_ms: int) -> None:
        """Ends an old ledger without appends under way; the next append makes a new one."""
        if self.state is _OPEN and self.next_entry and not self._sent:
            age_ms = now_ms - self._created_ms
            if age_ms >= self.limits.age_max_ms:
                self.state = _SWITCHING
                self._advance(now_ms)

    def refuse(self, error: BaseException) -> None:
        """No further append is accepted; what is pending goes on. The first reason stays."""
        if self.refusal is None:
            self.refusal = error

    def stop(self, error: BaseException) -> None:
        """Ends everything: what is pending fails with ``error``, later calls change nothing."""
        if self.state is _STOPPED:
            return
        self.refuse(error)
        self.state = _STOPPED
        self._effects.clear()
        self._fail_all(error)

    # News

    def on_confirmed(self, ledger_id: int, entry_id: int) -> None:
        """Every entry of the ledger up to ``entry_id`` is durable."""
        if ledger_id != self.current or self.state is _STOPPED:
            return  # late: the end of that ledger was settled otherwise
        self._confirm(entry_id)
        if self.state is _SWITCHING and not self._sent:
            self._advance(self._next_created_ms)  # the age of the next one starts there

    def on_ledger_ready(self, ledger_id: int, now_ms: int) -> None:
        """The ledger asked for is created and listed."""
        self._creating = False
        self._create_failures, self._create_error = 0, None
        if self.state is _STOPPED:
            return
        self._next, self._next_created_ms = ledger_id, now_ms
        if self.state is _OPEN and self._is_full(now_ms):
            self.state = _SWITCHING
        self._advance(now_ms)

    def on_create_failed(self, error: BaseException, now_ms: int) -> None:
        """There is no ledger; nothing was listed."""
        self._creating = False
        self._create_after_ms = now_ms + CREATE_RETRY_MS
        self._create_failures += 1
        self._paused_until_ms = now_ms + _pause_ms(self._create_failures)
        if self.state in (_CREATING, _SWITCHING):
            self._create_error = error
            self._advance(now_ms)

    def on_ledger_failed(self, ledger_id: int, *, is_id_in_use: bool = False) -> None:
        """The writer gave up, though not to another owner: what it didn't confirm is in doubt.

        Args:
            is_id_in_use: another ledger has the id. With other ids all is well, so it isn't futile
                to go on.
        """
        if self.state is _STOPPED:
            return
        if is_id_in_use:
            self.empty_ledger_count = -1  # 0 when its end is known
        if ledger_id == self._next:
            self._next = -1
            self._effects.append(CloseLedger(ledger_id))
        elif ledger_id == self.current and self.state in (_OPEN, _SWITCHING):
            self.state = _ENDING
            self._effects.append(EndLedger(ledger_id))

    def on_ledger_ended(self, ledger_id: int, last_entry: int, now_ms: int) -> None:
        """The failed ledger ends at ``last_entry``, for good."""
        if self.state is not _ENDING or ledger_id != self.current:
            return
        if last_entry < self._acked:
            self.stop(
                ManagedLedgerFencedError(
                    f"ledger {ledger_id} ends at {last_entry}, below acknowledged entries"
                )
            )
            return
        self._confirm(last_entry)
        self._requeue()
        self.current = -1
        self.state = _NO_LEDGER
        self.empty_ledger_count = self.empty_ledger_count + 1 if last_entry < 0 else 0
        self._paused_until_ms = now_ms + _pause_ms(self.empty_ledger_count)
        if self.empty_ledger_count >= EMPTY_LEDGERS_MAX:
            # Rather an error now than a ledger per attempt for as long as the disks are full.
            self._fail_all(AppendFailedError(f"{self.empty_ledger_count} ledgers took no entry"))
        self._advance(now_ms)

    def on_end_failed(self, error: BaseException) -> None:
        """The end isn't known yet. Pending entries fail; they may turn up in the log after all."""
        if self.state is _ENDING:
            self.state = _UNDECIDED
            self._fail_all(error)

    # Results

    def take_effects(self) -> list[Effect]:
        """Effects since the last call."""
        if not (effects := self._effects):
            return effects
        self._effects = []
        return effects

    def take_done(self) -> list[AppendsDone]:
        """Reports since the last call."""
        if not (done := self._done):
            return done
        self._done = []
        return done

    @property
    def is_idle(self) -> bool:
        """Nothing is pending."""
        return not self._sent and not self._queued

    @property
    def has_effects(self) -> bool:
        """Tells whether the shell has anything to do after a call."""
        return bool(self._effects or self._done)

    # Steps

    def _is_full(self, now_ms: int) -> bool:
        age_ms = now_ms - self._created_ms
        return self.limits.is_full(self.next_entry, self.current_bytes, age_ms)

    def _assign(self, batch: PendingBatch, now_ms: int) -> None:
        """Gives the batch its place in the current ledger; what has no room there is queued."""
        limits = self.limits
        age_ms = now_ms - self._created_ms
        count = len(batch.heads)
        if self.next_entry + count > limits.entries_max and age_ms >= limits.age_min_ms:
            room = max(1, limits.entries_max - self.next_entry)
            if count > room:
                self._queued.insert(0, batch.split(room))
                count = room
        batch.first = self.next_entry
        self.next_entry += count
        self.current_bytes += batch.entry_bytes - limits.unstored_bytes * count
        self._sent.append(batch)
        entries, size = self.next_entry, self.current_bytes
        if limits.is_full(entries, size, age_ms):
            self._ask_for_ledger(now_ms)
            # Bytes and age may be exceeded: rather a longer ledger than a pause without need.
            if self._next >= 0 or entries >= limits.entries_max:
                self.state = _SWITCHING
        elif self._next < 0 and limits.is_nearly_full(entries, size, age_ms):
            self._ask_for_ledger(now_ms)

    def _ask_for_ledger(self, now_ms: int) -> None:
        if self._next < 0 and not self._creating and now_ms >= self._create_after_ms:
            self._creating = True
            self._effects.append(CreateLedger(max(0, self._paused_until_ms - now_ms)))

    def _advance(self, now_ms: int) -> None:
        """Takes the next ledger into use when the current one is done with, or sees to it."""
        if self.state not in (_NO_LEDGER, _CREATING, _SWITCHING):
            return
        wanted = bool(self._queued) or self._want_ledger
        if self._sent:  # SWITCHING: the next one is made meanwhile
            if wanted and self._create_error is None:
                self._create_after_ms = 0
                self._ask_for_ledger(now_ms)
            return
        if self.current >= 0:
            self._effects.append(CloseLedger(self.current))
            self.current = -1
        if self._next >= 0:
            self._open_next(now_ms)
        elif self._create_error is not None:
            error, self._create_error = self._create_error, None
            self.state = _NO_LEDGER
            self._want_ledger = False
            failure = AppendFailedError(f"no ledger to write to: {error}")
            failure.__cause__ = error
            self._fail_all(failure)
        elif wanted:
            self.state = _CREATING
            self._create_after_ms = 0
            self._ask_for_ledger(now_ms)
        else:
            self.state = _CREATING if self._creating else _NO_LEDGER

    def _open_next(self, now_ms: int) -> None:
        self.current, self._next = self._next, -1
        self._created_ms = self._next_created_ms
        self.next_entry = self.current_bytes = 0
        self._acked = -1
        self._want_ledger = False
        self.state = _OPEN
        self.go_on(now_ms)

    def _confirm(self, entry_id: int) -> None:
        sent, done, ledger_id = self._sent, self._done, self.current
        self._acked = max(self._acked, entry_id)
        whole = 0
        for batch in sent:
            first, count = batch.first, len(batch.heads)
            if first + count - 1 <= entry_id:
                whole += 1
                self.pending_bytes -= batch.entry_bytes
                if batch.confirmed:
                    self._report_part(batch, count)
                else:
                    self.pending_entries -= count
                    done.append(
                        AppendsDone(
                            batch.on_done,
                            ledger_id,
                            first,
                            count,
                            None,
                            batch.heads,
                            batch.bodies,
                            batch.entry_bytes,
                            batch.sent_s,
                        )
                    )
            else:
                if first + batch.confirmed <= entry_id:
                    self._report_part(batch, entry_id + 1 - first)
                break
        del sent[:whole]

    def _report_part(self, batch: PendingBatch, upto: int) -> None:
        """Reports entries ``batch.confirmed .. upto - 1`` of the batch."""
        start = batch.confirmed
        batch.confirmed = upto
        self.pending_entries -= upto - start
        heads, bodies = batch.heads[start:upto], batch.bodies[start:upto]
        size = sum(map(len, heads)) + sum(map(len, bodies))
        first = batch.first + start
        count, sent_s = upto - start, batch.sent_s
        self._done.append(
            AppendsDone(
                batch.on_done, self.current, first, count, None, heads, bodies, size, sent_s
            )
        )

    def _requeue(self) -> None:
        """Queues entries sent above the definite end again, before those queued since."""
        for slot, batch in enumerate(self._sent):
            if batch.confirmed:  # the end lies inside of it, and its first part is reported
                self.pending_bytes -= batch.entry_bytes
                self._sent[slot] = batch = batch.split(batch.confirmed)
                self.pending_bytes += batch.entry_bytes
            batch.first = -1
        self._queued = self._sent + self._queued
        self._sent = []

    def _fail(self, batch: PendingBatch, error: BaseException) -> None:
        count = len(batch.heads) - batch.confirmed
        self._done.append(AppendsDone(batch.on_done, -1, -1, count, error, [], [], 0))

    def _fail_all(self, error: BaseException) -> None:
        for batches in (self._sent, self._queued):
            for batch in batches:
                self._fail(batch, error)
            batches.clear()
        self.pending_bytes = self.pending_entries = 0


ENTRY_OVERHEAD_BYTES = 256
"""Memory of an entry under way beside its bytes: lists, sequence ids, the answer."""


class AppendBudget:
    """How much the process may have appended that isn't confirmed: one limit for all of its logs.

    No append is refused or delayed for it: a caller asks `must_pause` after an append and then
    stops by itself until `on_relief`, by not reading its socket or by not going on with its
    request. So memory is bounded by the limit and one piece of work of each caller. Counted per
    batch; an entry costs nothing.

    Attributes:
        bytes_max: may change at any time.
        in_flight: bytes appended and not yet confirmed or failed, overheads included.
        on_relief: called when ``in_flight`` has fallen to half of the limit after a `must_pause`.
    """

    __slots__ = ("_is_awaited", "bytes_max", "in_flight", "on_relief")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.in_flight = 0
        self.on_relief: Callable[[], None] | None = None
        self._is_awaited = False

    def must_pause(self) -> bool:
        """True: append nothing more until ``on_relief`` is called, which it will be."""
        if self.in_flight <= self.bytes_max:
            return False
        self._is_awaited = True
        return True

    def change(self, size: int) -> None:
        """For logs: so many bytes more, or less, are under way."""
        self.in_flight += size
        if self._is_awaited and self.in_flight <= self.bytes_max // 2:
            self._is_awaited = False
            if self.on_relief is not None:
                self.on_relief()


def _pause_ms(failures: int) -> int:
    """Before the next ledger; clients come back at once and send everything again."""
    return 0 if failures < 2 else min(PAUSE_MS_MAX, 100 << min(failures - 1, 7))
