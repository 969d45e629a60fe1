"""Official clients on several topics while a test hurts the cluster, and the verdict afterwards."""

from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import pulsar

from tests.charts.control_plane import until
from tests.cluster_traffic import TopicTraffic, assert_numbers, start_traffic
from tests.official_client import open_client

_TOPICS = 4
_DRAIN_S = 300.0


class Load:
    """``with`` it, numbers are published and consumed; at its end nothing acknowledged is missing:
    neither for the consumer that was there all the time, nor for one who reads it all again."""

    def __init__(self, service_url: str, name: str, **options: Any) -> None:
        """``options``: further ones of the clients: their credentials, say."""
        self._url, self._name, self._options = service_url, name, options
        self.topics = [f"persistent://public/default/{name}-{n}" for n in range(_TOPICS)]
        self._traffic: list[TopicTraffic] = []

    def __enter__(self) -> "Load":
        self._traffic = start_traffic(self._url, self.topics, self._options)
        self.wait_for_progress()
        return self

    def wait_for_progress(self) -> None:
        """Until each topic has acknowledged more than now."""
        before = [each.acknowledged for each in self._traffic]

        def is_true() -> bool:
            self._check_failures()
            now = (each.acknowledged for each in self._traffic)
            return all(count > old for count, old in zip(now, before, strict=True))

        until("all topics go on", is_true)

    def _check_failures(self) -> None:
        for each in self._traffic:
            assert each.failure is None, f"{each.topic}: {each.failure!r}"

    def _is_drained(self) -> bool:
        self._check_failures()
        return all(each.drained for each in self._traffic)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self._traffic:
            each.stop_sending()
        if error is None:
            until("all is acknowledged and consumed", self._is_drained, _DRAIN_S)
        for each in self._traffic:
            each.stop()
        if error is None:
            self._check()

    def _check(self) -> None:
        again = 0
        for each in self._traffic:
            again += assert_numbers(each.received, each.acknowledged, None)
            numbers = self._read(each.topic, each.acknowledged)
            assert_numbers(numbers, each.acknowledged, each.window)
        sent = sum(each.acknowledged for each in self._traffic)
        stalls = ", ".join(f"{each.longest_gap_s:.1f}" for each in self._traffic)
        print(f"\n{self._name}: {sent} acknowledged, {again} received again; stalls [s]: {stalls}")
        for each in self._traffic:
            for begin_s, end_s in each.stalls:  # times as the servers' logs have them
                times = " to ".join(
                    datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
                    for at_s in (begin_s, end_s)
                )
                print(f"  {each.topic.rpartition('/')[2]}: {end_s - begin_s:.1f} s, {times}")

    def _read(self, topic: str, count: int) -> list[int]:
        """What the log has."""
        client = open_client(self._url, **self._options)
        try:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            numbers: list[int] = []
            while reader.has_message_available():
                numbers.append(int(reader.read_next(60_000).data()))
            assert len(numbers) >= count, f"{topic} has {len(numbers)} of {count}"
            return numbers
        finally:
            client.close()
