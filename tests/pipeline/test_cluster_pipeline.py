"""Spark, a broker and three bookies as processes: many messages (`make nightly`: a million), and
what dies on the way."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pulsar
import pytest

from tests.cluster_process import ClusterProcess
from tests.nightly import NIGHTLY
from tests.pipeline.conftest import ROOT, spark_environment
from tests.pipeline.stream_job import carry
from tests.pipeline.topics import Addresses, admin, client_of, load, segments, topic_path
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

WAIT_S: Final = 400.0
COMPRESSIONS: Final = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
PER_COMPRESSION: Final = 200_000 if NIGHTLY else 8_000
BURST: Final = 1_500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    keep = ("defaultRetentionTimeInMinutes=-1", "defaultRetentionSizeInMB=-1")
    options = [word for each in keep for word in ("--broker-set", each)]
    with ClusterProcess(
        folder / "cluster", "--brokers", "1", "--bookies", "3", *options
    ) as process:
        yield process


@pytest.fixture(scope="module")
def at(cluster: ClusterProcess) -> Addresses:
    return Addresses(cluster.service_url, cluster.web_urls[0])


def _fill(client: pulsar.Client, topic: str, compression: Any) -> None:
    """Value, key and properties of each message follow from its number."""
    producer = client.create_producer(
        topic,
        compression_type=compression,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=10,
        max_pending_messages=20_000,
        block_if_queue_full=True,
        send_timeout_millis=int(WAIT_S * 1000),
    )
    # Called for each message: a function of ours would take a third of the time.
    results: dict[Any, Any] = {}
    for n in range(PER_COMPRESSION):
        producer.send_async(
            b"value-%d-%s" % (n, b"x" * (n % 50)),
            results.__setitem__,
            partition_key=f"key-{n % 1000}",
            properties={"n": str(n), "even": str(n % 2 == 0)},
        )
    producer.flush()
    producer.close()
    assert set(results) == {pulsar.Result.Ok}


def test_many_messages_of_each_compression_come_back_exactly(
    spark: SparkSession, at: Addresses, cluster: ClusterProcess
) -> None:
    with client_of(at) as client:
        for name, compression in COMPRESSIONS.items():
            _fill(client, f"million-{name}", compression)
    rows = load(spark, at, ",".join(f"million-{name}" for name in COMPRESSIONS), minPartitions=6)
    n = "CAST(properties['n'] AS INT)"
    rules = {
        "value": f"value = encode(concat('value-', {n}, '-', repeat('x', {n} % 50)), 'utf-8')",
        "key": f"key = encode(concat('key-', {n} % 1000), 'utf-8')",
        "even": f"properties['even'] = IF({n} % 2 = 0, 'True', 'False')",
        "properties": "cardinality(properties) = 2",
        "sequence": f"sequenceId = {n}",
    }
    columns = ", ".join(f"every(COALESCE({rule}, false)) {name}" for name, rule in rules.items())
    rows.createOrReplaceTempView("numbered")
    found = spark.sql(
        f"SELECT topic, count(*), count(DISTINCT {n}), {columns} FROM numbered GROUP BY topic"
    ).collect()
    everything = (PER_COMPRESSION, PER_COMPRESSION, *[True] * len(rules))
    assert {row[0].rpartition("-")[2]: tuple(row)[1:] for row in found} == dict.fromkeys(
        COMPRESSIONS, everything
    )
    for name in COMPRESSIONS:  # no broker dispatched any of it
        assert admin(at, "GET", f"{topic_path(f'million-{name}')}/stats")["msgOutCounter"] == 0


def test_a_bookie_dies_while_tasks_read(
    spark: SparkSession, at: Addresses, cluster: ClusterProcess
) -> None:
    rows = load(spark, at, "million-none,million-lz4", minPartitions=8)
    answers: list[Any] = []

    def count() -> None:
        answers.append(rows.selectExpr("count(*)", "sum(sequenceId)").collect()[0])

    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getActiveJobsIds())
    reading = threading.Thread(target=count)
    reading.start()

    def tasks_run() -> bool:
        for job in set(tracker.getActiveJobsIds()) - before:
            for stage in ((info := tracker.getJobInfo(job)) is not None and info.stageIds) or ():
                running = tracker.getStageInfo(stage)
                if running is not None and running.numActiveTasks:
                    return True
        return not reading.is_alive()

    wait_until(tasks_run, "tasks run", WAIT_S)
    bookie = cluster.children()["bookie-2"]
    bookie.kill()
    reading.join(WAIT_S)
    total = PER_COMPRESSION * (PER_COMPRESSION - 1) // 2
    assert [tuple(each) for each in answers] == [(2 * PER_COMPRESSION, 2 * total)]


class Carrier:
    """The application that carries ``source`` to ``target``."""

    def __init__(self, at: Addresses, folder: Path) -> None:
        self.log = folder / "carrier.log"
        access = {"adminUrl": at.admin_url, "serviceUrl": at.service_url}
        self.wanted = {
            "source": {
                **access,
                "subscribe": "source",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(BURST),
                "minPartitions": "2",
                "cursor": "carrier",
            },
            "sink": {**access, "topic": "target"},
            "checkpoint": str(folder / "checkpoint"),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.stream_job", json.dumps(self.wanted)],
                cwd=ROOT,
                env=spark_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """Driver, JVM and workers, at once."""
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        below = driver.children(recursive=True)
        for each in [driver, *below]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(below, timeout=WAIT_S)
        self._process.wait()
        self._process = None

    def wait_until(self, is_so: Any, what: str) -> None:
        def done() -> bool:
            assert self._process is not None
            ended = self._process.poll()
            assert ended is None, self.log.read_text(errors="replace")[-5000:]
            return bool(is_so())

        wait_until(done, what, WAIT_S)

    def close(self) -> None:
        if self._process is not None:
            self.kill()


def _stored(at: Addresses, topic: str) -> int:
    """Entries in the log, which only grows; 0: nobody can tell just now."""
    try:
        return sum(int(each["entries"]) for each in segments(at, topic)["ledgers"])
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return 0


def _read_all(client: pulsar.Client, topic: str) -> list[tuple[str, int]]:
    """Key and number of each message, in order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(int(WAIT_S * 1000))
        found.append((message.partition_key(), int(message.properties()["n"])))
    reader.close()
    return found


@pytest.mark.skipif(not NIGHTLY, reason="make nightly: test_sink_restarts.py kills in CI")
def test_a_stream_carries_each_message_once_whoever_dies(
    spark: SparkSession, at: Addresses, cluster: ClusterProcess, tmp_path: Path
) -> None:
    rng = random.Random(9)
    admin(at, "PUT", topic_path("target"))
    # An empty topic without anybody would go after a minute, and its policy with it.
    admin(at, "PUT", f"{topic_path('target')}/subscription/keeper")
    admin(at, "POST", f"{topic_path('target')}/deduplicationEnabled", True)
    carrier = Carrier(at, tmp_path)
    with client_of(at) as client:
        producer = client.create_producer(
            "source",
            batching_max_messages=50,
            block_if_queue_full=True,
            send_timeout_millis=int(WAIT_S * 1000),
        )
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            for number in range(sent, sent + count):
                producer.send_async(
                    b"%d" % number,
                    None,
                    partition_key=f"key-{number % 13}",
                    properties={"n": str(number)},
                )
            producer.flush()
            sent += count

        def goes_on(when: str) -> None:
            before = _stored(at, "target")
            send(BURST)
            carrier.wait_until(lambda: _stored(at, "target") > before, f"it goes on: {when}")

        try:
            send(2 * BURST)
            for round_number in range(2):
                carrier.start()
                goes_on("it runs")
                if round_number == 0:
                    cluster.children()["bookie-1"].kill()
                    goes_on("a bookie is dead")
                time.sleep(rng.random())  # anywhere within a batch
                carrier.kill()
                send(BURST)
        finally:
            carrier.close()

        def done() -> bool:
            path = f"{topic_path('source')}/stats"
            cursor = admin(at, "GET", path)["subscriptions"].get("carrier")
            return cursor is not None and cursor["msgBacklog"] <= 1

        query = carry(spark, carrier.wanted)  # the next one goes on
        try:
            wait_until(done, "everything is carried, and the cursor has followed", WAIT_S)
        finally:
            query.stop()
        found = _read_all(client, "target")
    assert sorted(number for _, number in found) == list(range(sent))
    assert {key for key, number in found if key != f"key-{number % 13}"} == set()
