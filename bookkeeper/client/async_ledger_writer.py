"""asyncio shell of LedgerWriter: hands requests to bookies, publishes changes, calls the owner.

``append`` sends at once: no task, no future, no wait. Answers only move the core; what follows from
them (one watermark, an ensemble change, the end) is done once per loop tick. When nothing is under
way any more, the watermark is told at once: another tick would cost a synchronous producer time.

A bookie beyond the ack quorum may be slower than the others for ever: while too much waits for one,
the watermark is held back, so that the owner slows down instead of losing the bookie.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.explicit_lac import ExplicitLac
from magnetar.bookkeeper.client.force_rounds import ForceLedger
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.client.ledger_store import LedgerStore, VersionedLedger
from magnetar.bookkeeper.client.ledger_writer import (
    AddsConfirmed,
    ChangeEnsemble,
    DeferredAddsWritten,
    LedgerWriter,
    WriterFailed,
)
from magnetar.bookkeeper.client.pending_adds import SendAdds
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, choose_replacements
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.replica_choice import Replicas
from magnetar.bookkeeper.errors import (
    AddQuorumTimeoutError,
    BookkeeperError,
    EntryDiffersError,
    LedgerError,
    NotEnoughBookiesError,
    OtherCreatorError,
    WriteFailedError,
)
from magnetar.bookkeeper.ledger_metadata import (
    LedgerMetadata,
    change_ensemble,
    close_by_writer,
    require_open,
)
from magnetar.bookkeeper.transport import AddRequest
from magnetar.metadata.errors import MetadataError

_HOLD_S: Final = 0.005  # how often a held watermark is looked at again
_NONE: Final[frozenset[Any]] = frozenset()  # a new empty set is 216 bytes in each idle writer


#: Marks within one timeout: a wait is noticed at most this part of it too late.
MARKS: Final = 4


class AddDeadline:
    """Told now and then how far appends and confirmations are, it knows the age of the oldest add.

    Args:
        timeout_s: longest allowed wait.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.interval_s = timeout_s / MARKS  # how often ``check`` is to be called
        self._marks: deque[tuple[float, int]] = deque()  # (time, entries appended before it)

    def check(self, now_s: float, next_entry: int, last_confirmed: int) -> bool:
        """True if some entry was appended more than ``timeout_s`` ago and isn't confirmed."""
        marks = self._marks
        while marks and marks[0][1] <= last_confirmed + 1:
            marks.popleft()
        if next_entry > last_confirmed + 1 and (not marks or marks[-1][1] < next_entry):
            marks.append((now_s, next_entry))
        return bool(marks) and now_s - marks[0][0] >= self.timeout_s


class AsyncLedgerWriter:
    """The only writer of a new ledger.

    Attributes:
        on_confirmed: called with the watermark: every entry up to it is durable on an ack quorum;
            at most once per loop tick while more is under way.
        on_written: of a writer of deferred adds: the watermark of what has its quorum in memory;
            ``on_confirmed`` tells what a ``force`` made durable.
        on_failed: called once when the writer stops for good; entries above ``last_confirmed`` have
            an unknown fate until the ledger is closed or recovered.
    """

    def __init__(
        self,
        created: VersionedLedger,
        ledgers: LedgerStore,
        bookies: BookiePool,
        placement: EnsemblePlacementPolicy,
        config: ClientConfig,
        replicas: Replicas,
        *,
        deferred_sync: bool = False,
    ) -> None:
        self.ledger_id = created.metadata.ledger_id
        self.on_confirmed: Callable[[int], None] | None = None
        self.on_written: Callable[[int], None] | None = None
        self.on_failed: Callable[[LedgerError], None] | None = None
        self._stored = created
        self._ledgers = ledgers
        self._bookies = bookies
        self._placement = placement
        self._config = config
        self._replicas = replicas
        self._core = LedgerWriter(
            created.metadata,
            self._on_add_done,
            spread_of=placement.ack_spread,
            config=config.writes,
            deferred_sync=deferred_sync,
        )
        self._loop = asyncio.get_running_loop()
        self._run_scheduled = False
        self._change: asyncio.Task[None] | None = None
        self._excluded: frozenset[str] = _NONE  # failed since an entry was last confirmed
        self._excluded_at = 0  # first unconfirmed entry then
        self._refusals: dict[str, int] = {}  # bookie -> its last answer that wasn't OK
        self._reader: _WriterReader | None = None
        self._held = -1  # the watermark, not told to the owner yet; -1: nothing is held
        self._hold_timer: asyncio.TimerHandle | None = None
        self._master_key = created.metadata.master_key
        self._tasks: frozenset[asyncio.Task[None]] = _NONE
        self._tails: list[asyncio.Future[None]] = []  # waiting for the watermark, or for the end
        self._lac: ExplicitLac | None = None
        if config.writes.explicit_lac_interval_ms:
            self._lac = ExplicitLac(
                *(self._core, bookies, self._master_key, created.metadata.creator_token),
                created.metadata.ack_quorum,
                config.writes.explicit_lac_interval_ms / 1000,
            )
        timeout_ms = config.writes.add_quorum_timeout_ms
        self._deadline = AddDeadline(timeout_ms / 1000) if timeout_ms else None
        self._deadline_timer: asyncio.TimerHandle | None = None

    @property
    def last_confirmed(self) -> int:
        return self._core.last_confirmed

    @property
    def last_written(self) -> int:
        """As ``last_confirmed``, but of deferred adds it may still be lost."""
        return self._core.last_written

    @property
    def next_entry(self) -> int:
        return self._core.next_entry

    @property
    def length(self) -> int:
        """Payload bytes appended, confirmed or not."""
        return self._core.length

    @property
    def confirmed_length(self) -> int:
        """Payload bytes up to ``last_confirmed``."""
        return self._core.confirmed_length

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for their quorum."""
        return self._core.pending_bytes

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last stored or read it."""
        return self._stored.metadata

    @property
    def error(self) -> LedgerError | None:
        """Why ``append`` raises; None while the writer works."""
        return self._core.error

    def append(self, heads: list[bytes], bodies: list[bytes]) -> int:
        """Send a batch; never blocks.

        Args:
            heads, bodies: parallel and not empty; the writer's property afterwards.

        Returns:
            The first entry's id.

        Raises:
            LedgerError: the writer has stopped; nothing of the batch was sent.
        """
        core = self._core
        try:
            first = core.append(heads, bodies)
        except LedgerError:
            if core.has_effects:  # it was this append that found the end
                self._run_soon()
            raise
        client = self._bookies.client
        for send in core.take_sends():
            client(send.bookie).add_entries(send)
        if core.has_effects:
            self._run_soon()
        if self._deadline is not None and self._deadline_timer is None:
            self._check_deadline()
        return first

    async def force(self) -> int:
        """Make durable all deferred adds that ``on_written`` told of by now.

        Without deferred adds everything confirmed is durable, and there is nothing to do.

        Returns:
            ``last_confirmed``, which is at least the last written entry at the call.

        Raises:
            LedgerError: the writer has stopped; what was acknowledged in memory only may be lost.
        """
        core = self._core
        target = core.last_written
        while core.last_confirmed < target:
            if core.error is not None:
                raise core.error
            if not core.is_forcing:
                core.begin_force()
                self._run()
            await self.next_change()
        return core.last_confirmed

    async def next_change(self) -> None:
        """Wait until ``last_confirmed`` moves or the writer stops."""
        change: asyncio.Future[None] = self._loop.create_future()
        self._tails.append(change)
        await change

    async def close(self) -> LedgerMetadata:
        """End the ledger at ``last_confirmed``; entries above it are dead. May be repeated.

        Deferred adds are forced before.

        Raises:
            LedgerFencedError: another client recovers it or has closed it elsewhere.
            NoSuchLedgerError: it was deleted.
            MetadataError: the store failed; the ledger may or may not be closed, try again.
        """
        if self._core.last_written > self._core.last_confirmed and self._core.error is None:
            with suppress(LedgerError):  # then it ends where it was forced last
                await self.force()
        last_entry, length = self._core.close()
        self._stop_timers()
        if self._core.has_effects or self._held >= 0 or self._tails:
            self._run_soon()
        change = partial(close_by_writer, last_entry=last_entry, length=length)
        self._stored = await self._ledgers.update(self.ledger_id, change, self._stored)
        return self._stored.metadata

    def reader(self) -> LedgerReader:
        """Reads this ledger up to ``last_confirmed``, also while it grows."""
        if self._reader is None:
            self._reader = _WriterReader(
                self, self._ledgers, self._bookies, self._config, self._replicas
            )
        return self._reader

    def _on_add_done(self, request: AddRequest, code: int) -> None:
        core = self._core
        sent = cast(SendAdds, request)
        if code != codes.OK:
            self._refusals[sent.bookie] = code
            self._bookies.health.note_code(sent.bookie, code)
        core.on_add_done(sent, code)
        if not core.has_effects or self._run_scheduled:
            return
        if core.pending or core.error is not None:
            self._run_soon()
        else:  # no other answer of this tick can add to it
            self._run()

    def _run_soon(self) -> None:
        if not self._run_scheduled:
            self._run_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Everything that this tick's answers brought: all sends first, the owner's code last."""
        self._run_scheduled = False
        for send in self._core.take_sends():
            self._bookies.client(send.bookie).add_entries(send)
        upto, failed = self._held, None
        written = -1
        for effect in self._core.take_effects():
            match effect:
                case AddsConfirmed(entry_id):
                    upto = entry_id
                case ChangeEnsemble():
                    self._change = self._loop.create_task(self._change_ensemble(effect))
                case WriterFailed(error):
                    failed = error
                    self._stop_timers()
                    if isinstance(error, OtherCreatorError | EntryDiffersError):
                        self._ledgers.on_id_in_use(self.ledger_id)
                case DeferredAddsWritten(entry_id):
                    written = entry_id
                case ForceLedger():
                    self._start(self._force(effect))
        if upto >= 0 and self._lac is not None:
            self._lac.on_confirmed()
        if self._tails:
            self._wake_tails()
        if written >= 0 and self.on_written is not None:
            self.on_written(written)
        if upto >= 0 and self._core.error is None and self._is_backlogged():
            self._hold(upto)
            return  # nothing has failed, or there would be an error
        self._held = -1
        try:
            if upto >= 0 and self.on_confirmed is not None:
                self.on_confirmed(upto)
        finally:
            if failed is not None and self.on_failed is not None:
                self.on_failed(failed)

    def _wake_tails(self) -> None:
        tails, self._tails = self._tails, []
        for change in tails:
            if not change.done():
                change.set_result(None)

    def _stop_timers(self) -> None:
        if self._lac is not None:
            self._lac.close()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None

    def _check_deadline(self) -> None:
        """Look at the age of the oldest add, and again in a while if there is one."""
        self._deadline_timer = None
        core, deadline = self._core, self._deadline
        assert deadline is not None
        if core.error is not None:
            return
        if deadline.check(self._loop.time(), core.next_entry, core.last_written):
            core.on_fatal(
                AddQuorumTimeoutError(
                    f"ledger {self.ledger_id}: entry {core.last_written + 1} has no quorum after "
                    f"{deadline.timeout_s} s"
                )
            )
            self._run_soon()
        elif core.next_entry > core.last_written + 1:
            self._deadline_timer = self._loop.call_later(deadline.interval_s, self._check_deadline)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks |= {task}
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks = (self._tasks - {task}) or _NONE

    async def _force(self, effect: ForceLedger) -> None:
        client = self._bookies.client(effect.bookie)
        try:
            code = await client.force(self.ledger_id, effect.first, master_key=self._master_key)
        except BookkeeperError:
            code = codes.UNAVAILABLE
        self._core.on_forced(effect, code)
        self._run_soon()

    def _is_backlogged(self) -> bool:
        client = self._bookies.client
        return any(client(bookie).is_backlogged for bookie in self._core.bookies)

    def _hold(self, upto: int) -> None:
        self._held = upto
        if self._hold_timer is None:
            # A timer, because the backlog may be of other ledgers, whose answers we don't see.
            self._hold_timer = self._loop.call_later(_HOLD_S, self._look_again)

    def _look_again(self) -> None:
        self._hold_timer = None
        if self._held >= 0:
            self._run()

    async def _change_ensemble(self, effect: ChangeEnsemble) -> None:
        if effect.first_entry > self._excluded_at:
            # Not earlier: two bookies that refuse could take turns for ever, each time with a write
            # to the metadata store.
            self._excluded_at = effect.first_entry
            self._excluded = _NONE
        self._excluded |= set(effect.failed.values())
        change = partial(self._replace_failed, effect)
        try:
            stored = await self._ledgers.update(self.ledger_id, change, self._stored)
        except LedgerError as error:
            self._core.on_fatal(error)
        except MetadataError as error:
            failure = WriteFailedError(f"ledger {self.ledger_id}: ensemble change: {error}")
            failure.__cause__ = error
            self._core.on_fatal(failure)
        else:
            if self._core.error is None:
                self._stored = stored
                self._core.on_ensemble_changed(stored.metadata.last_segment.bookies)
        self._run_soon()

    def _replace_failed(
        self, effect: ChangeEnsemble, metadata: LedgerMetadata
    ) -> LedgerMetadata | None:
        require_open(metadata)
        members = metadata.last_segment.bookies
        if all(members[slot] != bookie for slot, bookie in effect.failed.items()):
            return None
        others = self._bookies.writable.difference(self._excluded, members)
        chosen = choose_replacements(
            self._placement, members, metadata.write_quorum, effect.failed, others
        )
        if not chosen:
            failed = ", ".join(
                f"{bookie} ({codes.code_name(self._refusals.get(bookie, codes.UNAVAILABLE))})"
                for bookie in sorted(effect.failed.values())
            )
            restriction = self._placement.restriction
            raise NotEnoughBookiesError(
                f"ledger {self.ledger_id}: nobody can replace {failed}; other writable bookies: "
                f"{sorted(others)}{restriction and f'; may be taken: {restriction}'}"
            )
        return change_ensemble(metadata, effect.first_entry, chosen)


class _WriterReader(LedgerReader):
    """The writer's own reader: bound and metadata are the writer's, as they are now."""

    def __init__(
        self,
        writer: AsyncLedgerWriter,
        ledgers: LedgerStore,
        bookies: BookiePool,
        config: ClientConfig,
        replicas: Replicas,
    ) -> None:
        self._writer = writer
        super().__init__(writer.metadata, -1, ledgers, bookies, config, replicas)

    @property
    def last_confirmed(self) -> int:
        return self._writer.last_confirmed

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    async def wait(self, above: int, timeout_s: float) -> int:
        writer = self._writer
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while writer.last_confirmed <= above and writer.error is None:
                    await writer.next_change()
        return writer.last_confirmed

    async def refresh(self) -> None:
        return  # the writer knows
