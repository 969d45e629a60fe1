"""One changed byte on a real process's disk: told by name, and nothing else is hurt."""

import re
from pathlib import Path

import httpx
import pytest

from magnetar.bookkeeper.bookie.storage import index_format as index_format
from tests.integration.failure_tools import (
    check_history,
    flip_byte,
    keep,
    new_topic,
    open_producer,
    open_reader,
    publish,
    read_numbers,
    send_all,
    take_receipts,
)
from tests.raw_client import Position, RawClient
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until


class Image:
    """A stopped or killed process with two topics of 200 messages; where its files are."""

    def __init__(self, data: Path, *options: str) -> None:
        self.process = StandaloneProcess(data, *options)
        self.topics = new_topic(), new_topic()
        self.receipts: list[dict[int, Position]] = []

    def start(self) -> None:
        self.process.start()
        for topic in self.topics:
            keep(self.process.service_url, topic)
            self.receipts.append(publish(self.process.service_url, topic, range(200), 1000))

    def only(self, pattern: str) -> Path:
        (path,) = self.process.data.glob(pattern)
        return path

    def check(self, which: int) -> None:
        url, topic = self.process.service_url, self.topics[which]
        check_history(url, topic, self.receipts[which])
        publish(url, topic, range(200, 210))


@pytest.fixture
def killed(tmp_path: Path) -> Image:
    """Everything is in the journal, nothing in an entry log."""
    image = Image(tmp_path / "data")
    image.start()
    image.process.kill()
    return image


@pytest.fixture
def stopped(tmp_path: Path) -> Image:
    """Everything is in the entry log and the index."""
    image = Image(tmp_path / "data")
    image.start()
    assert image.process.stop() == 0
    return image


def test_a_changed_byte_in_the_journal_refuses_the_start(killed: Image) -> None:
    """Acknowledged entries may be gone, so nothing may be denied: a human decides."""
    journal = killed.only("bookie/journal/*.journal")
    damaged = journal.read_bytes().index(b"x" * 500)
    flip_byte(journal, damaged)
    said = killed.process.refuse_to_start()
    assert f"can't start: journal/{journal.name}: damaged journal group before" in said
    assert "at offset " in said
    flip_byte(journal, damaged)  # restored from a good copy, say: the refusal spoilt nothing
    with killed.process:
        killed.check(0)
        killed.check(1)


def test_a_missing_journal_segment_refuses_the_start(killed: Image) -> None:
    journal = killed.only("bookie/journal/*.journal")
    hidden = journal.rename(journal.with_suffix(".away"))
    said = killed.process.refuse_to_start()
    assert f"can't start: journal/{journal.name}: the journal segment" in said
    hidden.rename(journal)
    with killed.process:
        killed.check(0)


def test_a_journal_segment_that_was_cut_off_refuses_the_start(killed: Image) -> None:
    """At the end of a group, too, where a crash would have left the same bytes."""
    journal = killed.only("bookie/journal/*.journal")
    data = journal.read_bytes()
    end = data.rindex(b"x" * 500) // 4096 * 4096 + 4096  # of the last group
    for size in (end, end + 100, end - 4096, end // 2, 4096, 0):
        journal.write_bytes(data[:size])
        said = killed.process.refuse_to_start()
        assert f"can't start: journal/{journal.name}: " in said
    journal.write_bytes(data[: end + 4096])  # nothing is missing
    with killed.process:
        killed.check(0)
        killed.check(1)


def test_a_torn_tail_of_the_journal_is_no_damage(killed: Image) -> None:
    """What was cut off was never acknowledged."""
    journal = killed.only("bookie/journal/*.journal")
    end = journal.read_bytes().rindex(b"x" * 500) + 500
    with journal.open("r+b") as file:
        file.seek(end // 4096 * 4096 + 4096)
        file.write(b"half a group that the power cut off")
    with killed.process:
        killed.check(0)
        killed.check(1)


def test_a_changed_byte_in_an_entry_log_hurts_the_readers_of_that_entry_only(
    stopped: Image,
) -> None:
    log = stopped.only("bookie/entry-log/*.log")
    flip_byte(log, log.read_bytes().index(b"%012d" % 100) + 500)  # of the topic written first
    with stopped.process as process:
        topic = stopped.topics[0]
        with open_reader(process.service_url, topic) as reader:
            assert read_numbers(reader, 100) == list(range(100))
            reader.flow(100)
            wait_until(lambda: f"entry-log/{log.name}: no intact record" in process.log, "told")
            with pytest.raises(TimeoutError):  # neither the bad entry nor those behind it
                reader.receive_message(0.5)
            with open_producer(process.service_url, topic) as producer:  # the topic still takes
                send_all(producer, range(200, 210))
                take_receipts(producer, 10)
        # An operator moves the subscription over the bad entry.
        path = topic.replace("://", "/") + "/subscription/keeper/skip/101"
        assert httpx.post(f"{process.admin_url}/admin/v2/{path}", timeout=30).status_code == 204
        with RawClient(process.service_url) as observer:
            observer.subscribe(topic, "keeper")
            assert read_numbers(observer, 99) == list(range(101, 200))
        before = process.cpu_seconds()
        stopped.check(1)
        assert process.cpu_seconds() - before < 2


def test_a_changed_byte_in_the_index_hurts_the_readers_of_that_run_only(stopped: Image) -> None:
    """LMDB's pages have no checksums, so every value carries one over its key and itself."""
    ledger_id, first = min(stopped.receipts[0].values())
    spoil_values(stopped.only("bookie/index/data.mdb"), index_format.run_key(ledger_id, first))
    with stopped.process as process:
        with open_reader(process.service_url, stopped.topics[0]) as reader:
            reader.flow(200)
            wait_until(lambda: "does not fit its CRC" in process.log, "told")
            with pytest.raises(TimeoutError):
                reader.receive_message(0.5)
        stopped.check(1)


@pytest.mark.parametrize("key", [index_format.MARK_KEY, index_format.FORMAT_KEY])
def test_a_changed_byte_in_what_a_start_needs_of_the_index_refuses_it(
    stopped: Image, key: bytes
) -> None:
    spoil_values(stopped.only("bookie/index/data.mdb"), key)
    said = stopped.process.refuse_to_start()
    assert f"can't start: index: value of key {key.hex()} does not fit its CRC" in said


def test_an_index_that_is_no_index_refuses_the_start(stopped: Image) -> None:
    index = stopped.only("bookie/index/data.mdb")
    data = bytearray(index.read_bytes())
    data[:8192] = bytes(8192)  # both meta pages
    index.write_bytes(data)
    said = stopped.process.refuse_to_start()
    assert "can't start: index/data.mdb: unreadable (" in said


@pytest.mark.parametrize(
    ("needle", "told"),
    [
        pytest.param(b"SQLite format 3", "file is not a database", id="header"),
        pytest.param(b"adminRoles", "/admin/policies/public", id="value"),
        pytest.param(b"/managed-ledgers/public/default/persistent/failures", "damaged", id="path"),
    ],
)
def test_a_changed_byte_in_the_metadata_refuses_the_start(
    stopped: Image, needle: bytes, told: str
) -> None:
    database = stopped.only("metadata/metadata.sqlite")
    data = database.read_bytes()
    at = data.index(needle)
    while at >= 0:
        flip_byte(database, at + 1)
        at = data.find(needle, at + 1)
    said = stopped.process.refuse_to_start()
    assert f"can't start: metadata database {database}: " in said
    assert told in said


def test_a_changed_byte_in_the_metadata_wal_is_repaired(killed: Image) -> None:
    """SQLite drops the frame and everything behind it without a word: the log has it all."""
    wal = killed.only("metadata/metadata.sqlite-wal")
    assert wal.stat().st_size > 10_000
    flip_byte(wal, 5000)
    with killed.process:
        killed.check(0)
        killed.check(1)
        later = new_topic()  # its ledger has an id that was never given out before
        keep(killed.process.service_url, later)
        receipts = publish(killed.process.service_url, later, range(20))
        before = {ledger for each in killed.receipts for ledger, _ in each.values()}
        assert min(receipts.values())[0] > max(before)
        check_history(killed.process.service_url, later, receipts)
        assert re.search(
            r"metadata\.sqlite is at commit \d+; its log has \d+ more", killed.process.log
        )


def test_a_missing_metadata_log_refuses_the_start(killed: Image) -> None:
    log = max(killed.process.data.glob("metadata/metadata.sqlite-log-*"))
    hidden = log.rename(log.with_suffix(".away"))
    said = killed.process.refuse_to_start()
    assert f"can't start: metadata database {log}: this file is missing" in said
    hidden.rename(log)
    with killed.process:
        killed.check(0)


def spoil_values(index: Path, key: bytes) -> None:
    """Change one byte in every copy of a key's value: LMDB keeps it right behind the key."""
    data = index.read_bytes()
    at = data.index(key)
    while at >= 0:
        flip_byte(index, at + len(key) + 1)
        at = data.find(key, at + 1)
