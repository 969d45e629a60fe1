"""The log of an embedded store: writing its newest segment, and what a start concludes from it.

The log holds each commit before the database does, durably, and reaches back to the last but one
checkpoint. So a start compares them and takes commits that the database lacks from the log (a power
cut took its WAL, the file is damaged or an older copy). If neither can prove that all commits
are there, the start fails. docs/formats/metadata-log.md has the table.
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from magnetar.metadata.errors import DatabaseError
from magnetar.metadata.log_format import (
    ALIGNMENT,
    LogHeader,
    LogPosition,
    LogRecord,
    LogSegment,
    encode_record,
    find_segments,
    record_bytes,
    segment_path,
)
from magnetar.metadata.sqlite_file import FileState, sync_directory

_log = logging.getLogger(__name__)


class LogWriter:
    """Appends to one segment. One thread at a time; blocks."""

    def __init__(self, database: Path, header: LogHeader) -> None:
        """Makes the segment, durably, in place of one with its number that was never used.

        Raises:
            OSError: there is none; ENOSPC leaves everything as it was.
        """
        self.header, self.position = header, header.base
        self._path = segment_path(database, header.number)
        self._offset = ALIGNMENT
        self._before: tuple[int, LogPosition] | None = None  # what the last ``append`` began with
        temporary = self._path.with_name(f"{self._path.name}.new")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._file = os.open(temporary, flags, 0o644)
            try:
                # Blocks that are there are overwritten: a record's sync then needs no change of
                # the file's size, and a full disk is met here.
                _write(self._file, header.encode() + bytes(header.size - ALIGNMENT), 0)
                os.fsync(self._file)
                temporary.rename(self._path)
                sync_directory(database.parent)
            except BaseException:
                os.close(self._file)
                raise
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def has_room(self, body_bytes: int) -> bool:
        return self._offset + record_bytes(body_bytes) <= self.header.size

    def append(self, body: bytes, digest: int) -> None:
        """One record, durable on return. REQUIRES: ``has_room``.

        Raises:
            OSError: it may be there or not; the writer must not be used any more.
        """
        record, after = encode_record(self.header.nonce, self.position, digest, body)
        _write(self._file, record, self._offset)
        os.fdatasync(self._file)
        self._before = self._offset, self.position
        self._offset, self.position = self._offset + record_bytes(len(body)), after

    def take_back(self) -> None:
        """Unwrites the last record, durably: its commit was refused.

        Raises:
            OSError: as ``append``.
        """
        assert self._before is not None
        end = self._offset
        self._offset, self.position = self._before
        self._before = None
        _write(self._file, bytes(end - self._offset), self._offset)
        os.fdatasync(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def missing_records(
    database: Path, segments: Sequence[LogSegment], state: FileState
) -> tuple[list[LogRecord], LogPosition]:
    """Finds the records that a database at ``state`` lacks, and its state after them.

    Raises:
        DatabaseError: the two can't prove that they hold every commit together; it names a file.
    """
    last = _check_last(database, segments, state)
    known = {record.after.commit: record for each in segments for record in each.records}
    base = last.base
    end = max((*(each.after for each in known.values()), base), key=lambda each: each.commit)
    if state.commit > end.commit:
        # More than one record isn't lost by a damage in the last one, and none by a torn write:
        # the database gets a commit after the log has it.
        if state.commit == end.commit + 1 and segments[-1].has_tail:
            path = segments[-1].path
            _log.error("%s: the record of commit %d is damaged", path, state.commit)
            _log.error("%s holds it: nothing is lost", database)
            return [], LogPosition(state.commit, state.digest, 0)
        reason = f"it ends at commit {end.commit}, but {database.name} is at {state.commit}"
        raise DatabaseError(segments[-1].path, f"{reason}: it is damaged, or an older copy")
    if segments[-1].has_tail:
        _log.warning(
            "%s: what follows commit %d is no record (a write that a crash has cut short); dropped",
            segments[-1].path,
            end.commit,
        )
    at_hand = known.get(state.commit)
    if at_hand is not None and at_hand.after.digest != state.digest:
        raise DatabaseError(database, f"its commit {state.commit} is another one than the log's")
    records = list[LogRecord]()
    for commit in range(state.commit + 1, end.commit + 1):
        record = known.get(commit)
        if record is None:
            raise _gap(database, segments, state, commit)
        records.append(record)
    for before, after in pairwise(records):
        if after.crc_before != before.after.crc:
            raise DatabaseError(segments[-1].path, f"commit {after.after.commit} is of another log")
    if records:
        _log.warning(
            "%s is at commit %d; its log has %d more, which are applied now",
            *(database, state.commit, len(records)),
        )
    return records, end


def _check_last(database: Path, segments: Sequence[LogSegment], state: FileState) -> LogHeader:
    """Returns the newest segment's header; without it a start can't tell where the log ended."""
    if not segments or segments[-1].number < state.segment:
        raise DatabaseError(segment_path(database, state.segment), "this file is missing")
    last = segments[-1]
    if last.header is None:
        raise DatabaseError(last.path, "its header is damaged")
    if last.is_cut:
        raise DatabaseError(last.path, f"it is shorter than the {last.header.size} bytes it had")
    for each in segments:
        if each.header is not None and each.header.store_id != state.store_id:
            raise DatabaseError(each.path, f"it belongs to another database than {database.name}")
    return last.header


def _gap(
    database: Path, segments: Sequence[LogSegment], state: FileState, commit: int
) -> DatabaseError:
    """Why the record of ``commit``, which the database lacks, isn't there."""
    headers = [each.header for each in segments if each.header is not None]
    earlier = [each for each in headers if each.base.commit < commit]
    if earlier:
        holder = segment_path(database, earlier[-1].number)
        return DatabaseError(
            holder,
            f"the record of commit {commit} is damaged or missing, and {database.name} is at "
            f"{state.commit}",
        )
    damaged = next((each for each in segments if each.header is None), None)
    if damaged is not None:
        return DatabaseError(
            damaged.path, f"its header is damaged, and {database.name} is at {state.commit}"
        )
    reach = min(each.base.commit for each in headers)
    return DatabaseError(
        database,
        f"it is at commit {state.commit}, and its log reaches back to {reach} only: it is "
        "damaged, or an older copy",
    )


def remove_segments(database: Path, below: int) -> None:
    """Removes segments with smaller numbers. The next start retries those it can't remove."""
    for number, path in find_segments(database):
        if number < below:
            with contextlib.suppress(OSError):
                path.unlink()


def _write(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
