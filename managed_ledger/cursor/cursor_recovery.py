"""Reads the stored position of a cursor when its log is opened."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from magnetar.bookkeeper.errors import BookkeeperError, NoSuchLedgerError
from magnetar.managed_ledger.cursor.ack_state import AckState
from magnetar.managed_ledger.cursor.cursor_format import (
    CursorRecord,
    ImageReplay,
    decode_slices,
    first_entry_to_read,
)
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.cursor_store import NO_LEDGER, CursorNode
from magnetar.managed_ledger.errors import OpenFailedError
from magnetar.managed_ledger.managed_ledger_view import ManagedLedgerView
from magnetar.metadata.errors import MetadataError

_READ_BYTES_MAX: Final = 4 << 20

_log = logging.getLogger(__name__)


async def recover_state(ledger: ManagedLedgerView, name: str, node: CursorNode) -> AckState:
    """`recover_image` as the state of a cursor: see `AckState.adopt_slices`. Gives way to others in
    between.

    Raises:
        as `recover_image`.
    """
    image = await recover_image(ledger, name, node)
    state = AckState(ledger, image.mark_delete)
    for _ in state.adopt_slices(image):
        await asyncio.sleep(0)
    return state


async def recover_image(ledger: ManagedLedgerView, name: str, node: CursorNode) -> CursorImage:
    """What the cursor ledger says, or the node when it names none.

    Falls back to the position in the node, which is an older one, only if the cursor ledger is
    definitely lost: its metadata is gone, or it is empty. Anything else fails the open, because a
    bookie that is away for a minute must not rewind a subscription.

    REQUIRES: the node was claimed before; the ledger is recovered here, which fences its writer.

    Raises:
        OpenFailedError: the ledger can't be read now.
        CursorFormatError: it, or the node, doesn't parse.
    """
    where = f"cursor {name} of {ledger.name}"
    if node.ledger_id == NO_LEDGER:
        return node.image(where)
    try:
        image = await _read_ledger(ledger, where, node.ledger_id)
    except NoSuchLedgerError:
        _log.error("%s: ledger %d is lost, its node's position is used", where, node.ledger_id)
        image = None
    except (BookkeeperError, MetadataError) as error:
        raise OpenFailedError(f"{where}: ledger {node.ledger_id}: {error}") from error
    return node.image(where) if image is None else image


async def _read_ledger(ledger: ManagedLedgerView, where: str, ledger_id: int) -> CursorImage | None:
    """None: the ledger is empty."""
    reader = await ledger.client.open_ledger(ledger_id, ledger.config.password, recover=True)
    last = reader.last_confirmed
    if last < 0:
        _log.error("%s: ledger %d is empty, its node's position is used", where, ledger_id)
        return None
    place = f"{where}, ledger {ledger_id} entry "
    run = await reader.read(last, last, _READ_BYTES_MAX, 0)
    record = await _decoded(run.bodies[0], f"{place}{last}")
    entry_id = first_entry_to_read(last, record, f"{place}{last}")
    replay = ImageReplay()
    while entry_id <= last:
        run = await reader.read(entry_id, last, _READ_BYTES_MAX, 0)
        for body in run.bodies:
            record = await _decoded(body, f"{place}{entry_id}")
            replay.on_record(record, f"{place}{entry_id}")
            entry_id += 1
    return replay.image(f"{place}{last}")


async def _decoded(payload: bytes | memoryview, where: str) -> CursorRecord:
    """`decode_record`, which gives way to others now and then when the record is a large one."""
    slices = decode_slices(payload, where)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            record: CursorRecord = end.value
            return record
        await asyncio.sleep(0)
