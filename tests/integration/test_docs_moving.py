"""The commands and the program of the page about moving from Pulsar, between two brokers of ours.

The old side is a broker of ours, too: the page uses the official client and Pulsar's own paths.
"""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pulsar

from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

_PAGE = Path(__file__).parents[2] / "docs" / "guides" / "moving-from-pulsar.md"
_BLOCK = re.compile(r"^ *```(sh|python)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_TOPIC = "public/orders/paid"
_SECONDS = 120.0


def blocks() -> list[tuple[str, str]]:
    """Language and text of each, in the order of the page."""
    return [(name, textwrap.dedent(text)) for name, text in _BLOCK.findall(_PAGE.read_text())]


class Move:
    """Runs blocks of the page, with the addresses of two brokers."""

    def __init__(self, old: StandaloneProcess, new: StandaloneProcess, folder: Path) -> None:
        self._folder = folder
        self._urls = {
            "pulsar://old:6650": old.service_url,
            "http://old:8080": old.admin_url,
            "pulsar://new:6650": new.service_url,
            "http://new:8080": new.admin_url,
        }
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "MAGNETAR_ADMIN_URL": new.admin_url}

    def start(self, language: str, text: str) -> subprocess.Popen[str]:
        for written, real in self._urls.items():
            text = text.replace(written, real)
        command = [sys.executable, "-c"] if language == "python" else ["bash", "-ec"]
        return subprocess.Popen(
            [*command, text],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _until(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    """Let the page's program run until this holds, then kill it."""
    try:
        wait_until(lambda: process.poll() is not None or holds(), seconds_max=_SECONDS)
        assert process.poll() is None, process.communicate()[0]
    finally:
        process.kill()
        process.communicate()


def _fill(broker: StandaloneProcess) -> list[tuple[object, ...]]:
    """The old cluster: a namespace with a policy, and messages of every kind; what was sent."""
    base = f"{broker.admin_url}/admin/v2"
    for path, body in (
        ("namespaces/public/orders", {}),
        (f"persistent/{_TOPIC}/partitions", 3),
    ):
        httpx.put(f"{base}/{path}", json=body, timeout=60).raise_for_status()
    retention = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}
    policy = httpx.post(f"{base}/namespaces/public/orders/retention", json=retention, timeout=60)
    policy.raise_for_status()
    client = pulsar.Client(broker.service_url)
    sent: list[tuple[object, ...]] = []
    for batching in (True, False):
        producer = client.create_producer(_TOPIC, batching_enabled=batching)
        for number in range(60):
            key, data, event = f"k{number % 7}", b"%d" % len(sent), 1_000 + number
            properties = {"n": str(number)}
            producer.send_async(
                data,
                lambda result, _: None,
                properties=properties,
                partition_key=key,
                ordering_key=f"o{key}",
                event_timestamp=event,
            )
            sent.append((data, key, f"o{key}", event, properties))
        producer.flush()
    client.close()
    return sent


def _stored(broker: StandaloneProcess, count: int) -> list[tuple[object, ...]]:
    """The messages of the subscription that the page creates, which then has no other."""
    client = pulsar.Client(broker.service_url)
    consumer = client.subscribe(_TOPIC, "billing")
    found: list[tuple[object, ...]] = []
    for _ in range(count):
        message = consumer.receive(60_000)
        found.append(
            (
                *(message.data(), message.partition_key(), message.ordering_key()),
                *(message.event_timestamp(), message.properties()),
            )
        )
        consumer.acknowledge(message)
    wait_until(
        lambda: _statistics(broker)["subscriptions"]["billing"]["msgBacklog"] == 0,
        seconds_max=_SECONDS,
    )
    client.close()
    return found


def _by_key(messages: list[tuple[object, ...]]) -> dict[object, list[tuple[object, ...]]]:
    keys = dict.fromkeys(key for _, key, *_ in messages)
    return {key: [each for each in messages if each[1] == key] for key in sorted(keys, key=str)}


def _statistics(broker: StandaloneProcess) -> dict[str, Any]:
    path = f"{broker.admin_url}/admin/v2/persistent/{_TOPIC}/partitioned-stats"
    found: dict[str, Any] = httpx.get(path, timeout=60).json()
    return found


def _left(old: StandaloneProcess) -> int:
    """Entries that the copy hasn't acknowledged; all, before it has subscribed."""
    copied = _statistics(old)["subscriptions"].get("copy", {"msgBacklog": 1})
    return int(copied["msgBacklog"])


def test_the_blocks_of_the_page_move_each_message_once_and_in_order(tmp_path: Path) -> None:
    *commands, (language, program) = blocks()
    with StandaloneProcess(tmp_path / "old") as old, StandaloneProcess(tmp_path / "new") as new:
        sent = _fill(old)
        move = Move(old, new, tmp_path)
        for command in commands:
            process = move.start(*command)
            printed, _ = process.communicate(timeout=_SECONDS)
            assert process.returncode == 0, printed
        policies = httpx.get(f"{new.admin_url}/admin/v2/namespaces/public/orders", timeout=60)
        assert policies.json()["retention_policies"]["retentionSizeInMB"] == 100

        def copy_until(holds: Callable[[], bool]) -> None:
            _until(move.start(language, program), holds)
            wait_until(lambda: not _statistics(new)["publishers"], seconds_max=_SECONDS)

        copy_until(lambda: _statistics(new)["msgInCounter"] >= 20)
        copy_until(lambda: _left(old) == 0)
        # The program loses all of its acknowledgements, and starts over.
        for partition in range(3):
            path = f"persistent/{_TOPIC}-partition-{partition}/subscription/copy?force=true"
            httpx.delete(f"{old.admin_url}/admin/v2/{path}", timeout=60).raise_for_status()
        copy_until(lambda: _left(old) == 0)
        assert _by_key(_stored(new, len(sent))) == _by_key(sent)
