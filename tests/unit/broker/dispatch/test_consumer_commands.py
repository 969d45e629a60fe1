"""Command handlers with a connection that only remembers what it sends."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.broker.config import BrokerConfig
from magnetar.broker.connection.consumer_commands import HANDLERS, position_of, subscribe_request
from magnetar.broker.connection.consumer_sink import BinaryConsumerSink
from magnetar.broker.errors import BrokerError, TopicNotFoundError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    FrameReader,
    MalformedFrameError,
    encode,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription.consumer import SHARED, Consumer, ConsumerSink, SubscribeRequest
from magnetar.managed_ledger.errors import InvalidPositionError
from magnetar.managed_ledger.position import EARLIEST, LATEST
from tests.raw_client import encode_command
from tests.unit.broker.dispatch.builders import Bench, FakeSink, settle
from tests.unit.broker.dispatch.doubles import head

TOPIC = "persistent://public/default/t"


class BenchTopic:
    """`topic.subscribe` of one bench; ``limiter`` holds creations back."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.limiter: asyncio.Event | None = None

    async def subscribe(self, request: SubscribeRequest, sink: ConsumerSink) -> Consumer:
        if self.limiter is not None:
            await self.limiter.wait()
        return await self.bench.subscription.add_consumer(request, sink)


class FakeConnection:
    sink_type = BinaryConsumerSink

    def __init__(self, bench: Bench) -> None:
        self.topic = BenchTopic(bench)
        self.service = self.loader = self
        self.remote, self.client_version, self.protocol_version = "127.0.0.1:9", "Pulsar-CPP", 21
        self.role = self.access = None
        self.config, self.features = BrokerConfig(), pb.FeatureFlags()
        self.closed, self.writable = False, True
        self.consumers: dict[int, Any] = {}
        self.on_writable: dict[object, Callable[[], None]] = {}
        self.on_closed: dict[object, Callable[[], None]] = {}
        self.sent: list[pb.BaseCommand] = []
        self.errors: list[tuple[int, int]] = []
        self.written: list[bytes] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def load(self, name: TopicName, *, create: bool, acquire: bool) -> BenchTopic:
        if not create:
            raise TopicNotFoundError(f"{name} is absent")
        return self.topic

    def expect_acks_in_transactions(self) -> None:
        """Of the reader of frames, which this one doesn't have."""

    def write_bulk(self, buffers: list[bytes]) -> None:
        self.written += buffers

    def send(self, command: Message) -> None:
        self.sent += [sent for sent, _ in FrameReader().feed(encode(command))]

    def reply_success(self, request_id: int) -> None:
        self.errors.append((request_id, -1))

    def reply_error(self, request_id: int, error: BrokerError | int, message: str = "") -> None:
        code = error.wire_code if isinstance(error, BrokerError) else error
        self.errors.append((request_id, code))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def check_liveness(self) -> bool:
        return True

    async def call(self, kind: pb.BaseCommand.Type.ValueType, command: Any) -> list[Any]:
        """Run a handler to its end; the replies it made, -1 for SUCCESS."""
        before = len(self.errors)
        HANDLERS[kind](cast("Any", self), command)
        await settle()
        return [code for _, code in self.errors[before:]]


def subscribe(consumer_id: int = 1, request_id: int = 5, **fields: Any) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(
        **{
            "topic": TOPIC,
            "subscription": "s",
            "subType": pb.CommandSubscribe.Shared,
            "consumer_id": consumer_id,
            "request_id": request_id,
            **fields,
        }
    )


async def connected(sizes: list[int], **settings: Any) -> tuple[FakeConnection, Bench, Consumer]:
    bench = Bench(sizes, **settings)
    connection = FakeConnection(bench)
    assert await connection.call(pb.BaseCommand.SUBSCRIBE, subscribe()) == [-1]
    return connection, bench, connection.consumers[1]


def ids(*positions: tuple[int, int]) -> list[pb.MessageIdData]:
    return [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in positions]


async def test_subscribe_flow_and_ack_with_receipt() -> None:
    connection, bench, consumer = await connected([3])
    assert consumer.consumer_id == 1
    await connection.call(pb.BaseCommand.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=10))
    assert len(connection.written) == 6, "three headers, three bodies"
    ack = pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=ids((10, 0), (10, 2)),
        request_id=8,
    )
    await connection.call(pb.BaseCommand.ACK, ack)
    (reply,) = connection.sent
    assert (reply.ackResponse.request_id, reply.ackResponse.HasField("error")) == (8, False)
    assert bench.cursor.acked == {(10, 0), (10, 2)}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "persistent://a/b"}, pb.InvalidTopicName),
        ({"subscription": " "}, pb.ProducerBusy),
        ({"metadata": [pb.KeyValue(key="k", value="v" * 1024)]}, pb.MetadataError),
        (
            {"subscription_properties": [pb.KeyValue(key="k", value="v" * 65_536)]},
            pb.MetadataError,
        ),
        ({"read_compacted": True}, pb.NotAllowedError),
        ({"force_topic_creation": False}, pb.TopicNotFound),
        (
            {
                "subType": pb.CommandSubscribe.Key_Shared,
                "keySharedMeta": pb.KeySharedMeta(keySharedMode=pb.STICKY),
            },
            pb.ConsumerAssignError,
        ),
        ({"durable": False}, pb.NotAllowedError),
    ],
)
async def test_refusals_of_subscribe(fields: dict[str, Any], code: int) -> None:
    connection = FakeConnection(Bench([1]))
    assert await connection.call(pb.BaseCommand.SUBSCRIBE, subscribe(**fields)) == [code]
    assert connection.consumers == {}


async def test_a_known_id_is_a_success_and_a_pending_one_is_not_ready() -> None:
    connection, bench, consumer = await connected([1])
    assert await connection.call(pb.BaseCommand.SUBSCRIBE, subscribe()) == [-1]
    assert bench.subscription.consumers == [consumer]
    connection.topic.limiter = asyncio.Event()
    assert await connection.call(pb.BaseCommand.SUBSCRIBE, subscribe(2)) == []
    assert await connection.call(pb.BaseCommand.SUBSCRIBE, subscribe(2)) == [pb.ServiceNotReady]
    connection.topic.limiter.set()
    await settle()
    assert isinstance(connection.consumers[2], Consumer)


async def test_a_close_undoes_a_creation_that_ends_later() -> None:
    bench = Bench([1])
    connection = FakeConnection(bench)
    connection.topic.limiter = asyncio.Event()
    await connection.call(pb.BaseCommand.SUBSCRIBE, subscribe())
    close = pb.CommandCloseConsumer(consumer_id=1, request_id=6)
    assert await connection.call(pb.BaseCommand.CLOSE_CONSUMER, close) == [-1]
    connection.topic.limiter.set()
    await settle()
    assert bench.subscription.consumers == []
    assert connection.errors == [(6, -1)], "the given-up SUBSCRIBE gets no answer"


async def test_flow_needs_permits_and_ignores_unknown_consumers() -> None:
    connection, _, _ = await connected([1])
    with pytest.raises(MalformedFrameError):
        await connection.call(pb.BaseCommand.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=0))
    flow = pb.CommandFlow(consumer_id=77, messagePermits=5)
    assert await connection.call(pb.BaseCommand.FLOW, flow) == []


async def test_acks_of_unknown_consumers_get_no_answer() -> None:
    connection, bench, _ = await connected([1])
    ack = pb.CommandAck(
        consumer_id=77, ack_type=pb.CommandAck.Individual, message_id=ids((10, 0)), request_id=8
    )
    await connection.call(pb.BaseCommand.ACK, ack)
    assert (connection.sent, bench.cursor.acked) == ([], set())


async def test_acks_of_transactions_are_refused_and_acknowledge_nothing() -> None:
    connection, bench, _ = await connected([1])
    ack = pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=ids((10, 0)),
        request_id=8,
        txnid_most_bits=1,
        txnid_least_bits=2,
    )
    await connection.call(pb.BaseCommand.ACK, ack)
    assert connection.sent[0].ackResponse.error == pb.NotAllowedError
    assert connection.sent[0].ackResponse.message
    assert bench.cursor.acked == set()


async def test_an_ack_of_too_many_properties_is_refused_and_acknowledges_nothing() -> None:
    bench = Bench([3])
    connection = FakeConnection(bench)
    exclusive = subscribe(subType=pb.CommandSubscribe.Exclusive)
    assert await connection.call(pb.BaseCommand.SUBSCRIBE, exclusive) == [-1]
    for characters, error in ((65_528, False), (65_529, True)):
        ack = pb.CommandAck(
            consumer_id=1,
            ack_type=pb.CommandAck.Cumulative,
            message_id=ids((10, 0 if not error else 1)),
            properties=[pb.KeyLongValue(key="k" * characters, value=7)],
            request_id=8,
        )
        await connection.call(pb.BaseCommand.ACK, ack)
        reply = connection.sent[-1].ackResponse
        assert reply.HasField("error") is error
    assert (reply.error, "65536" in reply.message) == (pb.MetadataError, True)
    assert bench.cursor.mark_delete == (10, 0)


async def test_one_answer_for_whole_and_partial_acks_together() -> None:
    connection, bench, _ = await connected([])
    for _ in range(3):
        bench.ledger.append(head(4))
    first, second, third = ids((10, 0), (10, 1), (10, 2))
    second.ack_set.append(0b1000)
    third.ack_set.append(0)
    ack = pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=[first, second, third],
        request_id=8,
    )
    await connection.call(pb.BaseCommand.ACK, ack)
    assert len(connection.sent) == 1
    assert bench.cursor.acked == {(10, 0), (10, 2)}
    assert bench.cursor.partly == {(10, 1): [0b1000]}


async def test_seek_closes_first_and_answers_last() -> None:
    connection, bench, _ = await connected([4])
    bench.cursor.ack(bench.ledger.positions())
    seek = pb.CommandSeek(consumer_id=1, request_id=9, message_id=ids((10, 2))[0])
    assert await connection.call(pb.BaseCommand.SEEK, seek) == [-1]
    assert connection.sent[0].close_consumer.request_id == 2**64 - 1
    assert connection.consumers == {}, "the id is free for the next SUBSCRIBE"
    assert bench.cursor.state.backlog == 2
    nothing = pb.CommandSeek(consumer_id=1, request_id=9)
    assert await connection.call(pb.BaseCommand.SEEK, nothing) == [pb.MetadataError]


async def test_a_seek_that_the_log_refuses_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, bench, _ = await connected([4])

    async def refuse(*_: object) -> None:
        raise InvalidPositionError("an ack set of 5000 words")

    monkeypatch.setattr(bench.cursor, "reset", refuse)
    seek = pb.CommandSeek(consumer_id=1, request_id=9, message_id=ids((10, 2))[0])
    assert await connection.call(pb.BaseCommand.SEEK, seek) == [pb.PersistenceError]


async def test_redeliver_with_an_empty_list_means_everything() -> None:
    connection, _, consumer = await connected([3])
    await connection.call(pb.BaseCommand.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=10))
    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
    await connection.call(pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, command)
    assert consumer.redelivered == 3
    assert len(connection.written) == 12


async def test_last_message_id_skips_markers_and_knows_batches() -> None:
    connection, bench, _ = await connected([])
    command = pb.CommandGetLastMessageId(consumer_id=1, request_id=3)
    await connection.call(pb.BaseCommand.GET_LAST_MESSAGE_ID, command)
    last = connection.sent[-1].getLastMessageIdResponse.last_message_id
    assert (position_of(last), last.batch_index) == ((-1, -1), -1)
    bench.ledger.append(head(5))
    bench.ledger.append(head(flags=2))
    await connection.call(pb.BaseCommand.GET_LAST_MESSAGE_ID, command)
    reply = connection.sent[-1].getLastMessageIdResponse
    assert (position_of(reply.last_message_id), reply.last_message_id.batch_index) == ((10, 0), 4)
    assert position_of(reply.consumer_mark_delete_position) == (10, -1)
    unknown = pb.CommandGetLastMessageId(consumer_id=7, request_id=3)
    replies = await connection.call(pb.BaseCommand.GET_LAST_MESSAGE_ID, unknown)
    assert replies == [pb.MetadataError]


async def test_last_message_id_while_a_compaction_replaces_the_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, _, consumer = await connected([])
    consumer.request.read_compacted = True
    topic, asked = consumer.subscription.topic, list[object]()

    class Compacted:
        horizon = LATEST

        def __init__(self, by: object) -> None:
            self.by = by

        async def last(self) -> None:
            asked.append(self)
            if self.by is not None:
                monkeypatch.setattr(topic, "compacted", self.by)
                raise NoSuchLedgerError("deleted")

    new = Compacted(None)
    command = pb.CommandGetLastMessageId(consumer_id=1, request_id=3)
    old, lost = Compacted(new), Compacted(None)
    lost.by = lost  # it can't be read, and stays
    for each, errors, expected in ((old, [], [old, new]), (lost, [pb.MetadataError], [lost])):
        monkeypatch.setattr(topic, "compacted", each)
        asked.clear()
        assert await connection.call(pb.BaseCommand.GET_LAST_MESSAGE_ID, command) == errors
        assert asked == expected


async def test_consumer_stats_use_their_own_response() -> None:
    connection, _, _ = await connected([3])
    await connection.call(
        pb.BaseCommand.CONSUMER_STATS, pb.CommandConsumerStats(consumer_id=1, request_id=3)
    )
    stats = connection.sent[-1].consumerStatsResponse
    assert (stats.type, stats.msgBacklog, stats.address) == ("Shared", 3, "/127.0.0.1:9")
    await connection.call(
        pb.BaseCommand.CONSUMER_STATS, pb.CommandConsumerStats(consumer_id=7, request_id=3)
    )
    assert connection.sent[-1].consumerStatsResponse.error_code == pb.ConsumerNotFound


async def test_unsubscribe_and_close_of_unknown_consumers() -> None:
    connection, bench, _ = await connected([3])
    unsubscribe = pb.CommandUnsubscribe(consumer_id=7, request_id=3)
    assert await connection.call(pb.BaseCommand.UNSUBSCRIBE, unsubscribe) == [pb.MetadataError]
    close = pb.CommandCloseConsumer(consumer_id=7, request_id=3)
    assert await connection.call(pb.BaseCommand.CLOSE_CONSUMER, close) == [-1]
    unsubscribe.consumer_id = 1
    assert await connection.call(pb.BaseCommand.UNSUBSCRIBE, unsubscribe) == [-1]
    assert bench.ledger.deleted == "s"
    assert (connection.consumers, connection.on_closed) == ({}, {})


async def test_a_connection_that_closes_takes_its_consumers_along() -> None:
    connection, bench, consumer = await connected([3])
    (gone,) = connection.on_closed.values()
    gone()
    assert consumer.closed
    assert bench.subscription.consumers == []


async def test_frames_of_notifications() -> None:
    connection, _, consumer = await connected([])
    consumer.sink.notify_active(consumer, True)
    assert encode_command(connection.sent[-1]).hex() == "0000000d00000009081ffa010408011001"
    before = len(connection.sent)
    consumer.sink.notify_end_of_topic(consumer)
    assert len(connection.sent) == before, "C++ would close on it"
    consumer.sink.client_version = "Pulsar-Java-v4.0.0"
    consumer.sink.notify_end_of_topic(consumer)
    assert encode_command(connection.sent[-1]).hex() == "0000000b00000007081bda01020801"


def test_subscribe_fields() -> None:
    request = subscribe_request(subscribe(consumer_epoch=0))
    assert (request.sub_type, request.epoch, request.durable) == (SHARED, 0, True)
    assert request.initial_position == LATEST
    start = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    request = subscribe_request(subscribe(durable=False, start_message_id=start, initialPosition=1))
    assert request.start_position == EARLIEST
    assert request.initial_position == EARLIEST
    assert request.epoch is None


def test_fake_sinks_fit() -> None:
    sink: ConsumerSink = FakeSink()
    assert sink.writable
