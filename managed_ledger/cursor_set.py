"""The cursors of one managed ledger: each is loaded once, and together they hold entries back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from magnetar.managed_ledger.cursor.cursor import (
    Cursor,
    create_non_durable_cursor,
    delete_cursor,
    load_or_create_cursor,
)
from magnetar.managed_ledger.empty_containers import NO_ITEMS
from magnetar.managed_ledger.errors import ManagedLedgerFencedError
from magnetar.managed_ledger.position import InitialPosition, Position
from magnetar.metadata.paths import decode_name

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

ACTIVE_BACKLOG_MAX = 50_000
"""A cursor with more unacknowledged entries than this has no claim on the cache."""


class CursorSet:
    """Opens, loads and deletes the cursors of one log.

    Attributes:
        loaded: durable and non-durable ones by name; `ManagedLedger.cursors` is the same dict.
    """

    __slots__ = ("_log", "_opening", "loaded")

    def __init__(self, log: ManagedLedger) -> None:
        self._log = log
        self.loaded: dict[str, Cursor] = {}
        # Those being made hold back the trim as well.
        self._opening: dict[str, tuple[Position, asyncio.Task[Cursor]]] = NO_ITEMS

    async def open(
        self, name: str, initial: InitialPosition, properties: Mapping[str, str] | None
    ) -> Cursor:
        """See `ManagedLedger.open_cursor`."""
        if (cursor := self.loaded.get(name)) is not None:
            return cursor
        if (opening := self._opening.get(name)) is None:
            mark_delete = self._before(initial)
            task = asyncio.get_running_loop().create_task(
                self._take(name, mark_delete, properties or {})
            )
            task.add_done_callback(partial(self._on_opened, name))
            opening = (mark_delete, task)
            if not self._opening:
                self._opening = {}  # an idle log has no dict of its own
            self._opening[name] = opening
        # Two loads of one cursor would fence each other: everybody waits for the first.
        return await asyncio.shield(opening[1])

    async def _take(
        self, name: str, mark_delete: Position, properties: Mapping[str, str]
    ) -> Cursor:
        cursor = await load_or_create_cursor(self._log, name, mark_delete, properties)
        await self._require_list()
        return cursor

    async def _require_list(self) -> None:
        """Checks the list's owner after taking cursor nodes and before serving: a later owner takes
        them back, and ignores acknowledgements that a cursor here would have reported as durable.

        Raises:
            ManagedLedgerFencedError: the log is another owner's; it was given up here.
        """
        if not await self._log.owns_list():
            error = ManagedLedgerFencedError(f"{self._log.name}: another owner has taken over")
            self._log.fence(error)
            raise error

    def _on_opened(self, name: str, task: asyncio.Task[Cursor]) -> None:
        del self._opening[name]
        self._opening = self._opening or NO_ITEMS
        if not task.cancelled() and task.exception() is None:
            self.loaded[name] = task.result()

    def new_non_durable(self, start: Position, name: str) -> Cursor:
        """See `ManagedLedger.new_non_durable_cursor`."""
        if name in self.loaded:
            raise ValueError(f"{self._log.name}: there is a cursor {name!r} already")
        cursor = create_non_durable_cursor(self._log, name, self._before(start))
        self.loaded[name] = cursor
        return cursor

    async def delete(self, name: str) -> None:
        """Removes a cursor and its storage, loaded or not; a missing one is success."""
        if (opening := self._opening.get(name)) is not None:
            await asyncio.wait([opening[1]])
        if (cursor := self.loaded.get(name)) is None:
            await delete_cursor(self._log, name)
            return
        await cursor.delete()
        self.loaded.pop(name, None)

    async def delete_all(self) -> None:
        """Removes those that are loaded, and those that are only stored."""
        stored = await self._stored_names()
        for name in {*self.loaded, *self._opening, *stored}:
            await self.delete(name)

    async def load_all(self) -> None:
        """Loads every stored cursor, which takes each over from its last owner."""
        names = await self._stored_names()
        if not names:
            return
        last = self._log.last_confirmed
        loads = (load_or_create_cursor(self._log, x, last, {}) for x in names)
        results = await asyncio.gather(*loads, return_exceptions=True)
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                raise result
            self.loaded[name] = result
        await self._require_list()

    async def _stored_names(self) -> list[str]:
        return [decode_name(x) for x in await self._log.store.children(self._log.path)]

    def slowest_durable(self) -> Position | None:
        """The lowest mark-delete that is stored, of cursors in the making too; None: there is
        no durable cursor.
        """
        positions = [x.durable_mark_delete for x in self.loaded.values() if x.durable]
        positions += [x for x, _ in self._opening.values()]
        return min(positions, default=None)

    def slowest_active(self) -> Position | None:
        """No active cursor that is nearly up to date reads before it; None: there is none."""
        end = self._log.offsets.position_before_last(ACTIVE_BACKLOG_MAX)
        return min(
            (x.mark_delete for x in self.loaded.values() if x.mark_delete >= end), default=None
        )

    def on_trimmed(self) -> None:
        """Cursors that hold nothing back move behind the gap at the front."""
        ledgers = self._log.offsets
        first = ledgers.previous_position(ledgers.first_position())
        for cursor in self.loaded.values():
            if not cursor.durable and cursor.mark_delete < first:
                cursor.advance_to(first)

    def _before(self, position: Position) -> Position:
        """The mark-delete position of a cursor that delivers ``position`` first."""
        ledgers = self._log.offsets
        if position > ledgers.last_confirmed:
            return ledgers.last_confirmed
        return ledgers.previous_position(max(position, ledgers.first_position()))
