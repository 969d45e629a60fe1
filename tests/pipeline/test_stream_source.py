"""The streaming source: how far its batches reach, and that they hold each row once.

The reader is driven as Spark drives it, without a JVM between; ``test_stream_kills.py`` has Spark.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from pipeline.admin import parse_access
from pipeline.columns import COLUMNS
from pipeline.errors import DataLossError, OptionsError, SegmentsUnavailableError
from pipeline.options import parse_read_options, parse_trigger_limits
from pipeline.stream_source import StreamReader
from tests.integration.failure_tools import wait_until
from tests.pipeline.topics import (
    WAIT_S,
    Addresses,
    Sent,
    admin,
    client_of,
    segments,
    send_all,
    topic_path,
)
from tests.standalone_process import StandaloneProcess

_SMALL_LEDGERS = (
    *("--set", "managedLedgerMaxEntriesPerLedger=10"),
    *("--set", "managedLedgerMinLedgerRolloverTimeMinutes=0", "--set", "maxMessageSize=100000"),
    *("--set", "defaultRetentionTimeInMinutes=-1", "--set", "defaultRetentionSizeInMB=-1"),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    folder: Path = tmp_path_factory.mktemp("stream")
    with StandaloneProcess(folder / "data", *_SMALL_LEDGERS) as process:
        yield Addresses(process.service_url, process.admin_url)


class Query:
    """What Spark does with the reader, and what it keeps in the checkpoint."""

    def __init__(
        self, at: Addresses, offset: dict[str, Any] | None = None, **options: object
    ) -> None:
        texts = {name: str(value) for name, value in options.items()}
        texts = {"adminUrl": at.admin_url, "startingOffsets": "earliest", **texts}
        self.reader = StreamReader(
            parse_access(texts),
            COLUMNS,
            parse_read_options(texts, streaming=True),
            parse_trigger_limits(texts),
        )
        self.offset = self.reader.initialOffset() if offset is None else offset

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def plan(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        limit = self.reader.getDefaultReadLimit() if limit is None else limit
        return json_round_trip(self.reader.latestOffset(self.offset, limit))

    def read(self, end: dict[str, Any]) -> list[Sent]:
        """The rows up to ``end``, task after task; each task gets a reader that travelled."""
        rows = []
        for part in self.reader.partitions(self.offset, end):
            away = pickle.loads(pickle.dumps(self.reader))
            for batch in away.read(pickle.loads(pickle.dumps(part))):
                rows += [_sent(row) for row in batch.to_pylist()]
        return rows

    def batch(self, limit: ReadLimit | None = None) -> list[Sent]:
        """One batch, committed."""
        end = self.plan(limit)
        rows = [] if end == self.offset else self.read(end)
        self.reader.commit(end)
        self.offset = end
        return rows

    def drain(self) -> list[list[Sent]]:
        """All batches with rows."""
        batches = []
        while self.plan() != self.offset:
            batches.append(self.batch())
        return [batch for batch in batches if batch]


def json_round_trip(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def _sent(row: dict[str, Any]) -> Sent:
    return Sent(
        value=row["value"],
        key=None if row["key"] is None else row["key"].decode(),
        properties=dict(row["properties"]),
        ledger_id=row["ledgerId"],
        entry_id=row["entryId"],
        batch_index=row["batchIndex"],
        partition=row["partition"],
    )


def _numbered(count: int, first: int = 0) -> list[tuple[bytes, str | None, dict[str, str]]]:
    return [(b"value-%d" % n, f"key-{n % 7}", {"n": str(n)}) for n in range(first, first + count)]


def _by_place(rows: list[Sent]) -> list[Sent]:
    return sorted(rows, key=lambda each: each.place)


def test_batches_take_as_many_messages_as_they_may(broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "limited", _numbered(500), batching_max_messages=7)
    with Query(broker, subscribe="limited", maxOffsetsPerTrigger=100) as query:
        assert query.reader.getDefaultReadLimit() == ReadMaxRows(100)
        batches = query.drain()
    assert [row for batch in batches for row in batch] == sent
    sizes = [len(batch) for batch in batches]
    assert max(sizes) <= 100
    assert all(size > 100 - 7 for size in sizes[:-1])  # the next entry didn't fit


def test_one_trigger_of_all_there_is_ignores_limits(broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "once", _numbered(300), batching_max_messages=7)
    with Query(broker, subscribe="once", maxOffsetsPerTrigger=10) as query:
        assert query.batch(ReadAllAvailable()) == sent


def test_batches_take_as_many_bytes_as_they_may(broker: Addresses) -> None:
    messages: list[tuple[bytes, str | None, dict[str, str]]] = [
        (bytes(1000), None, {}) for _ in range(100)
    ]
    with client_of(broker) as client:
        sent = send_all(client, "bytes", messages, batching_enabled=False)
    with Query(broker, subscribe="bytes", maxBytesPerTrigger=11_500) as query:
        assert query.reader.getDefaultReadLimit() == ReadMaxBytes(11_500)
        batches = query.drain()
    assert [row for batch in batches for row in batch] == sent
    assert {len(batch) for batch in batches[:-1]} == {10}  # 1,000 bytes and some metadata each


def test_limits_are_shared_by_what_waits_and_nobody_starves(broker: Addresses) -> None:
    admin(broker, "PUT", f"{topic_path('shared')}/partitions", 2)
    with client_of(broker) as client:
        large = send_all(client, "shared-partition-0", _numbered(300), batching_enabled=False)
        small = send_all(client, "shared-partition-1", _numbered(20), batching_enabled=False)
    with Query(broker, subscribe="shared", maxOffsetsPerTrigger=32) as query:
        first = query.batch()
        assert len([row for row in first if row.partition == 0]) == 30
        assert len([row for row in first if row.partition == 1]) == 2
        rest = query.drain()
    found = first + [row for batch in rest for row in batch]
    values = [(row.ledger_id, row.entry_id) for row in _by_place(found)]
    assert sorted(values) == sorted((row.ledger_id, row.entry_id) for row in large + small)


def test_a_partition_that_nobody_used_holds_nobody_up(broker: Addresses) -> None:
    admin(broker, "PUT", f"{topic_path('sparse')}/partitions", 3)
    with Query(broker, subscribe="sparse", maxOffsetsPerTrigger=20) as query:
        assert query.drain() == []
        with client_of(broker) as client:
            sent = send_all(client, "sparse-partition-1", _numbered(50), batching_enabled=False)
        batches = query.drain()
    assert [row.value for batch in batches for row in batch] == [row.value for row in sent]
    assert max(len(batch) for batch in batches) <= 20


def test_a_small_batch_waits_for_more_or_for_its_time(broker: Addresses) -> None:
    with client_of(broker) as client:
        first = send_all(client, "patient", _numbered(10), batching_max_messages=4)
        with Query(broker, subscribe="patient", minOffsetsPerTrigger=25) as query:
            assert query.reader.getDefaultReadLimit() == ReadMinRows(25)
            assert query.plan() == query.offset
            more = send_all(client, "patient", _numbered(20, 10), batching_max_messages=4)
            assert query.batch() == first + more
    with Query(
        broker, subscribe="patient", minOffsetsPerTrigger=25, maxTriggerDelay="1ms"
    ) as query:
        query.batch()
        with client_of(broker) as client:
            last = send_all(client, "patient", _numbered(3, 30))
        wait_until(lambda: query.plan() != query.offset, "the delay is over", WAIT_S)
        assert query.batch() == last


def test_available_now_ends_where_the_topic_ended_when_it_began(broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "now", _numbered(120), batching_max_messages=7)
        with Query(broker, subscribe="now", maxOffsetsPerTrigger=50) as query:
            query.reader.prepareForTriggerAvailableNow()
            send_all(client, "now", _numbered(50, 120), batching_max_messages=7)
            batches = query.drain()
    assert [row for batch in batches for row in batch] == sent
    assert len(batches) == 3
    with Query(broker, subscribe="now", minOffsetsPerTrigger=10_000) as query:
        query.reader.prepareForTriggerAvailableNow()
        assert len(query.batch()) == 170  # nobody waits for messages that need not come


def test_offsets_are_where_the_next_query_goes_on(broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "restart", _numbered(90), batching_max_messages=7)
        with Query(broker, subscribe="restart", maxOffsetsPerTrigger=40) as query:
            first = query.batch()
            kept = query.offset
            lost = query.read(query.plan())  # not committed
        sent += send_all(client, "restart", _numbered(30, 90), batching_max_messages=7)
    with Query(broker, kept, subscribe="restart", maxOffsetsPerTrigger=40) as query:
        assert query.batch() == lost
        rest = query.drain()
    assert first + lost + [row for batch in rest for row in batch] == sent


def test_a_batch_that_is_repeated_is_cut_the_same_although_the_ledger_grew(
    broker: Addresses,
) -> None:
    with client_of(broker) as client:
        send_all(client, "again", _numbered(95), batching_max_messages=5)
        with Query(broker, subscribe="again", minPartitions=4) as query:
            end = query.plan()
            before = [part.part for part in query.reader.partitions(query.offset, end)]  # type: ignore[attr-defined]
            large = [(bytes(5000), key, tags) for _, key, tags in _numbered(40)]
            send_all(client, "again", large, batching_enabled=False)
            after = [part.part for part in query.reader.partitions(query.offset, end)]  # type: ignore[attr-defined]

    def entries(parts: list[Any]) -> list[list[tuple[int, int, int]]]:
        return [
            [(piece.ledger.ledger_id, piece.first, piece.end) for piece in part.pieces]
            for part in parts
        ]

    assert len(before) >= 4
    assert entries(before) == entries(after)


def test_new_partitions_and_topics_are_read_from_their_beginning(broker: Addresses) -> None:
    admin(broker, "PUT", f"{topic_path('grows-a')}/partitions", 1)
    with client_of(broker) as client:
        old = send_all(client, "grows-a", _numbered(10))
        pattern = "public/default/grows-.*"
        with Query(broker, subscribePattern=pattern) as query:
            assert _by_place(query.batch()) == old
            admin(broker, "POST", f"{topic_path('grows-a')}/partitions", 3)
            added = send_all(client, "grows-a-partition-2", _numbered(10, 10))
            topic = send_all(client, "grows-b", _numbered(10, 20))
            wait_until(lambda: len(query.plan()) >= 3, "the new ones are seen", WAIT_S)
            new = [row for batch in query.drain() for row in batch]
    assert sorted(row.value for row in new) == sorted(row.value for row in added + topic)


def test_the_cursor_follows_and_keeps_what_was_not_read(broker: Addresses) -> None:
    path = topic_path("followed")

    def backlog() -> int:
        stats = admin(broker, "GET", f"{path}/stats")
        return int(stats["subscriptions"]["spark"]["msgBacklog"])

    with client_of(broker) as client:
        send_all(client, "followed", _numbered(60), batching_enabled=False)
        with Query(broker, subscribe="followed", cursor="spark", maxOffsetsPerTrigger=25) as query:
            query.plan()
            assert backlog() == 60  # it holds what will be read before any of it is
            left = []
            for _ in range(3):
                query.batch()
                left.append(backlog())
            assert left == [36, 11, 1]  # one entry behind
            more = send_all(client, "followed", _numbered(7, 60), batching_enabled=False)
            assert backlog() == len(more) + 1
            end = query.plan()
            query.read(end)
            query.offset = end  # Spark says that a batch is done when the next one begins
            query.plan()
            assert backlog() == 1


def test_a_stream_that_was_overtaken_by_trimming_says_so(broker: Addresses) -> None:
    path = topic_path("overtaken")
    admin(broker, "PUT", path)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    admin(broker, "POST", f"{path}/retention", nothing)
    with client_of(broker) as client:
        consumer = client.subscribe("overtaken", "s")
        sent = send_all(client, "overtaken", _numbered(60), batching_enabled=False)
        with Query(broker, subscribe="overtaken", maxOffsetsPerTrigger=5) as query:
            query.batch()
            kept = query.offset
        for _ in sent[:45]:
            consumer.acknowledge(consumer.receive(int(WAIT_S * 1000)))
        consumer.close()

        def trimmed() -> bool:
            admin(broker, "POST", f"{path}/trim")
            return bool(segments(broker, "overtaken")["first"]["ledgerId"] > sent[0].ledger_id)

        wait_until(trimmed, "the first ledgers are trimmed", WAIT_S)
    with (
        Query(broker, kept, subscribe="overtaken") as query,
        pytest.raises(DataLossError, match="failOnDataLoss"),
    ):
        query.plan()
    with Query(broker, kept, subscribe="overtaken", failOnDataLoss="false") as query:
        rest = query.batch()
    assert rest == sent[-len(rest) :]


def _without_retention(at: Addresses, topic: str) -> None:
    admin(at, "PUT", topic_path(topic))
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    admin(at, "POST", f"{topic_path(topic)}/retention", nothing)


def test_what_the_cursor_lets_go_was_read(broker: Addresses) -> None:
    """Ledgers are trimmed behind the cursor all the time, and nothing is lost or believed lost."""
    _without_retention(broker, "rolling")
    options = {"subscribe": "rolling", "cursor": "spark", "maxOffsetsPerTrigger": 10}
    found: list[Sent] = []
    sent: list[Sent] = []
    with client_of(broker) as client:
        kept = None
        for number in range(6):
            with Query(broker, kept, **options) as query:
                more = _numbered(20, 20 * number)
                sent += send_all(client, "rolling", more, batching_enabled=False)
                found += [row for batch in query.drain() for row in batch]
                kept = query.offset
            admin(broker, "POST", f"{topic_path('rolling')}/trim")
    assert found == sent
    assert segments(broker, "rolling")["first"]["ledgerId"] > sent[0].ledger_id


def test_what_was_trimmed_behind_the_end_of_a_ledger_is_missed(broker: Addresses) -> None:
    _without_retention(broker, "behind")
    with client_of(broker) as client:
        consumer = client.subscribe("behind", "s")
        sent = send_all(client, "behind", _numbered(10), batching_enabled=False)
        with Query(broker, subscribe="behind") as query:
            assert query.drain() == [sent]
            sent += send_all(client, "behind", _numbered(30, 10), batching_enabled=False)
            query.plan()
            for _ in sent[:35]:
                consumer.acknowledge(consumer.receive(int(WAIT_S * 1000)))
            consumer.close()

            def trimmed() -> bool:
                admin(broker, "POST", f"{topic_path('behind')}/trim")
                return bool(segments(broker, "behind")["first"]["ledgerId"] > sent[15].ledger_id)

            wait_until(trimmed, "ledgers are trimmed that were not read", WAIT_S)
            with pytest.raises(DataLossError, match="failOnDataLoss"):
                query.plan()


def test_a_batch_in_the_checkpoint_says_where_it_begins(broker: Addresses) -> None:
    """Also the first one of a partition that nobody had used."""
    admin(broker, "PUT", f"{topic_path('fresh')}/partitions", 1)
    with client_of(broker) as client, Query(broker, subscribe="fresh") as query:
        sent = send_all(client, "fresh", _numbered(30), batching_enabled=False)
        offsets = []
        while (end := query.plan()) != query.offset:
            offsets.append((query.offset, end, query.read(end)))
            query.offset = end
    name = "persistent://public/default/fresh-partition-0"
    read = [(start, rows) for start, _, rows in offsets if rows]
    assert [row.value for _, rows in read for row in rows] == [row.value for row in sent]
    assert all(start[name][0] >= 0 for start, _ in read)


def test_a_chunked_message_without_its_beginning_is_a_loss(broker: Addresses) -> None:
    _without_retention(broker, "half")
    options = {"subscribe": "half", "maxOffsetsPerTrigger": 25}
    with client_of(broker) as client:
        client.subscribe("half", "s").close()  # holds everything for now
        producer = client.create_producer("half", chunking_enabled=True, batching_enabled=False)
        with Query(broker, **options) as query:  # type: ignore[arg-type]
            producer.send(random.Random(1).randbytes(2_700_000))
            if not next(iter(query.offset.values()))[0] >= 0:
                query.batch()  # where the topic begins is known now
            assert query.batch() == []  # 25 chunks of some 28
            (begin,) = query.offset.values()
            assert begin[1] > 0
            admin(broker, "POST", f"{topic_path('half')}/subscription/s/skip_all")

            def trimmed() -> bool:
                admin(broker, "POST", f"{topic_path('half')}/trim")
                return bool(segments(broker, "half")["first"]["ledgerId"] == begin[0])

            wait_until(trimmed, "the first chunks are trimmed", WAIT_S)
            with pytest.raises(DataLossError, match="the message in chunks that ends at"):
                query.batch()
        without = {**options, "failOnDataLoss": "false"}
        with Query(broker, query.offset, **without) as query:
            producer.send(b"next")
            assert [row.value for batch in query.drain() for row in batch] == [b"next"]


def test_nothing_new_is_no_batch_and_the_end_is_reported(broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "idle", _numbered(10), batching_enabled=False)
    with Query(broker, subscribe="idle", maxOffsetsPerTrigger=4) as query:
        query.plan()
        last = sent[-1]
        assert query.reader.reportLatestOffset() == {
            "persistent://public/default/idle": [last.ledger_id, last.entry_id + 1]
        }
        query.drain()
        assert query.plan() == query.offset
    with Query(broker, subscribe="idle", startingOffsets="latest") as query:
        assert query.batch() == []


def test_a_checkpoint_of_something_else_is_refused(broker: Addresses) -> None:
    with client_of(broker) as client:
        send_all(client, "mine", _numbered(1))
    with (
        Query(broker, {"offset": 5}, subscribe="mine") as query,
        pytest.raises(OptionsError, match="not a point"),
    ):
        query.plan()
    far = {"persistent://public/default/mine": [10**9, 0]}
    with (
        Query(broker, {}, subscribe="mine") as query,
        pytest.raises(DataLossError, match="another cluster"),
    ):
        query.reader.partitions({}, far)


def test_who_can_not_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.reading._PAUSES_S", (0.0,))
    monkeypatch.setattr("pipeline.admin._PAUSES_S", (0.0,))
    with StandaloneProcess(tmp_path / "data") as process:
        at = Addresses(process.service_url, process.admin_url)
        with client_of(at) as client:
            sent = send_all(client, "gone", _numbered(5), batching_enabled=False)
            with Query(at, subscribe="gone") as query:
                end = query.plan()
                (part,) = query.reader.partitions(query.offset, end)
                process.kill()
                where = f"persistent://public/default/gone: ledger {sent[0].ledger_id}, entry 0"
                with pytest.raises(
                    SegmentsUnavailableError,
                    match=f"{where} can't be read.*on embedded: UNAVAILABLE",
                ):
                    list(query.reader.read(part))
                with pytest.raises(SegmentsUnavailableError, match="no broker answers: http"):
                    query.plan()
