"""A backfill by Spark beside the same topic read by the official client, in one run.

``python -m benchmarks.pipeline --messages 1000000``: one broker and three bookies as processes (E =
Qw = 3, Qa = 2), a topic of four partitions, written by the official client in batches with keys and
properties. Then everything is read: by one consumer of the official client, and by Spark with one
core and with two, values only and all columns. A line of JSON for each says MB/s of payload, and
how much CPU the broker and the bookies used for it.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pulsar

from tests.cluster_process import ClusterProcess

_TOPIC: Final = "persistent://public/default/backfill"
_PARTITIONS: Final = 4
_COMPRESSIONS: Final = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zstd": pulsar.CompressionType.ZSTD,
}


class Backfill:
    """One cluster with one topic."""

    def __init__(self, cluster: ClusterProcess, messages: int, size: int) -> None:
        self.cluster, self.messages, self.size = cluster, messages, size
        self.rows: list[dict[str, Any]] = []

    @property
    def megabytes(self) -> float:
        return self.messages * self.size / 1e6

    def fill(self, compression: str) -> None:
        """Values that compress to about a half; a key of ten thousand, two properties."""
        path = _TOPIC.replace("://", "/")
        request = urllib.request.Request(
            f"{self.cluster.web_urls[0]}/admin/v2/{path}/partitions",
            str(_PARTITIONS).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=60):
            pass
        noise = os.urandom(self.size * 64)
        half = self.size // 2
        client = self._client()
        producer = client.create_producer(
            _TOPIC,
            compression_type=_COMPRESSIONS[compression],
            batching_enabled=True,
            batching_max_messages=100,
            batching_max_publish_delay_ms=10,
            max_pending_messages=5000,
            block_if_queue_full=True,
        )
        failures: list[Any] = []

        def stored(result: Any, _id: Any) -> None:
            if result != pulsar.Result.Ok:
                failures.append(result)

        for number in range(self.messages):
            at = number * 7 % (len(noise) - half)
            value = noise[at : at + half] + bytes(self.size - half)
            producer.send_async(
                value,
                stored,
                partition_key=f"key-{number % 10_000}",
                properties={"number": str(number), "kind": "benchmark"},
            )
        producer.flush()
        client.close()
        assert not failures, failures[:3]

    def _client(self) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(self.cluster.service_url, logger=logger)

    def cpu_s(self) -> dict[str, float]:
        """User and system seconds so far: of the broker, and of all bookies."""
        used = {"broker": 0.0, "bookies": 0.0}
        for name, process in self.cluster.children().items():
            times = process.cpu_times()
            kind = name.split("-")[0]
            if kind in ("broker", "bookie"):
                used["broker" if kind == "broker" else "bookies"] += times.user + times.system
        return used

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        before, start_s = self.cpu_s(), time.monotonic()
        yield
        seconds = time.monotonic() - start_s
        after = self.cpu_s()
        row = {
            "what": what,
            "seconds": round(seconds, 2),
            "MB_per_s": round(self.megabytes / seconds, 1),
            "messages_per_s": round(self.messages / seconds),
            "broker_cpu_s": round(after["broker"] - before["broker"], 2),
            "bookies_cpu_s": round(after["bookies"] - before["bookies"], 2),
        }
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def read_by_client(self, moment: str) -> None:
        """One consumer of all partitions, as much ahead as it may; each message is looked at."""
        client = self._client()
        size = 0
        with self.measured(f"official client, values, {moment}"):
            consumer = client.subscribe(
                _TOPIC,
                moment,
                consumer_type=pulsar.ConsumerType.Exclusive,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=10_000,
                max_total_receiver_queue_size_across_partitions=40_000,
            )
            for _ in range(self.messages):
                size += len(consumer.receive(timeout_millis=60_000).data())
        assert size == self.messages * self.size
        client.close()

    def read_by_spark(self, cores: int) -> None:
        from pyspark.sql import SparkSession

        from magnetar.pipeline.source import register

        spark = (
            SparkSession.builder.master(f"local[{cores}]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        access = {"adminUrl": self.cluster.web_urls[0], "subscribe": _TOPIC}

        def sums(schema: str | None, *more: str) -> list[Any]:
            """A new table each time: Spark would give the answer of a former one once more."""
            table = spark.read.format("magnetar").options(**access)
            rows = table.load() if schema is None else table.schema(schema).load()
            return rows.selectExpr("sum(length(value))", "count(*)", *more).collect()

        self._check(sums("value BINARY"))  # JVM, workers and bytecode are warm from here on
        cores_text = f"{cores} core{'s' * (cores > 1)}"
        with self.measured(f"Spark, {cores_text}, values"):
            found = sums("value BINARY")
        self._check(found)
        with self.measured(f"Spark, {cores_text}, all columns"):
            found = sums(
                None,
                *("max(key)", "max(entryId)", "max(publishTime)", "max(producerName)"),
                *("sum(cardinality(properties))", "max(sequenceId)"),
            )
        self._check(found)
        spark.stop()

    def _check(self, found: list[Any]) -> None:
        assert tuple(found[0])[:2] == (self.messages * self.size, self.messages), found


def _cluster(folder: Path) -> ClusterProcess:
    return ClusterProcess(
        folder / "cluster",
        *("--brokers", "1", "--bookies", "3"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a value")
    parser.add_argument("--compression", choices=sorted(_COMPRESSIONS), default="none")
    parser.add_argument("--out", type=Path, help="file for the lines, too")
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as name, _cluster(Path(name)) as cluster:
        run = Backfill(cluster, options.messages, options.size)
        run.fill(options.compression)
        steps: list[Callable[[], None]] = [
            lambda: run.read_by_client("before"),
            lambda: run.read_by_spark(1),
            lambda: run.read_by_spark(2),
            lambda: run.read_by_client("after"),
        ]
        for step in steps:
            step()
    if options.out is not None:
        machine = {"cpus": psutil.cpu_count(), "messages": options.messages, "size": options.size}
        machine["compression"] = options.compression
        lines = [json.dumps({**machine, **row}) for row in run.rows]
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
