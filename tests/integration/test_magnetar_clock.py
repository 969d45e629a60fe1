"""The official client at embedded brokers whose clock tests set ahead."""

from datetime import timedelta
from typing import Literal

import pulsar
import pytest

import magnetar
from magnetar.errors import EmbeddedError
from tests.official_client import client_of

_MS_MAX = 30_000
_DAY = timedelta(days=1)


def is_empty(consumer: pulsar.Consumer) -> bool:
    """Nothing has come: what the broker has sent is there within a few milliseconds."""
    try:
        consumer.receive(100)
    except pulsar.Timeout:
        return True
    return False


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_day_s_delay_passes_at_once(mode: Literal["thread", "process"]) -> None:
    with (
        magnetar.embedded(mode=mode, clock="virtual") as broker,
        client_of(broker.service_url) as client,
    ):
        consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer("t")
        for payload in (b"first", b"second"):
            producer.send(payload, deliver_after=_DAY)
            broker.advance("23h 59m")
            assert is_empty(consumer)
            broker.advance(timedelta(minutes=1))
            message = consumer.receive(_MS_MAX)
            assert message.data() == payload
            consumer.acknowledge(message)
        with pytest.raises(ValueError, match="back"):
            broker.advance(-1)
        with pytest.raises(ValueError, match="no duration"):
            broker.advance("2 hours")
    with pytest.raises(EmbeddedError, match="isn't running"):
        broker.advance("1h")


def test_a_real_clock_is_not_advanced() -> None:
    with magnetar.embedded() as broker, pytest.raises(EmbeddedError, match='clock="virtual"'):
        broker.advance("1h")
    with pytest.raises(ValueError, match="lunar"):
        magnetar.embedded(clock="lunar")  # type: ignore[arg-type] # the test's point
