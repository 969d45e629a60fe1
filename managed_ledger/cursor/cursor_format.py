"""The bytes of a stored cursor; drawn in docs/formats/cursor-ledger.md.

One record is one entry of a cursor ledger, or the ``state`` of a metadata node. It has a header and
sections. A snapshot is one or more records (chunks), the last of which is marked; an increment is
one record and means: apply me to what the records before me say.

Work that grows with the state is done in slices, one for each step of a generator here; shells do
other things in between.
"""

import struct
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pyroaring import BitMap

from magnetar.managed_ledger.cursor.acked_sections import acked_bodies
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.errors import CursorFormatError
from magnetar.managed_ledger.cursor.packed_sections import Piece as SetPiece
from magnetar.managed_ledger.cursor.packed_sections import (
    pack_sets,
    rows_in,
    size_in,
    unpack_bitmaps,
    unpack_runs,
    unpack_sets,
)
from magnetar.managed_ledger.position import Position

MAGIC: Final = 0xC5
VERSION: Final = 1
VERSION_PACKED: Final = 3
"""Of a record with packed bitmaps or sets; the others are written as before, for releases that
don't know any.
"""
VERSION_PROPERTIES: Final = 4
"""Of a record with a part of properties that are too many for one section."""
VERSIONS_READ: Final = (VERSION, 2, VERSION_PACKED, VERSION_PROPERTIES)
PROPERTIES_BYTES_MAX: Final = 1 << 20
"""Largest section of properties written: above that they come in parts, which releases that know
none refuse. They could not store so many at all: the node held them, too.
"""
CHUNK_BYTES_MAX: Final = 512 << 10
"""Largest record written; readers accept any length."""
CHUNK_WORK_MAX: Final = 512 << 10
"""Most work (`work_of`) of one; what is compressed well would be too much to take at once."""
NO_BASE: Final = -1
SLICE_WORK_MAX: Final = 32 << 10
"""Work of a slice: about a millisecond."""

_HEADER: Final = struct.Struct(">BBBBIq")  # magic, version, kind, flags, chunk, base
_SECTION: Final = struct.Struct(">BI")  # type, bytes
_POSITION: Final = struct.Struct(">qq")
_LEDGER: Final = struct.Struct(">q")
_SETS: Final = struct.Struct(">qI")  # ledger, sets
_COUNT: Final = struct.Struct(">I")
_PROPERTY: Final = struct.Struct(">IQ")  # name bytes, value modulo 2**64; the name follows
_WORD_MASK: Final = (1 << 64) - 1

_LAST_CHUNK: Final = 1  # flag
_SETS_PER_SECTION: Final = 2048
_SETS_BYTES_MAX: Final = CHUNK_BYTES_MAX // 2
_PACKED_SETS: Final = 4096  # sets in a section of packed sets, or few more
_PACKED_SETS_MIN: Final = 256
_PACKED_LEDGERS_MAX: Final = 1024
_WORK_OF_SET: Final = 8
_PROPERTIES_PART: Final = 32 << 10
_WORK_OF_CONTAINER: Final = 32


class SectionKind(IntEnum):
    SNAPSHOT = 1
    INCREMENT = 2
    NODE = 3


class CursorSection(IntEnum):
    MARK_DELETE = 1
    ACKED = 2
    BATCH_SETS = 3
    PROPERTIES = 4
    RUNS = 5  # read only, of version 2
    PACKED_ACKED = 6
    PACKED_SETS = 7
    PROPERTIES_PART = 8


_RUNS: Final = CursorSection.RUNS
_PACKED_ACKED: Final = CursorSection.PACKED_ACKED
_PACKED_BATCH_SETS: Final = CursorSection.PACKED_SETS
_PARTS: Final = CursorSection.PROPERTIES_PART


@dataclass(slots=True)
class CursorRecord:
    """A decoded record; ``image`` is None when it says nothing of mark-delete (a middle chunk)."""

    kind: SectionKind
    chunk: int
    is_last_chunk: bool
    base: int
    """First entry of the complete snapshot that precedes this record in its ledger, or NO_BASE."""
    image: CursorImage
    has_mark_delete: bool


# -- writing -------------------------------------------------------------------------------------


def encode_increment(increment: CursorImage, base: int) -> list[bytes]:
    """Records, normally one; each is complete in itself."""
    return seal_increment(list(body_sections(increment)), increment, base)


def seal_increment(body: list[bytes], increment: CursorImage, base: int) -> list[bytes]:
    """`encode_increment`, of the increment's `body_sections`."""
    sections = [_mark_delete_section(increment.mark_delete)]
    if increment.properties is not None:
        properties = properties_sections(increment.properties)
        # They belong in the record of their mark-delete (`AckState.has_many_properties`).
        assert len(properties) == 1
        sections += properties
    sections.extend(body)
    return [_record(SectionKind.INCREMENT, 0, 0, base, chunk) for chunk in _packed(sections)]


def encode_snapshot(image: CursorImage, base: int) -> list[bytes]:
    """Chunks of a snapshot, to be appended as consecutive entries."""
    properties = properties_sections(image.properties or {})
    return seal_snapshot(list(body_sections(image)), image.mark_delete, properties, base)


def seal_snapshot(
    body: list[bytes], mark_delete: Position, properties: list[bytes], base: int
) -> list[bytes]:
    """Chunks of a snapshot from the sections of `body_sections`, gathered in one or many ticks.

    Args:
        properties: their sections.
        base: first entry of the complete snapshot before this one in the same ledger, or NO_BASE.
    """
    tail = [*properties, _mark_delete_section(mark_delete)]
    chunks = list(_packed([*body, *tail]))
    last = len(chunks) - 1
    return [
        _record(SectionKind.SNAPSHOT, _LAST_CHUNK if n == last else 0, n, base, chunk)
        for n, chunk in enumerate(chunks)
    ]


def encode_node_state(image: CursorImage) -> bytes:
    """`seal_node_state` of an image that isn't large."""
    return seal_node_state(list(body_sections(image)))


def seal_node_state(body: list[bytes]) -> bytes:
    """One record of any length with bitmaps and batch sets (`body_sections`), empty when there are
    none; the node itself holds the rest.
    """
    return _record(SectionKind.NODE, _LAST_CHUNK, 0, NO_BASE, body) if body else b""


def work_of(section: bytes) -> int:
    """Estimates the work to make or read a section, in bytes of a bitmap or of batch sets that
    cost as much.
    """
    if section[0] == _PACKED_ACKED:
        containers, rows = size_in(section, _SECTION.size)
        return _WORK_OF_CONTAINER * containers + rows
    if section[0] == _PACKED_BATCH_SETS:
        return _WORK_OF_SET * rows_in(section, _SECTION.size)
    if section[0] == _RUNS:
        return 8 * rows_in(section, _SECTION.size)
    return len(section)


def body_sections(image: CursorImage) -> Iterator[bytes]:
    """Bitmaps and batch sets as sections. None is much more than `SLICE_WORK_MAX` of `work_of`, so
    that a caller with a large live image can do other things in between.
    """
    # Sets first: an entry that is completed in between then has its bit in a later bitmap. The
    # other way round it could be in neither, and durably acknowledged indexes would come back.
    yield from _batch_sections(image.batch_sets)
    for ledger_id, body in acked_bodies(image.acked):
        if ledger_id is None:
            yield _section(_PACKED_ACKED, body)
        else:
            yield _section(CursorSection.ACKED, _LEDGER.pack(ledger_id), body)


def _record(kind: SectionKind, flags: int, chunk: int, base: int, sections: list[bytes]) -> bytes:
    version = VERSION
    for section in sections:
        if section[0] in (_PACKED_ACKED, _PACKED_BATCH_SETS):
            version = max(version, VERSION_PACKED)
        elif section[0] == _PARTS:
            version = VERSION_PROPERTIES
    header = _HEADER.pack(MAGIC, version, kind, flags, chunk, base)
    return b"".join((header, *sections))


def _section(kind: CursorSection, *parts: bytes) -> bytes:
    return b"".join((_SECTION.pack(kind, sum(map(len, parts))), *parts))


def _mark_delete_section(position: Position) -> bytes:
    return _section(CursorSection.MARK_DELETE, _POSITION.pack(*position))


def properties_sections(properties: Mapping[str, int]) -> list[bytes]:
    """One section, or more when the properties are too many for one."""
    slices = properties_slices(properties)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            sections: list[bytes] = end.value
            return sections


def properties_slices(properties: Mapping[str, int]) -> Generator[None, None, list[bytes]]:
    """`properties_sections`, a step for each `SLICE_WORK_MAX` or so. REQUIRES: they don't change
    meanwhile.
    """
    parts: list[tuple[int, bytes]] = []
    gathered: list[bytes] = []
    size = 0
    for name, value in properties.items():
        encoded = name.encode()
        gathered += (_PROPERTY.pack(len(encoded), value & _WORD_MASK), encoded)
        size += _PROPERTY.size + len(encoded)
        if size >= _PROPERTIES_PART:
            parts.append((len(gathered) // 2, b"".join(gathered)))
            gathered, size = [], 0
            yield
    parts.append((len(gathered) // 2, b"".join(gathered)))
    if sum(len(body) for _, body in parts) <= PROPERTIES_BYTES_MAX:
        count = _COUNT.pack(sum(count for count, _ in parts))
        return [_section(CursorSection.PROPERTIES, count, *(body for _, body in parts))]
    return [
        _section(CursorSection.PROPERTIES_PART, _COUNT.pack(count), body) for count, body in parts
    ]


def _batch_sections(batch_sets: Mapping[int, dict[int, int]]) -> Iterator[bytes]:
    """Batches of up to 64 messages packed, many together; the others in columns of words."""
    gathered: list[SetPiece] = []
    count = 0
    for ledger_id, sets in batch_sets.items():
        ids = list(sets)  # the live dict may change between two sections
        for start in range(0, len(ids), _SETS_PER_SECTION):
            found = ids[start : start + _SETS_PER_SECTION]
            try:
                masks = [sets[entry_id] for entry_id in found]
            except KeyError:  # acknowledged as a whole since
                found = [entry_id for entry_id in found if entry_id in sets]
                masks = [sets[entry_id] for entry_id in found]
            try:
                piece = (ledger_id, array("I", found), array("Q", masks))
            except OverflowError:
                yield from _word_sections(ledger_id, found, masks)
                continue
            if found:
                gathered.append(piece)
                count += len(found)
            if count >= _PACKED_SETS or len(gathered) >= _PACKED_LEDGERS_MAX:
                yield from _packed_sets(gathered, count)
                gathered, count = [], 0
    yield from _packed_sets(gathered, count)


def _packed_sets(pieces: list[SetPiece], count: int) -> Iterator[bytes]:
    if count >= _PACKED_SETS_MIN:
        yield _section(_PACKED_BATCH_SETS, pack_sets(pieces))
    else:
        for ledger_id, ids, masks in pieces:
            yield from _word_sections(ledger_id, ids, masks)


def _word_sections(ledger_id: int, ids: Sequence[int], masks: Sequence[int]) -> Iterator[bytes]:
    """Columns: entry ids, word counts, words."""
    start = 0
    while start < len(ids):
        counts, words, words_bytes = [], [], 0
        for mask in masks[start:]:
            size = (mask.bit_length() + 63) // 64
            counts.append(size)
            words.append(mask.to_bytes(size * 8, "little"))
            words_bytes += size * 8
            if words_bytes > _SETS_BYTES_MAX:
                break
        count = len(counts)
        yield _section(
            CursorSection.BATCH_SETS,
            _SETS.pack(ledger_id, count),
            struct.pack(f">{count}I", *ids[start : start + count]),
            struct.pack(f">{count}H", *counts),
            *words,
        )
        start += count


def _packed(sections: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Sections grouped into records of at most `CHUNK_BYTES_MAX` and about `CHUNK_WORK_MAX`; a
    larger section is alone.
    """
    chunk: list[bytes] = []
    used, work = _HEADER.size, 0
    for section in sections:
        if chunk and (used + len(section) > CHUNK_BYTES_MAX or work > CHUNK_WORK_MAX):
            yield chunk
            chunk, used, work = [], _HEADER.size, 0
        chunk.append(section)
        used += len(section)
        work += work_of(section)
    yield chunk


# -- reading -------------------------------------------------------------------------------------


def decode_record(payload: bytes | memoryview, where: str) -> CursorRecord:
    """
    Args:
        where: names the cursor and the place, for the error.

    Raises:
        CursorFormatError: not a record, an unknown version, or lengths that don't add up.
    """
    slices = decode_slices(payload, where)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            record: CursorRecord = end.value
            return record


def decode_slices(payload: bytes | memoryview, where: str) -> Generator[None, None, CursorRecord]:
    """`decode_record` in slices of `SLICE_WORK_MAX` or little more, for a caller with other things
    to do in between.
    """
    data = bytes(payload)
    record, work = _decode_header(data, where), 0
    for section, start, end in _sections_in(data, where):
        try:
            for part in _decode_section(record.image, section, data[start:end]):
                work += part
                if work >= SLICE_WORK_MAX:
                    work = 0
                    yield
        except (struct.error, ValueError, IndexError) as error:
            raise CursorFormatError(f"{where}: section {section} at {start}: {error}") from error
        record.has_mark_delete |= section == CursorSection.MARK_DELETE
    return record


def _decode_header(data: bytes, where: str) -> CursorRecord:
    if len(data) < _HEADER.size:
        raise CursorFormatError(f"{where}: {len(data)} bytes are too short for a record")
    magic, version, kind, flags, chunk, base = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CursorFormatError(f"{where}: magic {magic:#04x} is not a cursor record's")
    if version not in VERSIONS_READ:
        raise CursorFormatError(
            f"{where}: format version {version} is unknown, "
            f"this release reads {VERSION} to {VERSION_PROPERTIES}"
        )
    if kind not in _KINDS:
        raise CursorFormatError(f"{where}: unknown record kind {kind}")
    image = CursorImage((-1, -1))
    return CursorRecord(SectionKind(kind), chunk, bool(flags & _LAST_CHUNK), base, image, False)


def _sections_in(data: bytes, where: str) -> Iterator[tuple[int, int, int]]:
    """Type, start and end of each section's body."""
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
        yield section, offset, offset + size
        offset += size


_KINDS: Final = frozenset(SectionKind)


def _decode_section(image: CursorImage, section: int, body: bytes) -> Iterator[int]:
    """Adds what a section says; yields the work of each part that was done."""
    if section == CursorSection.MARK_DELETE:
        image.mark_delete = _POSITION.unpack(body)
    elif section == CursorSection.ACKED:
        (ledger_id,) = _LEDGER.unpack_from(body)
        _unite(image, ledger_id, BitMap.deserialize(body[_LEDGER.size :]))
        yield len(body)
    elif section == CursorSection.PACKED_ACKED:
        for ledger_id, entries in unpack_bitmaps(body):
            _unite(image, ledger_id, entries)
            yield _WORK_OF_CONTAINER + len(entries)
    elif section == CursorSection.RUNS:
        for ledger_id, entries in unpack_runs(body):
            _unite(image, ledger_id, entries)
            yield _WORK_OF_CONTAINER + 8 * len(entries)
    elif section == CursorSection.BATCH_SETS:
        _decode_batch_sets(image, body)
        yield len(body)
    elif section == CursorSection.PACKED_SETS:
        for ledger_id, sets in unpack_sets(body):
            _unite_sets(image, ledger_id, sets)
            yield _WORK_OF_CONTAINER + _WORK_OF_SET * len(sets)
    elif section == CursorSection.PROPERTIES:
        image.properties = {}
        yield from _decode_properties(image.properties, body)
    elif section == CursorSection.PROPERTIES_PART:
        yield from _decode_properties(image.more_properties, body)
    else:
        # Sections carry acknowledgements: skipping one would silently redeliver or lose them.
        raise ValueError("unknown section type")


def _unite(image: CursorImage, ledger_id: int, entries: BitMap) -> None:
    known = image.acked.get(ledger_id)
    if known is None:
        image.acked[ledger_id] = entries
    else:
        known |= entries  # in place: a ledger may come in a thousand pieces


def _unite_sets(image: CursorImage, ledger_id: int, sets: dict[int, int]) -> None:
    known = image.batch_sets.get(ledger_id)
    if known is None:
        image.batch_sets[ledger_id] = sets
    else:
        known.update(sets)


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


def _decode_properties(properties: dict[str, int], body: bytes) -> Iterator[int]:
    (count,) = _COUNT.unpack_from(body)
    done = offset = _COUNT.size
    for _ in range(count):
        size, value = _PROPERTY.unpack_from(body, offset)
        offset += _PROPERTY.size
        name = body[offset : offset + size]
        if len(name) != size:
            raise ValueError("a property's name is cut off")
        properties[name.decode()] = value - (1 << 64) if value >> 63 else value
        offset += size
        if offset - done >= _PROPERTIES_PART:
            yield offset - done
            done = offset
    if offset != len(body):
        raise ValueError(f"{len(body) - offset} bytes after the last property")
    yield offset - done


# -- replay --------------------------------------------------------------------------------------


def first_entry_to_read(last_entry: int, record: CursorRecord, where: str) -> int:
    """Where a reader begins, given the last record of a ledger.

    Raises:
        CursorFormatError: the ledger holds no complete snapshot.
    """
    is_complete_snapshot = record.kind is SectionKind.SNAPSHOT and record.is_last_chunk
    first = last_entry - record.chunk if is_complete_snapshot else record.base
    if not 0 <= first <= last_entry:
        raise CursorFormatError(f"{where}: no complete snapshot before this record")
    return first


class ImageReplay:
    """Builds an image from the consecutive records of a ledger, beginning at a snapshot's first."""

    def __init__(self) -> None:
        self._image: CursorImage | None = None
        self._partial: CursorImage | None = None  # a snapshot whose last chunk didn't come yet
        self._next_chunk = 0

    def on_record(self, record: CursorRecord, where: str) -> None:
        """
        Raises:
            CursorFormatError: the record can't follow the ones before it.
        """
        if record.kind is SectionKind.INCREMENT:
            if self._image is None:
                raise CursorFormatError(f"{where}: an increment without a snapshot before it")
            if record.image.more_properties:
                raise CursorFormatError(f"{where}: an increment with a part of properties")
            self._partial = None
            self._image.merge(record.image)
            return
        if record.kind is not SectionKind.SNAPSHOT:
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
    if record.kind is not SectionKind.NODE:
        raise CursorFormatError(f"{where}: a record of kind {record.kind.name} in a node")
    return record.image
