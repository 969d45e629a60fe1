"""Topics as tables of real Spark, read from real bookies: each row exactly as it was sent."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pytest

from tests.pipeline.topics import (
    WAIT_S,
    Addresses,
    admin,
    client_of,
    compact,
    load,
    load_filtered,
    rows_of,
    segments,
    send_all,
    topic_path,
)
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL_LEDGERS = (
    *("--set", "managedLedgerMaxEntriesPerLedger=10"),
    *("--set", "managedLedgerMinLedgerRolloverTimeMinutes=0"),
    *("--set", "managedLedgerOffloadDeletionLagMs=0"),
    *("--set", "managedLedgerOffloadDriver=filesystem", "--set", "maxMessageSize=100000"),
    *("--set", "defaultRetentionTimeInMinutes=-1", "--set", "defaultRetentionSizeInMB=-1"),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    folder: Path = tmp_path_factory.mktemp("source")
    with StandaloneProcess(folder / "data", *_SMALL_LEDGERS) as process:
        yield Addresses(process.service_url, process.admin_url)


def _numbered(count: int, first: int = 0) -> list[tuple[bytes, str | None, dict[str, str]]]:
    return [(b"value-%d" % n, f"key-{n % 7}", {"n": str(n)}) for n in range(first, first + count)]


def test_rows_are_what_was_sent_over_many_ledgers(spark: SparkSession, broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "ledgers", _numbered(900), batching_max_messages=7)
    assert len(segments(broker, "ledgers")["ledgers"]) >= 10
    assert rows_of(load(spark, broker, "ledgers")) == sent
    cut = load(spark, broker, "ledgers", minPartitions=9)
    assert cut.rdd.getNumPartitions() >= 9
    assert rows_of(cut) == sent


def test_every_column(spark: SparkSession, broker: Addresses) -> None:
    now_ms = int(time.time() * 1000)
    with client_of(broker) as client:
        producer = client.create_producer(
            "columns", producer_name="me", initial_sequence_id=41, batching_enabled=False
        )
        producer.send(
            b"all",
            {"a": "1", "b": ""},
            partition_key="k",
            ordering_key="o",
            event_timestamp=1_700_000_000_123,
            deliver_at=now_ms + 3_600_000,
        )
        producer.send(b"")
        producer.close()
    full, bare = load(spark, broker, "columns").orderBy("entryId").collect()
    stored = segments(broker, "columns")["ledgers"][0]
    assert full.topic == "persistent://public/default/columns"
    assert (full.partition, full.ledgerId, full.entryId, full.batchIndex) == (
        *(-1, stored["ledgerId"], 0),
        -1,
    )
    assert (bytes(full.key), bytes(full.value), bytes(full.orderingKey)) == (b"k", b"all", b"o")
    assert full.properties == {"a": "1", "b": ""}
    assert (full.producerName, full.sequenceId) == ("me", 42)
    times = load(spark, broker, "columns").selectExpr(
        *("unix_millis(publishTime)", "unix_millis(eventTime)", "unix_millis(deliverAt)"),
        "entryId",
    )
    published, event, deliver, _ = times.orderBy("entryId").collect()[0]
    assert abs(published - now_ms) < WAIT_S * 1000
    assert (event, deliver) == (1_700_000_000_123, now_ms + 3_600_000)
    assert (bare.key, bytes(bare.value), bare.properties) == (None, b"", {})
    assert (bare.eventTime, bare.deliverAt, bare.orderingKey) == (None, None, None)


def test_a_schema_picks_columns(spark: SparkSession, broker: Addresses) -> None:
    with client_of(broker) as client:
        send_all(client, "picked", _numbered(20))
    frame = load(spark, broker, "picked", schema="entryId BIGINT, value BINARY")
    assert frame.columns == ["entryId", "value"]
    assert sorted(bytes(row.value) for row in frame.collect()) == sorted(
        value for value, _, _ in _numbered(20)
    )
    with pytest.raises(Exception, match="there is no column 'valu'"):
        load(spark, broker, "picked", schema="valu BINARY").collect()
    with pytest.raises(Exception, match="column value is of type binary, not string"):
        load(spark, broker, "picked", schema="value STRING").collect()
    with pytest.raises(Exception, match="column value can't be NOT NULL"):
        load(spark, broker, "picked", schema="value BINARY NOT NULL").collect()


def test_partitions_patterns_and_assignments(spark: SparkSession, broker: Addresses) -> None:
    admin(broker, "PUT", f"{topic_path('wide')}/partitions", 3)
    with client_of(broker) as client:
        sent = send_all(client, "wide", _numbered(300), batching_max_messages=5)
        send_all(client, "wide-not", _numbered(3))
    assert {each.partition for each in sent} == {0, 1, 2}
    assert rows_of(load(spark, broker, "wide")) == sent
    by_pattern = load(spark, broker, "", subscribePattern="public/default/wid.")
    assert rows_of(by_pattern) == sent
    assert {row.topic for row in by_pattern.select("topic").distinct().collect()} == {
        "persistent://public/default/wide"
    }
    assigned = load(spark, broker, "", assign='{"wide": [0, 2]}')
    assert rows_of(assigned) == [each for each in sent if each.partition != 1]
    one = load(spark, broker, "wide-partition-1")
    assert rows_of(one) == [each for each in sent if each.partition == 1]


def test_offsets_within_batches_and_times(spark: SparkSession, broker: Addresses) -> None:
    with client_of(broker) as client:
        early = send_all(client, "bounds", _numbered(100), batching_max_messages=10)
        middle_ms = int(time.time() * 1000) + 1
        wait_until(lambda: time.time() * 1000 > middle_ms, "the clock goes on", WAIT_S)
        late = send_all(client, "bounds", _numbered(100, 100), batching_max_messages=10)
    sent = early + late
    first, last = sent[13], sent[177]
    options = {
        "startingOffsets": f"{first.ledger_id}:{first.entry_id}:{first.batch_index}",
        "endingOffsets": json.dumps(
            {"bounds": [last.ledger_id, last.entry_id, last.batch_index]},
        ),
        "minPartitions": 4,
    }
    assert rows_of(load(spark, broker, "bounds", **options)) == sent[13:177]
    assert rows_of(load(spark, broker, "bounds", startingTimestamp=middle_ms)) == late
    assert rows_of(load(spark, broker, "bounds", endingTimestamp=middle_ms)) == early


def test_filters_spare_entries_and_change_no_answer(spark: SparkSession, broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "filtered", _numbered(200), batching_max_messages=10)
    table = load_filtered(spark, broker, "filtered")
    ledger = sent[120].ledger_id
    some = table.where(f"ledgerId = {ledger} AND entryId >= 3")
    assert rows_of(some) == [
        each for each in sent if each.ledger_id == ledger and each.entry_id >= 3
    ]
    assert rows_of(table) == sent  # as if nobody had filtered before
    times = {row.entryId: row.publishTime for row in table.where(f"ledgerId = {ledger}").collect()}
    middle = times[sent[120].entry_id]
    for test in ("<", "=", ">"):
        condition = f"publishTime {test} TIMESTAMP '{middle}'"
        wanted = rows_of(load(spark, broker, "filtered").where(condition))
        assert rows_of(table.where(condition)) == wanted
    assert rows_of(table.where("partition = 0")) == []


def test_a_table_is_used_again_after_a_filter(spark: SparkSession, broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "again", _numbered(50), batching_max_messages=10)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    table = load(spark, broker, "again")
    assert rows_of(table.where("entryId = 0"))
    assert rows_of(table) == sent


def test_chunked_messages_are_joined_wherever_slices_end(
    spark: SparkSession, broker: Addresses
) -> None:
    payloads = [random.Random(number).randbytes(350_000) + bytes(350_000) for number in range(6)]
    with client_of(broker) as client:
        producer = client.create_producer(
            "chunks",
            chunking_enabled=True,
            batching_enabled=False,
            compression_type=pulsar.CompressionType.ZLib,
        )
        small = client.create_producer("chunks", batching_enabled=False)
        for payload in payloads:
            producer.send(payload)
            small.send(b"between")
    expected = sorted([*payloads, *[b"between"] * 6])
    entries = segments(broker, "chunks")
    assert sum(each["entries"] for each in entries["ledgers"]) > len(expected)
    for partitions in (1, 5, 40):
        frame = load(spark, broker, "chunks", minPartitions=partitions)
        found = sorted(bytes(row.value) for row in frame.select("value").collect())
        assert [len(each) for each in found] == [len(each) for each in expected], partitions
        assert found == expected


def test_offloaded_ledgers_are_read_from_their_copies(
    spark: SparkSession, broker: Addresses
) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "moved", _numbered(400), batching_max_messages=10)
    last = sent[-1]
    admin(
        broker,
        "PUT",
        f"{topic_path('moved')}/offload",
        {"ledgerId": last.ledger_id, "entryId": last.entry_id, "partitionIndex": -1},
    )

    def only_copies() -> bool:
        ledgers = segments(broker, "moved")["ledgers"]
        return len(ledgers) > 3 and all("copy" in each for each in ledgers[:3])

    wait_until(only_copies, "ledgers have copies", WAIT_S)
    assert rows_of(load(spark, broker, "moved")) == sent


def test_the_compacted_view(spark: SparkSession, broker: Addresses) -> None:
    """``test_compacted_source.py`` has the rest."""
    admin(broker, "PUT", f"{topic_path('compacted')}/partitions", 2)
    with client_of(broker) as client:
        sent = send_all(client, "compacted", _numbered(200), batching_max_messages=20)
        for index in range(2):
            compact(broker, f"compacted-partition-{index}")
    newest = {each.key: each for each in sent if each.key is not None}
    expected = sorted(newest.values(), key=lambda each: each.place)
    assert rows_of(load(spark, broker, "compacted", readCompacted="TRUE")) == expected


def test_a_live_writer_goes_on_and_what_is_confirmed_is_seen(
    spark: SparkSession, broker: Addresses
) -> None:
    with client_of(broker) as client:
        producer = client.create_producer("live", batching_enabled=False)
        for number in range(5):
            producer.send(b"%d" % number)
            found = rows_of(load(spark, broker, "live"))
            assert [each.value for each in found] == [b"%d" % n for n in range(number + 1)]
        producer.close()
    assert len(segments(broker, "live")["ledgers"]) == 1  # nobody fenced it


def test_trimmed_messages_are_a_loss_only_for_who_asked_for_them(
    spark: SparkSession, broker: Addresses
) -> None:
    with client_of(broker) as client:
        consumer = client.subscribe("trimmed", "s")
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        admin(broker, "POST", f"{topic_path('trimmed')}/retention", nothing)
        sent = send_all(client, "trimmed", _numbered(100), batching_enabled=False)
        received = [consumer.receive(int(WAIT_S * 1000)) for _ in sent]
        consumer.acknowledge_cumulative(received[75])
        consumer.close()

    def trimmed() -> bool:
        admin(broker, "POST", f"{topic_path('trimmed')}/trim")
        return bool(segments(broker, "trimmed")["first"]["ledgerId"] > sent[0].ledger_id)

    wait_until(trimmed, "the first ledgers are trimmed", WAIT_S)
    left = rows_of(load(spark, broker, "trimmed"))
    assert left == sent[-len(left) :]
    assert len(left) < 100
    start = f"{sent[2].ledger_id}:{sent[2].entry_id}"
    with pytest.raises(Exception, match=r"are not stored any more[\s\S]*failOnDataLoss"):
        load(spark, broker, "trimmed", startingOffsets=start).collect()
    rest = load(spark, broker, "trimmed", startingOffsets=start, failOnDataLoss="false")
    assert rows_of(rest) == left


def test_mistakes_are_told_before_anything_is_read(spark: SparkSession, broker: Addresses) -> None:
    for options, told in (
        ({"subscribe": "a", "assign": "{}"}, "exactly one of subscribe"),
        ({"subscribe": "nowhere"}, "nowhere: HTTP 404"),
        ({"subscribe": "a", "startingOffsets": "noon"}, "option startingOffsets"),
        ({"assign": '{"wide-not": [3]}'}, "no 3"),
    ):
        reader = spark.read.format("magnetar").option("adminUrl", broker.admin_url)
        for name, value in options.items():
            reader = reader.option(name, value)
        with pytest.raises(Exception, match=told):
            reader.load().collect()
    with pytest.raises(Exception, match="option adminUrl is needed"):
        spark.read.format("magnetar").option("subscribe", "a").load().collect()
    nobody = spark.read.format("magnetar").option("adminUrl", "http://127.0.0.1:1")
    with pytest.raises(Exception, match=r"no broker answers: \S*127\.0\.0\.1:1"):
        nobody.option("subscribe", "a").load().collect()
