"""The bytes of a stored cursor; drawn in docs/formats/cursor-ledger.md.

One record is one entry of a cursor ledger, or the ``state`` of a metadata node. It has a header and
sections. A snapshot is one or more records (chunks), the last of which is marked; an increment is
one record and means: apply me to what the records before me say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pyroaring import BitMap

from managed_ledger.cursor.cursor_image import ENTRY_END, CursorImage
from managed_ledger.cursor.errors import CursorFormatError
from managed_ledger.position import Position

MAGIC: Final = 0xC5
VERSION: Final = 1
CHUNK_BYTES_MAX: Final = 512 << 10
"""Largest record written; readers accept any length."""
NO_BASE: Final = -1

_HEADER: Final = struct.Struct(">BBBBIq")  # magic, version, kind, flags, chunk, base
_SECTION: Final = struct.Struct(">BI")  # type, bytes
_POSITION: Final = struct.Struct(">qq")
_LEDGER: Final = struct.Struct(">q")
_SETS: Final = struct.Struct(">qI")  # ledger, sets
_COUNT: Final = struct.Struct(">I")
_PROPERTY: Final = struct.Struct(">IQ")  # name bytes, value modulo 2**64; the name follows
_WORD_MASK: Final = (1 << 64) - 1

_LAST_CHUNK: Final = 1  # flag
_BITMAP_SPAN: Final = 1 << 21  # entry ids per bitmap section: at most 264 KiB of bitmap
_SETS_PER_SECTION: Final = 2048
_SETS_BYTES_MAX: Final = CHUNK_BYTES_MAX // 2


class Kind(IntEnum):
    SNAPSHOT = 1
    INCREMENT = 2
    NODE = 3


class Section(IntEnum):
    MARK_DELETE = 1
    ACKED = 2
    BATCH_SETS = 3
    PROPERTIES = 4


@dataclass(slots=True)
class Record:
    """A decoded record; ``image`` is None when it says nothing of mark-delete (a middle chunk)."""

    kind: Kind
    chunk: int
    is_last_chunk: bool
    base: int
    """First entry of the complete snapshot that precedes this record in its ledger, or NO_BASE."""
    image: CursorImage
    has_mark_delete: bool


# -- writing -------------------------------------------------------------------------------------


def encode_increment(increment: CursorImage, base: int) -> list[bytes]:
    """Records, normally one; each is complete in itself."""
    sections = [_mark_delete_section(increment.mark_delete)]
    if increment.properties is not None:
        sections.extend(_properties_sections(increment.properties))
    sections.extend(body_sections(increment))
    header = _HEADER.pack(MAGIC, VERSION, Kind.INCREMENT, 0, 0, base)
    return [b"".join((header, *chunk)) for chunk in _packed(sections)]


def encode_snapshot(image: CursorImage, base: int) -> list[bytes]:
    """Chunks of a snapshot, to be appended as consecutive entries."""
    return seal_snapshot(list(body_sections(image)), image.mark_delete, image.properties, base)


def seal_snapshot(
    body: list[bytes], mark_delete: Position, properties: dict[str, int] | None, base: int
) -> list[bytes]:
    """Chunks of a snapshot from the sections of `body_sections`, gathered in one or many ticks.

    Args:
        base: first entry of the complete snapshot before this one in the same ledger, or NO_BASE.
    """
    tail = [*_properties_sections(properties or {}), _mark_delete_section(mark_delete)]
    chunks = list(_packed([*body, *tail]))
    last = len(chunks) - 1
    return [
        b"".join(
            (
                _HEADER.pack(
                    MAGIC, VERSION, Kind.SNAPSHOT, _LAST_CHUNK if n == last else 0, n, base
                ),
                *chunk,
            )
        )
        for n, chunk in enumerate(chunks)
    ]


def encode_node_state(image: CursorImage) -> bytes:
    """One record of any length with the bitmaps and batch sets; the node itself holds the rest."""
    header = _HEADER.pack(MAGIC, VERSION, Kind.NODE, _LAST_CHUNK, 0, NO_BASE)
    return b"".join((header, *body_sections(image)))


def body_sections(image: CursorImage) -> Iterator[bytes]:
    """Bitmaps and batch sets as sections; each one is less than a millisecond of work, so that a
    caller with a large live image can do other things in between.
    """
    # Sets first: an entry that is completed in between then has its bit in a later bitmap. The
    # other way round it could be in neither, and durably acknowledged indexes would come back.
    for ledger_id, sets in image.batch_sets.items():
        yield from _batch_sections(ledger_id, sets)
    for ledger_id, entries in image.acked.items():
        yield from _bitmap_sections(ledger_id, entries)


def _section(kind: Section, *parts: bytes) -> bytes:
    return b"".join((_SECTION.pack(kind, sum(map(len, parts))), *parts))


def _mark_delete_section(position: Position) -> bytes:
    return _section(Section.MARK_DELETE, _POSITION.pack(*position))


def _properties_sections(properties: dict[str, int]) -> list[bytes]:
    if not properties:
        return [_section(Section.PROPERTIES, _COUNT.pack(0))]
    parts = [_COUNT.pack(len(properties))]
    for name, value in properties.items():
        encoded = name.encode()
        parts += (_PROPERTY.pack(len(encoded), value & _WORD_MASK), encoded)
    return [_section(Section.PROPERTIES, *parts)]


def _bitmap_sections(ledger_id: int, entries: BitMap) -> Iterator[bytes]:
    if not entries:
        return  # a live bitmap that mark-delete swallowed since the image was taken
    prefix = _LEDGER.pack(ledger_id)
    if entries.max() - entries.min() < _BITMAP_SPAN:
        entries.run_optimize()
        yield _section(Section.ACKED, prefix, entries.serialize())
        return
    first = entries.min() // _BITMAP_SPAN * _BITMAP_SPAN
    while entries and first <= entries.max():
        part = entries & BitMap(range(first, min(first + _BITMAP_SPAN, ENTRY_END)))
        if part:
            part.run_optimize()
            yield _section(Section.ACKED, prefix, part.serialize())
        first += _BITMAP_SPAN


def _batch_sections(ledger_id: int, sets: dict[int, int]) -> Iterator[bytes]:
    """Columns: entry ids, word counts, words."""
    items = list(sets.items())  # the live dict may change between two sections
    start = 0
    while start < len(items):
        entries, counts, words, words_bytes = [], [], [], 0
        for entry_id, mask in items[start : start + _SETS_PER_SECTION]:
            size = (mask.bit_length() + 63) // 64
            entries.append(entry_id)
            counts.append(size)
            words.append(mask.to_bytes(size * 8, "little"))
            words_bytes += size * 8
            if words_bytes > _SETS_BYTES_MAX:
                break
        start += len(entries)
        yield _section(
            Section.BATCH_SETS,
            _SETS.pack(ledger_id, len(entries)),
            struct.pack(f">{len(entries)}I", *entries),
            struct.pack(f">{len(counts)}H", *counts),
            *words,
        )


def _packed(sections: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Sections grouped into records of at most `CHUNK_BYTES_MAX`; a larger section is alone."""
    chunk: list[bytes] = []
    used = _HEADER.size
    for section in sections:
        if chunk and used + len(section) > CHUNK_BYTES_MAX:
            yield chunk
            chunk, used = [], _HEADER.size
        chunk.append(section)
        used += len(section)
    yield chunk


# -- reading -------------------------------------------------------------------------------------


def decode_record(payload: bytes | memoryview, where: str) -> Record:
    """
    Args:
        where: names the cursor and the place, for the error.

    Raises:
        CursorFormatError: not a record, an unknown version, or lengths that don't add up.
    """
    data = bytes(payload)
    if len(data) < _HEADER.size:
        raise CursorFormatError(f"{where}: {len(data)} bytes are too short for a record")
    magic, version, kind, flags, chunk, base = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CursorFormatError(f"{where}: magic {magic:#04x} is not a cursor record's")
    if version != VERSION:
        raise CursorFormatError(
            f"{where}: format version {version} is unknown, this release reads {VERSION}"
        )
    if kind not in _KINDS:
        raise CursorFormatError(f"{where}: unknown record kind {kind}")
    record = Record(
        Kind(kind), chunk, bool(flags & _LAST_CHUNK), base, CursorImage((-1, -1)), False
    )
    offset = _HEADER.size
    while offset < len(data):
        if offset + _SECTION.size > len(data):
            raise CursorFormatError(f"{where}: a section header is cut off at offset {offset}")
        section, size = _SECTION.unpack_from(data, offset)
        offset += _SECTION.size
        if offset + size > len(data):
            raise CursorFormatError(
                f"{where}: section {section} at offset {offset} has {size} bytes, "
                f"{len(data) - offset} are left"
            )
        try:
            _decode_section(record, section, data[offset : offset + size])
        except (struct.error, ValueError, IndexError) as error:
            raise CursorFormatError(f"{where}: section {section} at {offset}: {error}") from error
        offset += size
    return record


_KINDS: Final = frozenset(Kind)


def _decode_section(record: Record, section: int, body: bytes) -> None:
    image = record.image
    if section == Section.MARK_DELETE:
        image.mark_delete = _POSITION.unpack(body)
        record.has_mark_delete = True
    elif section == Section.ACKED:
        (ledger_id,) = _LEDGER.unpack_from(body)
        entries = BitMap.deserialize(body[_LEDGER.size :])
        image.acked[ledger_id] = image.acked.get(ledger_id, BitMap()) | entries
    elif section == Section.BATCH_SETS:
        _decode_batch_sets(image, body)
    elif section == Section.PROPERTIES:
        image.properties = _decode_properties(body)
    else:
        # Sections carry acknowledgements: skipping one would silently redeliver or lose them.
        raise ValueError("unknown section type")


def _decode_batch_sets(image: CursorImage, body: bytes) -> None:
    ledger_id, count = _SETS.unpack_from(body)
    offset = _SETS.size
    entries = struct.unpack_from(f">{count}I", body, offset)
    offset += 4 * count
    sizes = struct.unpack_from(f">{count}H", body, offset)
    offset += 2 * count
    if offset + 8 * sum(sizes) != len(body):
        raise ValueError(f"{8 * sum(sizes)} bytes of words announced, {len(body) - offset} found")
    sets = image.batch_sets.setdefault(ledger_id, {})
    for entry_id, size in zip(entries, sizes, strict=True):
        sets[entry_id] = int.from_bytes(body[offset : offset + 8 * size], "little")
        offset += 8 * size


def _decode_properties(body: bytes) -> dict[str, int]:
    (count,) = _COUNT.unpack_from(body)
    offset = _COUNT.size
    properties = {}
    for _ in range(count):
        size, value = _PROPERTY.unpack_from(body, offset)
        offset += _PROPERTY.size
        name = body[offset : offset + size]
        if len(name) != size:
            raise ValueError("a property's name is cut off")
        properties[name.decode()] = value - (1 << 64) if value >> 63 else value
        offset += size
    if offset != len(body):
        raise ValueError(f"{len(body) - offset} bytes after the last property")
    return properties


# -- replay --------------------------------------------------------------------------------------


def first_entry_to_read(last_entry: int, record: Record, where: str) -> int:
    """Where a reader begins, given the last record of a ledger.

    Raises:
        CursorFormatError: the ledger holds no complete snapshot.
    """
    is_complete_snapshot = record.kind is Kind.SNAPSHOT and record.is_last_chunk
    first = last_entry - record.chunk if is_complete_snapshot else record.base
    if not 0 <= first <= last_entry:
        raise CursorFormatError(f"{where}: no complete snapshot before this record")
    return first


class Replay:
    """Builds an image from the consecutive records of a ledger, beginning at a snapshot's first."""

    def __init__(self) -> None:
        self._image: CursorImage | None = None
        self._partial: CursorImage | None = None  # a snapshot whose last chunk didn't come yet
        self._next_chunk = 0

    def on_record(self, record: Record, where: str) -> None:
        """
        Raises:
            CursorFormatError: the record can't follow the ones before it.
        """
        if record.kind is Kind.INCREMENT:
            if self._image is None:
                raise CursorFormatError(f"{where}: an increment without a snapshot before it")
            self._partial = None
            self._image.merge(record.image)
            return
        if record.kind is not Kind.SNAPSHOT:
            raise CursorFormatError(f"{where}: a record of kind {record.kind.name} in a ledger")
        if record.chunk == 0:
            self._partial, self._next_chunk = CursorImage((-1, -1), properties={}), 0
        if self._partial is None or record.chunk != self._next_chunk:
            raise CursorFormatError(f"{where}: chunk {record.chunk} without the one before it")
        self._partial.merge(record.image)
        self._next_chunk += 1
        if record.is_last_chunk:
            if not record.has_mark_delete:
                raise CursorFormatError(f"{where}: a snapshot without a mark-delete position")
            self._image, self._partial = self._partial, None

    def image(self, where: str) -> CursorImage:
        """The image after the last record; a snapshot cut off at the end doesn't count.

        Raises:
            CursorFormatError: there was no complete snapshot.
        """
        if self._image is None:
            raise CursorFormatError(f"{where}: no complete snapshot")
        return self._image


def decode_node_state(state: bytes, where: str) -> CursorImage:
    """
    Raises:
        CursorFormatError: as `decode_record`, or a record of another kind.
    """
    record = decode_record(state, where)
    if record.kind is not Kind.NODE:
        raise CursorFormatError(f"{where}: a record of kind {record.kind.name} in a node")
    return record.image
