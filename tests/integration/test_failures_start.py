"""Starts that must be refused, each with exit code 1 and a message that names what and where."""

import logging
import random
import socket
import subprocess
import time
from pathlib import Path

import pulsar
import pytest

from tests.integration.failure_tools import (
    check_history,
    keep,
    new_topic,
    publish,
    read_numbers,
    small_disk,
)
from tests.integration.failure_tools import open_reader as reader_of
from tests.official_client import open_client
from tests.standalone_process import StandaloneProcess

QUIET = logging.getLogger("pulsar client")


def test_two_processes_on_one_directory(tmp_path: Path) -> None:
    topic = new_topic()
    with StandaloneProcess(tmp_path / "data") as process:
        keep(process.service_url, topic)
        receipts = publish(process.service_url, topic, range(100))
        said = StandaloneProcess(tmp_path / "data").refuse_to_start()
        assert "magnetar: can't start: " in said
        assert str(tmp_path / "data") in said
        assert "another process is using it" in said
        receipts |= publish(process.service_url, topic, range(100, 200))
        check_history(process.service_url, topic, receipts)


@pytest.mark.parametrize(("which", "spoken"), [("port", "binary protocol"), ("web_port", "HTTP")])
def test_a_port_that_is_taken(tmp_path: Path, which: str, spoken: str) -> None:
    process = StandaloneProcess(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = process.refuse_to_start(**{which: port})
        assert "magnetar: can't start: " in said
        assert f"Address already in use: {spoken} on 127.0.0.1:{port}" in said
    with process:  # and nothing is left behind that would keep the next one out
        publish(process.service_url, new_topic(), range(10))


def test_a_data_directory_that_can_t_be_made(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    said = StandaloneProcess(tmp_path / "data").refuse_to_start()
    assert f"magnetar: can't start: [Errno 17] File exists: '{tmp_path}/data'" in said


def test_a_data_directory_that_is_not_writable(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data", 8) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        said = StandaloneProcess(disk).refuse_to_start()
    assert "magnetar: can't start: " in said
    assert "Read-only file system" in said
    assert str(tmp_path / "data") in said


def test_killed_while_starting(tmp_path: Path) -> None:
    """Whenever the kill comes, the next start finishes what was begun."""
    rng, topic = random.Random(3), new_topic()
    process = StandaloneProcess(tmp_path / "data")
    for _ in range(8):  # first on an empty directory
        process.launch_and_kill(after_s=0.1 + rng.random() * 0.5)
    with process:
        keep(process.service_url, topic)
        receipts = publish(process.service_url, topic, range(300))
        process.kill()
        for _ in range(8):  # then during replay and recovery
            process.launch_and_kill(after_s=0.1 + rng.random() * 0.5)
        process.start()
        check_history(process.service_url, topic, receipts)


def test_a_clock_that_jumps_back_keeps_order_and_receipts(tmp_path: Path) -> None:
    """No decision rests on the wall clock: ids come from ledgers, waits from the monotonic one."""
    topic, jump = new_topic(), tmp_path / "jump"
    command = ("tests.jumping_clock", str(jump))
    with StandaloneProcess(tmp_path / "data", command=command) as process:
        url = process.service_url
        keep(url, topic)
        receipts = publish(url, topic, range(100))
        for seconds in (-86_400, 86_400, -5):
            jump.write_text(str(seconds))
            first = len(receipts)
            more = publish(url, topic, range(first, first + 100))
            assert min(more.values()) > max(receipts.values())
            receipts |= more
        with reader_of(url, topic) as reader:
            started = time.monotonic()
            assert read_numbers(reader, 400) == list(range(400))
            assert time.monotonic() - started < 25
        process.kill()
        process.start()
        check_history(process.service_url, topic, receipts)


def test_pulsars_default_settings_start_and_a_promise_that_is_not_kept_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in its standalone.conf, which has one copy of everything."""
    rows = Path("tests/unit/broker/pulsar_settings_4_2_4.tsv").read_text().splitlines()
    settings = dict(row.split("\t") for row in rows)
    quorums = [
        f"managedLedgerDefault{name}" for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")
    ]
    file = tmp_path / "standalone.conf"
    given = (
        settings | dict.fromkeys(quorums, "1") | {"subscriptionTypesEnabled": "Exclusive,Shared"}
    )
    file.write_text("".join(f"{key}={text}\n" for key, text in given.items()))
    process = StandaloneProcess(tmp_path / "data", "--config", str(file))
    with process:
        client = open_client(process.service_url, operation_timeout_seconds=30)
        client.subscribe("types", "shared", pulsar.ConsumerType.Shared)
        with pytest.raises(pulsar.NotAllowedError):
            client.subscribe("types", "failover", pulsar.ConsumerType.Failover)
        client.close()
    monkeypatch.setenv("PULSAR_PREFIX_webServiceHaProxyProtocolEnabled", "true")
    assert "webServiceHaProxyProtocolEnabled=true (environment)" in process.refuse_to_start()
