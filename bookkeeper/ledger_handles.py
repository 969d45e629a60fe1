"""A ledger that this process writes, and one that it reads, by single entries or batches of them.

They know nothing of connections: who has a writer or a reader can use them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata

_READ_BYTES: Final = 1024 * 1024
_READ_ENTRIES: Final = 1000


class WriteHandle:
    """A ledger that this process writes; no other can append to it.

    Attributes:
        ledger_id: its id, to open it by.
    """

    def __init__(self, writer: AsyncLedgerWriter, pending_bytes_max: int) -> None:
        self.ledger_id = writer.ledger_id
        self._writer = writer
        self._pending_bytes_max = pending_bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # by last entry id
        self._blocked: deque[asyncio.Future[None]] = deque()  # callers that wait for room
        writer.on_confirmed = self._on_confirmed
        writer.on_failed = self._on_failed

    @property
    def last_confirmed(self) -> int:
        """Highest entry that is durable on its ack quorum, and so readable; -1: none."""
        return self._writer.last_confirmed

    async def append(self, entry: bytes) -> int:
        """Append one entry; returns its id once it is durable. Many may run at a time.

        Raises:
            LedgerError: the ledger takes no more entries. Whether this one is in it is open until
                the ledger was closed, or opened with recovery.
        """
        return (await self.append_all([entry]))[0]

    async def append_all(self, entries: Sequence[bytes | memoryview]) -> range:
        """Append entries with consecutive ids in one go; returns their ids. As ``append``."""
        if not entries:
            raise ValueError("no entries to append")
        if self._blocked or self._is_full():
            await self._turn()
        try:
            first = self._writer.append([b""] * len(entries), [bytes(entry) for entry in entries])
            confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((first + len(entries) - 1, confirmed))
        finally:
            self._admit()
        # Its caller may be cancelled, then the error isn't retrieved.
        confirmed.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(confirmed)
        return range(first, first + len(entries))

    def _is_full(self) -> bool:
        return self._writer.error is None and self._writer.pending_bytes >= self._pending_bytes_max

    async def _turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._blocked.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._blocked.remove(turn)
            self._admit()  # the turn may have been given already
            raise
        self._blocked.remove(turn)

    def _admit(self) -> None:
        """Let the first caller go on; it stays in line until it runs, so none overtakes it."""
        if self._blocked and not self._blocked[0].done() and not self._is_full():
            self._blocked[0].set_result(None)

    def _on_confirmed(self, upto: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= upto:
            waiting.popleft()[1].set_result(None)
        self._admit()

    def _on_failed(self, error: LedgerError) -> None:
        while self._waiting:
            self._waiting.popleft()[1].set_exception(error)
        self._admit()

    async def close(self) -> int:
        """End the ledger at its last confirmed entry and return that entry's id (-1: empty).

        Raises:
            LedgerFencedError: another process has taken the ledger over.
            MetadataError: the store failed; try again.
        """
        return (await self._writer.close()).last_entry

    def view(self) -> "ReadHandle":
        """Reads this ledger up to ``last_confirmed``, also while it grows."""
        return ReadHandle(self._writer.reader())


class ReadHandle:
    """Reads a ledger; never shows an entry that isn't durable on its ack quorum."""

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader

    @property
    def ledger_id(self) -> int:
        return self._reader.ledger_id

    @property
    def last_confirmed(self) -> int:
        """Highest readable entry, as far as this view knows; -1: none. ``refresh`` asks."""
        return self._reader.last_confirmed

    @property
    def is_closed(self) -> bool:
        """The ledger will never have more entries than ``last_confirmed`` tells."""
        return self._reader.is_closed

    @property
    def metadata(self) -> LedgerMetadata:
        """As this view knows it; of a closed ledger only bookies change, by repairs."""
        return self._reader.metadata

    async def refresh(self) -> int:
        """Learn how far the ledger has grown and whether it was closed; ``last_confirmed``.

        Raises:
            BookieUnavailableError: no bookie of its last ensemble answered; try again.
            NoSuchLedgerError: it was deleted.
        """
        await self._reader.refresh()
        return self._reader.last_confirmed

    async def wait(self, above: int, timeout_s: float) -> int:
        """Wait until entries above ``above`` are confirmed or the ledger is closed, or in vain.

        Returns ``last_confirmed``. A pausing writer's last entry shows when it tells of it
        (``explicit_lac_interval_ms`` of its ``ClientConfig``), appends again or closes.

        Raises:
            BookieUnavailableError: nothing came, and too few bookies answered to be sure.
            NoSuchLedgerError: it was deleted.
        """
        return await self._reader.wait(above, timeout_s)

    async def read(self, first: int, last: int) -> list[bytes]:
        """Entries ``first`` to ``last``, both in it. Raises as ``LedgerReader.read`` does."""
        entries: list[bytes] = []
        while len(entries) <= last - first:
            entries += await self._read_run(first + len(entries), last)
        return entries

    async def entries(self, first: int = 0) -> AsyncIterator[tuple[int, bytes]]:
        """Ids and entries from ``first`` up to what is confirmed when they are reached."""
        while first <= self.last_confirmed:
            for entry in await self._read_run(first, self.last_confirmed):
                yield first, entry
                first += 1

    async def _read_run(self, first: int, last: int) -> list[bytes]:
        last = min(last, first + _READ_ENTRIES - 1)
        run = await self._reader.read(first, last, _READ_BYTES)
        return [bytes(body) for body in run.bodies]
