"""The open cursor ledger of one cursor: appends groups of records, one group at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.bookkeeper.errors import LedgerClosedError, LedgerError
from magnetar.managed_ledger.cursor.cursor_format import NO_BASE
from magnetar.managed_ledger.cursor.interfaces import CursorLedgerWriter

AppendDone = Callable[[LedgerError | None], None]


class CursorLedger:
    """Writer of a cursor ledger and the figures that decide when a snapshot or a new ledger is due.

    After the first failure it is dead: records may or may not be in the ledger, which is then only
    good for being recovered by the next owner, or deleted.
    """

    def __init__(self, writer: CursorLedgerWriter, created_ms: int) -> None:
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
        """What was appended last is durable."""
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
