"""Compaction and readers of the compacted view."""

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest
from _pulsar import ConsumerType

from tests.encryption_keys import encryption_keys
from tests.interop.conftest import RECEIVE_MS, Admin
from tests.nightly import NIGHTLY
from tests.waiting import wait_until

Pair = tuple[str, str]
Found = list[tuple[str, str, str]]
"""Key, value and id of each message."""

KEYS = ("", *"abcdefghi")
CODECS = (
    *(pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib),
    *(pulsar.CompressionType.ZSTD, pulsar.CompressionType.SNAPPY),
)


def _send(
    client: pulsar.Client,
    topic: str,
    pairs: Sequence[Pair],
    codec: pulsar.CompressionType = pulsar.CompressionType.NONE,
    *,
    batched: bool = False,
    **options: Any,
) -> list[str]:
    """Ids of the messages. A key that is empty is none: clients don't send it."""
    producer = client.create_producer(
        topic,
        compression_type=codec,
        batching_enabled=batched,
        batching_max_messages=7,
        batching_max_publish_delay_ms=10_000,
        **options,
    )
    ids: list[str] = []

    def sent(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        assert result == pulsar.Result.Ok
        ids.append(str(message_id))

    for key, value in pairs:
        producer.send_async(value.encode(), sent, partition_key=key or None)
    producer.flush()
    producer.close()
    return ids


def _compact(admin: Admin, topic: str) -> None:
    path = f"{admin.topic_path(topic)}/compaction"
    assert admin.call("PUT", path)[0] == 204
    status = {}

    def is_done() -> bool:
        status.update(admin.call("GET", path)[1])
        return bool(status["status"] != "RUNNING")

    wait_until(is_done)
    assert status == {"status": "SUCCESS", "lastError": ""}


def _rest_of(reader: pulsar.Reader) -> Found:
    return [
        (message.partition_key(), message.data().decode(), str(message.message_id()))
        for message in _messages_of(reader)
    ]


def _messages_of(reader: pulsar.Reader) -> Iterator[pulsar.Message]:
    while reader.has_message_available():
        yield reader.read_next(RECEIVE_MS)


def _seen(found: Found) -> Found:
    """Without messages that were taken out of their batch: the C++ client shows empty ones."""
    return [each for each in found if each[0] or each[1]]


def _reader(
    client: pulsar.Client,
    topic: str,
    start: pulsar.MessageId,
    keys: pulsar.CryptoKeyReader | None = None,
) -> pulsar.Reader:
    return client.create_reader(topic, start, is_read_compacted=True, crypto_key_reader=keys)


def _view(
    client: pulsar.Client,
    topic: str,
    start: pulsar.MessageId = pulsar.MessageId.earliest,
    keys: pulsar.CryptoKeyReader | None = None,
) -> Found:
    """What a reader with ``readCompacted`` gets."""
    reader = _reader(client, topic, start, keys)
    try:
        return _seen(_rest_of(reader))
    finally:
        reader.close()


def _pairs(found: Found) -> list[Pair]:
    return [(key, value) for key, value, _ in found]


def _model(pairs: Sequence[Pair]) -> list[int]:
    """Which of the messages a compaction leaves."""
    newest = {key: at for at, (key, _) in enumerate(pairs) if key}
    return sorted(at for at in newest.values() if pairs[at][1])


def _some_pairs(rng: random.Random, run: int) -> list[Pair]:
    """Few keys; some messages have none, or no value."""
    return [
        (rng.choice(KEYS), rng.choice(["", f"{run}-{n}", f"{run}-{n}" * 20]))
        for n in range(rng.randrange(1, 30))
    ]


@pytest.mark.parametrize("seed", range(200 if NIGHTLY else 6))
def test_random_histories(
    client: pulsar.Client, admin: Admin, topic: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    keys = encryption_keys(tmp_path)
    history: list[Pair] = []
    ids: list[str] = []
    for run in range(3):
        for _ in range(rng.randrange(1, 4)):
            pairs, codec, kind = _some_pairs(rng, run), rng.choice(CODECS), rng.random()
            secret = {"encryption_key": "k", "crypto_key_reader": keys} if kind > 0.8 else {}
            if secret:  # an encrypted value isn't empty
                pairs = [(key, value or "nothing") for key, value in pairs]
            ids += _send(client, topic, pairs, codec, batched=kind < 0.6, **secret)
            history += pairs
        before = len(history)
        _compact(admin, topic)
        if rng.random() < 0.3:
            assert admin.call("PUT", f"{admin.topic_path(topic)}/unload")[0] == 204
        left = _model(history)
        found = _view(client, topic, keys=keys)
        assert _pairs(found) == [history[at] for at in left]
        tail = [(rng.choice("abc"), f"tail-{run}-{n}") for n in range(2)]
        ids += _send(client, topic, tail)
        history += tail
        left += range(before, len(history))
        found = _view(client, topic, keys=keys)
        assert _pairs(found) == [history[at] for at in left], "what came later isn't compacted"
        assert [each[2] for each in found] == [ids[at] for at in left]
        _check_starts(client, topic, found, rng, keys)


def _check_starts(
    client: pulsar.Client,
    topic: str,
    whole: Found,
    rng: random.Random,
    keys: pulsar.CryptoKeyReader,
) -> None:
    """A reader that begins behind a message of the view, and one that seeks there."""
    reader = _reader(client, topic, pulsar.MessageId.earliest, keys)
    places = {str(each.message_id()): each.message_id() for each in _messages_of(reader)}
    at = rng.randrange(len(whole))
    start = places[whole[at][2]]
    assert _view(client, topic, start, keys) == whole[at + 1 :]
    reader.seek(start)
    # The C++ client leaves the message itself out only if it is in a batch.
    assert _seen(_rest_of(reader)) in (whole[at:], whole[at + 1 :])
    reader.close()


def test_nothing_is_left(client: pulsar.Client, admin: Admin, topic: str) -> None:
    _send(client, topic, [("a", "1"), ("b", "1"), ("a", ""), ("b", "")])
    _compact(admin, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert not reader.has_message_available()
    _send(client, topic, [("a", "2")])
    assert reader.read_next(RECEIVE_MS).data() == b"2"
    assert _pairs(_rest_of(reader)) == []
    _compact(admin, topic)
    assert _pairs(_view(client, topic)) == [("a", "2")]


def test_the_view_outlives_the_log(client: pulsar.Client, admin: Admin, topic: str) -> None:
    _send(client, topic, [(f"k{n % 5}", str(n)) for n in range(20)])
    _compact(admin, topic)
    path = admin.topic_path(topic)
    assert admin.call("PUT", f"{path}/unload")[0] == 204
    _send(client, topic, [("k9", "late")])  # a new ledger: the first one may go

    def is_trimmed() -> bool:
        admin.call("POST", f"{path}/trim")
        return len(admin.call("GET", f"{path}/internalStats")[1]["ledgers"]) == 1

    wait_until(is_trimmed)
    expected = [*((f"k{n % 5}", str(n)) for n in range(15, 20)), ("k9", "late")]
    assert _pairs(_view(client, topic)) == expected
    plain = client.create_reader(topic, pulsar.MessageId.earliest)
    assert _pairs(_rest_of(plain)) == [("k9", "late")]
    _compact(admin, topic)
    assert _pairs(_view(client, topic)) == expected, "the next run keeps what only it has"
    ledger = admin.call("GET", f"{path}/internalStats")[1]["compactedLedger"]
    assert ledger["entries"] == 6
    assert admin.call("PUT", f"{path}/unload")[0] == 204
    loaded = admin.call("GET", f"{path}/internalStats?metadata=true")[1]["compactedLedger"]
    assert "state=CLOSED" in loaded.pop("metadata")
    assert loaded == ledger
    durable = client.subscribe(
        topic, "s", initial_position=pulsar.InitialPosition.Earliest, is_read_compacted=True
    )
    first = durable.receive(RECEIVE_MS)
    assert (first.partition_key(), first.data()) == ("k0", b"15")
    durable.close()


def test_a_start_in_the_middle_and_seeks(client: pulsar.Client, admin: Admin, topic: str) -> None:
    ids = _send(client, topic, [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", "2")])
    _compact(admin, topic)
    found = _view(client, topic)
    assert _pairs(found) == [("a", "2"), ("c", "1"), ("b", "2")]
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    whole = [reader.read_next(RECEIVE_MS) for _ in range(3)]
    assert [str(each.message_id()) for each in whole] == [ids[2], ids[3], ids[4]]
    assert _pairs(_view(client, topic, whole[0].message_id())) == [("c", "1"), ("b", "2")]
    assert _pairs(_view(client, topic, pulsar.MessageId.latest)) == []
    reader.seek(pulsar.MessageId.earliest)
    assert _pairs(_rest_of(reader)) == _pairs(found)
    reader.seek(whole[1].message_id())
    assert _pairs(_rest_of(reader)) in ([("c", "1"), ("b", "2")], [("b", "2")])
    reader.seek(0)
    assert _pairs(_rest_of(reader)) == _pairs(found)


def test_a_durable_subscription_goes_on_where_it_was(
    client: pulsar.Client, admin: Admin, topic: str
) -> None:
    _send(client, topic, [(f"k{n % 10}", str(n)) for n in range(30)])
    _compact(admin, topic)

    def subscribe() -> pulsar.Consumer:
        return client.subscribe(
            topic,
            "s",
            ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,
            is_read_compacted=True,
        )

    consumer = subscribe()
    for number in range(20, 24):
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == b"%d" % number
    consumer.acknowledge_cumulative(message)
    consumer.close()
    consumer = subscribe()
    rest = [consumer.receive(RECEIVE_MS) for _ in range(6)]
    assert [each.data() for each in rest] == [b"%d" % number for number in range(24, 30)]
    consumer.acknowledge_cumulative(rest[-1])
    wait_until(
        lambda: (
            admin.call("GET", f"{admin.topic_path(topic)}/stats")[1]["subscriptions"]["s"][
                "msgBacklog"
            ]
            == 0
        ),
    )
    consumer.close()


def test_table_view(client: pulsar.Client, admin: Admin, topic: str) -> None:
    _send(client, topic, [(f"k{n % 3}", str(n)) for n in range(9)] + [("gone", "1"), ("gone", "")])
    _compact(admin, topic)
    view = client.create_table_view(topic, "view")
    assert [view.get(key) for key in ("k0", "k1", "k2")] == [b"6", b"7", b"8"]
    assert view.get("gone") is None
    _send(client, topic, [("k1", "new")])
    wait_until(lambda: view.get("k1") == b"new")
    view.close()


def test_what_rest_shows(client: pulsar.Client, admin: Admin, topic: str) -> None:
    path = admin.topic_path(topic)
    _send(client, topic, [("a", "1"), ("a", "2"), ("b", "1")])
    assert admin.call("GET", f"{path}/compaction")[1] == {"status": "NOT_RUN", "lastError": ""}
    _compact(admin, topic)
    stats = admin.call("GET", f"{path}/stats")[1]
    assert stats["compaction"]["lastCompactionRemovedEventCount"] == 1
    assert stats["compaction"]["lastCompactionSucceedTimestamp"] > 0
    assert stats["compaction"]["lastCompactionFailedTimestamp"] == 0
    assert stats["subscriptions"]["__compaction"]["msgBacklog"] == 0
    ledger = admin.call("GET", f"{path}/internalStats")[1]["compactedLedger"]
    assert (ledger["entries"], ledger["offloaded"]) == (2, False)
    assert ledger["size"] > 0
    assert admin.call("GET", f"{path}/subscriptions")[1] == ["__compaction"]
    names = {
        line.partition("{")[0]: float(line.rpartition(" ")[2].split()[0])
        for line in str(admin.call("GET", "/metrics/")[1]).splitlines()
        if line.startswith("pulsar_compaction_") and topic in line
    }
    expected = {
        "removed_event_count": 1,
        "succeed_count": 1,
        "failed_count": 0,
        "duration_time_in_mills": stats["compaction"]["lastCompactionDurationTimeInMills"],
        "latency_count": 2,
        "compacted_entries_count": 2,
        "compacted_entries_size": ledger["size"],
    }
    assert names["pulsar_compaction_read_throughput"] > names["pulsar_compaction_write_throughput"]
    assert names["pulsar_compaction_latency_sum"] > 0
    limits = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")
    buckets = [
        f"pulsar_compaction_latency_{each}" for each in (*(f"le_{x}" for x in limits), "overflow")
    ]
    assert sum(names[each] for each in buckets) == 2
    assert {name: names[f"pulsar_compaction_{name}"] for name in expected} == expected
    assert admin.call("DELETE", f"{path}/subscription/__compaction")[0] == 204
    assert admin.call("GET", f"{path}/subscriptions")[1] == []
    assert _pairs(_view(client, topic)) == [("a", "1"), ("a", "2"), ("b", "1")]


def test_partitions_are_compacted_each(client: pulsar.Client, admin: Admin, topic: str) -> None:
    admin.create_partitioned(topic, 3)
    _send(client, topic, [(f"k{n % 9}", str(n)) for n in range(36)])
    path = admin.topic_path(topic)
    assert admin.call("PUT", f"{path}/compaction")[0] == 204
    assert admin.call("GET", f"{path}/compaction")[0] == 404

    def is_done(index: int) -> bool:
        part = f"{path}-partition-{index}/compaction"
        return bool(admin.call("GET", part)[1]["status"] == "SUCCESS")

    for index in range(3):
        wait_until(partial(is_done, index))
    found = [_view(client, f"{topic}-partition-{index}") for index in range(3)]
    pairs = sorted(pair for view in found for pair in _pairs(view))
    assert pairs == [(f"k{n % 9}", str(n)) for n in range(27, 36)]


def test_only_one_consumer_at_a_time_reads_it(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", ConsumerType.Shared, is_read_compacted=True)
