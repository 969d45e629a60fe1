"""How a managed ledger is sealed, emptied, closed and deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger.append_path import DRAIN_TIMEOUT_S
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.errors import (
    AppendFailedError,
    CursorClosedError,
    ManagedLedgerClosedError,
    ManagedLedgerError,
    ManagedLedgerTerminatedError,
)
from magnetar.managed_ledger.logger import logger
from magnetar.managed_ledger.managed_ledger_info import DELETED_WITH, DELETING, ManagedLedgerInfo
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.trim_path import DELETED_AT_ONCE, DOOMED_MAX
from magnetar.metadata.errors import MetadataError, NotFoundError

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger


async def terminate(log: ManagedLedger) -> Position:
    """See `ManagedLedger.terminate`."""
    log.require_open()
    if log.terminated is not None:
        return log.terminated
    error = ManagedLedgerTerminatedError(log.name)
    appends = log.append_path()
    appends.core.refuse(error)
    await appends.drain(DRAIN_TIMEOUT_S)
    appends.core.stop(error)
    appends.run()
    await appends.finish_tasks()
    try:
        await appends.close_writers()
        if appends.writers:
            # Refused entries may be in it after all: behind the last position there will ever be.
            raise AppendFailedError(f"{log.name}: ledger {min(appends.writers)} has no end yet")
        last = log.last_confirmed
        await log.update_list(lambda x: x.with_terminated(last))
    except (LedgerError, MetadataError, ManagedLedgerError) as failure:
        # It neither takes appends nor is it sealed: the next opener finds out what it is.
        log.fence(failure)
        raise
    return last


async def truncate(log: ManagedLedger) -> None:
    """See `ManagedLedger.truncate`."""
    log.require_open()
    if log.offsets.entry_count and log.terminated is None:
        appends = log.append_path()
        written = log.last_confirmed[0]
        appends.core.rotate(log.now_ms())
        appends.run()
        while appends.core.current <= written and appends.core.refusal is None:
            if not await appends.wait_change(DRAIN_TIMEOUT_S):
                break
        await appends.finish_tasks()
    for cursor in list(log.cursors.values()):
        try:
            await cursor.reset(log.offsets.next_position(log.last_confirmed))
        except CursorClosedError:
            log.require_open()  # else this cursor is being deleted: it holds nothing back
    left = None
    while True:
        await log.trimmer.trim(ignore_retention=True)
        if not log.trimmer.is_held or log.lists.info.ledgers is left:
            return
        left = log.lists.info.ledgers
        await log.trimmer.finish()
        await log.offloads.clear()


async def close(log: ManagedLedger) -> None:
    """Once per log: see `ManagedLedger.close`."""
    if isinstance(log.failure, ManagedLedgerClosedError):
        await log.finish()  # deleted, perhaps in part
        return
    await log.offloads.stop()
    closed = ManagedLedgerClosedError(f"{log.name} is closed")
    appends = log.appends
    if appends is not None:
        appends.core.refuse(closed)
        if log.failure is None:
            await appends.drain(DRAIN_TIMEOUT_S)
        appends.core.stop(closed)
        appends.run()
    # All at once: each is a chain of writes to the metadata, and clients wait for the next owner.
    cursors = list(log.cursors.values())
    await asyncio.gather(_close_ledgers(log), *(_close_cursor(log, each) for each in cursors))
    log.failure = closed
    await log.finish()


async def _close_cursor(log: ManagedLedger, cursor: Cursor) -> None:
    try:
        await cursor.close()
    except (LedgerError, MetadataError, ManagedLedgerError) as error:
        logger.warning("%s: cursor %s: %s", log.name, cursor.name, error)


async def _close_ledgers(log: ManagedLedger) -> None:
    if (appends := log.appends) is None:
        return
    if not log.is_owner:
        appends.abandon_tasks()
    await appends.finish_tasks()
    if log.is_owner:
        await appends.close_writers()


async def delete(log: ManagedLedger, others: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
    """See `ManagedLedger.delete`."""
    log.require_open()
    error = ManagedLedgerClosedError(f"{log.name} is deleted")
    appends = log.appends
    if appends is not None:
        appends.core.stop(error)
        appends.run()
        await appends.finish_tasks()
    await log.offloads.stop()
    log.failure = error  # also if the next line fails: the next opener finds what is there then
    # One write decides: before it everything is there, after it nothing ever comes back.
    mark = {DELETING: "true"} | ({DELETED_WITH: "\n".join(others)} if others else {})
    await log.update_list(lambda x: _doom_some(x.with_properties(mark)))
    deletions = (each() for each in others.values())
    for failure in await asyncio.gather(*deletions, return_exceptions=True):
        if failure is not None:  # raised when none is under way: the next open deletes them, too
            raise failure
    await finish_deletion(log)


def is_deleted(log: ManagedLedger) -> bool:
    """Tells whether the log is marked for deletion; then a caller may only finish that."""
    return DELETING in log.lists.info.properties


async def finish_deletion(log: ManagedLedger) -> None:
    """Deletes what is left of a log. REQUIRES: it is_deleted.

    Raises:
        MetadataError, LedgerError: something is still there; repeat it.
    """
    await log.cursor_set.delete_all()
    await _delete_doomed(log)
    while log.lists.info.ledgers:
        gone = {*log.lists.info.doomed}
        copies = {x.uuid for x in log.lists.info.doomed_copies}
        await log.update_list(partial(_doom_more, gone, copies))
        await _delete_doomed(log)
    await log.finish()
    chunks = await log.lists.chunks.stored_names()
    if not await log.lists.is_ours():
        return  # the next owner has finished this, and may have made it anew
    await log.lists.chunks.delete(chunks)
    with contextlib.suppress(NotFoundError):
        await log.store.delete(log.path, log.lists.version)


async def _delete_doomed(log: ManagedLedger) -> None:
    doomed = log.lists.info.doomed
    for start in range(0, len(doomed), DELETED_AT_ONCE):
        some = doomed[start : start + DELETED_AT_ONCE]
        await asyncio.gather(*map(log.client.delete_ledger, some))
    await log.offloads.delete_copies()


def _doom_more(gone: set[int], copies: set[str], info: ManagedLedgerInfo) -> ManagedLedgerInfo:
    return _doom_some(info.forget(gone).forget_copies(copies))


def _doom_some(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
    """All that is left, or as many as one list should name."""
    room = max(0, DOOMED_MAX - len(info.doomed) - len(info.doomed_copies))
    apart = [x.ledger_id for x in info.apart]
    return info.without([*apart, *islice(info.ledgers.ids(), room)])
