"""Official clients that use a cluster while it is hurt, and what they saw."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pulsar

_QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


class TopicTraffic(threading.Thread):
    """Numbers 0, 1, 2, ... to one topic, each sent when the one before is acknowledged, and a
    consumer of a subscription that stays; both by themselves find the broker that serves."""

    def __init__(self, service_url: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.acknowledged = 0  # numbers below it are
        self.longest_gap_s = 0.0
        self.received: list[int] = []
        self.failure: Exception | None = None
        self._url = service_url
        self._end = threading.Event()
        self._acked_s = 0.0
        self._client: pulsar.Client | None = None

    def run(self) -> None:
        try:
            self._client = client = pulsar.Client(
                self._url, operation_timeout_seconds=120, logger=_QUIET
            )
            client.subscribe(self.topic, "keeper").close()  # nothing is trimmed
            consumer = client.subscribe(
                self.topic, "traffic", pulsar.ConsumerType.Failover, message_listener=self._receive
            )
            producer = client.create_producer(
                self.topic, send_timeout_millis=120_000, batching_enabled=False
            )
            self._acked_s = time.monotonic()
            while not self._end.is_set():
                producer.send(b"%d" % self.acknowledged)
                now_s = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now_s - self._acked_s)
                self._acked_s = now_s
                self.acknowledged += 1
            self._end.clear()
            self._end.wait(120)  # until all was consumed
            consumer.close()
            client.close()
        except Exception as error:
            self.failure = error

    def _receive(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        self.received.append(int(message.data()))
        consumer.acknowledge(message)

    @property
    def consumed(self) -> int:
        """The number up to which, without a gap, all were received."""
        seen = set(self.received)
        number = 0
        while number in seen:
            number += 1
        return number

    def stop_sending(self) -> None:
        self._end.set()

    def stop(self) -> None:
        self._end.set()
        self.join(150)
        assert not self.is_alive(), self.topic


def start_traffic(service_url: str, topics: Sequence[str]) -> list[TopicTraffic]:
    traffic = [TopicTraffic(service_url, topic) for topic in topics]
    for each in traffic:
        each.start()
    return traffic


def reset_gaps(traffic: Sequence[TopicTraffic]) -> None:
    for each in traffic:
        each.longest_gap_s = 0.0


def first_occurrences(numbers: Sequence[int]) -> list[int]:
    """What is left when repetitions are taken away: at least once may repeat, never skip."""
    return list(dict.fromkeys(numbers))
