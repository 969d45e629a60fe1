"""Clients that stall, vanish or come in thousands: they cost a bounded amount, and only theirs."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.integration.failure_tools import (
    new_topic,
    open_producer,
    open_reader,
    publish,
    read_numbers,
    send_all,
    take_receipts,
)
from tests.raw_client import ConnectionClosedError, RawClient
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

MIB = 1024 * 1024
FILES_MAX = 256


def test_a_consumer_that_never_reads_costs_bounded_memory_and_nobody_waits(tmp_path: Path) -> None:
    """200 MB pass by a stalled shared consumer and a stalled reader of the same topic."""
    topic, count, size = new_topic(), 3200, 64 * 1024
    options = ("--set", "managedLedgerCacheSizeMB=32", "--set", "dbStorage_writeCacheMaxSizeMb=16")
    with StandaloneProcess(tmp_path / "data", *options) as process:
        url = process.service_url
        publish(url, topic, range(100), size)  # warm: buffers and caches exist
        stalled = [RawClient(url) for _ in range(8)]
        with contextlib.ExitStack() as stack:
            for number, client in enumerate(stalled):
                stack.enter_context(client)
                answer = client.subscribe(topic, f"stalled-{number}")
                assert isinstance(answer, pb.CommandSuccess), answer
                client.flow(1_000_000)  # and never reads again
            reader = stack.enter_context(RawClient(url))
            answer = reader.subscribe(topic, "works")
            assert isinstance(answer, pb.CommandSuccess), answer
            received: list[int] = []
            thread = threading.Thread(target=lambda: received.extend(read_numbers(reader, count)))
            before = process.resident_bytes()
            thread.start()
            with open_producer(url, topic) as producer:
                for first in range(0, count, 100):
                    send_all(producer, range(first, first + 100), size)
                    take_receipts(producer, 100)
            thread.join()
            assert received == list(range(count))
            # Entry cache 32 MiB, two write caches of 16, and what waits for 8 sockets
            # (dispatch/unsent_budget.py); the rest is what is under way.
            grown = process.peak_bytes() - before
            assert grown < 150 * MIB, f"{grown // MIB} MiB"


def test_a_producer_that_stops_in_the_middle_of_a_frame_holds_up_nobody(tmp_path: Path) -> None:
    topic = new_topic()
    with StandaloneProcess(tmp_path / "data") as process:
        url = process.service_url
        before = process.resident_bytes()
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                slow = stack.enter_context(open_producer(url, topic))
                slow.send_bytes(RawClient.send_frame(0, bytes(5 * MIB - 200))[:5000])
            receipts = publish(url, topic, range(100))
            with open_reader(url, topic) as reader:
                assert read_numbers(reader, 100) == list(receipts)
            # 250 MB were announced, 250 kB sent
            assert process.resident_bytes() - before < 50 * MIB


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[StandaloneProcess]:
    """Silence of two seconds is asked about, and after two more it ends the connection."""
    options = ("--set", "keepAliveIntervalSeconds=2")
    with StandaloneProcess(tmp_path / "data", *options) as process:
        yield process


def test_a_peer_that_never_connects_is_closed(impatient: StandaloneProcess) -> None:
    with (
        RawClient(impatient.service_url, connect=False) as silent,
        RawClient(impatient.service_url, connect=False) as half,
    ):
        half.send_bytes(b"\0\0\0\x20")  # the beginning of a frame
        assert silent.expect_closed() == []
        assert half.expect_closed() == []


def test_a_peer_that_vanished_without_a_word_is_closed(impatient: StandaloneProcess) -> None:
    """It neither reads nor answers; its producer name and subscription are free again."""
    url, topic = impatient.service_url, new_topic()
    with RawClient(url) as gone:
        gone.create_producer(topic, producer_name="name")
        gone.subscribe(topic, "exclusive")
        wait_until(lambda: "closed: " in impatient.log, "the dead peer is closed")
        with RawClient(url) as successor:
            answer = successor.create_producer(topic, producer_name="name")
            assert isinstance(answer, pb.CommandProducerSuccess), answer
            taken = successor.subscribe(topic, "exclusive")
            assert isinstance(taken, pb.CommandSuccess), taken


@pytest.mark.parametrize("which", ["port", "web_port"])
def test_more_connections_than_files(tmp_path: Path, which: str) -> None:
    """Those above the quota are refused; the others work on, and all is well when they leave."""
    topic = new_topic()
    options = ("--set", "flush_interval_ms=100")  # files are opened meanwhile
    with StandaloneProcess(tmp_path / "data", *options, files_max=FILES_MAX) as process:
        url, address = process.service_url, ("127.0.0.1", getattr(process, which))
        with open_producer(url, topic) as producer, open_reader(url, topic) as reader:
            with contextlib.ExitStack() as crowd:
                for _ in range(FILES_MAX * 4):
                    crowd.enter_context(socket.create_connection(address, 30))
                wait_until(lambda: "connections: refusing more than" in process.log, "told")
                send_all(producer, range(100))
                assert read_numbers(reader, 100) == list(take_receipts(producer, 100))
                before = process.cpu_seconds()
                with pytest.raises(TimeoutError):
                    reader.receive_message(2)  # an idle moment, to measure
                assert process.cpu_seconds() - before < 0.4
                assert process.log.count("ERROR") == 1
                assert process.log.count("\n") < 20, process.log
            wait_until(lambda: answers(process), "new connections are served again")
            publish(url, topic, range(100, 110))


def answers(process: StandaloneProcess) -> bool:
    """Both protocols take a new client."""
    try:
        with RawClient(process.service_url, timeout_s=5):
            return (
                httpx.get(f"{process.admin_url}/admin/v2/clusters", timeout=30).status_code == 200
            )
    except (OSError, AssertionError, ConnectionClosedError, httpx.HTTPError):
        return False
