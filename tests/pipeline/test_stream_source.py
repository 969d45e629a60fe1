"""The streaming source: how far its batches reach, and that they hold each row once.

The reader is driven as Spark drives it, without a JVM between; ``test_cluster_pipeline.py`` has
Spark.
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from magnetar.pipeline.admin import Admin, NoSuchTopicError, parse_access
from magnetar.pipeline.errors import DataLossError, OptionsError, SegmentsUnavailableError
from magnetar.pipeline.offsets import BEGINNING, END
from magnetar.pipeline.read_plan import cut_by_count, entry_ranges_between
from magnetar.pipeline.split_reader import SplitReader
from magnetar.pipeline.topic_snapshot import TopicSnapshot
from tests.pipeline.stream_query import Query, numbered
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
from tests.waiting import wait_until

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


def _by_place(rows: list[Sent]) -> list[Sent]:
    return sorted(rows, key=lambda each: each.place)


def test_batches_take_as_many_messages_as_they_may(broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "limited", numbered(500), batching_max_messages=7)
    with Query(broker, subscribe="limited", maxOffsetsPerTrigger=100) as query:
        assert query.reader.getDefaultReadLimit() == ReadMaxRows(100)
        batches = query.drain()
    assert [row for batch in batches for row in batch] == sent
    sizes = [len(batch) for batch in batches]
    assert max(sizes) <= 100
    assert all(size > 100 - 7 for size in sizes[:-1])  # the next entry didn't fit


def test_one_trigger_of_all_there_is_ignores_limits(broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "once", numbered(300), batching_max_messages=7)
    with Query(broker, subscribe="once", maxOffsetsPerTrigger=10) as query:
        assert query.batch(ReadAllAvailable()) == sent


def test_batches_take_as_many_bytes_as_they_may(broker: Addresses) -> None:
    messages: list[tuple[bytes, str | None, dict[str, str]]] = [
        (bytes(1000), None, {}) for _ in range(100)
    ]
    with client_of(broker) as client:
        sent = send_all(client, "bytes", messages, batching_enabled=False)
    with Query(broker, subscribe="bytes", maxBytesPerTrigger=11_000) as query:
        assert query.reader.getDefaultReadLimit() == ReadMaxBytes(11_000)
        batches = query.drain()
    assert [row for batch in batches for row in batch] == sent
    assert {len(batch) for batch in batches[:-1]} == {10}  # 1,000 bytes and some metadata each


def test_limits_are_shared_by_what_waits_and_nobody_starves(broker: Addresses) -> None:
    admin(broker, "PUT", f"{topic_path('shared')}/partitions", 2)
    with client_of(broker) as client:
        large = send_all(client, "shared-partition-0", numbered(300), batching_enabled=False)
        small = send_all(client, "shared-partition-1", numbered(20), batching_enabled=False)
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
            sent = send_all(client, "sparse-partition-1", numbered(50), batching_enabled=False)
        batches = query.drain()
    assert [row.value for batch in batches for row in batch] == [row.value for row in sent]
    assert max(len(batch) for batch in batches) <= 20


def test_a_small_batch_waits_for_more_or_for_its_time(broker: Addresses) -> None:
    with client_of(broker) as client:
        first = send_all(client, "patient", numbered(10), batching_max_messages=4)
        with Query(broker, subscribe="patient", minOffsetsPerTrigger=25) as query:
            assert query.reader.getDefaultReadLimit() == ReadMinRows(25)
            assert query.plan() == query.offset
            more = send_all(client, "patient", numbered(20, 10), batching_max_messages=4)
            assert query.batch() == first + more
    with Query(
        broker, subscribe="patient", minOffsetsPerTrigger=25, maxTriggerDelay="1ms"
    ) as query:
        query.batch()
        with client_of(broker) as client:
            last = send_all(client, "patient", numbered(3, 30))
        got: list[Sent] = []
        wait_until(partial(_grows, query, got), "the delay is over", WAIT_S)
        assert got == last


def test_available_now_ends_where_the_topic_ended_when_it_began(broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "now", numbered(120), batching_max_messages=7)
        with Query(broker, subscribe="now", maxOffsetsPerTrigger=50) as query:
            query.reader.prepareForTriggerAvailableNow()
            send_all(client, "now", numbered(50, 120), batching_max_messages=7)
            batches = query.drain()
    assert [row for batch in batches for row in batch] == sent
    assert len(batches) == 3
    with Query(broker, subscribe="now", minOffsetsPerTrigger=10_000) as query:
        query.reader.prepareForTriggerAvailableNow()
        assert len(query.batch()) == 170  # nobody waits for messages that need not come


def test_offsets_are_where_the_next_query_goes_on(broker: Addresses) -> None:
    with client_of(broker) as client:
        sent = send_all(client, "restart", numbered(90), batching_max_messages=7)
        with Query(broker, subscribe="restart", maxOffsetsPerTrigger=40) as query:
            first = query.batch()
            kept = query.offset
            lost = query.read(query.plan())  # not committed
        sent += send_all(client, "restart", numbered(30, 90), batching_max_messages=7)
    with Query(broker, kept, subscribe="restart", maxOffsetsPerTrigger=40) as query:
        assert query.batch() == lost
        rest = query.drain()
    assert first + lost + [row for batch in rest for row in batch] == sent


def test_a_batch_that_is_repeated_is_cut_the_same_although_the_ledger_grew(
    broker: Addresses,
) -> None:
    with client_of(broker) as client:
        send_all(client, "again", numbered(95), batching_max_messages=5)
        with Query(broker, subscribe="again", minPartitions=4) as query:
            end = query.plan()
            before = [part.value for part in query.reader.partitions(query.offset, end)]
            large = [(bytes(5000), key, tags) for _, key, tags in numbered(40)]
            send_all(client, "again", large, batching_enabled=False)
            after = [part.value for part in query.reader.partitions(query.offset, end)]

    def entries(parts: list[Any]) -> list[list[tuple[int, int, int]]]:
        return [
            [(piece.ledger.ledger_id, piece.first, piece.end) for piece in part.pieces]
            for part in parts
        ]

    assert len(before) >= 4
    assert entries(before) == entries(after)


def test_ledgers_that_were_read_are_forgotten(broker: Addresses) -> None:
    """A stream that runs for weeks passes any number of them."""
    with client_of(broker) as client:
        sent = send_all(client, "long", numbered(300), batching_enabled=False)
    assert len(segments(broker, "long")["ledgers"]) >= 30
    with Query(broker, subscribe="long", maxOffsetsPerTrigger=15) as query:
        rows, held = query.batch(), []
        counter = query.reader._reader
        (partition_reader,) = counter._partition_readers.values()
        for number in range(19):
            if number == 3:  # as after a failed read
                assert counter._thread is not None
                assert len(counter._thread.call(partition_reader.refresh(-1)).ledgers) >= 30
            rows += query.batch()
            held.append(
                len(
                    {
                        *partition_reader._readers,
                        *partition_reader._fresh,
                        *partition_reader._metadata,
                    }
                )
            )
        assert list(counter._partition_readers.values()) == [partition_reader]
    assert rows == sent
    assert max(held) <= 3  # of which a batch has messages


def test_beginnings_of_messages_are_looked_for_in_one_list(
    broker: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_retention(broker, "looked")
    with client_of(broker) as client:
        client.subscribe("looked", "s").close()  # holds everything for now
        sent = send_all(client, "looked", numbered(55), batching_enabled=False)
    places = [(each.ledger_id, each.entry_id) for each in sent]
    asked = []
    ask = Admin.segments

    def counted(self: Admin, partition: str, from_ledger: int = -1, **flags: bool) -> TopicSnapshot:
        asked.append(from_ledger)
        return ask(self, partition, from_ledger, **flags)

    def before(place: tuple[int, int]) -> list[tuple[int, int]]:
        return [
            (window.ledger_id, window.first + index)
            for window in reader.windows_before(*place)
            for index in reversed(range(len(window.heads)))
        ]

    cluster = parse_access({"adminUrl": broker.admin_url})
    with Admin(cluster) as brokers:
        snapshot = brokers.segments("persistent://public/default/looked")
    (part,) = cut_by_count([(snapshot, entry_ranges_between(snapshot, BEGINNING, END)[-2:])], 1)
    monkeypatch.setattr(Admin, "segments", counted)
    with SplitReader(part, cluster, fail_on_data_loss=True) as reader:
        for number in (54, 52, 20):
            assert sorted(before(places[number])) == places[:number]
        assert sum(len(run.heads) for run in reader.runs()) == part.entries
        assert asked == [-1]

        # Unless it turns out to be old: ledgers that are trimmed are in the list no more.
        admin(broker, "POST", f"{topic_path('looked')}/subscription/s/skip_all")

        def trimmed() -> bool:
            admin(broker, "POST", f"{topic_path('looked')}/trim")
            try:
                before(places[54])
            except DataLossError:
                return True
            return False

        wait_until(trimmed, "the first ledgers are gone", WAIT_S)
        wait_until(
            lambda: segments(broker, "looked")["first"]["ledgerId"] == places[54][0],
            "they are in no list",
            WAIT_S,
        )
        asked.clear()
        assert before(places[54]) == [
            place for place in reversed(places[:54]) if place[0] == places[54][0]
        ]
        assert asked == [-1]


def test_new_partitions_and_topics_are_read_from_their_beginning(broker: Addresses) -> None:
    admin(broker, "PUT", f"{topic_path('grows-a')}/partitions", 1)
    with client_of(broker) as client:
        old = send_all(client, "grows-a", numbered(10))
        pattern = "public/default/grows-.*"
        with Query(broker, subscribePattern=pattern) as query:
            assert _by_place(query.batch()) == old
            admin(broker, "POST", f"{topic_path('grows-a')}/partitions", 3)
            added = send_all(client, "grows-a-partition-2", numbered(10, 10))
            topic = send_all(client, "grows-b", numbered(10, 20))
            wait_until(lambda: len(query.plan()) >= 3, "the new ones are seen", WAIT_S)
            new = [row for batch in query.drain() for row in batch]
    assert sorted(row.value for row in new) == sorted(row.value for row in added + topic)


def test_a_pattern_over_several_namespaces(
    broker: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New topics are picked up in each of them, and others of theirs are left alone."""
    monkeypatch.setattr("magnetar.pipeline.stream_source._DISCOVERY_S", 0.2)
    for namespace in ("left", "right", "other"):
        admin(broker, "PUT", f"/admin/v2/namespaces/public/{namespace}", {})
    names = ("public/left/a-1", "public/right/b-1", "public/left/b-1", "public/other/a-1")
    admin(broker, "PUT", "/admin/v2/persistent/public/right/b-2/partitions", 2)
    with client_of(broker) as client:

        def send(name: str) -> list[str]:
            values: list[tuple[bytes, str | None, dict[str, str]]]
            values = [(f"{name} {n}".encode(), None, {}) for n in range(5)]
            send_all(client, f"persistent://{name}", values)
            return [value.decode() for value, _, _ in values]

        sent = {name: send(name) for name in names}
        sent["public/right/b-2"] = send("public/right/b-2")
        wanted = ["public/left/a-1", "public/right/b-1", "public/right/b-2"]
        for number, (pattern, namespaces) in enumerate(
            (
                ("public/left/a-.*|persistent://public/right/b-.*", ""),
                ("public/(left/a|right/b)-.*", "public/left, public/right"),
            )
        ):
            where = {"subscribePattern": pattern, "namespace": namespaces}
            with Query(broker, None, maxOffsetsPerTrigger=4, **where) as query:
                found = [row.value.decode() for batch in query.drain() for row in batch]
                assert sorted(found) == sorted(each for name in wanted for each in sent[name])
                later = f"public/right/b-late{number}"
                sent[later] = send(later)
                wanted.append(later)
                rows: list[Sent] = []
                wait_until(partial(_grows, query, rows), "the new topic is seen", WAIT_S)
                rows += [row for batch in query.drain() for row in batch]
                assert [row.value.decode() for row in rows] == sent[later]
    with pytest.raises(NoSuchTopicError, match="public/nowhere"):
        Query(broker, subscribePattern="public/left/a|public/nowhere/a")


def _grows(query: Query, rows: list[Sent]) -> bool:
    rows += query.batch()
    return bool(rows)


def _is_deleted(query: Query, tasks: Sequence[InputPartition], topic: str) -> bool:
    """What bookies have of a deleted topic is there for a moment."""
    try:
        for task in tasks:
            list(query.reader.read(task))
    except DataLossError as error:
        return re.search(rf"default/{topic}.*: the topic was deleted", str(error)) is not None
    return False


@pytest.mark.parametrize("partitions", [0, 1])
def test_a_topic_that_is_deleted_in_mid_stream_and_made_anew(
    broker: Addresses, partitions: int
) -> None:
    topic = f"renewed-{partitions}"
    path = topic_path(topic) + ("/partitions" if partitions else "")

    def make() -> None:
        admin(broker, "PUT", path, partitions or None)

    make()
    options: dict[str, Any] = {"subscribe": topic, "maxOffsetsPerTrigger": 10, "cursor": "spark"}
    lenient = {**options, "failOnDataLoss": "false"}
    with client_of(broker) as client:
        old = send_all(client, topic, numbered(30), batching_enabled=False)
        with Query(broker, **options) as query:
            first = query.batch() or query.batch()  # where an unused partition begins comes first
            assert first == old[:10]
            end = query.plan()  # in the checkpoint, but not read yet
            tasks = query.reader.partitions(query.offset, end)
            admin(broker, "DELETE", f"{path}?force=true")
            wait_until(partial(_is_deleted, query, tasks, topic), "bookies have none of it", WAIT_S)
            with pytest.raises(DataLossError, match=rf"{topic}.*HTTP 404.* was read up to"):
                query.plan()
            with pytest.raises(DataLossError, match=rf"{topic}.*HTTP 404.* was read up to"):
                query.read(end)
        with Query(broker, query.offset, **lenient) as query:
            assert query.read(end) == []
            assert query.plan() == query.offset  # it waits for the topic
            with Query(broker, query.offset, **lenient) as now:
                now.reader.prepareForTriggerAvailableNow()
                assert now.plan() == now.offset
            mistaken = {**lenient, "subscribe": f"{topic},never-was"}
            with (
                Query(broker, query.offset, **mistaken) as other,
                pytest.raises(NoSuchTopicError, match="default/never-was"),
            ):
                other.plan()

            make()
            new = send_all(client, topic, numbered(25, 100), batching_enabled=False)
            with (
                Query(broker, query.offset, **options) as strict,
                pytest.raises(DataLossError, match="deleted and made again"),
            ):
                strict.plan()
            assert query.read(end) == []  # the batch of old messages has none of the new ones
            query.offset = end
            batches = query.drain()
            assert [row for batch in batches for row in batch] == new
            assert max(len(batch) for batch in batches) <= 10
            place = f"{topic_path(topic)}-partition-0" if partitions else topic_path(topic)
            stats = admin(broker, "GET", f"{place}/stats")
            assert stats["subscriptions"]["spark"]["msgBacklog"] == 1  # the cursor is there again


def test_the_cursor_follows_and_keeps_what_was_not_read(broker: Addresses) -> None:
    path = topic_path("followed")

    def backlog() -> int:
        stats = admin(broker, "GET", f"{path}/stats")
        return int(stats["subscriptions"]["spark"]["msgBacklog"])

    with client_of(broker) as client:
        send_all(client, "followed", numbered(60), batching_enabled=False)
        with Query(broker, subscribe="followed", cursor="spark", maxOffsetsPerTrigger=25) as query:
            query.plan()
            assert backlog() == 60  # it holds what will be read before any of it is
            left = []
            for _ in range(3):
                query.batch()
                left.append(backlog())
            assert left == [36, 11, 1]  # one entry behind
            more = send_all(client, "followed", numbered(7, 60), batching_enabled=False)
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
        sent = send_all(client, "overtaken", numbered(60), batching_enabled=False)
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
                more = numbered(20, 20 * number)
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
        sent = send_all(client, "behind", numbered(10), batching_enabled=False)
        with Query(broker, subscribe="behind") as query:
            assert query.drain() == [sent]
            sent += send_all(client, "behind", numbered(30, 10), batching_enabled=False)
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
        sent = send_all(client, "fresh", numbered(30), batching_enabled=False)
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
        sent = send_all(client, "idle", numbered(10), batching_enabled=False)
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
        send_all(client, "mine", numbered(1))
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
    monkeypatch.setattr("magnetar.pipeline.split_reader._PAUSES_S", (0.0,))
    monkeypatch.setattr("magnetar.pipeline.admin._PAUSES_S", (0.0,))
    with StandaloneProcess(tmp_path / "data") as process:
        at = Addresses(process.service_url, process.admin_url)
        with client_of(at) as client:
            sent = send_all(client, "gone", numbered(5), batching_enabled=False)
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
