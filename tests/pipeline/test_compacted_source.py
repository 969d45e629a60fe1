"""``readCompacted``: the source reads what a reader with ``readCompacted`` gets, from bookies."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.pipeline.admin import parse_access
from magnetar.pipeline.batch_source import BatchReader
from magnetar.pipeline.errors import DataLossError, OptionsError
from magnetar.pipeline.options import parse_read_options
from magnetar.pipeline.row_columns import COLUMNS
from tests.pipeline.stream_query import Query, rows_in
from tests.pipeline.topics import (
    WAIT_S,
    Addresses,
    Sent,
    admin,
    client_of,
    compact,
    segments,
    send_all,
    topic_path,
)
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

_CODECS = (*(pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD),)
Message = tuple[bytes, str | None, dict[str, str]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    folder: Path = tmp_path_factory.mktemp("compacted")
    settings = (
        *("managedLedgerMaxEntriesPerLedger=10", "managedLedgerMinLedgerRolloverTimeMinutes=0"),
        *("maxMessageSize=100000", "brokerDeleteInactiveTopicsEnabled=false"),
    )
    options = [word for each in settings for word in ("--set", each)]
    with StandaloneProcess(folder / "data", *options) as process:
        yield Addresses(process.service_url, process.admin_url)


def create(at: Addresses, topic: str) -> None:
    """With the subscription that keeps what no compaction has seen."""
    admin(at, "PUT", topic_path(topic))
    compact(at, topic)


def view_of(client: pulsar.Client, topic: str) -> list[Sent]:
    """What a reader gets from the beginning; but for what the C++ client shows of batches."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(int(WAIT_S * 1000))
        at = message.message_id()
        found.append(
            Sent(
                *(message.data(), message.partition_key() or None, message.properties()),
                *(at.ledger_id(), at.entry_id(), at.batch_index(), at.partition()),
            )
        )
    reader.close()
    return [each for each in found if each.value]


def table(at: Addresses, topic: str, **options: object) -> list[Sent]:
    """What the tasks of a batch read, one after the other."""
    texts = {name: str(value) for name, value in options.items()}
    texts = {"adminUrl": at.admin_url, "subscribe": topic, "readCompacted": "true", **texts}
    reader = BatchReader(parse_access(texts), COLUMNS, parse_read_options(texts, streaming=False))
    return [row for part in reader.partitions() for row in rows_in(reader.read(part))]


def _messages(rng: random.Random, run: int) -> list[Message]:
    """Of few keys; a message without a value removes its key."""
    return [
        (rng.choice([b"", b"%d-%d" % (run, n), b"%d" % n * 30]), rng.choice("abcdefgh"), {})
        for n in range(rng.randrange(5, 60))
    ]


def _send(client: pulsar.Client, topic: str, rng: random.Random, run: int) -> None:
    for _ in range(2):
        send_all(
            *(client, topic, _messages(rng, run)),
            batching_enabled=rng.random() < 0.7,
            batching_max_messages=rng.randrange(2, 9),
            compression_type=rng.choice(_CODECS),
        )


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_view_of_a_reader(broker: Addresses, seed: int) -> None:
    rng, topic = random.Random(seed), f"view-{seed}"
    create(broker, topic)
    with client_of(broker) as client:
        for run in range(3):
            _send(client, topic, rng, run)
            if run < 2 or seed % 2:
                compact(broker, topic)
        view = view_of(client, topic)
    for partitions in (1, 3):
        found = table(broker, topic, minPartitions=partitions)
        assert [each for each in found if each.value] == view
    first, last = sorted(rng.choices(range(len(view)), k=2))
    points = [f"{x.ledger_id}:{x.entry_id}:{max(0, x.batch_index)}" for x in view]
    found = table(broker, topic, startingOffsets=points[first], endingOffsets=points[last])
    assert [each for each in found if each.value] == view[first:last]
    with Query(broker, subscribe=topic, readCompacted=True, maxOffsetsPerTrigger=7) as query:
        batches = query.drain()
    assert [row for batch in batches for row in batch if row.value] == view
    assert max(map(len, batches)) <= 7 + 8  # of one entry with two messages or more
    with Query(broker, subscribe=topic, readCompacted=True) as query:
        assert [row for row in query.batch() if row.value] == view


def test_what_only_the_compacted_ledger_has(broker: Addresses) -> None:
    create(broker, "only")
    with client_of(broker) as client:
        old = send_all(client, "only", [(b"%d" % n, f"k{n % 5}", {}) for n in range(20)])
        middle_ms = int(time.time() * 1000) + 1
        wait_until(lambda: time.time() * 1000 > middle_ms, "the clock goes on", WAIT_S)
        new = send_all(client, "only", [(b"new", "k9", {})], batching_enabled=False)
        compact(broker, "only")
        admin(broker, "PUT", f"{topic_path('only')}/unload")
        late = send_all(client, "only", [(b"late", "k1", {})], batching_enabled=False)

        def trimmed() -> bool:
            admin(broker, "POST", f"{topic_path('only')}/trim")
            return bool(segments(broker, "only")["first"]["ledgerId"] > new[0].ledger_id)

        wait_until(trimmed, "the first ledgers are trimmed", WAIT_S)
        expected = [*old[-5:], *new, *late]
        assert table(broker, "only") == view_of(client, "only") == expected
    assert table(broker, "only", readCompacted="false") == late
    assert table(broker, "only", startingTimestamp=middle_ms) == [*new, *late]
    assert table(broker, "only", endingTimestamp=middle_ms) == old[-5:]
    assert table(broker, "only", startingTimestamp=middle_ms + 10**9) == []
    cursor: dict[str, Any] = {"subscribe": "only", "readCompacted": True, "cursor": "spark"}
    with Query(broker, maxOffsetsPerTrigger=2, **cursor) as query:
        assert [row for batch in query.drain() for row in batch] == expected


def test_chunks_on_both_sides_of_the_horizon(broker: Addresses) -> None:
    payload = random.Random(1).randbytes(350_000)
    create(broker, "chunked")
    with client_of(broker) as client:

        def send(key: str) -> None:
            producer = client.create_producer(
                "chunked", chunking_enabled=True, batching_enabled=False
            )
            producer.send(payload + key.encode(), partition_key=key)
            producer.close()

        for key in "aba":
            send(key)
        compact(broker, "chunked")
        send("b")
        expected = [(each.key, each.value) for each in view_of(client, "chunked")]
    assert [key for key, _ in expected] == ["b", "a", "b"]
    for partitions in (1, 40):
        found = table(broker, "chunked", minPartitions=partitions)
        assert [(each.key, each.value) for each in found] == expected


def test_a_stream_goes_on_in_the_view_of_a_later_compaction(broker: Addresses) -> None:
    topic = "later"
    options: dict[str, Any] = {"subscribe": topic, "readCompacted": True}
    create(broker, topic)
    admin(broker, "PUT", f"{topic_path(topic)}/subscription/keeps-the-log")
    with client_of(broker) as client:
        one = send_all(client, topic, [(b"%d" % n, f"k{n}", {}) for n in range(6)])
        compact(broker, topic)
        with Query(broker, **options) as query:
            assert query.batch() == one
            kept = query.offset
        (place,) = kept.values()
        assert place[:2] == [one[-1].ledger_id, one[-1].entry_id + 1]
        two = send_all(client, topic, [(b"%d" % n, f"k{n % 4}", {}) for n in range(8)])
        with Query(broker, kept, **options) as query:
            end = query.plan()
            compact(broker, topic)
            assert query.read(end) == two, "planned without a compacted ledger"
            assert query.batch() == two[4:]
            assert query.plan() == query.offset


def test_a_batch_that_would_differ_when_it_is_repeated(broker: Addresses) -> None:
    topic = "repeated"
    options: dict[str, Any] = {"subscribe": topic, "readCompacted": True}
    create(broker, topic)
    with client_of(broker) as client:
        one = send_all(client, topic, [(b"%d" % n, f"k{n}", {}) for n in range(6)])
        compact(broker, topic)
        with Query(broker, **options) as query:
            end = query.plan()
            assert query.read(end) == query.read(end) == one
            send_all(client, topic, [(b"new", "k1", {})])
            compact(broker, topic)
            with pytest.raises(DataLossError, match="another compaction has replaced ledger"):
                query.read(end)
        with Query(broker, failOnDataLoss=False, **options) as query:
            assert query.read(end) == [each for each in one if each.key != "k1"]
    with pytest.raises(OptionsError, match="readCompacted: true or false"):
        parse_read_options({"subscribe": "a", "readCompacted": "yes"}, streaming=False)
