"""Attempts of one task against a real broker, without Spark: wherever they end, each row is once.

Spark's part is in test_sink_restarts.py; here an attempt can end behind every single row, and while
the broker holds an entry that is neither stored nor lost.
"""

import contextlib
import random
import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx
import pulsar
import pytest

from magnetar.pipeline.errors import WriteError
from magnetar.pipeline.sink_options import SinkOptions, parse_sink_options
from magnetar.pipeline.task_producers import (
    RowMessage,
    TaskProducers,
    TaskRun,
    TaskWriteResult,
    open_client,
)
from tests.child_process import unread_connections
from tests.official_client import client_of
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

WAIT_MS = 60_000


class Topic:
    """One that drops repeated messages, with any number of attempts to write to it."""

    def __init__(self, service_url: str, admin_url: str, partitions: int = 0) -> None:
        self.name = f"persistent://public/default/task-{uuid.uuid4().hex[:8]}"
        self.service_url = service_url
        self.url = url = f"{admin_url}/admin/v2/{self.name.replace('://', '/')}"
        if partitions:
            answer = httpx.put(f"{url}/partitions", json=partitions, timeout=60)
        else:
            answer = httpx.put(url, timeout=60)
        assert answer.is_success, answer.text
        answer = httpx.post(f"{url}/deduplicationEnabled", json=True, timeout=60)
        assert answer.is_success, answer.text

    def options(self, **options: object) -> SinkOptions:
        given = {"serviceUrl": self.service_url, "topic": self.name, **options}
        return parse_sink_options({name: str(text) for name, text in given.items()})

    def attempt(self, name: str, batch: int = 0, **options: object) -> TaskProducers:
        parsed = self.options(**options)
        return TaskProducers(open_client(parsed), parsed, TaskRun(name, 0, batch))

    def write(
        self, name: str, rows: Sequence[RowMessage], batch: int = 0, **options: object
    ) -> TaskWriteResult:
        attempt = self.attempt(name, batch, **options)
        try:
            for row in rows:
                attempt.send(row)
            return attempt.finish()
        except BaseException:
            attempt.abandon()
            raise

    def values(self) -> list[bytes]:
        found = []
        with client_of(self.service_url) as client:
            for place in client.get_topic_partitions(self.name):
                reader = client.create_reader(place, pulsar.MessageId.earliest)
                while reader.has_message_available():
                    found.append(reader.read_next(WAIT_MS).data())
                reader.close()
        return found


@pytest.fixture
def topic(service_url: str, admin_url: str) -> Topic:
    return Topic(service_url, admin_url)


@pytest.fixture
def wide(service_url: str, admin_url: str) -> Topic:
    return Topic(service_url, admin_url, partitions=3)


def mixed_rows(seed: int, count: int, tag: str) -> list[RowMessage]:
    """With and without keys; some are late, some are larger than an entry may be."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        size = rng.choice((0, 0, 0, 100, 3000))
        value = f"{tag}:{number}:".encode() + b"x" * size
        key = rng.choice((None, "a", "b", "c", "d"))
        late_ms = 1 if rng.random() < 0.15 else None
        rows.append(RowMessage(value, key, deliver_after_ms=late_ms, size=len(value)))
    return rows


@pytest.mark.parametrize("partitions", [0, 3])
def test_an_attempt_may_end_behind_every_row(
    service_url: str, admin_url: str, partitions: int
) -> None:
    topic, expected = Topic(service_url, admin_url, partitions), Counter[bytes]()
    limits = {"batchingMaxMessages": 4, "batchingMaxBytes": 1024, "maxPendingMessages": 7}
    sent = skipped = 0
    for end in range(31):
        rows = mixed_rows(end, 30, str(end))
        attempt = topic.attempt(f"job-{end}", **limits)
        for row in rows[:end]:
            attempt.send(row)
        attempt.abandon()
        written = topic.write(f"job-{end}", rows, **limits)
        assert written.sent + written.skipped == len(rows)
        sent, skipped = sent + written.sent, skipped + written.skipped
        expected.update(row.value or b"" for row in rows)
    assert Counter(topic.values()) == expected
    assert skipped > 31 * 5, (sent, skipped)  # attempts don't just send all again


@pytest.mark.parametrize("size", [1, 2, 50])
@pytest.mark.parametrize("guarantee", ["effectively-once", "at-least-once"])
def test_entries_of_any_size(wide: Topic, guarantee: str, size: int) -> None:
    options: dict[str, Any] = {"deliveryGuarantee": guarantee, "batchingMaxMessages": size}
    options["maxPendingMessages"] = 20
    rows = mixed_rows(size, 100, guarantee)
    assert wide.write("job", rows, **options) == TaskWriteResult(100, 0)
    again = wide.write("job", rows, **options)
    repeats = guarantee == "at-least-once"
    assert again == (TaskWriteResult(100, 0) if repeats else TaskWriteResult(0, 100))
    assert Counter(wide.values()) == Counter({row.value: 1 + repeats for row in rows})


def test_batches_go_on_behind_each_other_and_never_back(wide: Topic) -> None:
    rows = [mixed_rows(batch, 40, str(batch)) for batch in range(3)]
    for batch in range(3):
        wide.write("query", rows[batch], batch, batchingMaxMessages=5)
        assert wide.write("query", rows[batch], batch, batchingMaxMessages=5).sent == 0
    with pytest.raises(WriteError, match=r"query-0 has written batch 2 already, .* batch 1"):
        wide.write("query", rows[1], 1, batchingMaxMessages=5)
    with pytest.raises(WriteError, match="sequence ids end"):
        wide.write("query", rows[1], 2**31)
    last = 2**31 - 1
    wide.write("query", rows[0], last)
    assert wide.write("query", rows[0], last).sent == 0
    assert Counter(wide.values()) == Counter(
        row.value for batch in (*rows, rows[0]) for row in batch
    )


def test_nothing_is_stored_behind_an_entry_that_is_refused(topic: Topic) -> None:
    """Else the next attempt would take that entry's rows for stored."""
    rows = [RowMessage(b"%d" % number, size=1) for number in range(30)]
    rows[10] = RowMessage(b"10" + b"x" * 2000, size=2002)
    limits = {"batchingMaxMessages": 4, "sendTimeoutMs": 5000}
    policy = f"{topic.url}/maxMessageSize"
    answer = httpx.post(policy, json=1000, timeout=60)
    assert answer.is_success, answer.text
    for _ in range(2):
        with pytest.raises(WriteError, match=r"what was sent isn't answered for 10\.0 s"):
            topic.write("job", rows, **limits)
        assert topic.values() == [b"%d" % number for number in range(8)]
    answer = httpx.delete(policy, timeout=60)
    assert answer.is_success, answer.text
    limits["sendTimeoutMs"] = 60_000
    assert topic.write("job", rows, **limits) == TaskWriteResult(22, 8)
    assert topic.values() == [row.value for row in rows]


@pytest.mark.parametrize("size", [1, 5], ids=["one by one", "in batches"])
def test_an_entry_in_flight_of_an_attempt_that_is_given_up(
    fresh_standalone: StandaloneProcess, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stands still with the first attempt's last entry unread, and goes on when the
    second attempt is there."""
    monkeypatch.setattr("magnetar.pipeline.task_producers._CLOSING_S", 0.5)  # a paused broker
    broker = fresh_standalone
    topic = Topic(broker.service_url, broker.admin_url)
    rows = mixed_rows(1, 60, "row")
    limits = {"batchingMaxMessages": size, "sendTimeoutMs": 120_000}
    limits["producerNameTimeoutMs"] = 300_000
    for end in (13, 44):
        name = f"job-{end}"
        attempt = topic.attempt(name, **limits)
        for row in rows[:end]:
            attempt.send(row)
        stored = len(topic.values())
        broker.pause()
        try:
            unsent = threading.Thread(target=_send_until_refused, args=(attempt, rows[end:]))
            unsent.start()
            # An entry's frame; a ping is smaller.
            wait_until(lambda: unread_connections(broker.port, 61), "the entry is sent", 120)
            attempt.abandon()
            unsent.join()
        finally:
            broker.resume()
        topic.write(name, rows, **limits)
        assert len(topic.values()) > stored
    assert Counter(topic.values()) == Counter({row.value: 2 for row in rows})


def _send_until_refused(attempt: TaskProducers, rows: Sequence[RowMessage]) -> None:
    with contextlib.suppress(WriteError):
        for row in rows:
            attempt.send(row)
