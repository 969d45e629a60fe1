"""Names and headers of journal segments; docs/formats/journal.md draws the bytes."""

from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

from crc32c import crc32c

from magnetar.bookkeeper.errors import CorruptFileError

DIRECTORY: Final = "journal"
VERSION: Final = 1
_MAGIC: Final = b"MAGNJRNL"
# magic, version, alignment, segment id, tag, end of the previous segment, crc of all before
_HEADER: Final = Struct(">8sIIQQQI")
_COVERED_BYTES: Final = _HEADER.size - 4
_ROOM_MARK_AT: Final = _HEADER.size
HEADER_BYTES: Final = _HEADER.size + 4
GROUP_BODY: Final = Struct(">Q")
LEDGER_ID: Final = Struct(">Q")
_EXPLICIT_LAC_BODY: Final = Struct(">Qq")
CREATOR_BODY: Final = Struct(">QQB")  # ledger, creator, flags
CREATOR_DISPUTED: Final = 1
METADATA_MARK_BODY: Final = Struct(">16sQ")  # store id, commit

Mark: TypeAlias = tuple[int, int]  # (segment id, offset): everything before is in the entry logs


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """First bytes of a segment.

    Attributes:
        alignment: groups begin at multiples of it, the first one right at it.
        previous_end: where the last group of the segment with the id below ends, so that a segment
            that lost its last groups is noticed; 0: unknown (first segment after a start).
        has_room: its writer keeps the file longer than every group by ``alignment`` at least,
            durably before the group is written: a file that isn't was cut off. False: written by
            Magnetar before it did so.
    """

    segment_id: int
    tag: int
    alignment: int
    previous_end: int
    has_room: bool = True

    def encode(self) -> bytes:
        """The header, filled up with zeros to the first group."""
        raw = _HEADER.pack(
            _MAGIC, VERSION, self.alignment, self.segment_id, self.tag, self.previous_end, 0
        )[:_COVERED_BYTES]
        header = raw + crc32c(raw).to_bytes(4, "big")
        if self.has_room:
            header += crc32c(header).to_bytes(4, "big")
        return header + bytes(self.alignment - len(header))


def decode_segment_header(data: bytes, path: str) -> SegmentHeader:
    """The header of the segment file ``path``.

    Raises:
        CorruptFileError: not a header, or of a version this code does not know.
    """
    if len(data) < HEADER_BYTES or data[:8] != _MAGIC:
        raise CorruptFileError(path, 0, "no journal segment header")
    _, version, alignment, segment_id, tag, previous_end, crc = _HEADER.unpack_from(data)
    if crc32c(data[:_COVERED_BYTES]) != crc:
        raise CorruptFileError(path, 0, "segment header does not fit its CRC")
    if version != VERSION:
        raise CorruptFileError(path, 0, f"journal version {version}, this is version {VERSION}")
    if segment_id != segment_id_of(path):
        raise CorruptFileError(path, 0, f"header of segment {segment_id:x}")
    mark = int.from_bytes(data[_ROOM_MARK_AT:HEADER_BYTES], "big")
    if mark not in (0, crc32c(data[:_ROOM_MARK_AT])):
        raise CorruptFileError(path, _ROOM_MARK_AT, "segment header does not fit its second CRC")
    return SegmentHeader(segment_id, tag, alignment, previous_end, mark != 0)


def encode_explicit_lac(ledger_id: int, lac: int, digest: bytes | None) -> bytes:
    """Body of such a record; ``digest``: see ``LedgerDescriptor.lac_digest``."""
    body = _EXPLICIT_LAC_BODY.pack(ledger_id, lac)
    return body if digest is None else b"".join((body, b"\x01", digest))


def decode_explicit_lac(body: bytes) -> tuple[int, int, bytes | None]:
    """Ledger id, LAC and digest."""
    ledger_id, lac = _EXPLICIT_LAC_BODY.unpack_from(body)
    rest = body[_EXPLICIT_LAC_BODY.size :]
    return ledger_id, lac, rest[1:] if rest else None


def journal_directory(number: int) -> str:
    """Where journal ``number`` of a bookie lies; most have number 0 only."""
    return DIRECTORY if number == 0 else f"{DIRECTORY}-{number}"


def journal_number(path: str) -> int | None:
    """Which journal a file, or the directory itself, belongs to; None: it is something else."""
    directory = path.partition("/")[0]
    if directory == DIRECTORY:
        return 0
    name, _, number = directory.partition("-")
    return int(number) if name == DIRECTORY and number.isdigit() else None


def segment_path(segment_id: int, directory: str = DIRECTORY) -> str:
    return f"{directory}/{segment_id:016x}.journal"


def segment_id_of(path: str) -> int | None:
    """Segment id of a file name; None: not a segment (a spare, something foreign)."""
    name = path.rpartition("/")[2]
    stem, dot, suffix = name.partition(".")
    if dot and suffix == "journal" and len(stem) == 16:
        try:
            return int(stem, 16)
        except ValueError:
            return None
    return None


def spare_path(segment_id: int, directory: str = DIRECTORY) -> str:
    """Name of an old segment that waits to be used again."""
    return f"{directory}/{segment_id:016x}.spare"
