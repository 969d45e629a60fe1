"""What can still be read of a damaged journal.

Used only once the bookie has noted that it lost data: every record that is intact is something it
acknowledged, or might have, so keeping it is right; what is missing is for limbo to answer for.
A group is looked for at every place where one may begin, and must carry its segment's tag; so
neither an old use of the file nor a payload can pass for one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.journal.journal_format import Mark
from magnetar.bookkeeper.bookie.journal.journal_reader import (
    JournalRecord,
    group_size,
    list_segments,
    read_group,
    read_header,
)
from magnetar.bookkeeper.errors import CorruptFileError
from magnetar.bookkeeper.storage.file_system import File, FileSystem

_log = logging.getLogger(__name__)


def salvage_journal(
    file_system: FileSystem, mark: Mark | None, directory: str = journal_format.DIRECTORY
) -> Iterator[JournalRecord]:
    """All intact records of the segments from the mark on, in order of their writing."""
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
