"""What a scrape of /metrics costs others: `TOPICS=10000 python -m benchmarks.micro.metrics_page`.

A broker with that many loaded topics, one subscription each, in this process; another process asks
for the page, by gzip as Prometheus does. Meanwhile a timer is due every two milliseconds: how late
it comes is how long something else held the loop, or the machine was busy with other things; the
first line tells what that alone makes. The processor time of the loop's thread between two of the
timer's runs tells the same without the others' part.
"""

import asyncio
import gc
import multiprocessing
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from magnetar.broker.config import BrokerConfig
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.server.standalone import Standalone
from magnetar.broker.topic.topic import Topic

TOPICS = int(os.environ.get("TOPICS", "10000"))
SUBSCRIPTIONS = int(os.environ.get("SUBSCRIPTIONS", "1"))
PUBLISHED = int(os.environ.get("PUBLISHED", "100"))
"""Topics with messages: they have buckets of latencies and sizes."""
SCRAPES = int(os.environ.get("SCRAPES", "5"))
_SWITCH_INTERVAL_S = 0.0005
_LONG_MS = 2.0
_TICK_S = 0.002
_SHORT_MS = 0.1


class Durations:
    """Of millions of turns: those above a tenth of a millisecond, the others only counted.

    A list of all of them would be moved when it grows, which is a long turn itself.
    """

    def __init__(self) -> None:
        self.count = 0
        self._long: list[float] = []

    def add(self, ms: float) -> None:
        self.count += 1
        if ms > _SHORT_MS:
            self._long.append(ms)

    def above(self, ms: float) -> int:
        return sum(each > ms for each in self._long)

    def longest(self, count: int) -> list[float]:
        """Ascending; 0 where there are fewer."""
        return [*[0.0] * count, *sorted(self._long)][-count:]

    def quantile(self, share: float) -> float:
        """0: it is below a tenth of a millisecond."""
        return self.longest(max(1, round(self.count * (1 - share))))[0]


class LoopWatch:
    """How late a timer comes, in milliseconds, and the collector's share in that."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self._running = False
        self.late_ms, self.used_ms = Durations(), Durations()
        self._used_s = 0.0
        self.collections_ms: list[float] = []
        self._collecting_s = 0.0

    def _tick(self) -> None:
        now_s = time.perf_counter()
        self.late_ms.add((now_s - self._due_s) * 1000)
        used_s = time.thread_time()
        self.used_ms.add((used_s - self._used_s) * 1000)
        self._used_s = used_s
        if self._running:
            self._due_s = now_s + _TICK_S
            self._loop.call_later(_TICK_S, self._tick)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting_s = time.perf_counter()
        else:
            self.collections_ms.append((time.perf_counter() - self._collecting_s) * 1000)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.late_ms, self.used_ms, self.collections_ms = Durations(), Durations(), []
        self._used_s = time.thread_time()
        self._running, self._due_s = True, time.perf_counter()
        gc.callbacks.append(self._on_gc)
        self._tick()
        try:
            yield
        finally:
            self._running = False
            gc.callbacks.remove(self._on_gc)


def scrape(url: str, answers: "multiprocessing.Queue[tuple[float, int]]", count: int) -> None:
    """In a process of its own: one page after the other, seconds and bytes of each."""
    for _ in range(count):
        request = urllib.request.Request(f"{url}/metrics", headers={"Accept-Encoding": "gzip"})
        began_s = time.perf_counter()
        with urllib.request.urlopen(request, timeout=600) as answer:
            size = len(answer.read())
        answers.put((time.perf_counter() - began_s, size))


def publish(url: str) -> None:
    request = urllib.request.Request(
        url, b'{"messages":[{"payload":"x"}]}', {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def resident_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def fill(standalone: Standalone) -> list[Topic]:
    """Load the topics; a few of them get messages."""
    service = standalone.service
    topics = []
    for number in range(TOPICS):
        name = TopicName.parse(f"persistent://public/default/scraped-{number}")
        topic = await service.loader.load(name, create=True)
        for each in range(SUBSCRIPTIONS):
            await topic.create_subscription(f"s{each}")
        topics.append(topic)
    return topics


async def measure(standalone: Standalone) -> None:
    loop = asyncio.get_running_loop()
    began_s = time.perf_counter()
    topics = await fill(standalone)
    took_s = time.perf_counter() - began_s
    print(f"{TOPICS} topics, {SUBSCRIPTIONS} subscriptions each, loaded in {took_s:.1f} s")
    for topic in topics[:PUBLISHED]:
        path = topic.full_name.replace("://", "/")
        await asyncio.to_thread(publish, f"{standalone.web_url}/topics/{path}")
    watch = LoopWatch()
    with watch.watching():
        await asyncio.sleep(1)
    show("nothing", watch, 1.0, 0.0, 0)
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[tuple[float, int]] = context.Queue()
    for number in range(SCRAPES):
        client = context.Process(target=scrape, args=(standalone.web_url, answers, 1))
        client.start()
        cpu_s = time.process_time()
        with watch.watching():
            seconds, size = await loop.run_in_executor(None, answers.get)
        client.join()
        show(f"scrape {number + 1}", watch, seconds, time.process_time() - cpu_s, size)


def show(what: str, watch: LoopWatch, seconds: float, cpu_s: float, size: int) -> None:
    late, used = watch.late_ms, watch.used_ms
    worst_ms = max(watch.collections_ms, default=0)
    print(
        f"{what:10} {seconds * 1000:6.0f} ms, CPU {cpu_s * 1000:5.0f} ms, {size / 1024:6.0f} KiB;"
        f" loop late by at most {', '.join(f'{each:.1f}' for each in late.longest(3))} ms,"
        f" {late.above(_LONG_MS)} of {late.count} times above {_LONG_MS:g} ms;"
        f" loop's processor time between ticks at most"
        f" {', '.join(f'{each:.1f}' for each in used.longest(3))} ms;"
        f" {len(watch.collections_ms)} collections, longest {worst_ms:.1f} ms;"
        f" resident {resident_mib():.0f} MiB"
    )


async def run(data: Path) -> None:
    config = BrokerConfig(
        data_dir=str(data), broker_service_port=0, web_service_port=0, bind_address="127.0.0.1"
    )
    standalone = Standalone(config)
    await standalone.start()
    try:
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await measure(standalone)
    finally:
        await standalone.close()


def main() -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("DATA")) as data,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(run(Path(data)))


if __name__ == "__main__":
    main()
