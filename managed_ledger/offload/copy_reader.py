"""Reads a copied ledger; as ``LedgerReader``, but from an object store."""

from magnetar.bookkeeper.client.ledger_reader import VIEW_BYTES_MIN, EntryRun
from magnetar.bookkeeper.errors import NoSuchEntryError
from magnetar.managed_ledger.offload.config import OffloadMetrics
from magnetar.managed_ledger.offload.copy_format import (
    MARK_BYTES,
    RECORD_HEAD,
    CopyIndex,
    digest_of_record,
)
from magnetar.managed_ledger.offload.errors import CopyDamagedError, OffloadedReadError
from magnetar.managed_ledger.offload.interfaces import ObjectStore


class CopyReader:
    """One copy that was opened; holds its index, nothing of its data."""

    def __init__(
        self, index: CopyIndex, store: ObjectStore, data: str, metrics: OffloadMetrics
    ) -> None:
        """Args:
        data: name of the data object.
        """
        self.index = index
        self._store, self._data, self._metrics = store, data, metrics

    async def read(self, first: int, last: int, bytes_max: int) -> EntryRun:
        """See ``EntryReader``.

        Raises:
            NoSuchEntryError: above the ledger's last entry.
            CopyDamagedError: bytes that don't fit their digest; names the object and the entry.
            OffloadedReadError: the store didn't answer.
        """
        if not 0 <= first <= last:
            raise ValueError(f"not a range of entries: {first}..{last}")
        index = self.index
        if last >= index.entries:
            raise NoSuchEntryError(
                f"ledger {index.ledger_id}: entry {last} is above the last of {index.entries}"
            )
        try:
            run = await self._read(first, last, bytes_max)
        except OSError as error:
            self._metrics.read_errors += 1
            raise OffloadedReadError(f"{self._data}: entry {first}: {error}") from error
        except OffloadedReadError:
            self._metrics.read_errors += 1
            raise
        self._metrics.reads += 1
        return run

    async def _read(self, first: int, last: int, bytes_max: int) -> EntryRun:
        entry_id, offset = self.index.before(first)
        end = self.index.end_of(offset, last)
        size = min(end - offset, bytes_max + MARK_BYTES + RECORD_HEAD.size)
        run = EntryRun(self.index.ledger_id, first, [])
        while True:
            part = await self._store.read(self._data, offset, size)
            self._metrics.read_bytes += len(part)
            if len(part) < size:
                raise CopyDamagedError(f"{self._data}: ends at {offset + len(part)}")
            records = _Records(self._data, part, offset, entry_id)
            self._take(run, records, last, bytes_max)
            if run.bodies:
                return run
            # One entry that is larger than what was asked for: now its size is known.
            entry_id, offset = records.entry_id, records.offset
            size = records.wanted
            if not RECORD_HEAD.size < size <= end - offset:
                raise CopyDamagedError(f"{self._data}: entry {entry_id} at {offset}: {size} bytes")

    def _take(self, run: EntryRun, records: "_Records", last: int, bytes_max: int) -> None:
        """Moves intact entries into the run, as many as may be."""
        left = bytes_max
        while records.entry_id <= last and records.is_whole:
            entry_id, digest, entry = records.take()
            if entry_id < run.first:
                continue
            left -= len(entry)
            if run.bodies and left < 0:
                return
            if digest_of_record(run.ledger_id, entry_id, entry) != digest:
                if run.bodies:
                    return  # the next read raises it
                raise CopyDamagedError(
                    f"{self._data}: entry {entry_id} of ledger {run.ledger_id}, before byte"
                    f" {records.offset}, doesn't fit its CRC32C"
                )
            run.bodies.append(bytes(entry) if len(entry) < VIEW_BYTES_MIN else entry)


class _Records:
    """A part of a block, record by record."""

    __slots__ = ("_at", "_name", "_start", "_view", "entry_id")

    def __init__(self, name: str, part: bytes, offset: int, entry_id: int) -> None:
        self._name, self._view, self._start = name, memoryview(part), offset
        self._at = 0
        self.entry_id = entry_id  # of the next record

    @property
    def offset(self) -> int:
        """Of the next record in the object."""
        return self._start + self._at

    @property
    def wanted(self) -> int:
        """Bytes of the next record, 0: not even its head is here."""
        if self._at + RECORD_HEAD.size > len(self._view):
            return 0
        size, _, entry_id = RECORD_HEAD.unpack_from(self._view, self._at)
        if entry_id != self.entry_id:
            raise CopyDamagedError(
                f"{self._name}: at byte {self.offset} entry {self.entry_id} is expected,"
                f" not {entry_id}"
            )
        return RECORD_HEAD.size + int(size)

    @property
    def is_whole(self) -> bool:
        """Tells whether the whole next record was read."""
        return 0 < self.wanted <= len(self._view) - self._at

    def take(self) -> tuple[int, int, memoryview]:
        """Entry id, digest and bytes of the next record. REQUIRES: it is whole."""
        size, digest, entry_id = RECORD_HEAD.unpack_from(self._view, self._at)
        start = self._at + RECORD_HEAD.size
        self._at = start + size
        self.entry_id += 1
        return entry_id, digest, self._view[start : self._at]
