"""A full disk and a failing one below a real process (docs/internals/failures.md)."""

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.integration.failure_tools import (
    check_history,
    fill,
    keep,
    new_topic,
    open_producer,
    open_reader,
    publish,
    read_numbers,
    send_all,
    small_disk,
    take_receipts,
)
from tests.raw_client import ConnectionClosedError, Position, RawClient
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

# Above the reserve of free space (256 MiB) below which a bookie is read-only
DISK_MB = 320
JOURNAL_FULL = "no space for the journal, writers wait: "


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "data", DISK_MB) as path:
        yield path


def fill_under_load(
    process: StandaloneProcess, producer: RawClient, count: int
) -> tuple[dict[int, Position], Path]:
    """Send ``count`` messages and fill the disk among them; the receipts until then, the filler."""
    send_all(producer, range(100), 1000)
    receipts = take_receipts(producer, 100)
    filler = fill(process.data)
    send_all(producer, range(100, count), 1000)  # the journal has room for about 1 MiB
    wait_until(lambda: JOURNAL_FULL in process.log, "the journal is full")
    with contextlib.suppress(TimeoutError):
        while True:
            receipt = producer.receive(0.5)[0].send_receipt
            at = receipt.message_id
            receipts[receipt.sequence_id] = (at.ledgerId, at.entryId)
    assert 100 <= len(receipts) < count
    return receipts, filler


def test_on_a_full_disk_writers_wait_readers_read_and_space_heals(disk: Path) -> None:
    topic, count = new_topic(), 4000
    with StandaloneProcess(disk) as process:
        url = process.service_url
        with open_reader(url, topic) as reader, open_producer(url, topic) as producer:
            receipts, filler = fill_under_load(process, producer, count)
            segment = process.log.split(JOURNAL_FULL)[1].splitlines()[0]
            assert segment.startswith(f"{disk}/bookie/journal/")
            assert segment.endswith(".journal: No space left on device")
            # Readers read what was acknowledged, and nothing else.
            assert read_numbers(reader, len(receipts)) == list(receipts)
            # Nobody spins, and other requests are answered.
            before = process.cpu_seconds()
            time.sleep(1)  # the time over which the CPU is measured
            assert process.cpu_seconds() - before < 0.2
            assert (
                httpx.get(f"{process.admin_url}/admin/v2/clusters", timeout=30).status_code == 200
            )
            filler.unlink()
            receipts |= take_receipts(producer, count - len(receipts))
            assert list(receipts) == list(range(count))
            assert "the bookie takes writes again" in process.log
            publish(url, new_topic(), range(10))
        check_history(url, topic, receipts)
        assert process.stop() == 0


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_process_that_ends_on_a_full_disk_has_everything_acknowledged(
    disk: Path, end: str
) -> None:
    topic, count = new_topic(), 4000
    with StandaloneProcess(disk) as process:
        keep(process.service_url, topic)
        with open_producer(process.service_url, topic) as producer:
            receipts, filler = fill_under_load(process, producer, count)
            if end == "kill":
                process.kill()
            else:
                assert process.stop() == 3
                assert "stopped while there was no space for the journal" in process.log
        said = process.refuse_to_start()
        # Which of both is the first without space is a matter of what the filler left.
        refused = "can't start: "
        assert (
            f"{refused}metadata database {disk}/metadata/metadata.sqlite: [Errno 28]" in said
            or f"{refused}[Errno 28] No space left on device: '{disk}/bookie'" in said
        ), said
        filler.unlink()
        process.start()
        check_history(process.service_url, topic, receipts)
        publish(process.service_url, topic, range(count, count + 10))


def test_below_the_reserve_producers_get_an_error_until_there_is_space(disk: Path) -> None:
    """Its own writes never fill the disk: the bookie is read-only before."""
    topic = new_topic()
    with StandaloneProcess(disk, "--set", "flush_interval_ms=100") as process:
        url = process.service_url
        keep(url, topic)
        receipts = publish(url, topic, range(100))
        with open_reader(url, topic) as reader:
            filler = disk / "filler"
            filler.write_bytes(bytes(100 << 20))
            with open_producer(url, topic) as producer:  # the next flush looks at the disk
                send_all(producer, [100])
            wait_until(lambda: "the bookie is read-only" in process.log, "read-only")
            assert f"{disk}/bookie: disk usage" in process.log
            with open_producer(url, topic) as producer:
                send_all(producer, [101])
                told = producer.receive()[0]
                assert told.type in (pb.BaseCommand.SEND_ERROR, pb.BaseCommand.CLOSE_PRODUCER)
            assert "nobody can replace embedded (READ_ONLY)" in process.log
            assert read_numbers(reader, 100) == list(range(100))
            filler.unlink()
            wait_until(lambda: "the bookie takes writes again" in process.log, "writable")
            receipts |= publish(url, topic, range(102, 110))
        check_history(url, topic, receipts)


def test_a_failing_sync_ends_the_process_and_loses_nothing(tmp_path: Path) -> None:
    """One failed sync is final: what it was for is not acknowledged, never tried again."""
    topic, trigger = new_topic(), tmp_path / "fails"
    command = ("tests.faulty_standalone", "journal.group", str(trigger))
    with StandaloneProcess(tmp_path / "data", command=command) as process:
        keep(process.service_url, topic)
        with open_producer(process.service_url, topic) as producer:
            send_all(producer, range(200))
            receipts = take_receipts(producer, 200)
            trigger.touch()
            send_all(producer, range(200, 300))
            told = producer.expect_closed()
            assert pb.BaseCommand.SEND_RECEIPT not in [command.type for command in told]
        assert process.wait_for_end() == 3
        assert "magnetar: storage failed" in process.log
        assert "Input/output error: 'journal/0000000000000001.journal'" in process.log
        trigger.unlink()
        process.start()
        check_history(process.service_url, topic, receipts)
        publish(process.service_url, topic, range(300, 310))


def test_a_failing_entry_log_ends_the_process_and_the_journal_has_it_all(tmp_path: Path) -> None:
    topic, trigger = new_topic(), tmp_path / "fails"
    command = ("tests.faulty_standalone", "entry-log.data", str(trigger))
    options = ("--set", "flush_interval_ms=300")
    with StandaloneProcess(tmp_path / "data", *options, command=command) as process:
        keep(process.service_url, topic)
        with open_producer(process.service_url, topic) as producer:
            send_all(producer, range(200))
            receipts = take_receipts(producer, 200)
            trigger.touch()
            with contextlib.suppress(ConnectionClosedError):
                for number in itertools.count(200):  # until a flush has met the fault
                    send_all(producer, [number])
                    receipts |= take_receipts(producer, 1)
        assert process.wait_for_end() == 3
        assert "magnetar: storage failed" in process.log
        assert "Input/output error" in process.log
        trigger.unlink()
        process.start()
        check_history(process.service_url, topic, receipts)
