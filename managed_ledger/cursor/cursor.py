"""A cursor: the position of one subscription in a managed ledger.

The shell around `AckState`. Acknowledgements are applied in memory at once. At most one write is
under way; what is acknowledged meanwhile goes out with the next one, which begins when the current
one ends. There is no timer and, unless a slow write is under way, no task: an idle cursor costs
memory only.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger.cursor.ack_state import AckState
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.cursor_ledger import recover_state
from magnetar.managed_ledger.cursor.cursor_store import CursorNode, CursorStore
from magnetar.managed_ledger.cursor.cursor_writer import CursorWriter
from magnetar.managed_ledger.cursor.errors import (
    CursorBusyError,
    CursorFencedError,
    CursorWriteError,
)
from magnetar.managed_ledger.empty_containers import NO_ITEMS
from magnetar.managed_ledger.errors import CursorClosedError, ManagedLedgerError
from magnetar.managed_ledger.managed_ledger_view import ManagedLedgerView
from magnetar.managed_ledger.position import Position
from magnetar.metadata.errors import MetadataWriteError
from magnetar.metadata.paths import encode_name, join

AckDone: TypeAlias = Callable[[BaseException | None], None]
"""Called once: None when the acknowledgement is durable, else why it isn't known to be. It is
applied in memory all the same, unless the error is CursorClosedError, CursorFencedError or
CursorBusyError.
"""


@dataclass(slots=True, eq=False, repr=False)
class Cursor:
    """Made by `load_or_create_cursor` and `create_non_durable_cursor` only.

    Attributes:
        durable: it has a stored form.
        state: what is acknowledged; others only ask it.

    One object, because every operation is an order of the same three: the state, the write under
    way, and the calls that wait for it.
    """

    _view: ManagedLedgerView
    name: str
    state: AckState
    _writer: CursorWriter | None
    durable: bool = field(init=False)
    # Why no acknowledgement is taken.
    _refusal: ManagedLedgerError | None = field(default=None, init=False)
    _is_busy: bool = field(default=False, init=False)  # a write is under way
    _is_scheduled: bool = field(default=False, init=False)
    # A write failed: the stored state lacks something.
    _must_write: bool = field(default=False, init=False)
    # No lists without need: three empty ones are 168 bytes in each idle cursor.
    _waiting: list[AckDone] | None = field(default=None, init=False)  # for the next write
    _in_flight: list[AckDone] | None = field(default=None, init=False)
    _idle_waiters: tuple[asyncio.Future[None], ...] = field(default=(), init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    # Before it, only a write with a waiting caller.
    _next_write_s: float = field(default=0.0, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _reset_target: Position | None = field(default=None, init=False)
    _durable_mark_delete: Position = field(init=False)

    def __post_init__(self) -> None:
        self.durable = self._writer is not None
        self._durable_mark_delete = self.state.mark_delete

    # -- questions -------------------------------------------------------------------------------

    @property
    def mark_delete(self) -> Position:
        """Everything up to and including it is acknowledged."""
        return self.state.mark_delete

    @property
    def durable_mark_delete(self) -> Position:
        """Limits trimming: no crash takes the cursor back behind this position."""
        if self._writer is None:
            return self.state.mark_delete
        position = self._durable_mark_delete
        return position if self._reset_target is None else min(position, self._reset_target)

    @property
    def cursor_properties(self) -> Mapping[str, str]:
        """Of the subscription; see `set_cursor_properties`."""
        return {} if self._writer is None else self._writer.node.cursor_properties

    @property
    def last_active_ms(self) -> int:
        """When the node was last written."""
        return 0 if self._writer is None else self._writer.node.last_active_ms

    @property
    def ledger_position(self) -> Position:
        """Cursor ledger and its last entry; (-1, -1) while the metadata node holds the position."""
        return (-1, -1) if self._writer is None else self._writer.ledger_position

    @property
    def ledger_since_ms(self) -> int:
        """Since when positions go where they go: to this cursor ledger, or to the node."""
        return 0 if self._writer is None else self._writer.ledger_since_ms

    @property
    def is_closed(self) -> bool:
        """Closed, deleted or lost to another owner."""
        return self._refusal is not None and not isinstance(self._refusal, CursorBusyError)

    # -- acknowledgements ------------------------------------------------------------------------

    def ack(self, positions: Sequence[Position], on_durable: AckDone | None = None) -> None:
        """Whole entries, in any order; unknown and acknowledged ones are ignored."""
        if self._refusal is not None:
            self._refuse(on_durable)
        elif self.state.ack(positions) or on_durable is not None:
            self._write_soon(on_durable)

    def ack_cumulative(
        self,
        position: Position,
        properties: Mapping[str, int] | None = None,
        on_durable: AckDone | None = None,
    ) -> None:
        """Everything up to and including ``position``; one below mark-delete is ignored.

        Args:
            properties: replace the stored ones; None keeps them.

        Raises:
            InvalidPositionError: beyond the last confirmed entry; ``on_durable`` isn't called.
        """
        if self._refusal is not None:
            self._refuse(on_durable)
        elif self.state.ack_cumulative(position, properties) or on_durable is not None:
            self._write_soon(on_durable)

    def ack_batch(
        self, position: Position, ack_set: Sequence[int], on_durable: AckDone | None = None
    ) -> bool:
        """Indexes of one batch: words, bit set = still unacknowledged; empty: the whole entry.

        Returns:
            Whether the entry is acknowledged as a whole now.

        Raises:
            InvalidPositionError: the ack set is absurdly long.
        """
        if self._refusal is not None:
            self._refuse(on_durable)
        elif self.state.ack_batch(position, ack_set) or on_durable is not None:
            self._write_soon(on_durable)
        return self.state.is_acked(position)

    def ack_cumulative_batch(
        self, position: Position, ack_set: Sequence[int], on_durable: AckDone | None = None
    ) -> None:
        """Everything before ``position``, and the cleared indexes of its batch.

        Raises:
            InvalidPositionError: as `ack_cumulative` and `ack_batch`.
        """
        if self._refusal is not None:
            self._refuse(on_durable)
        elif self.state.ack_cumulative_batch(position, ack_set) or on_durable is not None:
            self._write_soon(on_durable)

    def advance_to(self, mark_delete: Position) -> None:
        """The log was trimmed or truncated up to there; never moves back."""
        if self._refusal is None and self.state.advance_to(mark_delete):
            self._write_soon(None)

    # -- operations ------------------------------------------------------------------------------

    async def reset(
        self,
        position: Position,
        ack_set: Sequence[int] = (),
        properties: Mapping[str, int] = NO_ITEMS,
    ) -> None:
        """Make ``position`` the next entry to be delivered; durable when this returns.

        A missing entry means the next existing one, one beyond the end the end. Individual and
        batch acknowledgements are forgotten. Acknowledgements that arrive meanwhile are refused.

        Args:
            ack_set: non-empty: the indexes of that entry which are left to deliver.
            properties: of the new position.

        Raises:
            CursorBusyError: another reset is under way.
            CursorClosedError, CursorFencedError: nothing changed here.
            CursorWriteError: nothing changed in memory; after a crash either position may hold.
        """
        if self._refusal is not None:
            raise self._refusal
        image = self.state.image_for_reset(position, ack_set, properties)
        self._refusal = CursorBusyError(f"cursor {self.name} is being reset")
        self._reset_target = image.mark_delete  # trimming must leave the target alone from now on
        try:
            await self._become_busy()
            if self.is_closed:  # closed or deleted by a call that overtook this one
                self._release(write_again=False)
                raise self._refusal
            self._take_waiting()
            await self._store_reset(image)
        finally:
            self._reset_target = None
            if isinstance(self._refusal, CursorBusyError):
                self._refusal = None

    async def _store_reset(self, image: CursorImage) -> None:
        try:
            if self._writer is not None:
                await self._writer.persist_image(image)
            self.state.adopt(image)
        except BaseException as error:
            self._must_write = self.durable
            self._finish(error)
            if isinstance(error, CursorFencedError):
                self._on_fenced(error)
            raise
        self._must_write = False
        self._finish(None)

    async def set_properties(self, properties: Mapping[str, int]) -> None:
        """Replace the position's properties; durable when this returns.

        Raises:
            CursorClosedError, CursorBusyError, CursorFencedError: nothing changed.
            CursorWriteError: not stored yet; the next write stores it.
        """
        if self._refusal is not None:
            raise self._refusal
        self.state.set_properties(properties)
        await self.flush()

    async def set_cursor_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the subscription's properties; a non-durable cursor has none.

        Raises:
            CursorClosedError, CursorBusyError, CursorFencedError; MetadataError: perhaps not done.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._writer is None:
            return
        await self._become_busy()
        try:
            await self._writer.update_node(properties, self._view.now_ms())
        except CursorFencedError as error:
            self._on_fenced(error)
            raise
        finally:
            self._release()

    async def flush(self) -> None:
        """Returns when everything acknowledged so far is durable.

        Raises:
            what an ``on_durable`` callback may get.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if waiter.done():
                return  # the caller of the flush was cancelled
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

        if self._refusal is not None:
            raise self._refusal
        self._write_soon(done)
        await waiter

    async def close(self) -> None:
        """Store what isn't stored yet and stop; closing twice is harmless, and waits for the first.

        Raises:
            CursorWriteError: closed, but what wasn't durable before is lost.
        """
        if self.is_closed:
            await self._become_idle()
            return
        self._refusal = CursorClosedError(f"cursor {self.name} is closed")
        await self._become_busy()
        self._take_waiting()
        try:
            if self._writer is not None:
                await self._writer.close(self._is_changed)
        except BaseException as error:
            self._finish(error)
            if isinstance(error, CursorFencedError):
                self._on_fenced(error)
            else:
                raise
        else:
            self._must_write = False
            self._finish(None)

    async def delete(self) -> None:
        """Remove the subscription's position for good; then as closed. Waits for a reset.

        Raises:
            MetadataWriteError: the cursor is there, and goes on.
            CursorFencedError, MetadataError: perhaps deleted. Acknowledgements might get lost now,
                so this process gives the log up: its next open finds out.
        """
        before, refusal = self._refusal, CursorClosedError(f"cursor {self.name} is deleted")
        self._refusal = refusal
        await self._become_busy()
        self._must_write = False
        try:
            if self._writer is not None:
                await self._writer.delete()
        except MetadataWriteError:
            self._must_write = True  # what was acknowledged meanwhile, with the next write
            self._refusal = before if isinstance(before, CursorClosedError) else None
            raise
        except CursorFencedError as error:
            self._on_fenced(error)
            raise
        except BaseException as error:
            self._on_fenced(CursorFencedError(f"cursor {self.name} is perhaps deleted: {error}"))
            raise
        finally:
            self._release()
            self._answer(refusal)

    # -- writing ---------------------------------------------------------------------------------

    @property
    def _is_changed(self) -> bool:
        return self._must_write or self.state.is_changed

    def _refuse(self, on_durable: AckDone | None) -> None:
        if on_durable is not None:
            on_durable(self._refusal)

    def _write_soon(self, on_durable: AckDone | None) -> None:
        if self._writer is None:
            if on_durable is not None:
                on_durable(None)
            return
        if on_durable is not None:
            if not self._is_busy and not self._is_changed:
                on_durable(None)
                return
            if self._waiting is None:
                self._waiting = [on_durable]
            else:
                self._waiting.append(on_durable)
        if self._is_scheduled or self._is_busy:
            return
        loop = asyncio.get_running_loop()
        if not self._waiting and self._view.config.mark_delete_rate > 0:
            if self._timer is not None:
                return
            if (delay_s := self._next_write_s - loop.time()) > 0:
                self._timer = loop.call_later(delay_s, self._write)
                return
        # Not at once: what else this tick brings goes with the same write.
        self._is_scheduled = True
        loop.call_soon(self._write)

    async def write_now(self) -> None:
        """Writes at once what waits for its turn; returns when that is durable or has failed."""
        while self._timer is not None or self._is_scheduled or self._is_busy:
            self._write()
            await self._become_idle()

    def _write(self) -> None:
        self._is_scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_busy or self._writer is None or self._refusal is not None:
            return
        if (rate := self._view.config.mark_delete_rate) > 0:
            self._next_write_s = asyncio.get_running_loop().time() + 1 / rate
        if not self._is_changed:
            self._answer(None)
            return
        self._is_busy = True
        self._take_waiting()
        if self._must_write or not self._writer.append(self._on_appended):
            self._run(partial(self._writer.persist, whole=self._must_write))

    def _on_appended(self, error: LedgerError | None) -> None:
        if error is None:
            self._finish(None)
        else:
            assert self._writer is not None
            self._run(partial(self._writer.fall_back, error))

    def _run(self, write: Callable[[], Awaitable[None]]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run_write(write))

    async def _run_write(self, write: Callable[[], Awaitable[None]]) -> None:
        try:
            await write()
        except CursorFencedError as error:
            self._finish(error)
            self._on_fenced(error)
        except CursorWriteError as error:
            self._must_write = True
            self._finish(error)
        except BaseException as error:
            self._must_write = True
            self._finish(error)
            raise
        else:
            self._must_write = False
            self._finish(None)
        finally:
            self._task = None

    def _finish(self, error: BaseException | None) -> None:
        """A write has ended: answers its acknowledgements, tells the log, begins the next one."""
        if self._writer is not None:
            previous, self._durable_mark_delete = (
                self._durable_mark_delete,
                self._writer.stored_mark_delete,
            )
            if previous != self._durable_mark_delete:
                self._view.on_mark_delete(previous, self._durable_mark_delete)
        answered, self._in_flight = self._in_flight, None
        # After a failure only a new acknowledgement tries again, or this would spin.
        self._release(write_again=error is None)
        _call(answered, error)

    def _release(self, write_again: bool = True) -> None:
        self._is_busy = False
        waiters, self._idle_waiters = self._idle_waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._waiting or (write_again and self.state.is_changed):
            self._write_soon(None)

    def _answer(self, error: BaseException | None) -> None:
        waiting, self._waiting = self._waiting, None
        _call(waiting, error)

    async def _become_busy(self) -> None:
        """Waits for the write under way and takes its place, until `_finish` or `_release`."""
        await self._become_idle()
        self._is_busy = True

    async def _become_idle(self) -> None:
        while self._is_busy:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters += (waiter,)
            await waiter

    def _take_waiting(self) -> None:
        self._in_flight, self._waiting = self._waiting, None

    def _on_fenced(self, error: CursorFencedError) -> None:
        """Another owner has the cursor: stop for good, and tell the log."""
        self._refusal = error
        self._answer(error)
        if self._writer is not None:
            self._writer.abandon()
        self._view.on_cursor_fenced(error)


def _call(answers: list[AckDone] | None, error: BaseException | None) -> None:
    for on_durable in answers or ():
        try:
            on_durable(error)
        except Exception as raised:  # one caller's bug must not cost the others their answers
            asyncio.get_running_loop().call_exception_handler(
                {"message": "an on_durable callback raised", "exception": raised}
            )


async def load_or_create_cursor(
    ledger: ManagedLedgerView,
    name: str,
    mark_delete: Position,
    cursor_properties: Mapping[str, str] | None = None,
) -> Cursor:
    """A durable cursor: the stored one if there is any, else a new one. One metadata put either
    way, which takes the node away from every earlier owner; a new cursor has no ledger yet.

    After it and before anything is acknowledged, the caller must look whose the log's list is
    (`ManagedLedgerView.owns_list`): see `cursor_store`.

    Args:
        mark_delete: of a new cursor.
        cursor_properties: of a new cursor.

    Raises:
        OpenFailedError: the stored position can't be read now; nothing was changed, retry later.
        CursorFormatError: the stored position is damaged, or written by a newer release.
        CursorFencedError: another owner took the log meanwhile.
        MetadataError: the node can't be read or written now.
    """
    store = _store_of(ledger, name)
    node = await store.claim()
    if node is None:
        node = CursorNode(
            mark_delete,
            cursor_properties=dict(cursor_properties) if cursor_properties else NO_ITEMS,
            last_active_ms=ledger.now_ms(),
        )
        await store.write(node)
    state = await recover_state(ledger, name, node)
    return Cursor(ledger, name, state, CursorWriter(ledger, name, state, store, node))


def create_non_durable_cursor(
    ledger: ManagedLedgerView, name: str, mark_delete: Position
) -> Cursor:
    """A cursor in memory only: for readers. Doesn't hold back trimming."""
    return Cursor(ledger, name, AckState(ledger.offsets, mark_delete), None)


async def delete_cursor(ledger: ManagedLedgerView, name: str) -> None:
    """Deletes a cursor that isn't loaded (`Cursor.delete` is for a loaded one); a missing one is
    success.

    Raises:
        CursorFencedError: another owner writes the node.
        MetadataError: perhaps not deleted.
    """
    store = _store_of(ledger, name)
    node = await store.read()
    if node is not None:
        state = AckState(ledger.offsets, node.mark_delete)
        await CursorWriter(ledger, name, state, store, node).delete()


def _store_of(ledger: ManagedLedgerView, name: str) -> CursorStore:
    path = join(ledger.path, encode_name(name))
    return CursorStore(ledger, path, f"{ledger.store.session_id}-{secrets.token_hex(8)}")
