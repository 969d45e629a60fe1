"""The cursor ledger of one cursor: appends groups of records, one at a time; reads a stored one."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.errors import (
    BookkeeperError,
    LedgerClosedError,
    LedgerError,
    NoSuchLedgerError,
)
from magnetar.managed_ledger.cursor.ack_state import AckState
from magnetar.managed_ledger.cursor.cursor_format import (
    NO_BASE,
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

AppendDone = Callable[[LedgerError | None], None]


_log = logging.getLogger(__name__)

_READ_BYTES_MAX: Final = 4 << 20


class CursorLedger:
    """Writer of a cursor ledger and the figures that decide when a snapshot or a new ledger is due.

    After the first failure it is dead: records may or may not be in the ledger, which is then only
    good for being recovered by the next owner, or deleted.
    """

    def __init__(self, writer: "CursorLedgerWriter", created_ms: int) -> None:
        self.ledger_id = writer.ledger_id
        self.created_ms = created_ms
        self.entries = 0
        self.bytes = 0
        self.base = NO_BASE  # first entry of the last complete snapshot
        self.snapshot_bytes = 0
        self.increment_bytes = 0  # since that snapshot
        self.increments = 0
        self.error: LedgerError | None = None
        self._writer = writer
        self._done: AppendDone | None = None
        self._last_entry = -1
        writer.on_confirmed = self._on_confirmed
        writer.on_failed = self._on_failed

    @property
    def is_alive(self) -> bool:
        return self.error is None

    def append(self, records: list[bytes], done: AppendDone) -> None:
        """
        Args:
            done: called once; with None when all records are durable.
        """
        assert self._done is None, "one append at a time"
        self._done = done
        if self.error is None:
            try:
                first = self._writer.append([b""] * len(records), records)
            except LedgerError as error:
                self.error = error
            else:
                self._last_entry = first + len(records) - 1
                self.entries = self._last_entry + 1
                self.bytes += sum(map(len, records))
        if self.error is not None:
            asyncio.get_running_loop().call_soon(self._finish, self.error)

    def on_written(self, records: list[bytes], *, is_snapshot: bool) -> None:
        """Notes that the records appended last are durable."""
        size = sum(map(len, records))
        if is_snapshot:
            self.base = self._last_entry + 1 - len(records)
            self.snapshot_bytes, self.increment_bytes, self.increments = size, 0, 0
        else:
            self.increments += len(records)
            self.increment_bytes += size

    async def append_all(self, records: list[bytes], *, is_snapshot: bool) -> None:
        """A whole snapshot, or an increment; durable when this returns.

        Raises:
            LedgerError: perhaps not written; the ledger is dead.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: LedgerError | None) -> None:
            if waiter.done():
                return  # the waiting task was cancelled
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

        self.append(records, done)
        try:
            await waiter
        except asyncio.CancelledError:
            # The records may be there or not, and the caller's state doesn't say which.
            self.error = self.error or LedgerClosedError(f"ledger {self.ledger_id}: cancelled")
            raise
        self.on_written(records, is_snapshot=is_snapshot)

    async def close(self) -> None:
        """Ends the ledger at its last record.

        Raises:
            LedgerError: it may still be open.
        """
        if self.error is None:
            self.error = LedgerClosedError(f"cursor ledger {self.ledger_id} is closed")
            await self._writer.close()

    def abandon(self) -> None:
        """The ledger is about to be deleted: whatever its writer says doesn't matter any more."""
        if self.error is None:
            self.error = LedgerClosedError(f"cursor ledger {self.ledger_id} is abandoned")
        self._writer.on_confirmed = self._writer.on_failed = None

    def _on_confirmed(self, last_confirmed: int) -> None:
        if last_confirmed >= self._last_entry:
            self._finish(None)

    def _on_failed(self, error: LedgerError) -> None:
        if self.error is None:
            self.error = error  # if no append is under way, the next one finds it
        self._finish(error)

    def _finish(self, error: LedgerError | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(error)


class CursorLedgerWriter(Protocol):
    """The used part of `magnetar.bookkeeper.client`'s AsyncLedgerWriter."""

    ledger_id: int
    on_confirmed: Callable[[int], None] | None
    on_failed: Callable[[LedgerError], None] | None

    def append(self, heads: list[bytes], bodies: list[bytes]) -> int:
        """First entry id; never blocks."""

    async def close(self) -> object:
        """Ends the ledger at its last confirmed entry."""


async def recover_state(ledger: ManagedLedgerView, name: str, node: CursorNode) -> AckState:
    """`recover_image` as the state of a cursor: see `AckState.adopt_slices`. Gives way to others in
    between.

    Raises:
        as `recover_image`.
    """
    image = await recover_image(ledger, name, node)
    state = AckState(ledger.offsets, image.mark_delete)
    for _ in state.adopt_slices(image):
        await asyncio.sleep(0)
    return state


async def recover_image(ledger: ManagedLedgerView, name: str, node: CursorNode) -> CursorImage:
    """Reads the state from the cursor ledger, or from the node when it names none.

    Falls back to the position in the node, which is an older one, only if the cursor ledger is
    definitely lost: its metadata is gone, or it is empty. Anything else fails the open, because a
    bookie that is away for a minute must not rewind a subscription.

    REQUIRES: the node was claimed before; the ledger is recovered here, which fences its writer.

    Raises:
        OpenFailedError: the ledger can't be read now.
        CursorFormatError: it, or the node, doesn't parse.
    """
    where = f"cursor {name} of {ledger.name}"
    return await read_image(ledger.client, ledger.config.password, where, node)


async def read_image(
    client: BookKeeperClient, password: bytes, where: str, node: CursorNode
) -> CursorImage:
    """`recover_image` of a log that isn't open; the same errors and requirements."""
    if node.ledger_id == NO_LEDGER:
        return node.image(where)
    try:
        image = await _read_ledger(client, password, where, node.ledger_id)
    except NoSuchLedgerError:
        _log.error("%s: ledger %d is lost, its node's position is used", where, node.ledger_id)
        image = None
    except (BookkeeperError, MetadataError) as error:
        raise OpenFailedError(f"{where}: ledger {node.ledger_id}: {error}") from error
    return node.image(where) if image is None else image


async def _read_ledger(
    client: BookKeeperClient, password: bytes, where: str, ledger_id: int
) -> CursorImage | None:
    """None: the ledger is empty."""
    reader = await client.open_ledger(ledger_id, password, recover=True)
    last = reader.last_confirmed
    if last < 0:
        _log.error("%s: ledger %d is empty, its node's position is used", where, ledger_id)
        return None
    place = f"{where}, ledger {ledger_id} entry "
    run = await reader.read(last, last, _READ_BYTES_MAX)
    record = await _decoded(run.bodies[0], f"{place}{last}")
    entry_id = first_entry_to_read(last, record, f"{place}{last}")
    replay = ImageReplay()
    while entry_id <= last:
        run = await reader.read(entry_id, last, _READ_BYTES_MAX)
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
