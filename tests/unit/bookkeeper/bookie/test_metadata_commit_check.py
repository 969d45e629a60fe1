"""The state of embedded metadata in journal and index."""

import pytest

from magnetar.bookkeeper.bookie.config import StorageConfig
from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.journal.journal import Journal, JournalGroup
from magnetar.bookkeeper.bookie.journal.journal_format import SegmentHeader
from magnetar.bookkeeper.bookie.journal.journal_reader import read_group
from magnetar.bookkeeper.bookie.metadata_commit_check import (
    decode_mark,
    encode_mark,
    follow_metadata,
)
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage.flush import flush_steps
from magnetar.bookkeeper.bookie.storage.storage_startup import open_storage
from magnetar.bookkeeper.errors import StaleMetadataError
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.store import CommitMark
from tests.memory_file_system import MemoryFileSystem
from tests.memory_store import MemoryStore

ID = b"a store's own id"


class NumberedStore(EmbeddedMetadataStore):
    """As if it were a file."""

    now = CommitMark(ID, 1)

    @property
    def commit_mark(self) -> CommitMark:
        return self.now


def numbered_store() -> NumberedStore:
    store = NumberedStore.open(None)
    assert isinstance(store, NumberedStore)
    return store


def marks_of(header: SegmentHeader, group: JournalGroup) -> list[CommitMark | None]:
    records = read_group(header, b"".join(map(bytes, group.buffers)))
    return [decode_mark(each.body) for each in records if each.kind == record_format.METADATA_MARK]


def test_a_group_says_once_what_it_rests_on() -> None:
    header = SegmentHeader(1, record_format.make_tag(1, 7), 4096, 0)
    journal, now = Journal(StorageConfig(), header, lambda: 7), CommitMark(ID, 5)
    journal.metadata_mark = lambda: encode_mark(now)
    found = []
    for commit in (5, 5, 6, 6, 9):
        journal.append_meta(record_format.FENCE, journal_format.LEDGER_ID.pack(3))
        now = CommitMark(ID, commit)  # a commit between the record and the write
        group = journal.take_group()
        assert group is not None
        assert group.size % 4096 == 0
        found.append(marks_of(header, group))
        journal.on_durable(group)
    assert found == [[CommitMark(ID, 5)], [], [CommitMark(ID, 6)], [], [CommitMark(ID, 9)]]


def test_every_group_fits_its_segment() -> None:
    """Also with the record that is added last."""
    header = SegmentHeader(1, record_format.make_tag(1, 7), 4096, 0)
    config = StorageConfig(journal_segment_bytes=64 << 10, journal_group_bytes_max=16 << 10)
    for size in range(1, 60_000, 997):
        journal, commits = Journal(config, header, lambda: 7), iter(range(1, 1000))
        journal.metadata_mark = lambda commits=commits: encode_mark(  # type: ignore[misc]
            CommitMark(ID, next(commits))
        )
        for _ in range(12):
            journal.append_meta(record_format.FENCE, bytes(size))
            group = journal.take_group()
            assert group is not None
            assert group.size == sum(map(len, group.buffers))
            is_alone = group.offset == header.alignment
            assert is_alone or group.offset + group.size <= config.journal_segment_bytes
            journal.on_durable(group)


async def test_it_survives_in_the_journal_and_in_the_index() -> None:
    files, store = MemoryFileSystem(), numbered_store()
    index = MemoryStore(files)
    storage = open_storage(files, index, StorageConfig(), lambda: 7)
    follow_metadata(storage, store, "bookie")
    for commit in (40, 41):
        store.now = CommitMark(ID, commit)
        storage.fence(commit, b"key", object())
        group = storage.journal.take_group()
        assert group is not None
        storage.writer.write(group)
        storage.journal.on_durable(group)
    again = open_storage(files, index, StorageConfig(), lambda: 8)  # from the journal
    assert decode_mark(again.metadata_mark()) == CommitMark(ID, 41)
    third = open_storage(files, index, StorageConfig(), lambda: 9)  # from the index
    assert decode_mark(third.metadata_mark()) == CommitMark(ID, 41)
    follow_metadata(third, store, "bookie")
    store.now = CommitMark(ID, 44)
    list(flush_steps(third, third.begin_flush()))
    fourth = open_storage(files, index, StorageConfig(), lambda: 9)
    assert decode_mark(fourth.metadata_mark()) == CommitMark(ID, 44)
    for now in (CommitMark(ID, 43), CommitMark(bytes(16), 99)):
        store.now = now
        with pytest.raises(StaleMetadataError, match="bookie"):
            follow_metadata(fourth, store, "the bookie's directory")
    store.now = CommitMark(ID, 44)
    follow_metadata(fourth, store, "bookie")


async def test_of_several_journals_the_newest_state_counts() -> None:
    files, store, config = MemoryFileSystem(), numbered_store(), StorageConfig(journals=2)
    index = MemoryStore(files)
    storage = open_storage(files, index, config, lambda: 7)
    follow_metadata(storage, store, "bookie")
    for commit, ledger_id in ((40, 1), (41, 0)):  # the first journal is read first
        store.now = CommitMark(ID, commit)
        storage.fence(ledger_id, b"key", object())
        journal = storage.journal_of(ledger_id)
        group = journal.take_group()
        assert group is not None
        storage.writers[ledger_id].write(group)
        journal.on_durable(group)
    again = open_storage(files, index, config, lambda: 8)
    assert decode_mark(again.metadata_mark()) == CommitMark(ID, 41)
