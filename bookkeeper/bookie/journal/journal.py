"""The journal's two halves: ``Journal`` forms groups (on the loop), ``JournalWriter`` writes them.

``Journal`` is pure bookkeeping: it knows which segment and offset every record gets before anything
is written, so records are encoded once, on the loop, and the writing thread does one durable write
per group and nothing per record. One group is in flight at a time; what arrives meanwhile is the
next one. There is no timer.

Invariants: groups are written in order, each durable before the next is begun and before anything
in it is acknowledged; a segment gets its final name only after its header is durable; a segment is
begun only after the last group of the one before is durable; before a group is written its file is
durably longer than the group's end by one alignment at least, so that a reader notices a file that
was cut off (``journal_reader``).
"""

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar.bookkeeper.bookie.config import StorageConfig
from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.journal.journal_format import Mark, SegmentHeader
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.errors import JournalFullError
from magnetar.bookkeeper.storage.file_system import Buffer, File, FileSystem

_GROUP_HEADER_BYTES = record_format.RECORD_HEADER_BYTES + journal_format.GROUP_BODY.size
_MARK_BYTES = record_format.RECORD_HEADER_BYTES + journal_format.METADATA_MARK_BODY.size


@dataclass(slots=True, eq=False)
class JournalGroup:
    """Records that become durable with one write.

    Attributes:
        offset: where the group begins in its segment.
        size: bytes from ``offset`` to the end of the padding; final once the group is sealed.
        waiting: what the owner wants back when the group is durable, in order of appending.
        entries, opened_s, write_s: the owner's notes for metrics: ledger entries in it, when the
            first one came, how long the write took.
    """

    header: SegmentHeader
    offset: int
    size: int = _GROUP_HEADER_BYTES
    record_bytes: int = 0
    buffers: list[Buffer] = field(default_factory=lambda: [b""])  # first: the group's own header
    waiting: list[object] = field(default_factory=list)
    sealed: bool = False
    entries: int = 0
    opened_s: float = 0.0
    write_s: float = 0.0

    @property
    def end(self) -> Mark:
        return self.header.segment_id, self.offset + self.size


class Journal:
    """Assigns positions and forms groups. Loop only.

    Args:
        header: of the segment that exists on disk and has no records yet.
        new_nonce: a random 32-bit number for each new segment.
    """

    def __init__(
        self, config: StorageConfig, header: SegmentHeader, new_nonce: Callable[[], int]
    ) -> None:
        self.queued_bytes = 0  # appended and not yet durable
        self.in_flight: JournalGroup | None = None
        self._config = config
        self._new_nonce = new_nonce
        self._groups: deque[JournalGroup] = deque()  # only the last one may be unsealed
        self.metadata_mark: Callable[[], bytes] = bytes
        """Body of the METADATA_MARK record of now; empty: the metadata aren't embedded."""
        self._marked = b""  # the last one that a group has
        self.newest = JournalGroup(header, 0)
        """The group of the last ``reserve``."""
        self._header = header
        self._offset = header.alignment  # end of the last group that has a final size
        self.tag = header.tag
        self.seed = record_format.crc_seed(header.tag)

    @property
    def queued_entries(self) -> int:
        """Ledger entries that aren't durable yet."""
        in_flight = 0 if self.in_flight is None else self.in_flight.entries
        return in_flight + sum(group.entries for group in self._groups)

    def reserve(self, size: int) -> JournalGroup:
        """The group that the next ``size`` bytes of records belong to; sets ``tag`` and ``seed``.

        Records must be encoded after this call and appended before the next.
        """
        config = self._config
        group = self._groups[-1] if self._groups else None
        if group is not None and not group.sealed:
            if group.size + size <= config.journal_group_bytes_max:
                begin, needed = group.offset, group.size + size + _MARK_BYTES
                if begin + needed + config.journal_alignment_bytes <= config.journal_segment_bytes:
                    return group
            self._seal(group)
        needed = _GROUP_HEADER_BYTES + size + _MARK_BYTES + config.journal_alignment_bytes
        is_empty = self._offset == self._header.alignment
        if self._offset + needed > config.journal_segment_bytes and not is_empty:
            self._begin_segment()
        group = self.newest = JournalGroup(self._header, self._offset)
        self._groups.append(group)
        return group

    def append(self, buffers: list[bytes], size: int, waiting: object = None) -> None:
        """Add encoded records to the group of the last ``reserve``."""
        group = self._groups[-1]
        group.buffers += buffers
        group.size += size
        group.record_bytes += size
        self.queued_bytes += size
        if waiting is not None:
            group.waiting.append(waiting)

    def append_meta(self, kind: int, body: bytes, waiting: object = None) -> None:
        """Encode and add one small record."""
        size = record_format.RECORD_HEADER_BYTES + len(body)
        self.reserve(size)
        self.append([record_format.encode_record(kind, self.tag, body)], size, waiting)

    def barrier(self) -> Mark:
        """End the open group; the position that divides what was appended from what will be."""
        if self._groups and not self._groups[-1].sealed:
            self._seal(self._groups[-1])
        return self._header.segment_id, self._offset

    def take_group(self) -> JournalGroup | None:
        """The next group to write; None: nothing to do, or one is in flight."""
        if self.in_flight is not None or not self._groups:
            return None
        group = self._groups.popleft()
        if not group.sealed:
            self._seal(group)
        self.in_flight = group
        return group

    def on_durable(self, group: JournalGroup) -> None:
        assert group is self.in_flight, "one group is written at a time"
        self.in_flight = None
        self.queued_bytes -= group.record_bytes

    def durable_to(self, mark: Mark) -> bool:
        """True if everything before ``mark`` (from ``barrier``) is durable."""
        oldest = self.in_flight or (self._groups[0] if self._groups else None)
        return oldest is None or (oldest.header.segment_id, oldest.offset) >= mark

    def take_all_waiting(self) -> list[object]:
        """Give up: everything that waits for a group that will never be written."""
        groups = [self.in_flight, *self._groups] if self.in_flight else list(self._groups)
        self._groups.clear()
        return [waiting for group in groups if group is not None for waiting in group.waiting]

    def _seal(self, group: JournalGroup) -> None:
        """Fix the group's size: pad it to the alignment, so no later write touches its blocks.

        What is in it may rest on metadata of up to now, so it says which those are: one record for
        each state of the metadata, at most, and none for each entry.
        """
        if (mark := self.metadata_mark()) != self._marked:
            self._marked = mark
            tag = group.header.tag
            group.buffers.append(
                record_format.encode_record(record_format.METADATA_MARK, tag, mark)
            )
            group.size += _MARK_BYTES
        alignment = self._config.journal_alignment_bytes
        gap = -group.size % alignment
        if gap and gap < record_format.RECORD_HEADER_BYTES:
            gap += alignment
        padding = b""
        if gap:
            body = bytes(gap - record_format.RECORD_HEADER_BYTES)
            padding = record_format.encode_record(record_format.PADDING, group.header.tag, body)
        group.buffers.append(padding)
        group.size += gap
        group.buffers[0] = record_format.encode_record(
            record_format.GROUP, group.header.tag, journal_format.GROUP_BODY.pack(group.size)
        )
        group.sealed = True
        self._offset = group.offset + group.size

    def _begin_segment(self) -> None:
        segment_id = self._header.segment_id + 1
        self._header = SegmentHeader(
            segment_id,
            record_format.make_tag(segment_id, self._new_nonce()),
            self._config.journal_alignment_bytes,
            self._offset,
        )
        self._offset = self._header.alignment
        self.tag = self._header.tag
        self.seed = record_format.crc_seed(self.tag)


class JournalWriter:
    """Writes groups to segment files. One thread at a time; ``spares`` is shared with the flush.

    Any error but ``JournalFullError`` is final: the caller must stop and never call again, because
    after a failed write or sync it isn't known what is on the disk.
    """

    def __init__(
        self,
        file_system: FileSystem,
        config: StorageConfig,
        directory: str = journal_format.DIRECTORY,
    ) -> None:
        self.spares: deque[str] = deque()
        self.directory = directory
        self._fs = file_system
        self._config = config
        self._file: File | None = None
        self._segment_id = -1
        self._allocated = 0

    def create_segment(self, header: SegmentHeader) -> None:
        """Make a segment exist durably under its final name, with nothing but its header.

        After an error it may be called again: it then begins with a new file, never with the one
        that failed.
        """
        self.close()
        path = journal_format.segment_path(header.segment_id, self.directory)
        spare = self._take_spare()
        if spare is None:
            spare = journal_format.spare_path(header.segment_id, self.directory)
            if self._fs.exists(spare):  # left by a crash between creation and renaming
                self._fs.remove(spare)
            file = self._fs.create(spare)
        else:
            file = self._fs.open(spare)
        if file.size() < 2 * header.alignment:
            file.preallocate(2 * header.alignment, "journal.room")
        file.pwritev([header.encode()], 0, sync_point="journal.segment-header")
        self._allocated = file.size()
        # Only now the final name: whatever has it has a durable header, so a bad header found at
        # a start is always damage and never a torn write.
        self._fs.rename(spare, path)
        self._fs.sync_dir(self.directory, "journal.segment-name")
        self._file = file
        self._segment_id = header.segment_id

    def write(self, group: JournalGroup) -> None:
        """Make a sealed group durable, beginning its segment if it is the first one in it.

        Raises:
            JournalFullError: there is no space, and nothing of the group was written.
            OSError: anything else; final.
        """
        assert group.sealed, "it may still grow"
        path = self.path_of(group)
        try:
            file = self._make_room(group)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise JournalFullError(path, error) from error
            raise OSError(error.errno, error.strerror, path) from error
        try:
            # Its blocks are there, so this can't run out of space where it matters: a group that
            # was written in part is never written again.
            file.pwritev(group.buffers, group.offset, sync_point="journal.group")
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error

    def path_of(self, group: JournalGroup) -> str:
        return journal_format.segment_path(group.header.segment_id, self.directory)

    def place_for(self, group: JournalGroup) -> int:
        """A descriptor, if nothing but ``group``'s own bytes must be written; else -1.

        Not while ``write`` runs.
        """
        if self._file is None or group.header.segment_id != self._segment_id:
            return -1
        if group.offset + group.size + group.header.alignment > self._allocated:
            return -1
        return self._file.durable_descriptor

    def _make_room(self, group: JournalGroup) -> File:
        """The segment's file, with blocks for the whole group and one alignment behind it."""
        if group.header.segment_id != self._segment_id:
            self.create_segment(group.header)
        file = self._file
        assert file is not None
        end = group.offset + group.size + group.header.alignment
        if end > self._allocated:
            step = self._config.journal_extend_bytes
            limit = max(end, self._config.journal_segment_bytes)
            allocated = min(limit, max(end, self._allocated + step))
            file.preallocate(allocated, "journal.room")
            self._allocated = allocated
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._segment_id = -1

    def _take_spare(self) -> str | None:
        try:
            return self.spares.popleft()
        except IndexError:
            return None


def retire_segments(
    file_system: FileSystem,
    mark: Mark,
    spares: deque[str],
    spares_max: int,
    directory: str = journal_format.DIRECTORY,
) -> None:
    """Remove the segments before a durable mark, or keep them as spares.

    Nothing is synced: a name that comes back after a crash is below the mark and is retired again.
    """
    for name in file_system.list(directory):
        segment_id = journal_format.segment_id_of(name)
        if segment_id is None or segment_id >= mark[0]:
            continue
        path = f"{directory}/{name}"
        if len(spares) < spares_max:
            spare = journal_format.spare_path(segment_id, directory)
            file_system.rename(path, spare)
            spares.append(spare)
        else:
            file_system.remove(path)
