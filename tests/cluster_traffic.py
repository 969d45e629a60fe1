"""Official clients that use a cluster while it is hurt, and what they saw."""

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import pulsar

from magnetar.broker.verify.stored import check_numbers
from tests.nightly import NIGHTLY
from tests.official_client import open_client

PAUSE_S = 0.02 if NIGHTLY else 0.12
"""Between two messages to a topic: each costs a dozen processes, and CI has two cores."""
_STALL_S = 0.3


def assert_numbers(numbers: Sequence[int], acknowledged: int, window: int | None) -> int:
    """All that are acknowledged, below that number, in order: see `check_numbers`.

    Returns:
        How many were repetitions.
    """
    verdict = check_numbers(numbers, range(acknowledged), window)
    assert verdict.violations == []
    return verdict.repeated


class Traffic(Protocol):
    """What somebody sees who sends numbers 0, 1, 2, ... to a topic and consumes them."""

    longest_gap_s: float

    @property
    def acknowledged(self) -> int: ...
    @property
    def consumed(self) -> int: ...
    @property
    def failure(self) -> Exception | None: ...


class CheckedTraffic(Traffic, Protocol):
    """What a feature joins the chaos with: ``chaos_rounds.start_features`` starts it.

    A subclass of ``TopicTraffic`` changes only what is its own: ``consumer_type``,
    ``producer_name``, ``_send``, ``_receive``, ``check``.
    """

    topic: str

    def start(self) -> None: ...

    def stop_sending(self) -> None: ...

    @property
    def drained(self) -> bool:
        """After ``stop_sending``: all is acknowledged and consumed."""
        ...

    def stop(self) -> None: ...

    def check(self, stored: Sequence[int]) -> int:
        """Judge what was received, and what a reader of the whole topic got.

        Returns:
            Messages that are stored twice and may be.
        """
        ...


class TopicTraffic(threading.Thread):
    """A ``CheckedTraffic``.

    Numbers 0, 1, 2, ... to one topic, and a consumer of a subscription that stays; both by
    themselves find the broker that serves.
    """

    consumer_type = pulsar.ConsumerType.Failover
    producer_name: str | None = None
    reads_compacted = False

    def __init__(
        self,
        service_url: str,
        topic: str,
        window: int,
        pause_s: float,
        patience_s: int = 120,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            window: numbers that are under way at once; 1: each is sent when the one before is
                acknowledged.
            pause_s: between two of them, so that histories stay small.
            patience_s: what its clients wait for an answer before they give up.
            options: further ones of the client: its credentials, say.
        """
        super().__init__(daemon=True)
        self.topic, self.window = topic, window
        self.sent = 0
        self.acknowledged = 0  # numbers below it are
        self.consumed = 0  # numbers below it were received
        self.longest_gap_s = 0.0
        self.stalls: list[tuple[float, float]] = []  # since the epoch: last receipt and next one
        self.received: list[int] = []
        self._arrived: set[int] = set()  # above ``consumed``
        self.failure: Exception | None = None
        self._url, self._pause_s, self._patience_s = service_url, pause_s, patience_s
        self._full_stop, self._end = threading.Event(), threading.Event()
        self._flushed = False
        self._acked_s = 0.0
        self._options = {**(options or {}), "operation_timeout_seconds": patience_s}
        self._client: pulsar.Client | None = None

    def run(self) -> None:
        try:
            self._client = client = open_client(self._url, **self._options)
            client.subscribe(self.topic, "keeper").close()  # nothing is trimmed
            consumer = client.subscribe(
                *(self.topic, "traffic", self.consumer_type),
                message_listener=self._receive,
                is_read_compacted=self.reads_compacted,
            )
            producer = client.create_producer(
                self.topic,
                self.producer_name,
                send_timeout_millis=self._patience_s * 1000,
                batching_enabled=False,
                max_pending_messages=self.window,
                block_if_queue_full=True,
            )
            self._acked_s = time.monotonic()
            while not self._full_stop.is_set():
                number, self.sent = self.sent, self.sent + 1
                self._send(producer, number)
                self._full_stop.wait(self._pause_s)
            producer.flush()
            self._flushed = True
            self._end.wait()
            consumer.close()
            client.close()
        except Exception as error:
            self.failure = error

    def _send(self, producer: pulsar.Producer, number: int) -> None:
        producer.send_async(b"%d" % number, partial(self._on_receipt, number))

    def _on_receipt(self, number: int, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok or number != self.acknowledged:
            self.failure = AssertionError(f"{number} of {self.topic}: {result}")
            return
        now_s = time.monotonic()
        gap_s = now_s - self._acked_s
        self.longest_gap_s = max(self.longest_gap_s, gap_s)
        if gap_s >= _STALL_S:
            self.stalls.append((time.time() - gap_s, time.time()))
        self._acked_s = now_s
        self.acknowledged += 1

    def _receive(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        number = int(message.data())
        self.received.append(number)
        if number == self.consumed:
            self.consumed += 1
        consumer.acknowledge(message)

    @property
    def drained(self) -> bool:
        """After ``stop_sending``: all is acknowledged and consumed."""
        return self._flushed and self.consumed == self.acknowledged == self.sent

    def check(self, stored: Sequence[int]) -> int:
        """All that was acknowledged, in order; twice only what was unacknowledged."""
        assert_numbers(self.received, self.acknowledged, window=None)
        return assert_numbers(stored, self.acknowledged, self.window)

    def stop_sending(self) -> None:
        self._full_stop.set()

    def stop(self) -> None:
        self._full_stop.set()
        self._end.set()
        self.join(150)
        assert not self.is_alive(), self.topic


class DeduplicatedTraffic(TopicTraffic):
    """REQUIRES: its topic has de-duplication. Sends each number with it as sequence id, and some of
    them twice, as who got an error does; whatever breaks, each is stored once.
    """

    producer_name = "chaos"

    def _send(self, producer: pulsar.Producer, number: int) -> None:
        data = b"%d" % number
        producer.send_async(data, partial(self._on_receipt, number), sequence_id=number)
        if number % 5 == 4:
            producer.send_async(data, self._on_second_receipt, sequence_id=number)

    def _on_second_receipt(self, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            self.failure = AssertionError(f"sent again to {self.topic}: {result}")

    def check(self, stored: Sequence[int]) -> int:
        assert_numbers(self.received, self.acknowledged, window=None)
        assert assert_numbers(stored, self.acknowledged, window=0) == 0
        return 0


class DelayedTraffic(TopicTraffic):
    """Each message is to be delivered a while later: not before, and all are."""

    consumer_type = pulsar.ConsumerType.Shared
    _DELAY_S = 1.5
    _EARLY_S = 1.0
    """delayedDeliveryTickTimeMillis: a broker that isn't strict may be early by a tick."""

    def _send(self, producer: pulsar.Producer, number: int) -> None:
        due_ms = int((time.time() + self._DELAY_S) * 1000)
        producer.send_async(
            b"%d" % number,
            partial(self._on_receipt, number),
            properties={"due_ms": str(due_ms)},
            deliver_at=due_ms,
        )

    def _receive(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        early_ms = int(message.properties()["due_ms"]) - time.time() * 1000
        if early_ms > self._EARLY_S * 1000:
            self.failure = AssertionError(f"{message.data()!r} came {early_ms} ms early")
        self.received.append(int(message.data()))
        self._arrived.add(int(message.data()))
        while self.consumed in self._arrived:  # a Shared subscription keeps no order
            self._arrived.discard(self.consumed)
            self.consumed += 1
        consumer.acknowledge(message)

    def check(self, stored: Sequence[int]) -> int:
        assert set(self.received) >= set(range(self.acknowledged)), "delayed messages never came"
        return assert_numbers(stored, self.acknowledged, self.window)


class CompactedTraffic(TopicTraffic):
    """REQUIRES: its topic is compacted now and then.

    Each number replaces the one before it with the same key. Who reads compacted gets the newest
    number of each key, in order, and may miss what a newer one replaces.
    """

    reads_compacted = True
    _KEYS = 7

    def _send(self, producer: pulsar.Producer, number: int) -> None:
        key = str(number % self._KEYS)
        producer.send_async(b"%d" % number, partial(self._on_receipt, number), partition_key=key)

    def _receive(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        super()._receive(consumer, message)
        self.consumed = max(self.consumed, self.received[-1] + 1)

    def check(self, stored: Sequence[int]) -> int:
        newest = range(self.acknowledged)[-self._KEYS :]
        assert check_numbers(self.received, newest, window=None).violations == []
        view = self._view()
        assert len(view) < len(stored), "it was never compacted"
        # Keys take turns: the newest of each are the last numbers before the horizon.
        behind = range(view[0], self.acknowledged)
        assert check_numbers(view, behind, window=None).violations == []
        return assert_numbers(stored, self.acknowledged, self.window)

    def _view(self) -> list[int]:
        client = open_client(self._url, **self._options)
        reader = client.create_reader(self.topic, pulsar.MessageId.earliest, is_read_compacted=True)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(60_000).data()))
        client.close()
        return found


def start_traffic(
    service_url: str, topics: Sequence[str], options: Mapping[str, Any] | None = None
) -> list[TopicTraffic]:
    """Every second producer has many messages under way, and the others one."""
    traffic = [
        TopicTraffic(
            *(service_url, topic),
            window=50 if number % 2 else 1,
            pause_s=PAUSE_S,
            options=options,
        )
        for number, topic in enumerate(topics)
    ]
    for each in traffic:
        each.start()
    return traffic


def reset_gaps(traffic: Sequence[Traffic]) -> None:
    for each in traffic:
        each.longest_gap_s = 0.0
