"""What a compaction costs who publishes to another topic.

``python -m benchmarks.compaction_latency [--pairs 10] [--rate 30000000]``

A client sends one message after the other, each waiting for its receipt: alone, and then while a
large topic is compacted, in turns, for as long. The median of the pairs' ratios is printed, with
those of two other looks: what the machine does by itself, and beside a process that only computes,
behind all others. Nobody asks for the status meanwhile: the message behind a call over HTTP is
slow, and ten calls a second are one message in a hundred.

``--service-url`` and ``--admin-url``: a server that runs, Apache Pulsar too.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pulsar

from benchmarks import run
from tests.standalone_process import StandaloneProcess

TABLE: Final = "persistent://public/default/benchmark-table"
OTHER: Final = "persistent://public/default/benchmark-other"
_BUSY: Final = """
import os, sys, time
os.nice(5)
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
end_s = time.perf_counter() + float(sys.argv[1])
while time.perf_counter() < end_s:
    pass
"""
_POLL_S: Final = 0.1
_OF_IT: Final = 0.8
"""Others are looked at for so much of a compaction's time, so that it is not over before."""
_FLUSH_S: Final = 31.0
"""More than `flushInterval`: what is compacted lies on the disk."""


class Server:
    def __init__(self, service_url: str, admin_url: str, table: str = TABLE) -> None:
        self.table = table
        self.client = pulsar.Client(
            service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self._base = f"{admin_url}/admin/v2/"

    def call(self, method: str, path: str) -> Any:
        request = urllib.request.Request(self._base + path, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.read()
        return orjson.loads(body) if body else None

    def fill(self, count: int, keys: int, size: int) -> None:
        self.client.subscribe(self.table, "keep").close()  # nothing is trimmed
        producer = self.client.create_producer(
            self.table,
            batching_enabled=True,
            batching_type=pulsar.BatchingType.Default,
            max_pending_messages=10_000,
            block_if_queue_full=True,
        )
        failed: list[pulsar.Result] = []

        def on_receipt(result: pulsar.Result, _: object) -> None:
            if result != pulsar.Result.Ok:
                failed.append(result)

        for number in range(count):
            producer.send_async(bytes(size), on_receipt, partition_key=f"key-{number % keys}")
        producer.flush()
        producer.close()
        assert not failed, failed[0]

    def forget(self) -> None:
        """The next compaction reads all of the log again."""
        with contextlib.suppress(urllib.error.HTTPError):  # there was none
            self.call("DELETE", self._path("subscription/__compaction"))

    def compact(self) -> None:
        self.call("PUT", self._path("compaction"))

    def is_compacting(self) -> bool:
        status = self.call("GET", self._path("compaction"))
        assert status["status"] in ("RUNNING", "SUCCESS"), status
        return bool(status["status"] == "RUNNING")

    def _path(self, what: str) -> str:
        return f"{self.table.replace('://', '/')}/{what}"

    def latencies_s(self, seconds: float) -> list[float]:
        """Of each message, for so long. Nothing else is asked for meanwhile."""
        producer = self.client.create_producer(OTHER, batching_enabled=False)
        found = run.latencies_s(producer, seconds)
        producer.close()
        return found


def p99_ms(latencies_s: list[float]) -> float:
    return statistics.quantiles(latencies_s, n=100)[98] * 1000


def compaction_s(server: Server) -> float:
    """How long one takes."""
    server.forget()
    began_s = time.perf_counter()
    server.compact()
    while server.is_compacting():
        time.sleep(_POLL_S)
    return time.perf_counter() - began_s


def beside_a_compaction(server: Server, seconds: float) -> list[float]:
    server.forget()
    server.compact()
    found = server.latencies_s(seconds)
    assert server.is_compacting(), "it was over before: less time, or more messages"
    while server.is_compacting():
        time.sleep(_POLL_S)
    return found


def beside_a_busy_loop(server: Server, seconds: float) -> list[float]:
    """A process that computes, as the one that compacts does, and nothing else."""
    with subprocess.Popen([sys.executable, "-c", _BUSY, str(seconds)]):
        return server.latencies_s(seconds)


def measure(server: Server, pairs: int) -> None:
    server.latencies_s(2)  # the first ones are slow
    seconds = compaction_s(server) * _OF_IT
    ratios: dict[str, list[float]] = {"a compaction": [], "a busy loop": [], "nothing": []}
    for pair in range(pairs):
        alone = p99_ms(server.latencies_s(seconds))
        found = {
            "a compaction": p99_ms(beside_a_compaction(server, seconds)),
            "a busy loop": p99_ms(beside_a_busy_loop(server, seconds)),
            "nothing": p99_ms(server.latencies_s(seconds)),
        }
        told = ", ".join(f"{each:.2f} ms beside {what}" for what, each in found.items())
        print(f"{pair + 1:2}: p99 {alone:.2f} ms alone, {told}, {seconds:.1f} s each", flush=True)
        for what, each in found.items():
            ratios[what].append(each / alone)
    for what, some in ratios.items():
        median, least, most = statistics.median(some), min(some), max(some)
        print(f"beside {what}: median {median:.2f}x ({least:.2f} to {most:.2f})")


@contextlib.contextmanager
def server_of(arguments: argparse.Namespace) -> Iterator[Server]:
    if arguments.service_url:
        yield Server(arguments.service_url, arguments.admin_url)
        return
    with tempfile.TemporaryDirectory() as folder:
        option = f"brokerServiceCompactionRateInBytes={arguments.rate}"
        standalone = StandaloneProcess(Path(folder) / "data", "--set", option)
        standalone.start()
        try:
            yield Server(standalone.service_url, standalone.admin_url)
        finally:
            standalone.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction_latency")
    add = parser.add_argument
    add("--pairs", type=int, default=10)
    add("--messages", type=int, default=500_000, help="of the topic that is compacted")
    add("--keys", type=int, default=10_000)
    add("--bytes", type=int, default=1024, help="of each message")
    add("--rate", type=int, default=30_000_000, help="brokerServiceCompactionRateInBytes")
    add("--service-url", default="")
    add("--admin-url", default="")
    arguments = parser.parse_args()
    with server_of(arguments) as server:
        server.fill(arguments.messages, arguments.keys, arguments.bytes)
        time.sleep(_FLUSH_S)
        measure(server, arguments.pairs)
        server.client.close()


if __name__ == "__main__":
    main()
