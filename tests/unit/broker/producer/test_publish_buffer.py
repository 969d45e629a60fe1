"""The process's publish buffer: one limit for sockets and for who publishes from within."""

import asyncio

from magnetar.broker.http.messaging.local_producer import LocalProducer
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from tests.unit.broker.dispatch.builders import settle
from tests.unit.broker.doubles import Broker, message
from tests.unit.managed_ledger.cluster import eventually


class RecordingContext:
    """What became of the entries of a call."""

    def __init__(self) -> None:
        self.stored = 0

    def __call__(
        self, index: int, count: int, ledger_id: int, first_entry_id: int, error: Exception | None
    ) -> None:
        assert error is None
        self.stored += count


def entry(number: int, size: int) -> tuple[pb.MessageMetadata, bytes, int]:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    return metadata, b"\x0e\x01" + b"x" * size, number


async def opened(broker: Broker, name: str, topic: str = "local") -> LocalProducer:
    """A producer as REST and WebSocket have them, on a topic of its own."""
    return await LocalProducer.open(
        broker.service,
        TopicName.parse(f"persistent://public/default/{topic}"),
        name,
        generated=False,
        remote="127.0.0.1:0",
        client_version="test",
    )


async def test_sockets_and_local_producers_wait_for_each_other(broker: Broker) -> None:
    client = broker.client()
    await client.receive_one()
    await client.produce("t")
    local, context = await opened(broker, "local"), RecordingContext()
    broker.service.ledgers.append_budget.bytes_max = 20_000
    release = broker.hold_storage()
    client.feed(message(0, b"x" * 15_000))
    assert client.reads()
    local.publish([entry(0, 15_000)], context)
    assert local.held
    client.feed(message(1))
    assert not client.reads()
    late = await opened(broker, "late")
    assert late.held  # it would publish into a full buffer
    calls = [asyncio.create_task(x.ready()) for x in (local, late)]
    await settle()
    assert not any(x.done() for x in calls)
    release()
    await asyncio.wait_for(asyncio.gather(*calls), 60)
    await client.receive(2)
    assert client.reads()
    await eventually(lambda: context.stored == 1)
    assert broker.service.ledgers.append_budget.in_flight == 0


async def test_a_closed_local_producer_waits_for_nothing(broker: Broker) -> None:
    local = await opened(broker, "local")
    broker.service.ledgers.append_budget.bytes_max = 1_000
    release = broker.hold_storage()
    local.publish([entry(0, 15_000)], RecordingContext())
    call = asyncio.create_task(local.ready())
    await settle()
    assert not call.done()
    local.close()
    await asyncio.wait_for(call, 60)
    release()
    await eventually(lambda: broker.service.ledgers.append_budget.in_flight == 0)
