"""Reading the journal at a start: what is a torn tail, what is damage.

A group is durable before the next one is begun, so only the very last group of the last segment can
be torn. An unreadable group anywhere else is damage, and the bookie must not start as if nothing
had happened: it would deny entries it acknowledged. How the last group is told from others: behind
a torn one no group header with this segment's tag follows, and the next segment's header says where
this segment ends. How a file that was cut off is told from one that ends in a torn group: before a
group is written its file is durably longer than the group by one alignment at least. So a file that
ends sooner behind the last intact group, or within one whose header is intact, was cut.
"""

import logging
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import pairwise

from crc32c import crc32c

from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.journal.journal_format import Mark, SegmentHeader
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.errors import CorruptFileError, MissingFileError
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.storage.file_system import File, FileSystem

_log = logging.getLogger(__name__)

_GROUP_HEADER_BYTES = record_format.RECORD_HEADER_BYTES + journal_format.GROUP_BODY.size
_SCAN_BYTES = 4 << 20
_GROUP_WORD = record_format.encode_record(
    record_format.GROUP, 0, bytes(journal_format.GROUP_BODY.size)
)[:4]


@dataclass(slots=True)
class JournalRecord:
    """One record; ``data[start:end]`` is header and body, ``data`` the whole group."""

    kind: int
    data: bytes
    start: int
    end: int

    @property
    def body(self) -> bytes:
        return self.data[self.start + record_format.RECORD_HEADER_BYTES : self.end]


def list_segments(file_system: FileSystem, directory: str = journal_format.DIRECTORY) -> list[int]:
    names = file_system.list(directory)
    ids = [journal_format.segment_id_of(name) for name in names]
    return sorted(segment_id for segment_id in ids if segment_id is not None)


def read_journal(
    file_system: FileSystem, mark: Mark | None, directory: str = journal_format.DIRECTORY
) -> Iterator[JournalRecord]:
    """All records from ``mark`` on, in order of their writing; from the oldest if None.

    Raises:
        MissingFileError: the marked segment, or one after it, is gone.
        CorruptFileError: unreadable bytes that can't be a torn tail.
    """
    segment_ids = list_segments(file_system, directory)
    if mark is not None:
        segment_ids = [segment_id for segment_id in segment_ids if segment_id >= mark[0]]
        if not segment_ids or segment_ids[0] != mark[0]:
            path = journal_format.segment_path(mark[0], directory)
            raise MissingFileError(f"{path}: the journal segment of the last checkpoint is missing")
    for segment_id, following in pairwise(segment_ids):
        if following != segment_id + 1:
            path = journal_format.segment_path(segment_id + 1, directory)
            raise MissingFileError(f"{path}: a journal segment in the middle is missing")
    headers = [read_header(file_system, segment_id, directory) for segment_id in segment_ids]
    for index, header in enumerate(headers):
        start = mark[1] if mark is not None and index == 0 else header.alignment
        is_last = index == len(headers) - 1
        # 0: the next segment was begun by a start, which left this one's torn tail as it was.
        expected_end = None if is_last else headers[index + 1].previous_end or None
        yield from _read_segment(file_system, header, start, expected_end, directory)


def read_header(file_system: FileSystem, segment_id: int, directory: str) -> SegmentHeader:
    path = journal_format.segment_path(segment_id, directory)
    file = file_system.open(path)
    try:
        data = file.pread(journal_format.HEADER_BYTES, 0)
    finally:
        file.close()
    return journal_format.decode_segment_header(data, path)


def _read_segment(
    file_system: FileSystem,
    header: SegmentHeader,
    start: int,
    expected_end: int | None,
    directory: str,
) -> Iterator[JournalRecord]:
    """Records of one segment.

    Args:
        expected_end: where the last group must end; None: it was the last segment when the
            process ended, so it may end in a torn group.
    """
    path = journal_format.segment_path(header.segment_id, directory)
    file = file_system.open(path)
    offset = start
    try:
        while expected_end is None or offset < expected_end:
            size = group_size(file, header, offset)
            if size is None:
                _check_tail(file, header, path, offset, expected_end)
                return
            data = file.pread(size, offset)
            intact = yield from read_group(header, data)
            if not intact:
                _check_tail(file, header, path, offset, expected_end)
                return
            offset += size
    finally:
        file.close()
    if offset != expected_end:  # a group reaches over it
        raise CorruptFileError(path, offset, f"segment does not end at {expected_end}")


def group_size(file: File, header: SegmentHeader, offset: int) -> int | None:
    """Bytes of the group that begins at ``offset``; None: no group of this segment does."""
    return _decode_group(file.pread(_GROUP_HEADER_BYTES, offset), 0, header)


def _decode_group(data: bytes, offset: int, header: SegmentHeader) -> int | None:
    record = record_format.check_record(data, offset)
    if record != (record_format.GROUP, journal_format.GROUP_BODY.size, header.tag):
        return None
    (size,) = journal_format.GROUP_BODY.unpack_from(
        data, offset + record_format.RECORD_HEADER_BYTES
    )
    return int(size) if size >= _GROUP_HEADER_BYTES else None


def read_group(header: SegmentHeader, data: bytes) -> Generator[JournalRecord, None, bool]:
    """Records of one group up to the first damaged one; the result: all of them are intact."""
    seed = record_format.crc_seed(header.tag)
    unpack, covers = record_format.RECORD_HEADER.unpack_from, PACKET_HEADER_BYTES
    view, limit = memoryview(data), len(data)
    offset = _GROUP_HEADER_BYTES
    while offset < limit:
        body = offset + record_format.RECORD_HEADER_BYTES
        if body > limit:
            return False
        word, crc, tag = unpack(data, offset)
        end = body + (word & record_format.LENGTH_MASK)
        covered = data[body : min(end, body + covers)]
        if tag != header.tag or end > limit or crc32c(covered, seed ^ word) != crc:
            return False
        kind = word >> record_format.KIND_SHIFT
        if kind == record_format.ENTRY:
            digest = crc32c(view[body + covers : end], crc32c(covered[: covers - 4]))
            if len(covered) < covers or covered[covers - 4 :] != digest.to_bytes(4, "big"):
                return False
        if kind != record_format.PADDING:
            yield JournalRecord(kind, data, offset, end)
        offset = end
    return offset == limit


def _check_tail(
    file: File, header: SegmentHeader, path: str, offset: int, expected_end: int | None
) -> None:
    """Decide that the unreadable group at ``offset`` is the torn or clean end of the journal.

    Raises:
        CorruptFileError: it is damage.
    """
    if expected_end is not None:
        raise CorruptFileError(path, offset, f"damaged journal group before {expected_end}")
    size = file.size()
    position = offset + header.alignment
    if header.has_room:
        group_bytes = group_size(file, header, offset) or 0
        if size < position + group_bytes:
            raise CorruptFileError(
                path, offset, f"cut off: it ends at {size}, where there was room for more"
            )
    block_bytes = max(_SCAN_BYTES, header.alignment)
    while position < size:
        block = file.pread(block_bytes, position)
        for at in range(0, len(block), header.alignment):
            if block.startswith(_GROUP_WORD, at) and _decode_group(block, at, header) is not None:
                raise CorruptFileError(
                    path, offset, f"damaged journal group before the intact one at {position + at}"
                )
        position += block_bytes


def salvage_journal(
    file_system: FileSystem, mark: Mark | None, directory: str = journal_format.DIRECTORY
) -> Iterator[JournalRecord]:
    """All intact records of the segments from the mark on, in order of their writing.

    Used only once the bookie has noted that it lost data: every record that is intact is something
    it acknowledged, or might have, so keeping it is right; what is missing is for limbo to answer
    for. A group is looked for at every place where one may begin, and must carry its segment's tag;
    so neither an old use of the file nor a payload can pass for one.
    """
    for segment_id in list_segments(file_system, directory):
        if mark is not None and segment_id < mark[0]:
            continue
        start = mark[1] if mark is not None and segment_id == mark[0] else 0
        path = journal_format.segment_path(segment_id, directory)
        try:
            yield from _salvage_segment(file_system, segment_id, start, directory)
        except (CorruptFileError, OSError) as error:
            _log.error("%s is given up: %s", path, error)


def _salvage_segment(
    file_system: FileSystem, segment_id: int, start: int, directory: str
) -> Iterator[JournalRecord]:
    header = read_header(file_system, segment_id, directory)
    path = journal_format.segment_path(segment_id, directory)
    file = file_system.open(path)
    try:
        size = file.size()
        offset = max(start, header.alignment)
        lost_from = -1
        while offset < size:
            group_bytes = group_size(file, header, offset)
            if group_bytes is None:
                lost_from = offset if lost_from < 0 else lost_from
                offset = _next_group(file, header, offset + header.alignment, size)
                continue
            if lost_from >= 0:
                _log.error("%s: unreadable from %d to %d", path, lost_from, offset)
                lost_from = -1
            data = file.pread(group_bytes, offset)
            if not (yield from read_group(header, data)):
                _log.error("%s: the group at %d is damaged", path, offset)
                lost_from = offset
                offset = _next_group(file, header, offset + header.alignment, size)
                continue
            offset += group_bytes
    finally:
        file.close()


def _next_group(file: File, header: journal_format.SegmentHeader, offset: int, size: int) -> int:
    while offset < size and group_size(file, header, offset) is None:
        offset += header.alignment
    return offset
