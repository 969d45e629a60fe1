"""What pages of 100,000 topics cost: `TOPICS=100000 python -m benchmarks.micro.topic_index`.

A broker with that many loaded topics, one subscription each, in this process. They are copies of
one, since to load a hundred thousand takes minutes; all have rates of their own. Another process
asks for pages, each another one, so that none comes from the cache. Meanwhile a timer runs in every
turn of the loop. At the end 100 pages of the console are open. What they
take of a processor is the difference of the rows without the watch: nobody looked in the first.
"""

import asyncio
import gc
import http.client
import multiprocessing
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from pathlib import Path
from typing import Any, Final

import uvloop

from magnetar.broker.config import BrokerConfig
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.rate_limits.rate_sampler import RateSampler
from magnetar.broker.resources.resources import MANAGED_LEDGERS
from magnetar.broker.server.server_process import freeze_objects
from magnetar.broker.server.standalone import Standalone

TOPICS = int(os.environ.get("TOPICS", "100000"))
CALLS = int(os.environ.get("CALLS", "20"))
PAGES_S = float(os.environ.get("PAGES_S", "60"))
_PAGES = 100
_OPEN: Final = (
    *("", "topics", "topics?sort=msgBacklog", "topics?q=-{n}", "topics?view=active&sort=msgRateIn"),
    *("subscriptions?sort=msgBacklog", "namespaces", "topic/persistent/public/default/topic-{n}"),
)
"""Pages of the console that are open, in turn."""
_EVERY_S = 5.0
_PUTS = 1_000
_SWITCH_INTERVAL_S = 0.0005
_LONG_MS = 2.0
_TICK_S = 0.0002  # what is used between two of them is one turn
_SHORT_MS = 0.1
_QUERIES: Final = {
    "by name": "topics-index?limit={n}",
    "by rate": "topics-index?sort=msgRateIn&limit={n}",
    "by rate, the last": "topics-index?sort=msgRateIn&order=asc&after=0.9:x&limit={n}",
    "by backlog (all equal)": "topics-index?sort=msgBacklog&limit={n}",
    "filtered": "topics-index?q=-99{n}&sort=msgRateIn",
    "view": "topics-index?view=active&sort=storageSize&limit={n}",
    "subscriptions by trend": "subscriptions-index?sort=msgBacklogTrend&limit={n}",
    "sums by namespace": "namespaces-index?{n}",
}

_WHOLE: Final = (
    *("persistent/public/default", "namespaces/public/default/topics"),
    *("broker-stats/topics", "broker-stats/load-report", "broker-stats/mbeans", "doctor"),
    *("broker-stats/metrics", "namespaces/public/default/bundles", "/metrics/"),
)
"""What walks through all topics for one answer; asked once each, as a second one may be kept."""


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
    """The thread's processor time between two runs of a timer in milliseconds, and collections."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = False
        self.used_ms = Durations()
        self._used_s = 0.0
        self.collections_ms: list[float] = []
        self._collecting_s = 0.0

    def _tick(self) -> None:
        used_s = time.thread_time()
        self.used_ms.add((used_s - self._used_s) * 1000)
        self._used_s = used_s
        if self._running:
            self._loop.call_later(_TICK_S, self._tick)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting_s = time.perf_counter()
        else:
            self.collections_ms.append((time.perf_counter() - self._collecting_s) * 1000)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._used_s, self._running = time.thread_time(), True
        gc.callbacks.append(self._on_gc)
        self._tick()
        try:
            yield
        finally:
            self._running = False
            gc.callbacks.remove(self._on_gc)


def ask(address: str, paths: list[str], answers: Any) -> None:
    """In a process of its own, one after the other: milliseconds of each."""
    connection = http.client.HTTPConnection(address, timeout=600)
    for path in paths:
        began_s = time.perf_counter()
        if path.startswith("/"):  # as Prometheus asks
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        else:
            connection.request("GET", f"/admin/v2/{path}")
        answer = connection.getresponse()
        size = len(answer.read())
        assert answer.status == 200, answer.status
        answers.put(((time.perf_counter() - began_s) * 1000, size))
    answers.put(None)


def look_at_pages(address: str, seconds: float, answers: Any) -> None:
    """In a process of its own: open pages of the console, which fetch their middles as told."""

    def client(number: int) -> None:
        time.sleep(number * _EVERY_S / _PAGES)
        connection = http.client.HTTPConnection(address, timeout=600)
        path = f"/console/{_OPEN[number % len(_OPEN)].format(n=number)}"
        end_s, headers = time.perf_counter() + seconds, dict[str, str]()
        while (began_s := time.perf_counter()) < end_s:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, (answer.status, path)
            answers.put(((time.perf_counter() - began_s) * 1000, len(body)))
            headers = {"Magnetar-Fragment": "1"}
            (pause_s,) = re.findall(rb'<main [^>]*data-live="(\d+)"', body)
            time.sleep(min(float(pause_s), max(0.0, end_s - time.perf_counter())))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(_PAGES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.put(None)


async def fill(standalone: Standalone) -> list[str]:
    """One topic is real, the others are copies of it; names of those that were added."""
    service, rng, added = standalone.service, random.Random(7), list[str]()
    puts = list[Awaitable[Any]]()
    real = await service.loader.load(TopicName.parse("real"), create=True)
    subscription = await real.create_subscription("s")
    for number in range(TOPICS):
        name = TopicName.parse(f"persistent://public/default/topic-{number}")
        topic = copy(real)
        topic.name, topic.full_name, topic.rates = name, str(name), RateSampler()
        topic.rates.rates = [rng.random() for _ in range(4)]
        topic.subscriptions = {"s": copy(subscription)}
        topic.subscriptions["s"].topic = topic
        service.topics[topic.full_name] = topic
        added.append(topic.full_name)
        puts.append(service.store.put(f"{MANAGED_LEDGERS}/{name.ml_name}", b""))
        if len(puts) == _PUTS or number == TOPICS - 1:
            await asyncio.gather(*puts)
            puts.clear()
    gc.collect()  # they were loaded long ago: young collections don't walk through them
    return added


async def measured(
    what: str, target: Callable[..., None], *arguments: Any, is_watched: bool = True
) -> list[tuple[float, int]]:
    """Run a client; tells how the loop was held meanwhile, unless that isn't watched."""
    loop, context = asyncio.get_running_loop(), multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    client = context.Process(target=target, args=(*arguments, answers))
    found: list[tuple[float, int]] = []
    client.start()
    watch = LoopWatch()
    cpu_s, began_s = time.process_time(), time.perf_counter()
    with watch.watching() if is_watched else nullcontext():
        while (answer := await loop.run_in_executor(None, answers.get)) is not None:
            found.append(answer)
    cpu_s, took_s = time.process_time() - cpu_s, time.perf_counter() - began_s
    client.join()
    show(what, watch if is_watched else None, found, cpu_s / took_s)
    return found


def show(what: str, watch: LoopWatch | None, found: list[tuple[float, int]], share: float) -> None:
    times = sorted(each for each, _ in found) or [0.0]
    if watch is None:
        print(
            f"| {what} | {statistics.median(times):.1f} | {times[-1]:.1f} | | | | | {share:.1%} |",
            flush=True,
        )
        return
    used = watch.used_ms
    collected = max(watch.collections_ms, default=0.0)
    print(
        f"| {what} | {statistics.median(times):.1f} | {times[-1]:.1f} |"
        f" {used.quantile(0.99):.2f} | {used.longest(1)[0]:.2f} |"
        f" {used.above(_LONG_MS)} of {used.count} |"
        f" {collected:.1f} | {share:.1%} |",
        flush=True,
    )


async def measure(standalone: Standalone) -> None:
    added = await fill(standalone)
    address = standalone.web_url.partition("//")[2]
    print(
        "| | p50 ms | max ms | loop p99 ms | loop max ms | above 2 ms | longest collection ms |"
        " of a processor |\n|---|---|---|---|---|---|---|---|"
    )
    await measured("nobody looks, unwatched", idle, PAGES_S, is_watched=False)
    await measured("nothing", idle, 5.0)
    await measured("first call of this process", ask, address, ["clusters"])
    await measured("first page, a part", ask, address, ["topics-index?partial=true"])
    await measured("first page, all of it", ask, address, ["topics-index"])
    for what, query in _QUERIES.items():
        paths = [query.format(n=20 + number) for number in range(CALLS)]
        await measured(what, ask, address, paths)
    for path in _WHOLE:
        await measured(path, ask, address, [path])
    await measured("100 open pages", look_at_pages, address, PAGES_S)
    control = multiprocessing.get_context("spawn").Process(target=run_control, args=(PAGES_S,))
    control.start()
    await measured("the same beside the control", look_at_pages, address, PAGES_S, is_watched=False)
    control.join()
    await measured("100 open pages, unwatched", look_at_pages, address, PAGES_S, is_watched=False)
    tables = await standalone.service.index.tables()
    print(f"a look at all takes {tables.took_s * 1000:.0f} ms of a processor")
    for full in added:  # they can't be closed
        del standalone.service.topics[full]


def run_control(seconds: float) -> None:
    """In a process of its own, a loop of short turns alone: long ones are the machine's."""

    async def control() -> None:
        watch, end_s = LoopWatch(), time.perf_counter() + seconds
        with watch.watching():
            while time.perf_counter() < end_s:
                await asyncio.sleep(0.002)
                sum(range(5_000))  # a tenth of a millisecond
        show("control, another process", watch, [], time.process_time() / seconds)

    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(control())


def idle(seconds: float, answers: Any) -> None:
    time.sleep(seconds)
    answers.put(None)


async def run(data: Path) -> None:
    config = BrokerConfig(
        data_dir=str(data),
        broker_service_port=0,
        web_service_port=0,
        bind_address="127.0.0.1",
        backlog_quota_check_enabled=False,
    )
    standalone = Standalone(config)
    await standalone.start()
    try:
        freeze_objects(standalone.service.periodic_tasks.is_growth)
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
