"""How a cluster bears very many topics: creation, lists, lookups, patterns, restarts, memory.

    python -m benchmarks.many_topics [--plain 100000] [--partitioned 90] [--json FILE]

A real ZooKeeper, a bookie and two brokers as processes of this machine. One namespace gets
``--plain`` topics, a call each; ten more get the partitions of ``--partitioned`` topics, 10,000
each. Then, before and after a restart of one broker and of the whole cluster: the names of the
large namespace at once and by page, lookups and first messages of topics picked by chance, a
pattern subscription that matches 100 of them. Memory is what is resident; of ZooKeeper with all of
its Java heap.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
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

    async def each(
        self, paths: Iterable[str], do: Callable[[httpx.AsyncClient, str], Awaitable[object]]
    ) -> float:
        """Seconds for all, so many at a time, over as many connections."""
        left = iter(paths)

        async def work(client: httpx.AsyncClient) -> None:
            for path in left:
                await do(client, path)

        began = time.perf_counter()
        async with httpx.AsyncClient(
            base_url=self.web_url,
            timeout=600,
            follow_redirects=True,
            limits=httpx.Limits(max_keepalive_connections=None),  # 20 would be kept
        ) as client:
            await asyncio.gather(*(work(client) for _ in range(AT_ONCE)))
        return time.perf_counter() - began


def _check(answer: httpx.Response) -> None:
    if not answer.is_success:
        raise SystemExit(
            f"{answer.request.method} {answer.url}: {answer.status_code} {answer.text}"
        )


async def _put(client: httpx.AsyncClient, path: str) -> None:
    _check(await client.put(path))


async def _get(client: httpx.AsyncClient, path: str) -> None:
    _check(await client.get(path))


def create(cluster: Cluster, told: Report, plain: int, partitioned: int) -> None:
    admin = "/admin/v2"
    namespaces = [LARGE, *(f"public/many-{n}" for n in range(10))]
    asyncio.run(cluster.each([f"{admin}/namespaces/{each}" for each in namespaces], _put))
    paths = [f"{admin}/persistent/{LARGE}/{name_of(n)}" for n in range(plain)]
    took = asyncio.run(cluster.each(paths, _put))
    told(f"{plain} topics made, a call each", plain / took, "topics/s")
    if not partitioned:
        return

    async def make(client: httpx.AsyncClient, path: str) -> None:
        answer = await client.put(
            path, content=str(PARTITIONS), headers={"Content-Type": "application/json"}
        )
        _check(answer)

    began = time.perf_counter()
    for number in range(partitioned):
        path = f"{admin}/persistent/public/many-{number % 10}/part-{number}/partitions"
        asyncio.run(cluster.each([path], make))
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
    took = asyncio.run(cluster.each(paths, _get))
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
