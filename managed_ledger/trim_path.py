"""asyncio shell of trimming: shortens the stored list, then deletes ledgers; in that order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger.empty_containers import NOTHING
from magnetar.managed_ledger.errors import ManagedLedgerError, ManagedLedgerFencedError
from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows
from magnetar.managed_ledger.logger import logger
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.managed_ledger.position import Position
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

DOOMED_MAX = 250
"""Ledgers and copies that may wait for their deletion before trimming goes on: they are listed."""

DELETED_AT_ONCE = 64
"""Of a log that is trimmed far: each deletion alone waits for a write of the store."""


@dataclass(slots=True, eq=False, repr=False)
class Trimmer:
    """Takes ledgers from the front of one log.

    A ledger that leaves the list is doomed in the same compare-and-set, so a crash before it is
    deleted leaks nothing: the next owner finds it there.
    """

    _log: ManagedLedger
    deleted: frozenset[int] = field(default=NOTHING, init=False)
    """Doomed ledgers that don't exist any more; the list's next change drops them."""
    is_held: bool = field(default=False, init=False)
    """More could be trimmed once something of what is doomed is deleted."""
    _is_deleting: bool = field(default=False, init=False)
    _is_trimming: bool = field(default=False, init=False)
    _again: bool = field(default=False, init=False)
    _tasks: frozenset[asyncio.Task[None]] = field(default=NOTHING, init=False)

    async def trim(self, *, ignore_retention: bool) -> None:
        """See `ManagedLedger.trim`; when the list names too much that is to be deleted, the rest
        follows by itself.
        """
        log = self._log
        retention = Retention() if ignore_retention else self._retention

        def shorten(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
            slowest, written = log.retained_from()
            tidied = self.tidy(info)
            room = _room(tidied)
            trimmed = ledgers_to_trim(
                *(tidied.ledgers, slowest, written, retention, log.now_ms()),
                written_bytes=log.written_bytes,
                count_max=room,
            )
            self.is_held = len(trimmed) == room
            return tidied.without(trimmed) if trimmed else info

        try:
            info = await log.lists.update(shorten)
        except ManagedLedgerFencedError as error:
            log.fence(error)
            raise
        log.on_list_changed(info)

    def tidy(self, info: ManagedLedgerInfo) -> ManagedLedgerInfo:
        """For every change of the list: what goes along with it at no cost."""
        return self._log.offloads.tidy(info.without_empty().forget(self.deleted))

    @property
    def _retention(self) -> Retention:
        return Retention(self._log.config.retention_ms, self._log.config.retention_bytes)

    def last_is_due(self, now_ms: int) -> bool:
        """Whether a new ledger would have the only one go."""
        slowest, _ = self._log.retained_from()
        return last_is_due(self._log.lists.info.ledgers, slowest, self._retention, now_ms)

    def trim_soon(self) -> None:
        """Trims in the background; calls meanwhile lead to one more run."""
        if not self._log.is_open:
            return
        if self._is_trimming:
            self._again = True
            return
        self._is_trimming = True
        self._start(self._trim())

    def trim_if_consumed(self) -> None:
        """Trims soon, if there are cursors that have their share.

        Without any, old ledgers go when one is closed or by the sweep, as in Pulsar: so a reader
        that opens a log again without a subscription isn't cut off at the first append.
        """
        if len(self._log.lists.info.ledgers) > 1 and self._log.retained_from()[0] is not None:
            self.trim_soon()

    async def finish(self) -> None:
        """Wait for all tasks of this log that trim or delete."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def on_list_changed(self, info: ManagedLedgerInfo) -> None:
        """Start to delete the ledgers that the list calls doomed, unless a task does it already."""
        self.deleted = self.deleted.intersection(info.doomed) or NOTHING
        if not self.deleted.issuperset(info.doomed) and not self._is_deleting:
            self._is_deleting = True
            self._start(self._delete())
        elif self.is_held and _room(info) > DOOMED_MAX // 2:
            self.trim_soon()

    async def _trim(self) -> None:
        try:
            self._again = True
            while self._again and self._log.is_open:
                self._again = False
                try:
                    await self.trim(ignore_retention=False)
                except (ManagedLedgerError, MetadataError) as error:
                    logger.warning("%s: trim: %s", self._log.name, error)
        finally:
            self._is_trimming = False

    async def _delete(self) -> None:
        tried: set[int] = set()
        before = self.deleted
        try:
            while todo := {*self._log.lists.info.doomed} - self.deleted - tried:
                tried |= todo
                ids = sorted(todo)
                for start in range(0, len(ids), DELETED_AT_ONCE):
                    some = ids[start : start + DELETED_AT_ONCE]
                    await asyncio.gather(*map(self._delete_ledger, some))
        finally:
            self._is_deleting = False
        if self.is_held and self.deleted != before:
            self.trim_soon()

    async def _delete_ledger(self, ledger_id: int) -> None:
        try:
            await self._log.client.delete_ledger(ledger_id)
        except (LedgerError, MetadataError) as error:
            # It stays doomed: the next change of the list, or the next open, tries again.
            logger.warning("%s: ledger %d not deleted: %s", self._log.name, ledger_id, error)
        else:
            self.deleted |= {ledger_id}

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks |= {task}
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks = (self._tasks - {task}) or NOTHING
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: trimming failed", self._log.name, exc_info=error)


def _room(info: ManagedLedgerInfo) -> int:
    return max(0, DOOMED_MAX - len(info.doomed) - len(info.doomed_copies))


@dataclass(frozen=True, slots=True)
class Retention:
    """How long consumed ledgers stay; -1: without limit, 0 and 0: they go at once."""

    time_ms: int = 0
    size: int = 0


def ledgers_to_trim(
    ledgers: LedgerRows,
    slowest: Position | None,
    keep_from: int,
    retention: Retention,
    now_ms: int,
    written_bytes: int = 0,
    count_max: int = 1000,
) -> list[int]:
    """Ids of the ledgers to delete, oldest first, and not more than ``count_max``.

    Rules: docs/spec/storage.md, "Trimming". The answer is always a prefix of the list and never
    holds its last ledger.

    Args:
        ledgers: the stored list; an unclosed ledger ends the search.
        slowest: lowest mark-delete position of the durable cursors; None when there are none,
            which frees everything that retention doesn't keep.
        keep_from: the ledger that is written, or will be read next by it; it and later ones stay.
        retention: limits of the log.
        now_ms: wall clock; a close time in its future means "just closed".
        written_bytes: of the log, beside those of ``ledgers``: what is written has no size yet.
    """
    trimmed: list[int] = []
    size = ledgers.size + written_bytes
    for ledger in islice(ledgers, min(count_max, max(0, len(ledgers) - 1))):
        if ledger.ledger_id >= keep_from or not ledger.closed_ms:
            break
        if not _may_go(ledger, slowest, retention, now_ms, size):
            break
        size -= ledger.size
        trimmed.append(ledger.ledger_id)
    return trimmed


def last_is_due(
    ledgers: LedgerRows, slowest: Position | None, retention: Retention, now_ms: int
) -> bool:
    """Whether the only ledger is kept because it is the last, and for no other reason.

    So retention means the same for a log that isn't written any more (docs/spec/storage.md,
    "Trimming"). Arguments as of `ledgers_to_trim`.
    """
    if len(ledgers) != 1:
        return False
    (last,) = ledgers
    is_closed = bool(last.closed_ms and last.entries)
    return is_closed and _may_go(last, slowest, retention, now_ms, ledgers.size)


def _may_go(
    ledger: LedgerInfo, slowest: Position | None, retention: Retention, now_ms: int, size: int
) -> bool:
    """Args:
    size: of the log with this ledger, and without those before it.
    """
    if slowest is not None and (ledger.ledger_id, ledger.entries - 1) > slowest:
        return False
    age_ms = max(0, now_ms - ledger.closed_ms)
    too_old = 0 <= retention.time_ms <= age_ms
    too_much = 0 <= retention.size <= size
    return too_old or too_much
