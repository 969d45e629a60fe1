"""A clock set ahead: what falls due is done at its own time, in order; nothing else moves."""

from collections.abc import AsyncIterator

import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import parse_header
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.protocol.stored_entries import PulsarEntries
from magnetar.broker.service.virtual_clock import VirtualClock
from tests.unit.broker.doubles import Broker, Client, message

STARTED_MS = 1_700_000_000_000  # of the doubles: the broker's clock, and stamps of messages
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


class VirtualClockBroker(Broker):
    has_virtual_clock = True


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await VirtualClockBroker(is_delayed_delivery_deliver_at_time_strict=True).start()
    yield broker
    await broker.close()


class Traffic:
    """A producer, and a Shared consumer with a thousand permits, of one connection."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.client = broker, broker.client()
        self._sent = 0

    async def open(self) -> "Traffic":
        client: Client = self.client
        await client.receive_one()
        await client.produce()
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        command.subscribe.topic, command.subscribe.subscription = "t", "s"
        command.subscribe.subType = pb.CommandSubscribe.Shared
        command.subscribe.consumer_id = command.subscribe.request_id = 1
        client.send(command)
        await client.receive_one()
        flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, 1000
        client.send(flow)
        return self

    async def send(self, *delays_ms: int) -> None:
        """Messages to be delivered so long after now by the wall clock; 0: at once."""
        now_ms = self.broker.cluster.now_ms
        for delay_ms in delays_ms:
            deliver_ms = now_ms + delay_ms if delay_ms else 0
            self.client.feed(message(self._sent, publish_time=now_ms, deliver_at_time=deliver_ms))
            self._sent += 1
            assert (await self.client.receive_one()).type == pb.BaseCommand.SEND_RECEIPT

    async def advance(self, span_ms: int) -> list[int]:
        """Entries that came to the consumer, in order."""
        await self.broker.clock.advance(self.broker.service, span_ms)
        commands = self.client.take()
        return [each.message.message_id.entryId for each in commands if each.HasField("message")]


async def expire_after(broker: Broker, seconds: int) -> None:
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "message_ttl_in_seconds": seconds}
    )


async def test_delayed_messages_come_at_their_times_in_their_order(broker: Broker) -> None:
    traffic = await Traffic(broker).open()
    await traffic.send(3 * HOUR_MS, HOUR_MS, 2 * HOUR_MS)
    assert await traffic.advance(HOUR_MS - 1) == []
    assert await traffic.advance(1) == [1]
    assert await traffic.advance(24 * HOUR_MS) == [2, 0]


async def test_what_expires_before_its_delivery_is_never_delivered(broker: Broker) -> None:
    traffic = await Traffic(broker).open()
    await expire_after(broker, 2 * 3600)
    await traffic.send(HOUR_MS, 3 * HOUR_MS)
    assert await traffic.advance(5 * HOUR_MS) == [0]


async def test_messages_sent_after_an_advance_are_as_old_as_they_are(broker: Broker) -> None:
    """Their stamps are of clients, whose clocks nobody advanced."""
    traffic = await Traffic(broker).open()
    await expire_after(broker, 3600)
    await traffic.advance(10 * HOUR_MS)
    await traffic.send(30 * MINUTE_MS)
    assert await traffic.advance(29 * MINUTE_MS) == []
    assert await traffic.advance(MINUTE_MS) == [0]
    await traffic.send(90 * MINUTE_MS)
    assert await traffic.advance(2 * HOUR_MS) == []


async def test_a_day_passes_between_two_keep_alives(broker: Broker) -> None:
    traffic = await Traffic(broker).open()
    await traffic.advance(24 * HOUR_MS)
    for connection in broker.service.connections:
        connection.on_sweep(broker.service.wall_clock())
        connection.on_sweep(broker.service.wall_clock())
        assert not connection.closed
    assert [each.type for each in traffic.client.take()] == []


async def test_periodic_checks_run_in_time_but_not_without_end(broker: Broker) -> None:
    seen: list[int] = []
    check = broker.service.background_tasks.rounds["expiry"]

    async def note(now_ms: int) -> None:
        seen.append(now_ms - STARTED_MS)

    check.work = note
    await broker.clock.advance(broker.service, 25 * MINUTE_MS)
    assert seen == [n * 5 * MINUTE_MS for n in range(1, 6)]
    seen.clear()
    await broker.clock.advance(broker.service, 1000 * HOUR_MS)
    assert len(seen) == 50
    assert seen[-1] == 1000 * HOUR_MS + 25 * MINUTE_MS


async def test_the_clock_is_not_set_back(broker: Broker) -> None:
    with pytest.raises(ValueError, match="back"):
        await broker.clock.advance(broker.service, -1)


@pytest.mark.parametrize("ahead_ms", [0, HOUR_MS])
def test_times_are_the_same_when_an_entry_is_read_from_a_ledger(ahead_ms: int) -> None:
    """Clients stamp by the wall clock, so what is stored has to tell how far ahead it was."""
    clock = VirtualClock(lambda: STARTED_MS, ahead_ms)
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=STARTED_MS, deliver_at_time=STARTED_MS + 9
    )
    body, form = encode_body(metadata, b"text"), PulsarEntries(is_clock_ahead=True)
    head = clock.make_header(metadata, 4)
    assert parse_header(head).publish_time_ms == STARTED_MS + ahead_ms
    assert parse_header(head).deliver_at_ms == STARTED_MS + 9 + ahead_ms
    clock.step(MINUTE_MS)
    assert form.split([form.prefixes([head])[0] + body]) == ([head], [body])
