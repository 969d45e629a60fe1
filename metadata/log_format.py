"""Segments of an embedded store's log: names, header, records; reading one and what is wrong in it.

docs/formats/metadata-log.md draws the bytes. A segment has its final size, filled up with zeros,
before it gets its name: a shorter file was cut. Records begin at multiples of ALIGNMENT, so that no
later write touches a synced block, and each is durable before the next is written: only the very
last one can be torn.
"""

import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

from crc32c import crc32c

from magnetar.metadata.rows import DIGEST_BYTES, CommitRows, decode_change

VERSION = 1
ALIGNMENT = 4096
SEGMENT_BYTES = 4 << 20  # of a usual segment; a larger record gets a larger one

_MAGIC = b"MGMDLOG\n"
# magic, version, alignment, segment number, bytes of the file, nonce, store id, commit before the
# first record, digest after it, CRC of the record before; then the CRC of all this
_HEADER = Struct(">8sIIQQQ16sQ16sI")
_COPY_AT = 2048  # the header is there twice, as without it no record can be told from garbage
# nonce of the segment, commit number, CRC of the record before, bytes of the body, digest after
# it; then the CRC of all this and the body
_RECORD = Struct(">QQII16s")
_CRC = Struct(">I")
_BODY_AT = _RECORD.size + _CRC.size


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A state of the store: how many commits made it, its digest, the CRC of the last record."""

    commit: int = 0
    digest: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class LogRecord:
    after: LogPosition
    crc_before: int
    body: bytes

    def change(self) -> CommitRows:
        return decode_change(self.body)


@dataclass(frozen=True, slots=True)
class LogHeader:
    """``base``: the state before the first record."""

    number: int
    size: int
    nonce: int
    store_id: bytes
    base: LogPosition

    def encode(self) -> bytes:
        data = _HEADER.pack(
            *(_MAGIC, VERSION, ALIGNMENT, self.number, self.size, self.nonce, self.store_id),
            *(self.base.commit, self.base.digest.to_bytes(DIGEST_BYTES, "big"), self.base.crc),
        )
        data += _CRC.pack(crc32c(data))
        return (data.ljust(_COPY_AT, b"\0") + data).ljust(ALIGNMENT, b"\0")


@dataclass(slots=True)
class LogSegment:
    """Holds the content of a segment's file, as far as it is intact.

    Attributes:
        header: None: damaged.
        records: the intact ones, in the order of the file.
        is_cut: the file is shorter than it was made.
        has_tail: behind the last intact record are bytes that are none.
    """

    path: Path
    number: int
    header: LogHeader | None = None
    records: list[LogRecord] = field(default_factory=list)
    is_cut: bool = False
    has_tail: bool = False


class UnknownVersionError(Exception):
    """A newer program wrote the segment."""


def segment_path(database: Path, number: int) -> Path:
    return database.with_name(f"{database.name}-log-{number:016d}")


def find_segments(database: Path) -> list[tuple[int, Path]]:
    """Numbers and paths of the segments beside a database file, in order."""
    pattern = re.compile(re.escape(database.name) + r"-log-(\d{16})")
    try:
        names = os.listdir(database.parent)
    except OSError:
        return []  # opening the database raises the reason
    found = [(int(match[1]), match[0]) for match in map(pattern.fullmatch, names) if match]
    return [(number, database.with_name(name)) for number, name in sorted(found)]


def new_header(number: int, store_id: bytes, base: LogPosition, body_bytes: int = 0) -> LogHeader:
    """Header of a segment that has room for a record with ``body_bytes``."""
    size = max(SEGMENT_BYTES, ALIGNMENT + record_bytes(body_bytes))
    return LogHeader(number, size, secrets.randbits(64), store_id, base)


def encode_record(
    nonce: int, before: LogPosition, digest: int, body: bytes
) -> tuple[bytes, LogPosition]:
    """The record of the next commit after ``before``, and the state it leads to."""
    head = _RECORD.pack(
        *(nonce, before.commit + 1, before.crc, len(body), digest.to_bytes(DIGEST_BYTES, "big"))
    )
    crc = crc32c(body, crc32c(head))
    return head + _CRC.pack(crc) + body, LogPosition(before.commit + 1, digest, crc)


def record_bytes(body_bytes: int) -> int:
    """Returns the bytes that a record takes of its segment."""
    size = _BODY_AT + body_bytes
    return -(-size // ALIGNMENT) * ALIGNMENT


def read_segment(number: int, path: Path) -> LogSegment:
    """Raises OSError, UnknownVersionError."""
    data = path.read_bytes()
    segment = LogSegment(path, number)
    header = _decode_header(data, 0, path) or _decode_header(data, _COPY_AT, path)
    if header is None or header.number != number:
        return segment
    segment.header, segment.is_cut = header, len(data) < header.size
    used = len(data[: header.size].rstrip(b"\0"))
    at = ALIGNMENT
    while at < used:
        record = _decode_record(data, at, header.nonce)
        if record is not None:
            segment.records.append(record)
            at += record_bytes(len(record.body))
        else:
            at += ALIGNMENT
        segment.has_tail = record is None
    return segment


def _decode_header(data: bytes, at: int, path: Path) -> LogHeader | None:
    if len(data) < at + _HEADER.size + _CRC.size:
        return None
    magic, version, _, number, size, nonce, store_id, commit, digest, crc = _HEADER.unpack_from(
        data, at
    )
    if magic != _MAGIC or _CRC.unpack_from(data, at + _HEADER.size) != (
        crc32c(data[at : at + _HEADER.size]),
    ):
        return None
    if version != VERSION:
        raise UnknownVersionError(f"{path}: format version {version}, known is {VERSION}")
    base = LogPosition(commit, int.from_bytes(digest, "big"), crc)
    return LogHeader(number, size, nonce, store_id, base)


def _decode_record(data: bytes, at: int, nonce: int) -> LogRecord | None:
    if len(data) < at + _BODY_AT:
        return None
    found, commit, crc_before, size, digest = _RECORD.unpack_from(data, at)
    if found != nonce or at + _BODY_AT + size > len(data):
        return None
    body = data[at + _BODY_AT : at + _BODY_AT + size]
    crc = crc32c(body, crc32c(data[at : at + _RECORD.size]))
    if _CRC.unpack_from(data, at + _RECORD.size) != (crc,):
        return None
    return LogRecord(LogPosition(commit, int.from_bytes(digest, "big"), crc), crc_before, body)
