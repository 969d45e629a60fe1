"""A journal segment that was cut off is refused, one that ends in a torn group isn't."""

import itertools
import random
from dataclasses import replace

import pytest

from magnetar.bookkeeper.bookie.config import StorageConfig
from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.journal.journal import Journal, JournalGroup, JournalWriter
from magnetar.bookkeeper.bookie.journal.journal_format import Mark, SegmentHeader
from magnetar.bookkeeper.bookie.journal.journal_reader import read_journal
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.errors import CorruptFileError
from tests.memory_file_system import Faults, MemoryFileSystem, PowerLoss

ALIGNMENT = 512
CONFIG = StorageConfig(
    journal_segment_bytes=16 << 10,
    journal_alignment_bytes=ALIGNMENT,
    journal_extend_bytes=2 << 10,
)
LAST = journal_format.segment_path(2)


class Written:
    """A journal of two segments, of which the second one has ``groups`` groups of these sizes."""

    def __init__(self, *sizes: int, has_room: bool = True) -> None:
        self.fs = MemoryFileSystem()
        self.fs.make_directory(journal_format.DIRECTORY)
        self.writer = JournalWriter(self.fs, CONFIG)
        self.records = 0
        self.ends: list[int] = []
        first = SegmentHeader(1, record_format.make_tag(1, 7), ALIGNMENT, 0, has_room)
        self.writer.create_segment(first)
        self.journal = Journal(CONFIG, first, lambda: 7)
        self.write(300)
        before = self.journal.barrier()[1]
        header = replace(first, segment_id=2, tag=record_format.make_tag(2, 8), previous_end=before)
        self.writer.create_segment(header)
        self.journal = Journal(CONFIG, header, lambda: 8)
        self.ends.clear()
        for size in sizes:
            self.write(size)

    def group(self, size: int) -> JournalGroup:
        self.journal.append_meta(record_format.FENCE, bytes(size))
        group = self.journal.take_group()
        assert group is not None
        return group

    def write(self, size: int) -> None:
        group = self.group(size)
        self.writer.write(group)
        self.journal.on_durable(group)
        self.records += 1
        self.ends.append(group.end[1])

    def cut(self, size: int) -> MemoryFileSystem:
        """The same files, the last one with so many bytes."""
        after = MemoryFileSystem()
        for name in self.fs.list("journal"):
            path = f"journal/{name}"
            data = bytes(self.fs.contents(path))
            after.create(path).pwritev([data if path != LAST else data[:size]], 0)
        return after


def read(fs: MemoryFileSystem, mark: Mark | None = None) -> int:
    return sum(1 for _ in read_journal(fs, mark))


SIZES = [
    pytest.param((), id="no group"),
    pytest.param((100,), id="one group"),
    pytest.param((100, 100, 100, 100, 100), id="groups that end at a step of the allocation"),
    pytest.param((100, 2900, 40, 5000), id="groups over steps"),
    pytest.param((100, 15_000 - 1300), id="a segment that is full"),
]


@pytest.mark.parametrize("sizes", SIZES)
def test_a_cut_at_any_byte_is_refused(sizes: tuple[int, ...]) -> None:
    written = Written(*sizes)
    whole = len(written.fs.contents(LAST))
    end = written.ends[-1] if sizes else ALIGNMENT
    assert whole >= end + ALIGNMENT, "no room behind the last group"
    for size in range(end + ALIGNMENT):
        with pytest.raises(CorruptFileError, match=f"^{LAST}: "):
            read(written.cut(size))
    for size in range(end + ALIGNMENT, whole + 1, 64):  # nothing that was acknowledged is gone
        assert read(written.cut(size)) == written.records


def test_a_cut_before_the_mark_is_refused() -> None:
    """Everything before it is in the entry logs; what was behind it nobody knows."""
    written = Written(100, 2900, 40)
    for mark in (written.ends[1], written.ends[2]):
        assert read(written.fs, (2, mark)) == written.ends.index(written.ends[2]) - (
            written.ends.index(mark)
        )
        for size in range(0, written.ends[2] + ALIGNMENT, 128):
            with pytest.raises(CorruptFileError):
                read(written.cut(size), (2, mark))


def test_a_segment_that_was_the_last_one_of_an_earlier_start_is_checked_too() -> None:
    """The next segment doesn't say where it ends: it was begun by a start."""
    written = Written(100, 2900)
    header = SegmentHeader(3, record_format.make_tag(3, 9), ALIGNMENT, 0)
    written.writer.create_segment(header)
    assert read(written.fs) == 3
    with pytest.raises(CorruptFileError, match="cut off"):
        read(written.cut(written.ends[0]))


def test_journals_without_room_open_as_before() -> None:
    """Written by Magnetar before there was any: its files may end where their last group does."""
    written = Written(100, 100, 2900, has_room=False)
    assert read(written.cut(written.ends[-1])) == written.records
    assert read(written.cut(written.ends[1])) == written.records - 1
    assert read(written.cut(written.ends[1] + 700)) == written.records - 1


@pytest.mark.parametrize("at", range(44, 48))
def test_a_changed_byte_of_the_mark_of_room_is_damage(at: int) -> None:
    written = Written(100)
    written.fs.contents(LAST)[at] ^= 4
    with pytest.raises(CorruptFileError, match="second CRC"):
        read(written.fs)


@pytest.mark.parametrize("seed", range(60))
def test_what_a_power_cut_tears_is_dropped(seed: int) -> None:
    """In any call of a group's write, the file's growth among them."""
    rng = random.Random(seed)
    reached = set[str]()
    for call in itertools.count():
        written = Written(100, 1200)
        sizes = rng.sample([40, 900, 2000, 6000], 2)
        written.fs.on_call = lambda each: reached.add(each.kind)
        written.fs.faults = Faults(power_loss_at=written.fs.call_count + call)
        try:
            for size in sizes:
                written.write(size)
        except PowerLoss:
            after = written.fs.crash(rng)
            assert read(after) >= written.records
            assert read(after) <= written.records + 1
            continue
        break
    assert {"preallocate", "write"} <= reached
