"""``magnetar standalone --processes``: CPU a message of each process, and what more cores give.

    python -m benchmarks.processes [--rounds 3] [--seconds 5]

One process, and two brokers over a storage process, in turns: messages a second, CPU a message of
brokers and storage. p99 of a synchronous producer beside each of `loads_beside`, divided by p99
alone just before and after it. With several processes the loads are the first broker's, the
producer another one's; at the end that one is killed, and the producer's longest wait is told. Then
a model: with these costs, how many messages a second would so many cores take, and what is full
first.
"""

import argparse
import json
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import pulsar

from benchmarks import loads_beside, run
from benchmarks.compaction_latency import Server, p99_ms
from tests.several_processes import SeveralProcesses

CORES: Final = (2, 4, 8, 16, 32)
LOADS: Final = {"batched-1k": (1024, True), "unbatched-1k": (1024, False)}
_TABLE_MESSAGES: Final = 100_000  # of 1 KiB: what is compacted
_TABLE_KEYS: Final = 10_000
_FAILOVER_S: Final = 5.0


@dataclass(frozen=True)
class Costs:
    """Microseconds of CPU a message, of all brokers together and of the storage."""

    brokers: float
    storage: float


@dataclass(frozen=True)
class Capacity:
    messages_per_s: float
    brokers: int
    full: str


def capacity(costs: Costs, cores: int) -> Capacity:
    """The most messages a second, with the number of brokers that gives it.

    A process runs Python on one core at a time. The storage process has one; brokers share the
    rest, and what it leaves.
    """
    best = Capacity(0.0, 0, "")
    of_storage = 1e6 / costs.storage
    of_cores = cores * 1e6 / (costs.brokers + costs.storage)
    for brokers in range(1, cores + 1):
        of_brokers = brokers * 1e6 / costs.brokers
        limits = {"storage": of_storage, "cores": of_cores, "brokers": of_brokers}
        full = min(limits, key=lambda name: limits[name])
        if limits[full] > best.messages_per_s:
            best = Capacity(limits[full], brokers, full)
    return best


def cpu_of(made: SeveralProcesses) -> dict[str, float]:
    """Seconds so far, by kind of process."""
    found: dict[str, float] = defaultdict(float)
    for name, process in (made.children() or {"broker-1": psutil.Process(made.pid)}).items():
        times = process.cpu_times()
        found["storage" if name == "storage" else "brokers"] += times.user + times.system
    return found


@contextmanager
def servers(count: int) -> Iterator[tuple[SeveralProcesses, pulsar.Client]]:
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-processes-") as folder,
        SeveralProcesses(Path(folder) / "data", "--processes", str(count)) as made,
    ):
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(made.service_url, logger=logger)
        yield made, client
        client.close()


def measure(count: int, seconds: float) -> dict[str, float]:
    """Figures of one run, by name."""
    figures = {}
    with servers(count) as (made, client):
        for load, (size, batching) in LOADS.items():
            run.produce(client, size, batching, min(1.0, seconds))  # warm
            before = cpu_of(made)
            row = run.produce(client, size, batching, seconds)
            used = {name: spent - before[name] for name, spent in cpu_of(made).items()}
            figures[f"{load} msg/s"] = row["msg_per_s"]
            for name, spent in used.items():
                figures[f"{load} {name} us"] = spent / row["messages"] * 1e6
        figures |= beside_loads(made, client, seconds)
    return figures


def beside_loads(made: SeveralProcesses, client: pulsar.Client, seconds: float) -> dict[str, float]:
    topic, table = topic_of(made, first=False), topic_of(made, first=True)
    server = Server(made.service_url, made.admin_url, table)
    server.fill(_TABLE_MESSAGES, _TABLE_KEYS, 1024)
    server.client.close()
    producer = client.create_producer(topic, batching_enabled=False)
    run.latencies_s(producer, 2.0)  # warm
    before = p99_ms(run.latencies_s(producer, seconds))
    figures, quiet = {}, [before]
    for load in loads_beside.LOADS:
        with loads_beside.beside(load, made.admin_url, table):
            p99 = p99_ms(run.latencies_s(producer, seconds))
        after = p99_ms(run.latencies_s(producer, seconds))
        figures[f"p99 beside {load} ms"] = p99
        figures[f"p99 beside {load} x"] = p99 / ((before + after) / 2)
        before = after
        quiet.append(after)
    figures["p99 alone ms"] = median(quiet)
    if owners := [each for name, each in made.children().items() if name == "broker-2"]:
        owners[0].kill()
        figures["longest wait after kill -9 ms"] = (
            max(run.latencies_s(producer, _FAILOVER_S)) * 1000
        )
    producer.close()
    return figures


def topic_of(made: SeveralProcesses, *, first: bool) -> str:
    """A topic that the first broker serves, or another one, where there are others."""
    topics = [f"persistent://public/default/p99-{number}" for number in range(32)]
    for topic in topics:
        url = f"{made.admin_url}/lookup/v2/topic/{topic.replace('://', '/')}"
        with urllib.request.urlopen(url) as answer:
            if (json.load(answer)["nativeUrl"] == made.service_url) is first:
                return topic
    return topics[0]


def table(found: Mapping[int, Sequence[Mapping[str, float]]]) -> Iterator[str]:
    yield "| figure | " + " | ".join(f"--processes {count}" for count in found) + " |"
    yield "|---|" + "---|" * len(found)
    names = {name: None for rows in found.values() for row in rows for name in row}
    medians = {
        count: {name: median(row[name] for row in rows) for name in rows[0]}
        for count, rows in found.items()
    }
    for name in names:
        cells = (
            f"{medians[count][name]:,.4g}" if name in medians[count] else "-" for count in found
        )
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""
    yield "| load | cores | messages a second | brokers | full first |"
    yield "|---|---|---|---|---|"
    several = medians[max(found)]
    for load in LOADS:
        costs = Costs(several[f"{load} brokers us"], several[f"{load} storage us"])
        for cores in CORES:
            most = capacity(costs, cores)
            yield (
                f"| {load} | {cores} | {most.messages_per_s:,.0f} | {most.brokers} | {most.full} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load")
    options = parser.parse_args()
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for number in range(options.rounds):
        for count in sorted(found, reverse=number % 2 == 1):
            found[count].append(measure(count, options.seconds))
            print(count, json.dumps(found[count][-1]), flush=True)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
