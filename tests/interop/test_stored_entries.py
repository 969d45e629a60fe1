"""Bytes of the official client's making, through the decoder of the Spark source."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.framing import parse_entry_body
from magnetar.pipeline.decode import EntryDecoder
from magnetar.pipeline.row_columns import COLUMNS
from tests.raw_client import RawClient
from tests.waiting import wait_until

COUNT = 300
"""Sequence ids of one and of two bytes."""


def stored(service_url: str, topic: str, entry_count: int) -> list[tuple[int, int, bytes]]:
    """Ledger, entry and body of the topic's first entries."""
    with RawClient(service_url) as client:
        client.look_up(topic)
        # 1: Earliest
        client.subscribe(topic, "reader", initialPosition=1)
        client.flow(1000)
        found: list[tuple[int, int, bytes]] = []
        while len(found) < entry_count:
            command, body = client.receive()
            if command.HasField("message"):
                message_id = command.message.message_id
                found.append((message_id.ledgerId, message_id.entryId, body))
        return found


def rows_of(entries: list[tuple[int, int, bytes]], topic: str) -> list[dict[str, Any]]:
    decoder = EntryDecoder(COLUMNS, topic, -1)
    batches: list[pa.RecordBatch] = []
    for ledger_id, entry_id, body in entries:
        metadata, payload = parse_entry_body(body)
        decoder.add(ledger_id, entry_id, [make_header(metadata, len(payload))], [body])
        while (batch := decoder.take()) is not None:
            batches.append(batch)
        assert decoder.missing is None
    if (rest := decoder.finish()) is not None:
        batches.append(rest)
    return [row for batch in batches for row in batch.to_pylist()]


def content(number: int) -> dict[str, Any]:
    """Of the message with this number: what ``send`` takes."""
    options: dict[str, Any] = {"event_timestamp": 1_700_000_000_000 + number}
    if number % 2:
        options["partition_key"] = f"key-{number}"
    if number % 3:
        options["properties"] = {"number": str(number), "ä": "ö" * (number % 80)}
    if number % 5 == 0:
        options["ordering_key"] = f"order-{number}"
    return options


@pytest.mark.parametrize("kind", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batched", [True, False])
def test_rows_show_what_the_client_sent(
    client: pulsar.Client, service_url: str, topic: str, kind: str, batched: bool
) -> None:
    producer = client.create_producer(
        topic,
        compression_type=getattr(pulsar.CompressionType, kind),
        batching_enabled=batched,
        batching_max_messages=COUNT,
        batching_max_publish_delay_ms=60_000,
        block_if_queue_full=True,
    )
    ids: list[pulsar.MessageId] = []
    count = COUNT if batched else 20
    before = datetime.now(UTC) - timedelta(minutes=5)
    for number in range(count):
        producer.send_async(
            b"payload %d " % number * (number % 40),
            lambda _, message_id: ids.append(message_id),
            **content(number),
        )
    producer.flush()
    wait_until(lambda: len(ids) == count)  # it doesn't wait for those who are told
    entries = stored(service_url, topic, 1 if batched else count)
    rows = rows_of(entries, topic)
    assert len(rows) == count
    for number, (row, message_id) in enumerate(zip(rows, ids, strict=True)):
        wanted = content(number)
        place = (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
        assert (row["ledgerId"], row["entryId"], row["batchIndex"]) == place
        assert row["value"] == b"payload %d " % number * (number % 40)
        assert row["key"] == (wanted["partition_key"].encode() if number % 2 else None)
        assert dict(row["properties"]) == wanted.get("properties", {})
        order = wanted.get("ordering_key")
        assert row["orderingKey"] == (None if order is None else order.encode())
        since = row["eventTime"] - datetime.fromtimestamp(1_700_000_000, UTC)
        assert since == timedelta(milliseconds=number)
        assert row["sequenceId"] == number
        assert row["producerName"] == producer.producer_name()
        assert before < row["publishTime"] < datetime.now(UTC) + timedelta(minutes=5)
    producer.close()


@pytest.mark.parametrize("kind", ["NONE", "LZ4"])
def test_a_chunked_message_is_one_row(
    client: pulsar.Client, service_url: str, topic: str, kind: str
) -> None:
    data = random.Random(1).randbytes(12_000_000)  # of three times what a frame holds
    producer = client.create_producer(
        topic,
        chunking_enabled=True,
        batching_enabled=False,
        compression_type=getattr(pulsar.CompressionType, kind),
    )
    producer.send(b"before")
    message_id = producer.send(data, partition_key="k")
    (first, *_, last) = rows = rows_of(stored(service_url, topic, 4), topic)
    assert len(rows) == 2
    assert first["value"] == b"before"
    assert (last["ledgerId"], last["entryId"]) == (message_id.ledger_id(), message_id.entry_id())
    assert (last["value"] == data, last["key"], last["batchIndex"]) == (True, b"k", -1)
    producer.close()
