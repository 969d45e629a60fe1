"""The sink on a real Spark and a real broker, read back by the official client."""

from __future__ import annotations

import datetime
import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from magnetar.broker.protocol.java_hash import java_string_hash
from magnetar.pipeline.entry_plan import murmur3_32_hash
from tests.official_client import client_of
from tests.pipeline.sink_job import PADDING, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.standalone_process import StandaloneProcess

WAIT_MS = 60_000
KEPT = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


@pytest.fixture(scope="module")
def http(admin_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{admin_url}/admin/v2/", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client(service_url: str) -> Iterator[pulsar.Client]:
    with client_of(service_url) as made:
        yield made


class Sink:
    """A topic that drops repeated messages, and a sink's options for it."""

    def __init__(
        self, http: httpx.Client, client: pulsar.Client, urls: dict[str, str], partitions: int = 0
    ) -> None:
        self.http, self.client, self.urls = http, client, urls
        self.topic = f"persistent://public/default/sink-{uuid.uuid4().hex[:8]}"
        self.path = self.topic.replace("://", "/")
        self.partitions = partitions
        if partitions:
            self._ok(http.put(f"{self.path}/partitions", json=partitions))
        else:
            self._ok(http.put(self.path))
        self._ok(http.post(f"{self.path}/deduplicationEnabled", json=True))
        self._ok(http.post(f"{self.path}/retention", json=KEPT))

    @staticmethod
    def _ok(response: httpx.Response) -> None:
        assert response.is_success, response.text

    @property
    def options(self) -> dict[str, str]:
        return {**self.urls, "topic": self.topic}

    def write(self, rows: DataFrame, **options: Any) -> None:
        rows.write.format("magnetar").mode("append").options(**self.options | options).save()

    def messages(self, topic: str = "") -> list[pulsar.Message]:
        """All that is stored, partition by partition."""
        found = []
        for place in self.client.get_topic_partitions(topic or self.topic):
            reader = self.client.create_reader(place, pulsar.MessageId.earliest)
            while reader.has_message_available():
                found.append(reader.read_next(WAIT_MS))
            reader.close()
        return found

    def due_ms(self, message: pulsar.Message) -> int:
        """When it may be delivered; 0: at once. The client doesn't tell."""
        place = message.message_id()
        answer = self.http.get(f"{self.path}/ledger/{place.ledger_id()}/entry/{place.entry_id()}")
        self._ok(answer)
        text = answer.headers.get("X-Pulsar-deliver-at-time")
        return int(datetime.datetime.fromisoformat(text).timestamp() * 1000) if text else 0

    def values(self, topic: str = "") -> list[str]:
        return [message.data().decode() for message in self.messages(topic)]


@pytest.fixture
def sink(http: httpx.Client, client: pulsar.Client, service_url: str, admin_url: str) -> Sink:
    return Sink(http, client, {"serviceUrl": service_url, "adminUrl": admin_url})


@pytest.fixture
def wide(http: httpx.Client, client: pulsar.Client, service_url: str, admin_url: str) -> Sink:
    """Four partitions."""
    return Sink(http, client, {"serviceUrl": service_url, "adminUrl": admin_url}, 4)


pytestmark = pytest.mark.usefixtures("spark")

UTC = datetime.UTC
EVENT = datetime.datetime(2024, 5, 17, 12, 30, 0, 123_000, UTC)


def test_all_columns_arrive(spark: SparkSession, sink: Sink) -> None:
    soon = datetime.datetime(2100, 1, 1, 0, 0, 0, 5_000, UTC)
    rows = [
        (b"one", "k1", {"a": "1", "b": "zwei"}, EVENT, None, None, "o1"),
        (b"", None, None, None, None, None, None),
        (None, "k2", {}, None, None, None, None),
        (b"later", "k3", None, None, soon, None, None),
        (b"after", "k4", None, EVENT, None, 3_600_000, None),
        (b"\x00\xff last", "", None, None, None, None, "o2"),
    ]
    ddl = (
        "VALUE binary, key string, headers map<string,string>, EventTime timestamp, "
        "deliverat timestamp, deliverAfter bigint, orderingKey string"
    )
    started_ms = time.time() * 1000
    sink.write(spark.createDataFrame(rows, ddl).coalesce(1))
    found = sink.messages()
    assert [message.data() for message in found] == [row[0] or b"" for row in rows]
    assert [message.has_null_value() for message in found] == [row[0] is None for row in rows]
    assert [message.partition_key() for message in found] == [row[1] or "" for row in rows]
    assert [message.properties() for message in found] == [row[2] or {} for row in rows]
    event_ms = int(EVENT.timestamp() * 1000)
    assert [message.event_timestamp() for message in found] == [event_ms, 0, 0, 0, event_ms, 0]
    assert [message.ordering_key() for message in found] == [row[6] or "" for row in rows]
    assert len({message.producer_name() for message in found}) == 1
    due_ms = {message.data(): sink.due_ms(message) for message in found}
    hour_ms = 3_600_000
    assert due_ms.pop(b"later") == int(soon.timestamp() * 1000)
    assert started_ms + hour_ms <= due_ms.pop(b"after") <= time.time() * 1000 + hour_ms
    assert set(due_ms.values()) == {0}


@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
def test_each_compression_in_batches(spark: SparkSession, sink: Sink, compression: str) -> None:
    rows = spark.range(0, 2500, 1, 2).selectExpr("concat('row ', id) as value")
    sink.write(rows, compression=compression, batchingMaxMessages=100)
    found = sink.messages()
    assert sorted(message.data() for message in found) == sorted(
        f"row {number}".encode() for number in range(2500)
    )
    entries = {(id_.ledger_id(), id_.entry_id()) for id_ in (m.message_id() for m in found)}
    assert len(entries) == 2 * 13  # of 1,250 rows of a task, in hundreds


@pytest.mark.parametrize(
    ("scheme", "hashed"),
    [("JavaStringHash", java_string_hash), ("Murmur3_32Hash", murmur3_32_hash)],
)
def test_keys_choose_partitions(spark: SparkSession, wide: Sink, scheme: str, hashed: Any) -> None:
    rows = spark.range(0, 400, 1, 2).selectExpr(
        "concat('v', id) as value", "cast(concat('key-', id % 50) as binary) as key"
    )
    wide.write(rows, hashingScheme=scheme)
    found = wide.messages()
    assert Counter(m.data() for m in found) == Counter(b"v%d" % number for number in range(400))
    for message in found:
        expected = hashed(message.partition_key()) % 4
        assert message.topic_name() == f"{wide.topic}-partition-{expected}"


def test_rows_choose_partitions_and_others_take_turns(spark: SparkSession, wide: Sink) -> None:
    rows = spark.range(0, 80, 1, 1).selectExpr(
        "string(id) as value", "if(id < 40, 3, null) as partition"
    )
    wide.write(rows)
    by_place = Counter(message.topic_name()[-1] for message in wide.messages())
    assert by_place == {"0": 10, "1": 10, "2": 10, "3": 50}
    with pytest.raises(Exception, match="row 0 of the task: no partition 9, there are 4"):
        wide.write(spark.sql("select 'x' as value, 9 as partition"))


def test_topics_by_row_and_the_option_above_them(
    spark: SparkSession, sink: Sink, wide: Sink
) -> None:
    rows = spark.range(0, 90, 1, 2).selectExpr(
        "string(id) as value",
        f"if(id % 3 = 0, '{sink.topic}', '{wide.topic.rpartition('/')[2]}') as topic",
    )
    options = sink.urls
    rows.write.format("magnetar").mode("append").options(**options).save()
    assert sorted(map(int, sink.values())) == list(range(0, 90, 3))
    assert sorted(map(int, wide.values())) == [n for n in range(90) if n % 3]
    sink.write(rows)
    assert len(sink.values()) == 120
    assert len(wide.values()) == 60
    with pytest.raises(Exception, match="row 0 of the task names no topic"):
        spark.sql("select 'x' as value, string(null) as topic").write.format("magnetar").mode(
            "append"
        ).options(**options).save()


def test_a_job_that_is_repeated_under_its_name_goes_on(spark: SparkSession, sink: Sink) -> None:
    rows = spark.range(0, 1000, 1, 2).selectExpr("string(id) as value")
    sink.write(rows.where("id < 300 or id >= 500"), producerName="job", batchingMaxMessages=7)
    assert len(sink.values()) == 800
    sink.write(rows.where("id < 400 or id >= 500"), producerName="job", batchingMaxMessages=7)
    assert sorted(map(int, sink.values())) == sorted([*range(400), *range(500, 1000)])
    sink.write(rows, producerName="job", batchId=1)
    assert len(sink.values()) == 1900
    with pytest.raises(Exception, match="has written batch 1 already, and this is batch 0"):
        sink.write(rows, producerName="job")
    sink.write(rows, producerName="another")
    assert len(sink.values()) == 2900


def test_at_least_once_needs_no_policy_and_no_name(spark: SparkSession, sink: Sink) -> None:
    sink._ok(sink.http.post(f"{sink.path}/deduplicationEnabled", json=False))
    rows = spark.range(0, 5000, 1, 2).selectExpr("string(id) as value", "string(id % 9) as key")
    with pytest.raises(Exception, match="de-duplication is off"):
        sink.write(rows)
    assert sink.values() == []
    sink.write(rows, deliveryGuarantee="at-least-once", maxPendingMessages=50, producerName="same")
    sink.write(rows, deliveryGuarantee="at-least-once", maxPendingBytes=1_100_000)
    assert Counter(map(int, sink.values())) == Counter([*range(5000)] * 2)


def test_topics_of_rows_are_checked_before_anything_is_sent(
    spark: SparkSession, sink: Sink
) -> None:
    name = f"persistent://public/default/new-{uuid.uuid4().hex[:8]}"
    rows = spark.sql(f"select 'x' as value, '{name}' as topic")
    with pytest.raises(Exception, match=f"{name}: de-duplication is off"):
        rows.write.format("magnetar").mode("append").options(**sink.urls).save()
    assert sink.values(name) == []


def test_a_row_that_is_too_large_fails_and_is_never_passed_over(
    spark: SparkSession, sink: Sink
) -> None:
    """Also not by the next attempt, which would take it for stored had later rows been."""
    rows = spark.range(0, 40, 1, 1).selectExpr(
        "if(id = 20, repeat('x', 6000000), string(id)) as value"
    )
    for _ in range(2):
        with pytest.raises(Exception, match="row 20 of the task was not stored: MessageTooBig"):
            sink.write(rows, producerName="large", batchingMaxMessages=6)
        assert sink.values() == [str(number) for number in range(20)]
    rows = spark.range(0, 40, 1, 1).selectExpr(
        "if(id = 20, repeat('x', 3000000), string(id)) as value"
    )
    sink.write(rows, producerName="large", batchingMaxMessages=6)
    assert [len(value) for value in sink.values()] == [
        *(len(str(number)) for number in range(20)),
        3_000_000,
        *(len(str(number)) for number in range(21, 40)),
    ]


def _with_one_of(spark: SparkSession, size: int) -> DataFrame:
    """Forty rows, one of which is so large."""
    value = f"if(id = 20, repeat('x', {size}), string(id)) as value"
    return spark.range(0, 40, 1, 1).selectExpr(value)


def test_a_name_in_use_is_waited_for(spark: SparkSession, sink: Sink) -> None:
    rows = spark.sql("select 'x' as value").coalesce(1)
    other = sink.client.create_producer(sink.topic, producer_name="held-0")
    with pytest.raises(Exception, match=r"held-0 is in use .*producerNameTimeoutMs"):
        sink.write(rows, producerName="held", producerNameTimeoutMs=500)
    assert sink.values() == []
    other.close()
    sink.write(rows, producerName="held")
    assert sink.values() == ["x"]


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("1 as value", {}, "column value is int"),
        ("'x' as value, 1 as ledgerId", {}, "column ledgerId: the sink has no such column"),
        ("'x' as value", {"compression": "gzip"}, "option compression"),
        ("'x' as value", {"adminUrl": "http://127.0.0.1:9"}, "drops repeated messages can't be"),
        ("'x' as value, X'FF00' as key", {}, "column key: .* is not UTF-8"),
        ("'x' as value, timestamp'1969-12-31' as eventTime", {}, "eventTime: .* before 1970"),
        ("'x' as value, -5L as deliverAfter", {}, "deliverAfter: -5 ms is negative"),
        ("'x' as value, map('a', string(null)) as headers", {}, "the value of 'a' is null"),
        (
            "'x' as value, now() as deliverAt, 5L as deliverAfter",
            {},
            "deliverAt and deliverAfter: a row may have one of them",
        ),
    ],
)
def test_what_is_wrong_is_told(
    spark: SparkSession, sink: Sink, columns: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        sink.write(spark.sql(f"select {columns}"), **options)
    assert sink.values() == []


def test_overwrite_is_refused(spark: SparkSession, sink: Sink) -> None:
    rows = spark.sql("select 'x' as value")
    with pytest.raises(Exception, match=r"mode overwrite: .* use append"):
        rows.write.format("magnetar").mode("overwrite").options(**sink.options).save()


def test_a_broker_that_stops_in_mid_task_fails_it_in_time(
    spark: SparkSession, fresh_standalone: StandaloneProcess
) -> None:
    from pyspark.sql import functions as f

    stats = f"{fresh_standalone.admin_url}/admin/v2/persistent/public/default/t/stats"
    stop = f.udf(_stops_the_broker(fresh_standalone.pid, stats), "string", useArrow=False)
    rows = spark.range(0, 1000, 1, 1).select(stop("id").alias("value"))
    options = {"serviceUrl": fresh_standalone.service_url, "topic": "t", "sendTimeoutMs": "1000"}
    options["failOnDataLoss"] = "false"
    # Else the sink gets its first rows when the function has seen all.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        with pytest.raises(Exception, match=r"default/t: row \d+ of .* was not stored: Timeout"):
            rows.write.format("magnetar").mode("append").options(
                **options, batchingMaxMessages=10
            ).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def _stops_the_broker(pid: int, stats: str) -> Callable[[int], str]:
    def text(number: int) -> str:
        if number == 500:
            while stored(stats) < 100:
                time.sleep(0.05)
            os.kill(pid, signal.SIGSTOP)
        return f"{number}{PADDING}"

    return text


def test_stream_in_complete_mode_appends_its_result(
    spark: SparkSession, sink: Sink, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(3):
        (files / f"{number}.txt").write_text("\n".join(["a"] * (number + 1) + ["b"]))
    counts = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(files))
        .groupBy("value")
        .count()
        .selectExpr("value as key", "string(count) as value")
    )
    query = (
        counts.writeStream.format("magnetar")
        .outputMode("complete")
        .options(**sink.options, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = sink.messages()
    assert len(found) == 6
    assert {m.producer_name().rpartition("-")[0] for m in found} == {str(query.id)}
    by_key = {message.partition_key(): json.loads(message.data()) for message in found}
    assert by_key == {"a": 6, "b": 3}
