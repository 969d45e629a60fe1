"""The jobs on a real Spark, against a real broker and its bookie: complete, once, and in order."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pulsar
import pytest

from magnetar.broker.cli.main import main
from magnetar.pipeline.errors import (
    BrokenExportError,
    DataLossError,
    ExportBusyError,
    JobError,
    OptionsError,
)
from magnetar.pipeline.jobs.export import ExportSettings, export, read_export, read_manifests
from magnetar.pipeline.jobs.files import Files
from magnetar.pipeline.jobs.load import key_load
from magnetar.pipeline.jobs.manifest import Manifest
from magnetar.pipeline.jobs.plots import draw_keys
from magnetar.pipeline.jobs.replay import ReplaySettings, replay
from magnetar.pipeline.source import read_topics
from tests.child_process import suspend
from tests.nightly import NIGHTLY
from tests.official_client import client_of
from tests.pipeline.conftest import ROOT, spark_environment
from tests.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S: Final = 240.0
PREFIX: Final = "persistent://public/default/"
ONE_RUN: Final = ExportSettings()

Content = tuple[bytes | None, bytes | None, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """A message, and where it is: partition, ledger, entry and index in its batch."""

    place: tuple[int, int, int, int]
    content: Content


class Cluster:
    """A standalone broker that drops repeated messages, and a client of it."""

    def __init__(self, process: StandaloneProcess, client: pulsar.Client) -> None:
        self.process, self._client = process, client
        self.options = {"adminUrl": process.admin_url, "serviceUrl": process.service_url}

    def call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.process.admin_url}/admin/v2/{path}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def create(self, topic: str, partitions: int = 2) -> str:
        self.call("PUT", f"persistent/public/default/{topic}/partitions", partitions)
        # Somebody who has consumed nothing: else nothing would be kept.
        self._client.subscribe(topic, "keeper").close()
        return topic

    def stored(self, topic: str, partition: int) -> int:
        """Entries of a partition."""
        path = f"persistent/public/default/{topic}-partition-{partition}/segments?locations=false"
        return sum(each["entries"] for each in self.call("GET", path)["ledgers"])

    def send(self, topic: str, first: int, end: int, batch: int = 20) -> list[Row]:
        """Messages with these numbers: keys, properties, and some without a value."""
        rows: list[Row] = []
        results: list[Any] = []
        done = threading.Event()

        def on_answer(number: int, result: Any, at: Any) -> None:
            results.append(result)
            if result == pulsar.Result.Ok:
                place = (at.partition(), at.ledger_id(), at.entry_id(), at.batch_index())
                rows.append(Row(place, content_of(number)))
            if len(results) == end - first:
                done.set()

        producer = self._client.create_producer(
            topic,
            send_timeout_millis=int(WAIT_S * 1000),
            batching_enabled=batch > 1,
            batching_max_messages=max(2, batch),
            block_if_queue_full=True,
            compression_type=pulsar.CompressionType.ZSTD,
        )
        for number in range(first, end):
            value, key, properties = content_of(number)
            assert key is not None
            producer.send_async(
                value,
                partial(on_answer, number),
                partition_key=key.decode(),
                properties=dict(properties),
            )
        producer.flush()
        assert done.wait(WAIT_S)
        producer.close()
        assert set(results) == {pulsar.Result.Ok}
        return sorted(rows, key=lambda row: row.place)


def content_of(number: int) -> Content:
    value = None if number % 11 == 5 else b"%d " % number + hashlib.sha512(b"%d" % number).digest()
    key = b"key-%d" % (number % 37) if number % 3 else b"often"
    return value, key, (("number", str(number)), ("ü", "")) if number % 2 else ()


def row_of(row: Any) -> Row:
    return Row(
        (row.partition, row.ledgerId, row.entryId, row.batchIndex),
        (
            None if row.value is None else bytes(row.value),
            None if row.key is None else bytes(row.key),
            tuple(sorted(row.properties.items())),
        ),
    )


def rows_of(frame: DataFrame) -> list[Row]:
    columns = ("partition", "ledgerId", "entryId", "batchIndex", "value", "key", "properties")
    found = [row_of(row) for row in frame.select(*columns).collect()]
    return sorted(found, key=lambda row: row.place)


def topic_rows(spark: SparkSession, cluster: Cluster, topic: str) -> list[Row]:
    return rows_of(read_topics(spark, adminUrl=cluster.process.admin_url, subscribe=topic))


def by_partition(rows: Sequence[Row]) -> dict[int, list[Content]]:
    """Contents in order."""
    contents: dict[int, list[Content]] = {}
    for row in rows:
        contents.setdefault(row.place[0], []).append(row.content)
    return contents


def check_files(folder: Path, runs: Sequence[Manifest]) -> None:
    """All files are as their manifests say; no others are in folders of runs."""
    for run in runs:
        for each in run.files:
            content = (folder / each.path).read_bytes()
            assert len(content) == each.size
            assert hashlib.sha256(content).hexdigest() == each.sha256
    listed = {each.path for run in runs for each in run.files}
    there = {str(path.relative_to(folder)) for path in folder.rglob("run=*/**/*.parquet")}
    assert there == listed


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("jobs") / "data"
    with (
        StandaloneProcess(data, "--set", "brokerDeduplicationEnabled=true") as process,
        client_of(process.service_url, operation_timeout_seconds=int(WAIT_S)) as client,
    ):
        yield Cluster(process, client)


class Command:
    """``magnetar pipeline ...`` as a process of its own, on one core."""

    def __init__(self, cluster: Cluster, log: Path, *words: str) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "magnetar.broker.cli.main", "pipeline", *words),
                    *("--admin-url", cluster.process.admin_url),
                    *("--url", cluster.process.service_url, "--cores", "1", "--progress"),
                    *("--spark-conf", "spark.driver.memory=512m"),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=spark_environment(),
            )

    def _stands(self, when: Callable[[], bool]) -> bool:
        """Suspended, so that ``when`` holds until the signal has come; else it goes on."""
        suspend(self._process.pid)
        if not when():
            self._process.send_signal(signal.SIGCONT)
            return False
        return True

    def end(self, how: signal.Signals, when: Callable[[], bool]) -> int:
        """Signal it as soon as ``when`` holds; its exit code, when its children are gone, too."""
        deadline_s = time.monotonic() + WAIT_S
        children: list[psutil.Process] = []
        try:
            while not (when() and self._stands(when)):
                assert self._process.poll() is None, f"it ended:\n{self.log.read_text()}"
                assert time.monotonic() < deadline_s, f"nothing to see:\n{self.log.read_text()}"
                time.sleep(0.005)
            children = psutil.Process(self._process.pid).children(recursive=True)
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)
            return self._process.wait(WAIT_S)
        finally:
            self._process.kill()
            self._process.wait()
            _, alive = psutil.wait_procs(children, WAIT_S)
            for each in alive:
                each.kill()
            assert not alive, f"Spark went on without its driver: {alive}"


def test_an_export_and_what_came_later(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic, folder = cluster.create("orders"), tmp_path / "lake"
    options = {**cluster.options, "subscribe": topic}
    sent = cluster.send(topic, 0, 600)
    (first,) = export(spark, str(folder), options)
    assert (first.number, first.rows) == (1, 600)
    assert rows_of(read_export(spark, str(folder))) == sent

    # What an attempt that was killed has left, and a file that nobody listed.
    rest = folder / "run=000002-00000000" / "topic=x"
    rest.mkdir(parents=True)
    (rest / "part-0.parquet").write_bytes(b"half of a file")
    stray = folder / Path(first.files[0].path).with_name("stray.parquet")
    stray.write_bytes((folder / first.files[0].path).read_bytes())
    sent += cluster.send(topic, 600, 900)
    (second,) = export(spark, str(folder), options, ExportSettings(cursor="lake"))
    assert second.rows == 300
    for partition in (0, 1):  # one entry behind, so that its ledger stays
        path = f"persistent/public/default/{topic}-partition-{partition}/stats"
        stats = cluster.call("GET", f"{path}?getPreciseBacklog=true")
        assert stats["subscriptions"]["lake"]["msgBacklog"] == 1
    assert not rest.exists()
    frame = read_export(spark, str(folder))
    assert rows_of(frame) == sorted(sent, key=lambda row: row.place)
    stray.unlink()
    check_files(folder, [first, second])

    # Exactly the range: each bound is where the recorded messages begin and end.
    for number, run in enumerate((first, second)):
        for name, span in run.spans.items():
            ids = [
                row.place[1:]
                for row in sent
                if name == f"{PREFIX}{topic}-partition-{row.place[0]}"
                and (number == 0) == (row.place[1:] < tuple(first.spans[name].end))
            ]
            assert len(ids) == span.rows
            assert tuple(span.start)[:2] == min(ids)[:2]
            assert tuple(span.end)[:2] == (max(ids)[0], max(ids)[1] + 1)
    assert read_manifests(Files(spark, str(folder))) == [first, second]
    assert export(spark, str(folder), options) == []
    assert frame.columns[-1] == "date"
    assert frame.where("date = to_date(publishTime)").count() == 900
    with pytest.raises(JobError, match="holds an export already"):
        export(spark, str(folder), options, ExportSettings(incremental=False))


def test_a_folder_has_one_export_at_a_time(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic = cluster.create("busy")
    files = Files(spark, str(tmp_path))
    with files.lock("_manifests/.lock"), pytest.raises(ExportBusyError, match="another process"):
        export(spark, str(tmp_path), {**cluster.options, "subscribe": topic})
    files.write("_manifests/000001.json", "x")
    with pytest.raises(ExportBusyError, match="written meanwhile"):
        files.write("_manifests/000001.json", "y")
    assert files.names("_manifests") == [".lock", "000001.json"]
    with pytest.raises(BrokenExportError, match="not a manifest"):
        export(spark, str(tmp_path), {**cluster.options, "subscribe": topic})
    with pytest.raises(BrokenExportError, match="there is no export"):
        read_export(spark, str(tmp_path / "elsewhere"))


def test_what_was_trimmed_before_it_was_exported(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic, folder = cluster.create("trimmed", 1), str(tmp_path)
    options = {**cluster.options, "subscribe": topic}
    cluster.send(topic, 0, 50)
    (first,) = export(spark, folder, options)
    cluster.send(topic, 50, 100)
    cluster.call("DELETE", f"persistent/public/default/{topic}/truncate")
    left = cluster.send(topic, 100, 130)
    with pytest.raises(DataLossError, match="not stored any more"):
        export(spark, folder, options)
    assert len(read_manifests(Files(spark, folder))) == 1
    (second,) = export(spark, folder, {**options, "failOnDataLoss": "false"})
    name = f"{PREFIX}{topic}-partition-0"
    assert second.rows == 30
    assert second.spans[name].lost_from == first.spans[name].end
    assert rows_of(read_export(spark, folder, [second])) == left


@pytest.mark.skipif(not NIGHTLY, reason="make nightly: a JVM for one signal")
def test_an_export_that_is_interrupted_goes_on(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """What one that was killed leaves is in `test_an_export_and_what_came_later`."""
    topic, folder = cluster.create("interrupted"), tmp_path / "lake"
    sent = cluster.send(topic, 0, 1200)
    size = sum(
        each["size"]
        for partition in (0, 1)
        for each in cluster.call(
            "GET", f"persistent/public/default/{topic}-partition-{partition}/segments"
        )["ledgers"]
    )
    words = ("export", topic, "--to", str(folder), "--run-bytes", str(size // 8))

    def in_run(number: int) -> bool:
        """That run has begun to write; it isn't recorded."""
        return (
            any(folder.glob(f"run={number:06}-*/*"))
            and not (folder / "_manifests" / f"{number:06}.json").exists()
        )

    code = Command(cluster, tmp_path / "log", *words).end(signal.SIGINT, lambda: in_run(2))
    assert code == 130, (tmp_path / "log").read_text()
    assert len(read_manifests(Files(spark, str(folder)))) == 1
    assert not list(folder.glob("run=000002-*")), "an interrupted run leaves nothing"

    export(spark, str(folder), {**cluster.options, "subscribe": topic}, ONE_RUN)
    runs = read_manifests(Files(spark, str(folder)))
    assert len(runs) == 2
    check_files(folder, runs)
    assert rows_of(read_export(spark, str(folder))) == sent


def test_a_replay_is_the_same_topic_again(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    source, target = cluster.create("source"), cluster.create("target")
    sent = cluster.send(source, 0, 300)
    folder, options = str(tmp_path), {**cluster.options, "subscribe": source}
    export(spark, folder, options)
    done = replay(spark, folder, target, cluster.options)
    assert (done.runs, done.rows) == ([1], 300)
    assert by_partition(topic_rows(spark, cluster, target)) == by_partition(sent)

    assert replay(spark, folder, target, cluster.options).rows == 0
    sent += cluster.send(source, 300, 400)
    export(spark, folder, options)
    assert replay(spark, folder, target, cluster.options).runs == [2]
    whole = by_partition(sorted(sent, key=lambda row: row.place))
    assert by_partition(topic_rows(spark, cluster, target)) == whole

    # Its state is lost after the last run was sent: the broker knows all of that run.
    (state,) = (tmp_path / "_replays").glob("*.json")
    state.write_text(state.read_text().replace('"done": 2', '"done": 1'))
    assert replay(spark, folder, target, cluster.options).runs == [2]
    assert by_partition(topic_rows(spark, cluster, target)) == whole
    with pytest.raises(OptionsError, match="an export has every message"):
        export(spark, str(tmp_path / "other"), {**options, "readCompacted": "true"})
    with pytest.raises(OptionsError, match="choose another name"):
        replay(spark, folder, source, cluster.options, ReplaySettings(name=state.stem))


@pytest.mark.skipif(not NIGHTLY, reason="make nightly: test_sink_restarts.py kills in CI")
def test_a_replay_that_is_killed_goes_on(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    source, target = cluster.create("replayed"), cluster.create("replayed-to")
    sent = cluster.send(source, 0, 800)
    folder = tmp_path / "lake"
    export(spark, str(folder), {**cluster.options, "subscribe": source})
    words = (
        *("replay", str(folder), "--to", target, "--rate", "200"),
        *("--option", "batchingMaxMessages=10"),
    )

    def is_under_way() -> bool:
        return all(cluster.stored(target, partition) >= 3 for partition in (0, 1)) or (
            cluster.stored(target, 0) >= 5
        )

    assert Command(cluster, tmp_path / "log", *words).end(signal.SIGKILL, is_under_way) < 0
    part = sum(cluster.stored(target, partition) for partition in (0, 1))
    assert part < 70, "the kill came after the end"
    options = {**cluster.options, "batchingMaxMessages": "10"}
    assert replay(spark, str(folder), target, options).runs == [1]
    assert by_partition(topic_rows(spark, cluster, target)) == by_partition(sent)


def test_a_replay_of_other_parquet(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    target = cluster.create("other", 1)
    rows = [(b"k", b"%03d" % number, 99 - number) for number in range(100)]
    frame = spark.createDataFrame(rows, "key binary, value binary, at int")
    frame.repartition(3).write.parquet(str(tmp_path / "parquet"))
    source = str(tmp_path / "parquet")
    with pytest.raises(OptionsError, match="to sort by"):
        replay(spark, source, target, cluster.options)
    settings = ReplaySettings(order_by=("at",))
    for _ in range(2):  # the second time brokers have all of it
        assert replay(spark, source, target, cluster.options, settings).rows == 100
    found = [row.content[0] for row in topic_rows(spark, cluster, target)]
    assert found == [value for _, value, _ in reversed(rows)]


def test_backlog_and_bundles(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = cluster.create("waiting")
    cluster.send(topic, 0, 100, batch=1)
    where = ("--admin-url", cluster.process.admin_url)
    table, plot = tmp_path / "backlog.parquet", tmp_path / "backlog.svg"
    words = ("backlog", topic, "--json", "--parquet", str(table), "--plot", str(plot))
    assert main(["pipeline", *words, *where]) == 0
    rows = json.loads(capsys.readouterr().out)["backlog"]
    assert {(row["topic"], row["partition"], row["subscription"]) for row in rows} == {
        (f"{PREFIX}{topic}", partition, "keeper") for partition in (0, 1)
    }
    assert sum(row["entries"] for row in rows) == 100
    assert all(row["bytes"] > 0 and 0 <= row["oldestSeconds"] < WAIT_S for row in rows)
    assert table.stat().st_size > 0
    assert f"waiting-{rows[0]['partition']} · keeper" in plot.read_text()

    for sort in ("messages", "storage"):
        plot = tmp_path / f"{sort}.svg"
        job = ("load", "--json", "--top", "500", "--sort", sort, "--plot", str(plot))
        assert main(["pipeline", *job, *where]) == 0
        found = json.loads(capsys.readouterr().out)
        assert plot.read_text().count("<path") > 10
    mine = cluster.call("GET", "broker-stats/topics")["public/default"]
    assert {row["bundle"] for row in found["bundles"]} >= {
        f"public/default/{each}" for each in mine
    }
    assert sum(row["backlog"] for row in found["bundles"]) >= 100
    assert [row["bundles"] for row in found["brokers"]] == [len(found["bundles"])]


def test_keys(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.create("keys")
    cluster.send(topic, 0, 600)
    found = key_load(spark, topic, cluster.options, top=5, consumers=2, ranges=8)
    expected = Counter(content_of(number)[1] for number in range(600))
    sizes: Counter[bytes | None] = Counter()
    for number in range(600):
        value, key, _ = content_of(number)
        sizes[key] += len(value or b"")
    assert (found.messages, found.keyless, found.distinct) == (600, 0, len(expected))
    first = found.keys.rows[0]
    assert (first["key"], first["messages"], first["bytes"]) == ("often", 200, sizes[b"often"])
    assert [row["messages"] for row in found.keys.rows] == sorted(expected.values())[:-6:-1]
    assert sum(found.partitions.values()) == sum(found.ranges) == 600
    assert set(found.partitions) == {0, 1}
    assert found.consumers.max_to_mean > 1
    assert 0.2 < found.gini < 0.5
    plot = tmp_path / "keys.png"
    draw_keys(found, plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
