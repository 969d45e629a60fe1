"""Seek by time: to the first entry published then or later, across ledgers, for every client.

Decision 0013 says where Pulsar's answer depends on clocks, which is not asked for here.
"""

import time
from collections.abc import Sequence
from typing import Any

import pulsar
import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.interop.conftest import RECEIVE_MS, Admin
from tests.raw_client import RawClient

STEP_MS = 10
LEDGERS = 3
ENTRIES = 4
"""Of each ledger."""


@pytest.fixture
def times(
    client: pulsar.Client,
    admin: Admin,
    service_url: str,
    topic: str,
    raw_credentials: dict[str, Any],
) -> Sequence[int]:
    """Publish times of twelve entries in three ledgers, the middle two of each ledger equal."""
    client.subscribe(topic, "keep").close()
    start = int(time.time() * 1000) - 1_000
    times: list[int] = []
    for ledger in range(LEDGERS):
        if ledger:
            assert admin.call("PUT", admin.topic_path(topic) + "/unload")[0] == 204
        with RawClient(service_url, connect=False, timeout_s=RECEIVE_MS / 1000) as raw:
            raw.connect(**raw_credentials)
            answer = raw.create_producer(topic)
            assert isinstance(answer, pb.CommandProducerSuccess), answer
            for entry in (0, 1, 1, 2):
                times.append(start + (ledger * ENTRIES + entry) * STEP_MS)
                frame = raw.send_frame(len(times), b"%d" % times[-1], publish_time=times[-1])
                raw.send_bytes(frame)
                raw.wait_for(lambda command: command.HasField("send_receipt"))
    return times


def _targets(times: Sequence[int]) -> list[int]:
    """Each time, just before and after it, and between two ledgers."""
    near = {time_ms + off for time_ms in times for off in (-1, 0, 1)}
    return sorted(near - {times[-1] + 1})


def test_a_reader(client: pulsar.Client, topic: str, times: Sequence[int]) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    for target in _targets(times):
        reader.seek(target)
        expected = next(t for t in times if t >= target)
        assert int(reader.read_next(RECEIVE_MS).data()) == expected
    reader.seek(times[-1] + 1)
    assert not reader.has_message_available()


def test_a_consumer(client: pulsar.Client, topic: str, times: Sequence[int]) -> None:
    consumer = client.subscribe(topic, "s")
    for target in _targets(times):
        consumer.seek(target)
        expected = [t for t in times if t >= target]
        assert [int(consumer.receive(RECEIVE_MS).data()) for _ in expected] == expected


def test_the_admin_api(
    client: pulsar.Client, admin: Admin, topic: str, times: Sequence[int]
) -> None:
    for target in _targets(times)[::5]:
        path = f"{admin.topic_path(topic)}/subscription/keep/resetcursor/{target}"
        assert admin.call("POST", path)[0] == 204
        consumer = client.subscribe(topic, "keep")
        expected = next(t for t in times if t >= target)
        assert int(consumer.receive(RECEIVE_MS).data()) == expected
        consumer.close()
