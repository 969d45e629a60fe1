"""How a copied ledger looks: a data object in blocks, and an index object. Pure.

docs/formats/offloaded-ledger.md. The data object is written from front to back without knowing its
end, so it can be streamed, a block being a part of a multi-part upload; the index is written last,
and a copy without its index is no copy. Every byte is below a CRC32C: of a record, of a block's
head, of the index; and the index has one for each whole block, for the check after writing.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import orjson
from crc32c import crc32c

from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.offload.errors import CopyDamagedError

FORMAT_VERSION: Final = 1
_BLOCK_MAGIC: Final = b"MgtB"
_INDEX_MAGIC: Final = b"MgtIndex"
_BLOCK_HEAD: Final = Struct(">4sHHQQ16sI")
"""Magic, format, 0, ledger, first entry, UUID, number of the block; its CRC32C follows."""
_DIGEST: Final = Struct(">I")
RECORD_HEAD: Final = Struct(">IIQ")
"""Bytes of the entry, CRC32C, entry id; the entry follows."""
_DIGESTED: Final = Struct(">QQI")
"""Head of a record's digest: ledger, entry, bytes; so no record can pass for another."""
_LENGTH: Final = Struct(">I")
_MARK: Final = Struct(">QQ")
MARK_BYTES: Final = 64 << 10
"""A reader skips fewer than this many bytes to get to an entry."""


def digest_of_record(ledger_id: int, entry_id: int, entry: Buffer) -> int:
    """CRC32C of a record."""
    return crc32c(entry, crc32c(_DIGESTED.pack(ledger_id, entry_id, len(entry))))


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the data object, head included."""

    first_entry: int
    offset: int
    size: int
    digest: int


class CopyWriter:
    """Makes the bytes of a copy, run by run; holds marks, no entries."""

    def __init__(self, log: str, ledger_id: int, uuid: str, block_bytes: int) -> None:
        """Args:
        block_bytes: a block that is larger gets no more runs.
        """
        self._log, self._ledger_id, self._uuid = log, ledger_id, uuid
        self._block_bytes = block_bytes
        self._blocks: list[Block] = []
        self._marks: list[tuple[int, int]] = []
        self._marked = 0  # offset of the last mark
        self._start = self._first = self._digest = 0  # of the block that is written
        self.offset = 0
        """Bytes of the data object so far."""
        self.entries = 0
        self.entry_bytes = 0

    def add(self, entries: Sequence[Buffer]) -> list[Buffer]:
        """The next entries; what to write to the data object."""
        written: list[Buffer] = []
        if self.offset == self._start:
            head = self._block_head()
            written.append(head)
            self._digest = crc32c(head)
            self.offset += len(head)
            self._mark()
        ledger_id, pack, digest = self._ledger_id, RECORD_HEAD.pack, self._digest
        for entry in entries:
            if self.offset - self._marked >= MARK_BYTES:
                self._mark()
            size = len(entry)
            head = pack(size, digest_of_record(ledger_id, self.entries, entry), self.entries)
            written += (head, entry)
            digest = crc32c(entry, crc32c(head, digest))
            self.offset += RECORD_HEAD.size + size
            self.entries += 1
            self.entry_bytes += size
        self._digest = digest
        return written

    @property
    def is_block_full(self) -> bool:
        """Tells whether `end_block` is due."""
        return self.offset - self._start >= self._block_bytes

    def end_block(self) -> None:
        """Ends the block: later records go into the next one."""
        if self.offset > self._start:
            size = self.offset - self._start
            self._blocks.append(Block(self._first, self._start, size, self._digest))
            self._start, self._first = self.offset, self.entries

    def index(self) -> "CopyIndex":
        """The index of all that was added. REQUIRES: `end_block` after the last entry."""
        assert self.offset == self._start, "a block is open"
        return CopyIndex(
            self._log,
            self._ledger_id,
            self._uuid,
            self.entries,
            self.entry_bytes,
            tuple(self._blocks),
            [entry for entry, _ in self._marks],
            [offset for _, offset in self._marks],
        )

    def _mark(self) -> None:
        self._marks.append((self.entries, self.offset))
        self._marked = self.offset

    def _block_head(self) -> bytes:
        self._first = self.entries
        head = _BLOCK_HEAD.pack(
            *(_BLOCK_MAGIC, FORMAT_VERSION, 0, self._ledger_id, self.entries),
            *(bytes.fromhex(self._uuid.replace("-", "")), len(self._blocks)),
        )
        return head + _DIGEST.pack(crc32c(head))


@dataclass(frozen=True, slots=True)
class CopyIndex:
    """Where the entries of a copy are."""

    log: str
    """The managed ledger's name, for people."""
    ledger_id: int
    uuid: str
    entries: int
    entry_bytes: int
    blocks: tuple[Block, ...]
    mark_entries: list[int]
    mark_offsets: list[int]
    """Of the records of ``mark_entries``; every block begins with a marked record."""

    @property
    def data_bytes(self) -> int:
        """Size of the data object."""
        return self.blocks[-1].offset + self.blocks[-1].size if self.blocks else 0

    def before(self, entry_id: int) -> tuple[int, int]:
        """The last marked entry up to this one, and its record's offset."""
        place = bisect_right(self.mark_entries, entry_id) - 1
        return self.mark_entries[place], self.mark_offsets[place]

    def end_of(self, first_offset: int, last_entry: int) -> int:
        """An offset behind the record of ``last_entry``, not beyond the first record's block."""
        place = bisect_right(self.blocks, first_offset, key=lambda x: x.offset) - 1
        block = self.blocks[place]
        end = block.offset + block.size
        place = bisect_right(self.mark_entries, last_entry)
        return min(end, self.mark_offsets[place]) if place < len(self.mark_entries) else end

    def encode(self) -> bytes:
        """The index object."""
        fields = {
            "format": FORMAT_VERSION,
            "log": self.log,
            "ledger": self.ledger_id,
            "uuid": self.uuid,
            "entries": self.entries,
            "entry_bytes": self.entry_bytes,
            "blocks": [[x.first_entry, x.offset, x.size, x.digest] for x in self.blocks],
        }
        text = orjson.dumps(fields)
        marks = zip(self.mark_entries, self.mark_offsets, strict=True)
        body = b"".join(
            (
                *(_INDEX_MAGIC, _LENGTH.pack(len(text)), text),
                _LENGTH.pack(len(self.mark_entries)),
                *(_MARK.pack(*mark) for mark in marks),
            )
        )
        return body + _DIGEST.pack(crc32c(body))

    @classmethod
    def decode(cls, value: bytes, name: str) -> "CopyIndex":
        """Inverse of `encode`.

        Raises:
            CopyDamagedError: damaged, or of another format version; names the object.
        """
        try:
            if value[: len(_INDEX_MAGIC)] != _INDEX_MAGIC:
                raise ValueError("no index of an offloaded ledger")
            (digest,) = _DIGEST.unpack_from(value, len(value) - _DIGEST.size)
            if crc32c(memoryview(value)[: -_DIGEST.size]) != digest:
                raise ValueError(f"{len(value)} bytes don't fit their CRC32C")
            at = len(_INDEX_MAGIC)
            (size,) = _LENGTH.unpack_from(value, at)
            at += _LENGTH.size
            fields: dict[str, Any] = orjson.loads(value[at : at + size])
            if fields["format"] != FORMAT_VERSION:
                raise ValueError(f"format version {fields['format']!r}, not {FORMAT_VERSION}")
            at += size
            (count,) = _LENGTH.unpack_from(value, at)
            at += _LENGTH.size
            marks = list(_MARK.iter_unpack(value[at : at + count * _MARK.size]))
            return cls(
                *(fields["log"], fields["ledger"], fields["uuid"]),
                *(fields["entries"], fields["entry_bytes"]),
                tuple(Block(*row) for row in fields["blocks"]),
                [entry for entry, _ in marks],
                [offset for _, offset in marks],
            )
        except (ValueError, KeyError, TypeError, StructError) as error:
            raise CopyDamagedError(f"{name}: {error}") from error
