"""Interfaces of an offloader (for the managed ledger) and of an object store (for offloaders)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.bookkeeper.client.ledger_reader import EntryRun
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.offload.config import OffloadMetrics
from magnetar.managed_ledger.offload.context import LedgerCopy


class EntryReader(Protocol):
    """Reads one ledger, from wherever it is; a ``LedgerReader`` is one."""

    async def read(self, first: int, last: int, bytes_max: int) -> EntryRun:
        """Entries from ``first`` on: at least one, at most up to ``last``.

        Raises:
            LedgerError.
        """


@dataclass(frozen=True, slots=True)
class CopyJob:
    """A closed ledger to copy."""

    copy: LedgerCopy
    log: str
    """The managed ledger's name, for operators that look at the store."""
    entries: int
    size: int
    """Bytes of all its entries."""
    block_bytes: int
    """Of a part of the object, about."""


class LedgerOffloader(Protocol):
    """Keeps copies of closed ledgers; one for each driver and process."""

    @property
    def driver(self) -> str:
        """Return the driver's name in policies and in the metadata of ledgers."""

    @property
    def metrics(self) -> OffloadMetrics:
        """Return the counters of copies and reads."""

    async def offload(self, job: CopyJob, source: EntryReader) -> int:
        """Copies a ledger, reads the copy back and compares.

        Returns:
            Bytes that the copy takes.

        Raises:
            OffloadError: there is no complete copy; what was written of it is deleted if possible.
            LedgerError: ``source`` failed.
        """

    async def open(self, copy: LedgerCopy) -> EntryReader:
        """A reader of a complete copy.

        Raises:
            OffloadedReadError: it can't be reached, or is damaged.
        """

    async def delete(self, copy: LedgerCopy) -> None:
        """Removes a copy, complete or not; a missing one is success.

        Raises:
            OffloadError: something of it may be left.
        """


class Upload(Protocol):
    """Writes an object; no reader of the store sees it before `complete`."""

    async def write(self, buffers: Sequence[Buffer]) -> None:
        """Adds bytes at the end."""

    async def end_block(self) -> None:
        """Lets the store send the bytes written so far as a part."""

    async def sync(self) -> None:
        """Returns when everything written is durable, and can be read with `read`."""

    async def read(self, offset: int, size: int) -> bytes:
        """Bytes as they are where they are stored; fewer at the end."""

    async def complete(self) -> None:
        """Gives the object its name; durable when this returns."""

    async def abort(self) -> None:
        """Removes what was written; never raises. Harmless after `complete`."""


class ObjectStore(Protocol):
    """Objects that are written once. Every call may raise OSError: try again later."""

    async def create(self, name: str) -> Upload:
        """Begins to write an object; one of that name must not exist."""

    async def size(self, name: str) -> int | None:
        """Bytes of an object; None: there is none."""

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """A part of an object; fewer bytes at its end. FileNotFoundError: there is none."""

    async def delete(self, name: str) -> None:
        """Removes an object and every upload of it; a missing one is success."""
