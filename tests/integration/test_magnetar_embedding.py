"""``magnetar.embedded``: the official client against both modes, and nothing left afterwards."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import psutil
import pulsar
import pytest

import magnetar
from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.server.standalone import Standalone
from magnetar.embedding import EmbeddedBroker
from magnetar.errors import EmbeddedError
from tests.official_client import open_client

Mode = Literal["thread", "process"]
ROOT = Path(__file__).resolve().parents[2]
_S_MAX = 30.0

both_modes = pytest.mark.parametrize("mode", ["thread", "process"])


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads, children, and files in the temporary directory are as before the test."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    threads, children = set(threading.enumerate()), set(psutil.Process().children())
    yield
    assert set(threading.enumerate()) <= threads
    assert set(psutil.Process().children()) <= children
    assert list(temporary.iterdir()) == []


def exchange(broker: EmbeddedBroker, topic: str = "hello", payload: bytes = b"x") -> None:
    client = quiet_client(broker)
    try:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(payload)
        assert consumer.receive(int(_S_MAX * 1000)).data() == payload
    finally:
        client.close()


def quiet_client(broker: EmbeddedBroker) -> pulsar.Client:
    return open_client(broker.service_url)


def receive_kept_and_divide(broker: EmbeddedBroker) -> None:
    client = quiet_client(broker)
    message = client.subscribe("kept", "s").receive(int(_S_MAX * 1000))
    assert message.data() == b"from the first run"
    client.close()
    divide(1, 0)


def clusters(broker: EmbeddedBroker) -> list[str]:
    url = f"{broker.web_url}/admin/v2/clusters"
    with urllib.request.urlopen(url, timeout=_S_MAX) as answer:
        names: list[str] = json.loads(answer.read())
        return names


def listens(url: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), _S_MAX):
            return True
    except ConnectionRefusedError:
        return False


@both_modes
def test_messages_go_through_and_everything_goes_away(mode: Mode) -> None:
    """With settings by either name."""
    config = BrokerConfig(cluster_name="mine", broker_service_port=1, data_dir="elsewhere")
    with magnetar.embedded(
        mode=mode, config=config, maxMessageSize=1000, default_num_partitions=2
    ) as broker:
        exchange(broker)
        assert clusters(broker) == ["mine"]
        assert broker.config.max_message_size == 1000
        assert broker.config.default_num_partitions == 2
        client = quiet_client(broker)
        with pytest.raises(pulsar.MessageTooBig):
            client.create_producer("t", chunking_enabled=False).send(bytes(2000))
        client.close()
        assert broker.path.is_dir()
        assert broker.error is None
        assert (broker.pid == os.getpid()) == (mode == "thread")
    assert not listens(broker.service_url)
    assert not listens(broker.web_url)
    assert not broker.path.exists()


def test_several_at_once_share_nothing() -> None:
    with (
        magnetar.embedded() as first,
        magnetar.embedded() as second,
        magnetar.embedded(mode="process") as third,
    ):
        brokers = (first, second, third)
        assert len({broker.service_url for broker in brokers}) == 3
        assert len({broker.path for broker in brokers}) == 3
        for number, broker in enumerate(brokers):
            exchange(broker, payload=b"%d" % number)
        second.__exit__(None, None, None)
        exchange(first, "again")
        exchange(third, "again")


@both_modes
def test_a_directory_of_ones_own_is_kept_and_served_again(mode: Mode, tmp_path: Path) -> None:
    broker = magnetar.embedded(tmp_path / "mine", mode)
    with broker:
        client = quiet_client(broker)
        client.subscribe("kept", "s")
        client.create_producer("kept").send(b"from the first run")
        client.close()
    with pytest.raises(ZeroDivisionError), broker:  # the block's own error comes through
        receive_kept_and_divide(broker)
    assert not listens(broker.service_url)
    assert (tmp_path / "mine").is_dir()


def test_what_can_never_work_is_said_before_the_start() -> None:
    with pytest.raises(ConfigError, match="maxMesageSize: no such setting"):
        magnetar.embedded(maxMesageSize=1)
    with pytest.raises(ConfigError, match="maxMessageSize"):
        magnetar.embedded(maxMessageSize="big")
    with pytest.raises(ConfigError, match="give it as path"):
        magnetar.embedded(dataDir="somewhere")
    with pytest.raises(ValueError, match="fiber"):
        magnetar.embedded(mode="fiber")  # type: ignore[arg-type]  # what is tested
    broker = magnetar.embedded()
    with broker, pytest.raises(EmbeddedError, match="running already"):
        broker.__enter__()


@both_modes
def test_a_start_that_fails_tells_why(mode: Mode, tmp_path: Path) -> None:
    with magnetar.embedded(tmp_path / "used") as first:
        port = urlsplit(first.service_url).port
        with pytest.raises(EmbeddedError, match="ddress already in use") as caught:
            magnetar.embedded(mode=mode, brokerServicePort=port).__enter__()
        if mode == "thread":
            assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(EmbeddedError, match=r"another process is using it|in use"):
            magnetar.embedded(tmp_path / "used", mode).__enter__()
        exchange(first)
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedError, match="file"):
        magnetar.embedded(tmp_path / "file", mode).__enter__()
    with pytest.raises(EmbeddedError, match="not ready within 0 s"):
        magnetar.embedded(mode=mode, start_timeout_s=0.0).__enter__()


@both_modes
async def test_from_asyncio_the_loop_runs_on(mode: Mode) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def exchange_and_divide() -> None:
        nonlocal turns
        assert turns > 0
        await asyncio.get_running_loop().run_in_executor(None, exchange, broker)
        turns = 0
        divide(1, 0)

    counting = asyncio.create_task(count())
    broker = magnetar.embedded(mode=mode)
    with pytest.raises(ZeroDivisionError):
        async with broker:
            await exchange_and_divide()
    assert turns > 0
    counting.cancel()
    assert not listens(broker.service_url)
    with pytest.raises(EmbeddedError, match="not ready within 0 s"):
        async with magnetar.embedded(mode=mode, start_timeout_s=0.0):
            pass
    # The executor's thread is the test's own.
    await asyncio.get_running_loop().shutdown_default_executor()


@both_modes
async def test_a_cancelled_start_leaves_nothing(mode: Mode) -> None:
    broker = magnetar.embedded(mode=mode)
    task = asyncio.create_task(broker.__aenter__())
    await asyncio.sleep(0)  # it has launched
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_process_that_dies_is_told() -> None:
    broker = magnetar.embedded(mode="process", clock="virtual")
    with pytest.raises(EmbeddedError, match="ended before it was asked to") as caught, broker:
        psutil.Process(broker.pid).kill()
    assert "exit code -9" in str(caught.value)
    with pytest.raises(ZeroDivisionError) as noted, broker:
        kill_and_divide(broker)
    assert "exit code -9" in noted.value.__notes__[0]


def test_a_failed_disk_in_a_thread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Standalone.start

    async def start_and_fail(self: Standalone) -> None:
        await start(self)
        self.failed.set_result(OSError("the disk is gone"))

    monkeypatch.setattr(Standalone, "start", start_and_fail)
    broker = magnetar.embedded()
    with pytest.raises(EmbeddedError, match="the disk is gone") as caught, broker:
        pass
    assert isinstance(caught.value.__cause__, OSError)
    assert not listens(broker.service_url)


def kill_and_divide(broker: EmbeddedBroker) -> None:
    process = psutil.Process(broker.pid)
    process.kill()
    with pytest.raises(EmbeddedError, match="ended"):
        broker.advance("1h")
    divide(1, 0)


def divide(one: int, other: int) -> float:
    return one / other


def run_script(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        timeout=2 * _S_MAX,
        check=False,
    )


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    done = run_script(
        "import magnetar, os, signal, sys\n"
        f"broker = magnetar.embedded({str(tmp_path / 'data')!r}, 'process').__enter__()\n"
        "print(broker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
        tmp_path,
    )
    assert done.returncode == -9, done.stderr
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(_S_MAX)


@both_modes
def test_a_program_that_ends_within_the_block_leaves_nothing(mode: Mode, tmp_path: Path) -> None:
    done = run_script(
        "import magnetar, os, sys\n"
        f"broker = magnetar.embedded(mode={mode!r}).__enter__()\n"
        "if (child := os.fork()) == 0:\n"
        "    sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(broker.path.is_dir(), broker.pid)\n",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    existed, pid = done.stdout.split()
    assert existed == "True"
    assert not psutil.pid_exists(int(pid))


def test_importing_costs_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import magnetar\n"
        "print([name for name in ('asyncio', 'magnetar.broker', 'subprocess', 'importlib.metadata')"
        " if name in set(sys.modules) - before], magnetar.__version__ != '')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[] True\n"
