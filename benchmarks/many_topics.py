"""How a cluster bears very many topics: creation, lists, lookups, patterns, restarts, memory.

    python -m benchmarks.many_topics [--plain 100000] [--partitioned 90] [--json FILE]

A real ZooKeeper, a bookie and two brokers as processes of this machine. One namespace gets
``--plain`` topics, a call each; ten more get the partitions of ``--partitioned`` topics, 10,000
each. Then, before and after a restart of one broker and of the whole cluster: the names of the
large namespace at once and by page, lookups and first messages of topics picked by chance, a
pattern subscription that matches 100 of them. Memory is what is resident; of ZooKeeper with all of
its Java heap.
"""

import argparse
import asyncio
import os
import random
import re
import tempfile
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import httpx
import psutil
import pulsar

from benchmarks.managed_ledgers import Report
from tests.cluster_process import ClusterProcess

AT_ONCE: Final = 32
PICKED: Final = 200
PARTITIONS: Final = 10_000
MATCHED: Final = 100
PAGE: Final = 1_000
SETTINGS: Final = {
    "maxNumPartitionsPerPartitionedTopic": 0,
    "defaultNumberOfNamespaceBundles": 32,
    "brokerDeleteInactiveTopicsEnabled": "false",  # without subscriptions they go after a minute
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
}
LARGE: Final = "public/large"


def name_of(number: int) -> str:
    return f"topic-{number:07d}"


class Cluster:
    """The processes, and what is asked of them."""

    def __init__(self, process: ClusterProcess, told: Report) -> None:
        self._process, self._told = process, told

    @property
    def web_url(self) -> str:
        return self._process.web_urls[0]

    def restart_broker(self) -> None:
        """``kill -9`` of the second broker; the cluster starts it again."""
        ready = self._process.log.count("broker-2 ready at ")
        self._process.children()["broker-2"].kill()
        while self._process.log.count("broker-2 ready at ") == ready:
            time.sleep(0.05)

    def restart(self) -> None:
        self._process.stop(seconds_max=600)
        self._process.start()

    def tell_memory(self, when: str) -> None:
        for name, process in sorted(self._process.children().items()):
            self._told(f"{when}: memory of {name}", process.memory_info().rss / 1e6, "MB")

    async def each(self, method: str, paths: Iterable[str], body: str = "") -> float:
        """Seconds for all, so many at a time, each over connections of its own."""
        left = iter(paths)

        async def work() -> None:
            async with AsyncExitStack() as stack:
                connections = Connections(stack)
                for path in left:
                    await connections.call(method, self.web_url + path, body.encode())

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        return time.perf_counter() - began


class Connections:
    """Of one caller, one to each broker. httpx takes 5 ms of a processor for a redirected call."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._open: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def call(self, method: str, url: str, body: bytes) -> None:
        """Follows redirects. Ends the program by an answer that isn't a success."""
        status, head = 307, b""
        while status == 307:
            host, _, path = url.removeprefix("http://").partition("/")
            reader, writer = self._open.get(host) or await self._connect(host)
            lines = (
                f"{method} /{path} HTTP/1.1",
                f"Host: {host}",
                "Content-Type: application/json",
                f"Content-Length: {len(body)}\r\n\r\n",
            )
            writer.write("\r\n".join(lines).encode() + body)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            text = await reader.readexactly(int(_header(head, "content-length") or 0))
            url = _header(head, "location")
        if not 200 <= status < 300:
            raise SystemExit(f"{method} /{path}: {status} {text.decode()}")

    async def _connect(self, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        found = self._open[host] = await asyncio.open_connection(*host.split(":"))
        self._stack.callback(found[1].close)
        return found


def _header(head: bytes, name: str) -> str:
    found = re.search(rf"(?im)^{name}: *(.*)\r$", head.decode())
    return found[1] if found else ""


def create(cluster: Cluster, told: Report, plain: int, partitioned: int) -> None:
    admin = "/admin/v2"
    namespaces = [LARGE, *(f"public/many-{n}" for n in range(10))]
    asyncio.run(cluster.each("PUT", [f"{admin}/namespaces/{each}" for each in namespaces]))
    paths = [f"{admin}/persistent/{LARGE}/{name_of(n)}" for n in range(plain)]
    took = asyncio.run(cluster.each("PUT", paths))
    told(f"{plain} topics made, a call each", plain / took, "topics/s")
    if not partitioned:
        return

    began = time.perf_counter()
    for number in range(partitioned):
        path = f"{admin}/persistent/public/many-{number % 10}/part-{number}/partitions"
        asyncio.run(cluster.each("PUT", [path], str(PARTITIONS)))
    count = partitioned * PARTITIONS
    took = time.perf_counter() - began
    told(f"{count} partitions made, {PARTITIONS} a call", count / took, "topics/s")


def lists(cluster: Cluster, told: Report, plain: int, when: str) -> None:
    url = f"{cluster.web_url}/admin/v2/persistent/{LARGE}"
    with httpx.Client(timeout=600) as client:
        for turn in ("first", "again"):
            began = time.perf_counter()
            names = client.get(url).raise_for_status().json()
            told(f"{when}: all names, {turn}", (time.perf_counter() - began) * 1e3, "ms")
            assert len(names) == plain, len(names)
        began, pages, last = time.perf_counter(), [], ""
        while True:
            page = client.get(url, params={"limit": PAGE, "after": last}).raise_for_status().json()
            pages += page
            if len(page) < PAGE:
                break
            last = page[-1]
        took = time.perf_counter() - began
        assert pages == names, "pages and list differ"
        told(f"{when}: a page of {PAGE} names", took / (plain / PAGE) * 1e3, "ms")


def lookups(cluster: Cluster, told: Report, plain: int, when: str) -> None:
    picked = random.Random(1).sample(range(plain), PICKED)
    paths = [f"/lookup/v2/topic/persistent/{LARGE}/{name_of(n)}" for n in picked]
    took = asyncio.run(cluster.each("GET", paths))
    told(f"{when}: a lookup, {AT_ONCE} at a time", took / PICKED * 1e3, "ms")


def messages(cluster: Cluster, told: Report, service_url: str, plain: int, when: str) -> None:
    """A first message to each of some topics, and those that a pattern finds."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        began = time.perf_counter()
        pattern = re.compile(rf"persistent://{LARGE}/topic-00000\d\d")
        consumer = client.subscribe(
            pattern, f"sub-{when.replace(' ', '-')}", consumer_type=pulsar.ConsumerType.Shared
        )
        took = time.perf_counter() - began
        told(f"{when}: pattern subscription to {MATCHED} of {plain}", took, "s")
        began = time.perf_counter()
        for number in range(MATCHED):
            producer = client.create_producer(f"persistent://{LARGE}/{name_of(number)}")
            producer.send(str(number).encode())
            producer.close()
        took = time.perf_counter() - began
        told(f"{when}: producer made, first message, closed", took / MATCHED * 1e3, "ms")
        found = {consumer.receive(60_000).data() for _ in range(MATCHED)}
        assert found == {str(number).encode() for number in range(MATCHED)}
        consumer.unsubscribe()
    finally:
        client.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_topics")
    parser.add_argument("--plain", type=int, default=100_000, help="topics of one namespace")
    parser.add_argument("--partitioned", type=int, default=90, help="topics of 10,000 partitions")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    if options.plain < MATCHED:
        parser.error(f"--plain: {MATCHED} at least")
    told, plain = Report(options.json, "topics"), options.plain
    # Java takes this before the command line: a million nodes don't fit into a laptop's 256 MiB.
    os.environ["_JAVA_OPTIONS"] = "-Xmx4g"
    settings = [f"--broker-set={key}={value}" for key, value in SETTINGS.items()]
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-topics-") as folder,
        ClusterProcess(
            Path(folder) / "data", "--brokers", "2", "--bookies", "1", *settings
        ) as process,
    ):
        cluster = Cluster(process, told)

        def ask(when: str) -> None:
            lists(cluster, told, plain, when)
            lookups(cluster, told, plain, when)
            messages(cluster, told, process.service_url, plain, when)
            cluster.tell_memory(when)

        cluster.tell_memory("empty")
        create(cluster, told, plain, options.partitioned)
        ask("made")
        began = time.perf_counter()
        cluster.restart_broker()
        told("a broker killed, until it is back", time.perf_counter() - began, "s")
        ask("broker restarted")
        began = time.perf_counter()
        cluster.restart()
        told("cluster stopped and started", time.perf_counter() - began, "s")
        ask("cluster restarted")
        size = sum(
            each.stat().st_size for each in (Path(folder) / "data").rglob("*") if each.is_file()
        )
        told("data directory", size / 1e6, "MB")
    assert not psutil.Process().children(recursive=True)


if __name__ == "__main__":
    main()
