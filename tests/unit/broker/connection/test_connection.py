"""Handshake, faults, keep-alive and back-pressure of a connection."""

import gc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.broker.connection import connection as connection
from magnetar.broker.connection.receive_buffer import PauseReason
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.raw_client import encode_command
from tests.unit.broker.doubles import Broker, Client, message

PING = bytes.fromhex("00000009000000050812920100")
PONG = bytes.fromhex("000000090000000508139a0100")


def bare(kind: int) -> bytes:
    """A command of that type without its sub-message."""
    return encode_command(pb.BaseCommand(type=kind))  # type: ignore[arg-type] # plain int


async def ready(broker: Broker) -> Client:
    client = broker.client()
    assert (await client.receive_one()).type == pb.BaseCommand.CONNECTED
    return client


async def test_connect_is_answered_with_version_limit_and_features(broker: Broker) -> None:
    client = broker.client(version=30)
    connected = (await client.receive_one()).connected
    assert connected.protocol_version == 21
    assert connected.max_message_size == 5 * 1024 * 1024
    assert connected.server_version
    assert connected.feature_flags.supports_topic_watchers
    assert connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation
    assert not connected.feature_flags.supports_scalable_topics
    old = broker.client(version=12, port=5001)
    assert (await old.receive_one()).connected.protocol_version == 12


async def test_a_starting_broker_refuses_with_an_error_that_belongs_to_no_request() -> None:
    broker = Broker()
    try:
        client = broker.client()
        error = client.take()[0].error
        assert (error.request_id, error.error) == (2**64 - 1, pb.ServiceNotReady)
        assert client.transport.closed
    finally:
        await broker.close()


async def test_connections_over_the_limit_are_refused() -> None:
    broker = await Broker(broker_max_connections_per_ip=1).start()
    try:
        first, second = broker.client(), broker.client(connect=False, port=5001)
        error = second.take()[0].error
        assert (error.request_id, error.error) == (2**64 - 1, pb.NotAllowedError)
        assert second.transport.closed
        assert (await first.receive_one()).type == pb.BaseCommand.CONNECTED
        first.lose()
        third = broker.client(port=5002)
        assert (await third.receive_one()).type == pb.BaseCommand.CONNECTED
    finally:
        await broker.close()


async def test_text_that_is_not_utf8_closes(broker: Broker) -> None:
    """protobuf gives such a field as bytes, which no handler expects."""
    for kind, field in (
        (pb.BaseCommand.LOOKUP, "lookupTopic"),
        (pb.BaseCommand.GET_SCHEMA, "getSchema"),
        (pb.BaseCommand.PRODUCER, "producer"),
        (pb.BaseCommand.SUBSCRIBE, "subscribe"),
    ):
        command = pb.BaseCommand(type=kind)
        sub = getattr(command, field)
        sub.topic, sub.request_id = "qqq", 1
        if kind == pb.BaseCommand.SUBSCRIBE:
            sub.subscription, sub.subType, sub.consumer_id = "s", 0, 1
        elif kind == pb.BaseCommand.PRODUCER:
            sub.producer_id = 1
        client = await ready(broker)
        client.feed(encode_command(command).replace(b"qqq", b"q\xffq"))
        assert client.transport.closed, field


async def test_a_command_may_hold_a_consumers_ids_but_no_more(broker: Broker) -> None:
    client = await ready(broker)
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, pb.CommandAck.Individual
    for entry_id in range(50_000):
        command.ack.message_id.add(ledgerId=100_000, entryId=entry_id, partition=1)
    client.send(command)
    assert not client.transport.closed
    for entry_id in range(50_000):
        command.ack.message_id.add(ledgerId=100_000, entryId=entry_id, partition=1)
    client.send(command)
    assert client.transport.closed


async def test_requests_of_a_connection_that_dies_at_once_are_forgotten(broker: Broker) -> None:
    client = await ready(broker)
    client.feed(encode_command(LOOKUP))
    client.lose()
    gc.collect()  # a coroutine that was never awaited would warn, and warnings are errors
    assert await broker.client(port=5001).receive_one()
    assert broker.service.lookups == 0


async def test_ping_is_answered_even_before_connect(broker: Broker) -> None:
    client = broker.client(connect=False)
    client.feed(PING)
    assert (await client.receive_one()).type == pb.BaseCommand.PONG
    assert bytes(client.transport.written) == PONG


LOOKUP = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
LOOKUP.lookupTopic.topic, LOOKUP.lookupTopic.request_id = "t", 1
CONNECT = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
CONNECT.connect.client_version = "x"
FLOW_ZERO = pb.BaseCommand(type=pb.BaseCommand.FLOW)
FLOW_ZERO.flow.consumer_id, FLOW_ZERO.flow.messagePermits = 1, 0
NO_TOPIC = bytes.fromhex("00000009000000050815aa0100")

BEFORE_CONNECT = {
    "command before CONNECT": encode_command(LOOKUP),
    "send before CONNECT": message(0),
    "auth response nobody asked for": bare(pb.BaseCommand.AUTH_RESPONSE),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(300),
    "frame over the limit": (5 * 1024 * 1024 + 10_241).to_bytes(4, "big"),
    "frame of nothing": bytes(8),
    "no room for a command size": (3).to_bytes(4, "big") + bytes(3),
    "command larger than its frame": bytes.fromhex("00000009000000060812920100ff"),
    "not protobuf": bytes.fromhex("0000000800000004ffffffff"),
}
AFTER_CONNECT = {
    "second CONNECT": encode_command(CONNECT),
    "sub-message absent": bare(pb.BaseCommand.LOOKUP),
    "required field missing": NO_TOPIC,
    "type only a broker sends": bare(pb.BaseCommand.CONNECTED),
    "unknown type": bytes.fromhex("000000070000000308e807"),
    "transaction discovery of newer versions": bare(79),
    "send without producer": message(0),
    "send whose metadata exceeds its frame": message(0)[:-1],
    **BEFORE_CONNECT,
}
del AFTER_CONNECT["command before CONNECT"]


@pytest.mark.parametrize("fault", BEFORE_CONNECT)
async def test_faults_before_connect_close_without_a_word(broker: Broker, fault: str) -> None:
    client = broker.client(connect=False)
    client.feed(BEFORE_CONNECT[fault])
    assert client.transport.closed
    assert client.take() == []


@pytest.mark.parametrize("fault", AFTER_CONNECT)
async def test_faults_after_connect_close_without_a_word(broker: Broker, fault: str) -> None:
    client, other = await ready(broker), broker.client(port=5001)
    await other.receive_one()
    data = AFTER_CONNECT[fault]
    if fault == "send whose metadata exceeds its frame":
        await client.produce()
        frame = bytearray(message(0))
        size_at = frame.index(b"\x0e\x01") + 6
        frame[size_at : size_at + 4] = (1 << 20).to_bytes(4, "big")
        from crc32c import crc32c

        frame[size_at - 4 : size_at] = crc32c(frame[size_at:]).to_bytes(4, "big")
        data = bytes(frame)
    client.feed(data)
    assert client.transport.closed
    assert client.take() == []
    assert not client.connection.producers
    other.feed(PING)
    assert (await other.receive_one()).type == pb.BaseCommand.PONG


async def test_unknown_fields_of_newer_clients_are_ignored(broker: Broker) -> None:
    client = broker.client(connect=False)
    data = CONNECT.SerializeToString() + bytes.fromhex("fa3e03616263")  # field 1007
    client.feed((len(data) + 4).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)
    assert (await client.receive_one()).type == pb.BaseCommand.CONNECTED


async def test_a_send_in_another_field_order_is_the_same_send(broker: Broker) -> None:
    client = await ready(broker)
    await client.produce()
    frame = message(3)
    size = int.from_bytes(frame[4:8], "big")
    command = frame[8 : 8 + size]
    turned = command[2:] + command[:2]  # the type last
    client.feed(frame[:8] + turned + frame[8 + size :])
    assert (await client.receive_one()).send_receipt.sequence_id == 3


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=400), piece=st.integers(1, 64), prefix=st.booleans())
async def test_garbage_never_escapes_and_never_reaches_another_client(
    broker: Broker, data: bytes, piece: int, prefix: bool
) -> None:
    other = broker.client(port=5001)
    victim = broker.client()
    if prefix:  # frames whose sizes fit, with garbage inside
        data = (len(data) + 4).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data
    victim.feed(data, piece)
    other.feed(PING)
    said = await other.receive(2)
    assert [command.type for command in said] == [pb.BaseCommand.CONNECTED, pb.BaseCommand.PONG]
    victim.lose()
    other.lose()
    assert victim.connection not in broker.service.connections


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, 200), value=st.integers(0, 255))
async def test_a_damaged_send_hurts_only_its_connection(
    broker: Broker, at: int, value: int
) -> None:
    client = broker.client(connect=True)
    await client.receive_one()
    await client.produce("damaged", producer_name="one")
    frame = bytearray(message(0) + message(1))
    frame[at % len(frame)] = value
    client.feed(bytes(frame))
    client.lose()
    healthy = broker.client(port=5001)
    await healthy.receive_one()
    answer, _ = await healthy.produce("damaged", producer_name="one")
    assert answer.type == pb.BaseCommand.PRODUCER_SUCCESS
    healthy.feed(message(0))
    assert (await healthy.receive_one()).send_receipt.sequence_id == 0
    healthy.lose()


# --- keep-alive


async def test_a_handshake_that_never_comes_is_closed(broker: Broker) -> None:
    client = broker.client(connect=False)
    client.connection.on_sweep(broker.cluster.now_ms + 29_999)
    assert not client.transport.closed
    client.connection.on_sweep(broker.cluster.now_ms + 30_000)
    assert client.transport.closed


async def test_silence_is_asked_then_closed_and_any_byte_counts_as_an_answer(
    broker: Broker,
) -> None:
    client = await ready(broker)
    now_ms = broker.cluster.now_ms
    client.connection.on_sweep(now_ms + 30_000)
    assert (await client.receive_one()).type == pb.BaseCommand.PING
    client.feed(b"\x00")  # the first byte of a frame to come
    client.connection.on_sweep(now_ms + 60_000)
    assert (await client.receive_one()).type == pb.BaseCommand.PING
    client.connection.on_sweep(now_ms + 90_000)
    assert client.transport.closed


async def test_a_connection_we_don_t_read_is_exempt_from_keep_alive(broker: Broker) -> None:
    client = await ready(broker)
    client.connection.pause_reading(PauseReason.IN_FLIGHT)
    now_ms = broker.cluster.now_ms
    for step in (1, 2, 3):
        client.connection.on_sweep(now_ms + step * 30_000)
    assert not client.transport.closed


async def test_a_client_that_never_reads_is_closed_all_the_same(broker: Broker) -> None:
    client = await ready(broker)
    client.connection.pause_writing()
    client.transport.unsent = 1 << 30
    client.feed(PING)
    await client.receive_one()
    assert not client.reads()
    now_ms = broker.cluster.now_ms
    for step in (1, 2):
        client.connection.on_sweep(now_ms + step * 30_000)
    assert not client.transport.closed
    client.transport.unsent -= 1  # slow, but it reads
    client.connection.on_sweep(now_ms + 90_000)
    assert not client.transport.closed
    client.connection.on_sweep(now_ms + 120_000)
    assert client.transport.closed


async def test_too_many_requests_at_once_wait_in_the_socket(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_TASKS_MAX", 50)
    client = await ready(broker)
    client.send(*[LOOKUP] * 49)
    assert client.reads()
    client.send(LOOKUP)
    assert not client.reads()
    await client.receive(50)
    assert client.reads()


async def test_names_that_would_fill_the_memory_are_refused(broker: Broker) -> None:
    client = await ready(broker)
    assert (await client.produce("t" * 5_000))[0].error.error == pb.InvalidTopicName
    assert (await client.produce(producer_name="n" * 5_000))[0].error.error == pb.ProducerBusy
    command = client.producer_command()
    command.producer.metadata.add(key="k", value="v" * 70_000)
    client.send(command)
    assert (await client.receive_one()).error.error == pb.MetadataError
    for name in (".", ".."):
        assert (await client.produce(name))[0].error.error == pb.InvalidTopicName


async def test_the_liveness_check_asks_and_closes_those_that_are_gone(broker: Broker) -> None:
    broker.service.config = type(broker.service.config)(connection_liveness_check_timeout_millis=50)
    client = await ready(broker)
    task = broker.service.loop.create_task(client.connection.check_liveness())
    assert (await client.receive_one()).type == pb.BaseCommand.PING
    client.feed(PONG)
    assert await task is True
    assert await client.connection.check_liveness() is False
    assert client.transport.closed


# --- output


async def test_everything_of_one_tick_leaves_with_one_write(broker: Broker) -> None:
    client = await ready(broker)
    writes = client.transport.writes
    client.connection.write([b"a", b"b"])
    client.connection.send(pb.CommandPing())
    client.connection.write([memoryview(b"c" * 100_000)])
    await client.expect_something()
    assert client.transport.writes == writes + 1
    assert bytes(client.transport.written).endswith(b"ab" + PING + b"c" * 100_000)


async def test_a_client_that_doesn_t_read_is_not_read_either(broker: Broker) -> None:
    client = await ready(broker)
    woken: list[bool] = []
    client.connection.on_writable["me"] = lambda: woken.append(True)
    client.connection.pause_writing()
    writable_before = client.connection.writable
    client.transport.unsent = 1 << 30
    client.feed(PING)
    await client.receive_one()  # answered all the same
    assert not client.reads()
    client.connection.resume_writing()
    assert client.reads()
    assert client.connection.writable
    assert (writable_before, woken) == (False, [True])


async def test_what_hangs_on_a_connection_goes_with_it(broker: Broker) -> None:
    client = await ready(broker)
    await client.produce()
    gone: list[bool] = []
    client.connection.on_closed["me"] = lambda: gone.append(True)
    topic = broker.service.topics["persistent://public/default/t"]
    assert len(topic.producers) == 1
    client.lose()
    client.connection.close("twice")
    assert gone == [True]
    assert not topic.producers
    assert client.connection not in broker.service.connections
