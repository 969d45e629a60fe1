"""Where a durable cursor's positions go: its cursor ledger, or its metadata node.

=====================  =============================================  ==============================
event                  cursor ledger                                  metadata node
=====================  =============================================  ==============================
created                --                                             position, no ledger
first acknowledgement  new ledger with a snapshot                     then: the ledger's id
later ones             one increment each write, now and then a       --
                       snapshot
append fails           given up; the next write makes a new one       position and state, no ledger
rotation               new ledger with a snapshot                     then: the new ledger's id
close                  --                                             position and state, no ledger
close, large state     last records, then closed                      stays
=====================  =============================================  ==============================

Properties too large for the node are in the cursor ledger alone. The node then keeps the position
and properties it had: both are older, and belong together.

Rules that keep a crash at any step harmless: the node names a ledger only after the ledger's
snapshot is durable; a ledger is deleted only after a node write of known outcome doesn't name it;
after a node write of unknown outcome neither of the two ledgers in question is appended to again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.errors import BookkeeperError, LedgerError
from magnetar.managed_ledger.cursor import cursor_store
from magnetar.managed_ledger.cursor.ack_state import AckState
from magnetar.managed_ledger.cursor.cursor_format import (
    SLICE_WORK_MAX,
    body_sections,
    encode_increment,
    encode_node_state,
    encode_snapshot,
    properties_sections,
    properties_slices,
    seal_increment,
    seal_node_state,
    seal_snapshot,
    work_of,
)
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.cursor_ledger import CursorLedger
from magnetar.managed_ledger.cursor.cursor_store import NO_LEDGER, CursorNode, CursorStore, fits
from magnetar.managed_ledger.cursor.errors import CursorFencedError, CursorWriteError
from magnetar.managed_ledger.empty_containers import NOTHING
from magnetar.managed_ledger.managed_ledger_view import ManagedLedgerView
from magnetar.managed_ledger.orphan_ledgers import cursor_metadata
from magnetar.managed_ledger.position import Position
from magnetar.metadata.errors import MetadataError

LEDGER_BYTES_MAX: Final = 64 << 20
"""A cursor ledger of this size is rotated, whatever its number of entries."""
INCREMENTS_MAX: Final = 1024
"""Increments after a snapshot: what a recovery has to read and apply."""
INCREMENT_BYTES_MIN: Final = 16 << 10
"""A snapshot isn't due for its bytes before so many bytes of increments."""
QUICK_WORK_MAX: Final = SLICE_WORK_MAX
"""Up to this estimate what is written is encoded at once, above it in slices."""
ROTATION_RETRY_ENTRIES: Final = 1000
"""After a failed rotation the old ledger takes so many more entries before the next attempt."""

_SLICED_ATTEMPTS: Final = 4

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class CursorWriter:
    """Makes one cursor's state durable; the cursor calls it for one write at a time."""

    _view: ManagedLedgerView
    _name: str
    _state: AckState
    _store: CursorStore
    node: CursorNode  # the last one of known outcome
    stored_mark_delete: Position = field(init=False)
    _ledger: CursorLedger | None = field(default=None, init=False)
    # Ledgers to delete once the node surely names another.
    _garbage: frozenset[int] = field(default=NOTHING, init=False)
    _rotation_entries_min: int = field(default=0, init=False)
    _deletions: frozenset[asyncio.Task[None]] = field(default=NOTHING, init=False)

    def __post_init__(self) -> None:
        self.stored_mark_delete = self._state.mark_delete

    @property
    def ledger_position(self) -> Position:
        """The ledger that is appended to and its last entry; (-1, -1): there is none."""
        ledger = self._ledger
        return (-1, -1) if ledger is None else (ledger.ledger_id, ledger.entries - 1)

    @property
    def ledger_since_ms(self) -> int:
        """When the ledger that is appended to was made, or the node was last written instead."""
        ledger = self._ledger
        return self.node.last_active_ms if ledger is None else ledger.created_ms

    # -- the quick way ---------------------------------------------------------------------------

    def append(self, done: Callable[[LedgerError | None], None]) -> bool:
        """Append what changed to the cursor ledger.

        Returns:
            False when that isn't possible: `persist` must be awaited instead.
        """
        ledger = self._ledger
        if ledger is None or not ledger.is_alive or self._rotation_due(ledger):
            return False
        is_snapshot, state = self._snapshot_due(ledger), self._state
        if (state.work if is_snapshot else state.changed_work) > QUICK_WORK_MAX:
            return False
        if (is_snapshot or state.properties_changed) and state.has_many_properties:
            return False
        if is_snapshot:
            image = state.image()
            state.mark_stored()
            records = encode_snapshot(image, ledger.base)
        else:
            image = state.take_increment()
            records = encode_increment(image, ledger.base)
        mark_delete = image.mark_delete

        def appended(error: LedgerError | None) -> None:
            if error is None:
                self.stored_mark_delete = mark_delete
                ledger.on_written(records, is_snapshot=is_snapshot)
            done(error)

        ledger.append(records, appended)
        return True

    # -- the ways that wait ----------------------------------------------------------------------

    async def persist(self, *, whole: bool) -> None:
        """Make the state as of now durable: what changed or all of it, in the ledger or a new one,
        or else in the node.

        Args:
            whole: what is stored lacks something, so that an increment isn't enough.

        Raises:
            CursorFencedError: another owner has the cursor.
            CursorWriteError: nothing took it; the state must be written as a whole next time,
                which `append` and this method do by themselves.
        """
        old = self._ledger
        try:
            if old is None or not old.is_alive or self._rotation_due(old):
                await self._switch()
            elif whole or self._snapshot_due(old) or self._increment_is_too_large:
                self.stored_mark_delete = await self._write_snapshot(old)
            else:
                await self._write_increment(old)
            return
        except CursorFencedError:
            raise
        except (BookkeeperError, MetadataError) as error:
            failure: Exception = error
        old = self._ledger
        if old is not None and old.is_alive:  # a rotation that failed: go on with the old ledger
            self._rotation_entries_min = old.entries + ROTATION_RETRY_ENTRIES
            try:
                self.stored_mark_delete = await self._write_snapshot(old)
                return
            except BookkeeperError as error:
                failure = error
        await self.fall_back(failure)

    async def fall_back(self, cause: Exception) -> None:
        """The cursor ledger can't be used: position and state go to the node, or, when they are
        too large for it, to a new ledger.

        Raises:
            as `persist`.
        """
        _log.warning("cursor %s of %s falls back: %s", self._name, self._view.name, cause)
        try:
            self._state.mark_stored()
            if (state := await self._node_state()) is None or not fits(
                self._node_for(self._state.image(), state, NO_LEDGER)
            ):
                await self._switch()
            else:
                await self._write_node(self._state.image(), state)
        except CursorFencedError:
            raise
        except (BookkeeperError, MetadataError) as error:
            if self._ledger is not None and not self._ledger.is_alive:
                self._ledger = None
            raise CursorWriteError(
                f"cursor {self._name} of {self._view.name}: {error} (after: {cause})"
            ) from error

    async def persist_image(self, image: CursorImage) -> None:
        """Make another state durable, which replaces all that was stored; for a reset.

        Raises:
            as `persist`; whether the old or the new state is stored is then open.
        """
        # From the first write on a recovery may find either state: the lower one counts.
        self.stored_mark_delete = min(self.stored_mark_delete, image.mark_delete)
        ledger = self._ledger
        if ledger is not None and ledger.is_alive:
            await self._lower_node(image.mark_delete)
            try:
                records = encode_snapshot(image, ledger.base)
                await ledger.append_all(records, is_snapshot=True)
                self.stored_mark_delete = image.mark_delete
                return
            except BookkeeperError as error:
                _log.warning("%s: reset goes to the node: %s", self._where, error)
        try:
            await self._write_node(image, encode_node_state(image))
        except CursorFencedError:
            raise
        except (BookkeeperError, MetadataError) as error:
            self._ledger = None  # later appends to it couldn't be relied on
            raise CursorWriteError(f"{self._where}: reset not stored: {error}") from error

    async def update_node(
        self, cursor_properties: Mapping[str, str] | None, last_active_ms: int
    ) -> None:
        """Write the node for what only it holds.

        Raises:
            CursorFencedError, MetadataError.
        """
        properties = self.node.cursor_properties
        if cursor_properties is not None:
            properties = dict(cursor_properties)
        await self._put_node(
            replace(self.node, cursor_properties=properties, last_active_ms=last_active_ms)
        )

    async def close(self, is_changed: bool) -> None:
        """Leave everything where the next owner finds it soonest: in the node if it fits.

        Raises:
            CursorFencedError, CursorWriteError.
        """
        try:
            if self._ledger is not None or is_changed:
                await self._close(is_changed)
        except (BookkeeperError, MetadataError) as error:
            raise CursorWriteError(f"{self._where}: not stored at its close: {error}") from error
        finally:
            await self._finish_deletions()

    async def delete(self) -> None:
        """Delete the node, then the ledgers.

        Raises:
            CursorFencedError, MetadataError: perhaps not deleted.
        """
        await self._store.delete()
        if self._ledger is not None:
            self._ledger.abandon()
            self._garbage |= {self._ledger.ledger_id}
            self._ledger = None
        if self.node.ledger_id != NO_LEDGER:
            self._garbage |= {self.node.ledger_id}
        self.node = replace(self.node, ledger_id=NO_LEDGER)
        self._delete_garbage()
        await self._finish_deletions()

    def abandon(self) -> None:
        """Another owner has the cursor: nothing is written or deleted any more."""
        if self._ledger is not None:
            self._ledger.abandon()
            self._ledger = None
        self._garbage = NOTHING

    # -- inside ----------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"cursor {self._name} of {self._view.name}"

    def _snapshot_due(self, ledger: CursorLedger) -> bool:
        return ledger.increments >= INCREMENTS_MAX or ledger.increment_bytes > max(
            INCREMENT_BYTES_MIN, ledger.snapshot_bytes
        )

    @property
    def _increment_is_too_large(self) -> bool:
        """Properties and their mark-delete must be in one record, or in a snapshot."""
        return self._state.properties_changed and self._state.has_many_properties

    def _rotation_due(self, ledger: CursorLedger) -> bool:
        if ledger.entries < self._rotation_entries_min:
            return False
        config = self._view.config
        return (
            ledger.entries >= config.cursor_ledger_entries_max
            or ledger.bytes >= LEDGER_BYTES_MAX
            or self._view.now_ms() - ledger.created_ms >= config.cursor_ledger_age_max_ms
        )

    async def _switch(self) -> None:
        """New ledger, snapshot, node, in this order; the old ledger stays usable if that fails
        before the node's outcome is in doubt.
        """
        if not self._view.is_owner:
            raise CursorFencedError(f"{self._where}: the log belongs to another owner")
        config = self._view.config
        writer = await self._view.client.create_ledger(
            LedgerConfig(
                config.cursor_ensemble_size,
                config.cursor_write_quorum,
                config.cursor_ack_quorum,
                config.password,
                digest_type=config.digest_type,
            ),
            {
                **cursor_metadata(self._view.name, self._name, self._store.writer),
                **await config.placement_metadata.read(),
            },
        )
        ledger = CursorLedger(writer, self._view.now_ms())
        try:
            mark_delete = await self._write_snapshot(ledger)
            await self._put_node(self._node_naming(ledger.ledger_id, mark_delete))
        except BaseException as error:
            ledger.abandon()
            self._garbage |= {ledger.ledger_id}
            if self._store.is_uncertain or isinstance(error, CursorFencedError):
                # Perhaps the node names the new ledger, so neither is certain to be read again.
                if self._ledger is not None:
                    self._ledger.abandon()
                    self._ledger = None
            else:
                self._delete_garbage()
            raise
        self.stored_mark_delete = mark_delete  # not before: no node named the new ledger
        if self._ledger is not None:
            self._ledger.abandon()
        self._ledger = ledger
        self._rotation_entries_min = 0

    async def _write_snapshot(self, ledger: CursorLedger) -> Position:
        """Returns the mark-delete in it: stored once the node names the ledger."""
        state = self._state
        state.mark_stored()
        encoded: tuple[object, list[bytes]] = (None, [])
        for _ in range(_SLICED_ATTEMPTS):  # the properties may be replaced meanwhile
            if state.has_many_properties:
                encoded = (state.properties, await self._properties(state.properties))
            body = await self._body(state.image())
            if encoded[0] is state.properties or not state.has_many_properties:
                break
        assert body is not None
        # Those of mark-delete: it may have passed what older ones tell.
        is_recent = encoded[0] is state.properties
        properties = encoded[1] if is_recent else properties_sections(state.properties)
        mark_delete = state.mark_delete
        records = seal_snapshot(body, mark_delete, properties, ledger.base)
        await ledger.append_all(records, is_snapshot=True)
        return mark_delete

    async def _write_increment(self, ledger: CursorLedger) -> None:
        increment = self._state.take_increment()
        body = await self._body(increment)
        assert body is not None
        await ledger.append_all(seal_increment(body, increment, ledger.base), is_snapshot=False)
        self.stored_mark_delete = increment.mark_delete

    async def _node_state(self) -> bytes | None:
        """Bitmaps and batch sets for the node; None: too large for one. What is acknowledged
        meanwhile may be in it or not, so mark-delete has to be looked at after this.
        """
        body = await self._body(self._state.image(), cursor_store.STATE_BYTES_MAX)
        return None if body is None else seal_node_state(body)

    async def _body(self, image: CursorImage, bytes_max: int | None = None) -> list[bytes] | None:
        """Sections, made in slices, so that a large state doesn't hold the loop; None: they are
        more bytes.
        """
        body, work, size = [], 0, 0
        for section in body_sections(image):
            body.append(section)
            size += len(section)
            if bytes_max is not None and size > bytes_max:
                return None
            work += work_of(section)
            if work >= SLICE_WORK_MAX:
                work = 0
                await asyncio.sleep(0)
        return body

    def _node_for(self, image: CursorImage, state: bytes, ledger_id: int) -> CursorNode:
        return CursorNode(
            image.mark_delete,
            ledger_id,
            dict(image.properties or {}),
            self.node.cursor_properties,
            self._view.now_ms(),
            state,
        )

    def _node_naming(self, ledger_id: int, mark_delete: Position) -> CursorNode:
        """The node of a new ledger: as last resort its position and properties, unless they are too
        large: then the pair that is in the node, or without properties.
        """
        node = replace(self._node_for(self._state.image(), b"", ledger_id), mark_delete=mark_delete)
        if fits(node):
            return node
        before = min(self.node.mark_delete, mark_delete)
        node = replace(node, mark_delete=before, properties=self.node.properties)
        return node if fits(node) else replace(node, properties={})

    async def _properties(self, properties: Mapping[str, int]) -> list[bytes]:
        """Sections, made in slices."""
        slices = properties_slices(properties)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                sections: list[bytes] = end.value
                return sections
            await asyncio.sleep(0)

    async def _lower_node(self, mark_delete: Position) -> None:
        """The node's position is the last resort if the ledger is lost: it must not be ahead of
        what a reset is about to write there, or what is to come again would be skipped.

        Raises:
            CursorFencedError.
        """
        if mark_delete >= self.node.mark_delete:
            return
        try:
            await self._put_node(replace(self.node, mark_delete=mark_delete, state=b""))
        except CursorFencedError:
            raise
        except MetadataError as error:  # only together with a lost ledger it would matter
            _log.warning("%s: a reset isn't in the node: %s", self._where, error)

    async def _write_node(self, image: CursorImage, state: bytes) -> None:
        """Position and state into the node, which then names no ledger."""
        mark_delete = image.mark_delete
        await self._put_node(self._node_for(image, state, NO_LEDGER))
        self.stored_mark_delete = mark_delete
        if self._ledger is not None:
            self._ledger.abandon()
            self._ledger = None

    async def _put_node(self, node: CursorNode) -> None:
        if not self._view.is_owner:
            raise CursorFencedError(f"{self._where}: the log belongs to another owner")
        await self._store.write(node)
        if self.node.ledger_id not in (NO_LEDGER, node.ledger_id):
            self._garbage |= {self.node.ledger_id}
        self.node = node
        self._delete_garbage()

    async def _close(self, is_changed: bool) -> None:
        state = await self._node_state()
        node = None if state is None else self._node_for(self._state.image(), state, NO_LEDGER)
        if node is not None and fits(node):
            try:
                await self._put_node(node)
                return
            except CursorFencedError:
                raise
            except MetadataError:
                if self._ledger is None or not self._ledger.is_alive:
                    raise
        if self._ledger is None or not self._ledger.is_alive:
            await self._switch()
        elif is_changed:
            self.stored_mark_delete = await self._write_snapshot(self._ledger)
        assert self._ledger is not None
        await self._ledger.close()

    def _delete_garbage(self) -> None:
        """Only after a node write of known outcome, or when the node never could name them."""
        ledger_ids = self._garbage - {self.node.ledger_id}
        if not ledger_ids:
            return
        self._garbage = (self._garbage - ledger_ids) or NOTHING
        task = asyncio.get_running_loop().create_task(self._delete_ledgers(ledger_ids))
        self._deletions |= {task}
        task.add_done_callback(self._on_deleted)

    def _on_deleted(self, task: asyncio.Task[None]) -> None:
        self._deletions = (self._deletions - {task}) or NOTHING

    async def _delete_ledgers(self, ledger_ids: frozenset[int]) -> None:
        for ledger_id in sorted(ledger_ids):
            try:
                await self._view.client.delete_ledger(ledger_id)
            except (BookkeeperError, MetadataError) as error:
                self._garbage |= {ledger_id}  # again after the next node write
                _log.warning("%s: old ledger %d not deleted: %s", self._where, ledger_id, error)

    async def _finish_deletions(self) -> None:
        if self._deletions:
            await asyncio.wait(self._deletions)
