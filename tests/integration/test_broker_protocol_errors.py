"""Bad input at the port: what is answered, what is closed; the same against Apache Pulsar.

    pytest tests/integration/test_broker_protocol_errors.py \
        --service-url pulsar://127.0.0.1:6650 --admin-url http://127.0.0.1:8080

Source: docs/spec/wire-protocol.md.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator

import pytest
from crc32c import crc32c

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.raw_client import ConnectionClosedError, RawClient, encode_command

PING = bytes.fromhex("00000009000000050812920100")


def new_topic() -> str:
    return f"persistent://public/default/errors-{secrets.token_hex(6)}"


def bare(kind: int) -> bytes:
    """A command of that type without its sub-message."""
    return encode_command(pb.BaseCommand(type=kind))  # type: ignore[arg-type] # plain int


def lookup(topic: str, request_id: int = 1) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = topic, request_id
    return command


def partitions(topic: str, request_id: int = 1) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA)
    command.partitionMetadata.topic, command.partitionMetadata.request_id = topic, request_id
    return command


def connect() -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version = "test"
    return command


@contextlib.contextmanager
def answering_pings(client: RawClient) -> Iterator[None]:
    """Answer every PING, however late it comes, while the block waits for something else."""
    stopped = threading.Event()

    def answer() -> None:
        while not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                client.receive(0.05)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def producer_and_topic(service_url: str) -> tuple[RawClient, str]:
    client, topic = RawClient(service_url), new_topic()
    answer = client.create_producer(topic)
    assert isinstance(answer, pb.CommandProducerSuccess), answer
    return client, topic


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode_command(lookup("t")), id="command before CONNECT"),
        pytest.param(RawClient.send_frame(0, b"x"), id="SEND before CONNECT"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
        pytest.param(bytes.fromhex("16030100c8010000c40303"), id="TLS on the plain port"),
        pytest.param((5 * 1024 * 1024 + 10_241).to_bytes(4, "big"), id="oversized frame"),
        pytest.param(bytes.fromhex("0000000800000004ffffffff"), id="not protobuf"),
    ],
)
def test_before_connect_everything_else_closes(service_url: str, data: bytes) -> None:
    with RawClient(service_url, connect=False) as client:
        client.send_bytes(data)
        assert client.expect_closed() == []


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode_command(connect()), id="second CONNECT"),
        pytest.param(bare(pb.BaseCommand.LOOKUP), id="no sub-message"),
        pytest.param(
            bytes.fromhex("0000000a0000000608 15aa01 0000".replace(" ", "")), id="field missing"
        ),
        pytest.param(
            bytes.fromhex("00000008000000040 8e8070a".replace(" ", "")), id="unknown type"
        ),
        pytest.param((5 * 1024 * 1024 + 10_241).to_bytes(4, "big"), id="oversized frame"),
        pytest.param(RawClient.send_frame(0, b"x"), id="SEND without producer"),
    ],
)
def test_after_connect_faults_close_only_their_connection(service_url: str, data: bytes) -> None:
    with RawClient(service_url) as bystander, RawClient(service_url) as client:
        client.send_bytes(data)
        assert client.expect_closed() == []
        bystander.send_bytes(PING)
        bystander.expect(pb.BaseCommand.PONG)


def test_ping_is_answered(service_url: str) -> None:
    with RawClient(service_url) as client:
        for _ in range(3):
            client.send_bytes(PING)
        for _ in range(3):
            client.expect(pb.BaseCommand.PONG)


def test_the_handshake_tells_the_limit_and_the_lower_version(service_url: str) -> None:
    with RawClient(service_url) as client:
        assert client.connected.max_message_size == 5 * 1024 * 1024
        assert client.connected.server_version
        assert client.connected.feature_flags.supports_topic_watchers


def test_lookups_fail_in_their_own_response(service_url: str) -> None:
    with RawClient(service_url) as client:
        client.send(partitions("persistent://a/b", 1))
        failed = client.expect(pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)[0]
        reply = failed.partitionMetadataResponse
        assert (reply.request_id, reply.response) == (1, reply.Failed)
        assert reply.error == pb.InvalidTopicName
        assert reply.message
        client.send(lookup("persistent://a/b", 2))
        found = client.expect(pb.BaseCommand.LOOKUP_RESPONSE)[0].lookupTopicResponse
        assert (found.request_id, found.response) == (2, found.Failed)
        assert found.error == pb.InvalidTopicName


def test_a_new_topic_has_no_partitions_and_a_broker(service_url: str) -> None:
    with RawClient(service_url) as client:
        topic = new_topic()
        client.send(partitions(topic))
        reply = client.expect(pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)[0]
        assert reply.partitionMetadataResponse.response == 0
        assert reply.partitionMetadataResponse.partitions == 0
        client.send(lookup(topic))
        found = client.expect(pb.BaseCommand.LOOKUP_RESPONSE)[0].lookupTopicResponse
        assert found.response == found.Connect
        assert found.brokerServiceUrl.startswith("pulsar://")


def test_without_auto_creation_an_absent_topic_is_not_found(service_url: str) -> None:
    with RawClient(service_url) as client:
        command = partitions(new_topic())
        command.partitionMetadata.metadata_auto_creation_enabled = False
        client.send(command)
        reply = client.expect(pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)[0]
        assert reply.partitionMetadataResponse.error == pb.TopicNotFound


def test_a_wrong_checksum_is_told_and_the_producer_goes_on(service_url: str) -> None:
    client, _ = producer_and_topic(service_url)
    with client:
        frame = bytearray(RawClient.send_frame(0, b"payload"))
        frame[-1] ^= 1
        client.send_bytes(bytes(frame))
        error = client.expect(pb.BaseCommand.SEND_ERROR)[0].send_error
        assert (error.producer_id, error.sequence_id) == (1, 0)
        assert error.error == pb.ChecksumError
        client.send_bytes(RawClient.send_frame(1, b"payload"))
        assert client.expect(pb.BaseCommand.SEND_RECEIPT)[0].send_receipt.sequence_id == 1


def test_a_send_without_checksum_is_accepted(service_url: str) -> None:
    client, topic = producer_and_topic(service_url)
    with client:
        frame = RawClient.send_frame(0, b"payload")
        at = frame.index(b"\x0e\x01")
        total = int.from_bytes(frame[:4], "big") - 6
        client.send_bytes(total.to_bytes(4, "big") + frame[4:at] + frame[at + 6 :])
        client.expect(pb.BaseCommand.SEND_RECEIPT)
        earliest = pb.CommandSubscribe.Earliest
        client.subscribe(topic, "s", initialPosition=earliest)
        client.flow(1)
        assert client.receive_message()[1] == b"payload"


def test_receipts_keep_the_order_of_the_sends(service_url: str) -> None:
    client, _ = producer_and_topic(service_url)
    with client:
        count = 500
        frames = [RawClient.send_frame(n, b"x" * (n % 50)) for n in range(count)]
        client.send_bytes(b"".join(frames))
        seen = [client.expect(pb.BaseCommand.SEND_RECEIPT)[0].send_receipt for _ in range(count)]
        assert [receipt.sequence_id for receipt in seen] == list(range(count))
        ids = [(r.message_id.ledgerId, r.message_id.entryId) for r in seen]
        assert ids == sorted(set(ids))


def test_the_largest_message_is_stored(service_url: str) -> None:
    client, topic = producer_and_topic(service_url)
    with client:
        # A little below maxMessageSize: Pulsar never answers to the exact size, its bookie refuses
        payload = secrets.token_bytes(1024) * 5110
        client.send_bytes(RawClient.send_frame(0, payload))
        client.expect(pb.BaseCommand.SEND_RECEIPT)
        client.subscribe(topic, "s", initialPosition=pb.CommandSubscribe.Earliest)
        client.flow(1)
        assert crc32c(client.receive_message()[1]) == crc32c(payload)


def test_an_unknown_producer_is_closed_with_success(service_url: str) -> None:
    with RawClient(service_url) as client:
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id, command.close_producer.request_id = 99, 5
        client.send(command)
        assert client.expect(pb.BaseCommand.SUCCESS)[0].success.request_id == 5


def test_a_send_after_close_closes_the_connection(service_url: str) -> None:
    client, _ = producer_and_topic(service_url)
    with client:
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id, command.close_producer.request_id = 1, 5
        client.send(command)
        client.expect(pb.BaseCommand.SUCCESS)
        client.send_bytes(RawClient.send_frame(0, b"late"))
        assert client.expect_closed() == []


def test_a_duplicate_producer_name_is_busy_while_the_first_answers(service_url: str) -> None:
    with RawClient(service_url) as one, RawClient(service_url) as two:
        topic = new_topic()
        first = one.create_producer(topic, producer_name="same")
        assert isinstance(first, pb.CommandProducerSuccess)
        again = one.create_producer(topic)  # the same id: answered with the same name
        assert isinstance(again, pb.CommandProducerSuccess)
        assert again.producer_name == "same"
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        command.producer.topic, command.producer.producer_id = topic, 1
        command.producer.request_id, command.producer.producer_name = 99, "same"
        two.send(command)
        with answering_pings(one):
            assert two.expect(pb.BaseCommand.ERROR)[0].error.error == pb.ProducerBusy


def test_access_modes(service_url: str) -> None:
    topic = new_topic()
    with (
        RawClient(service_url) as one,
        RawClient(service_url) as two,
        RawClient(service_url) as three,
    ):
        owner = one.create_producer(topic, producer_access_mode=pb.Exclusive)
        assert isinstance(owner, pb.CommandProducerSuccess)
        assert owner.topic_epoch == 0
        shared = two.create_producer(topic)
        assert isinstance(shared, pb.CommandError)
        assert shared.error == pb.ProducerBusy
        second = two.create_producer(topic, producer_access_mode=pb.Exclusive)
        assert isinstance(second, pb.CommandError)
        assert second.error == pb.ProducerFenced
        waiting = two.create_producer(topic, producer_access_mode=pb.WaitForExclusive)
        assert isinstance(waiting, pb.CommandProducerSuccess)
        assert not waiting.producer_ready
        taken = three.create_producer(topic, producer_access_mode=pb.ExclusiveWithFencing)
        assert isinstance(taken, pb.CommandProducerSuccess)
        assert taken.topic_epoch == 1
        # Pulsar 4.2 says nothing to the fenced producer and closes on its next SEND; we tell it.
        one.send_bytes(RawClient.send_frame(0, b"fenced"))
        try:
            told = one.expect(pb.BaseCommand.CLOSE_PRODUCER)[0]
            assert told.close_producer.producer_id == 1
        except ConnectionClosedError:
            pass
        fenced = two.expect(pb.BaseCommand.ERROR)[0].error
        assert (fenced.request_id, fenced.error) == (waiting.request_id, pb.ProducerFenced)


def test_a_waiting_producer_is_promoted_with_the_same_request(service_url: str) -> None:
    topic = new_topic()
    with RawClient(service_url) as one, RawClient(service_url) as two:
        one.create_producer(topic, producer_access_mode=pb.WaitForExclusive)
        waiting = two.create_producer(topic, producer_access_mode=pb.WaitForExclusive)
        assert isinstance(waiting, pb.CommandProducerSuccess)
        assert not waiting.producer_ready
        one.close()
        ready = two.expect(pb.BaseCommand.PRODUCER_SUCCESS)[0].producer_success
        assert (ready.request_id, ready.producer_ready) == (waiting.request_id, True)
        assert ready.topic_epoch == 1


def test_flow_of_nothing_closes(service_url: str) -> None:
    with RawClient(service_url) as client:
        client.subscribe(new_topic(), "s")
        client.flow(0)
        client.expect_closed()


def test_unknown_namespaces_have_no_topics_and_patterns_are_checked(service_url: str) -> None:
    with RawClient(service_url) as client:
        command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
        request = command.getTopicsOfNamespace
        request.request_id, request.namespace = 1, "public/no-such-namespace"
        client.send(command)
        answer = client.expect(pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)[0]
        assert list(answer.getTopicsOfNamespaceResponse.topics) == []


def test_the_topic_list_is_hashed_and_filtered_as_pulsar_does(service_url: str) -> None:
    client, topic = producer_and_topic(service_url)
    with client:
        command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
        request = command.getTopicsOfNamespace
        request.request_id, request.namespace = 1, "public/default"
        request.topics_pattern = topic.removeprefix("persistent://") + ".*"
        client.send(command)
        answer = client.expect(pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)[0]
        reply = answer.getTopicsOfNamespaceResponse
        assert list(reply.topics) == [topic]
        assert reply.filtered
        assert reply.topics_hash == crc32c(topic.encode()).to_bytes(4, "little").hex()
        request.topics_hash = reply.topics_hash
        client.send(command)
        answer = client.expect(pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)[0]
        assert not answer.getTopicsOfNamespaceResponse.changed
        assert list(answer.getTopicsOfNamespaceResponse.topics) == []


def test_transactions_are_refused_while_they_are_off(service_url: str) -> None:
    with RawClient(service_url) as client:
        command = pb.BaseCommand(type=pb.BaseCommand.NEW_TXN)
        command.newTxn.request_id = 3
        client.send(command)
        error = client.expect(pb.BaseCommand.ERROR)[0].error
        assert (error.request_id, error.error) == (3, pb.NotAllowedError)


def test_scalable_topics_are_refused_and_the_connection_goes_on(service_url: str) -> None:
    commands = [pb.BaseCommand() for _ in range(4)]
    lookup, subscribe, topics, coordinators = commands
    lookup.type = pb.BaseCommand.SCALABLE_TOPIC_LOOKUP
    lookup.scalableTopicLookup.session_id = 1
    lookup.scalableTopicLookup.topic = "t"
    subscribe.type = pb.BaseCommand.SCALABLE_TOPIC_SUBSCRIBE
    wanted = subscribe.scalableTopicSubscribe
    wanted.request_id, wanted.topic, wanted.subscription = 2, "t", "s"
    wanted.consumer_name, wanted.consumer_id, wanted.consumer_type = "c", 1, pb.STREAM
    topics.type = pb.BaseCommand.WATCH_SCALABLE_TOPICS
    topics.watchScalableTopics.watch_id = 3
    topics.watchScalableTopics.namespace = "public/default"
    coordinators.type = pb.BaseCommand.WATCH_TC_ASSIGNMENTS
    coordinators.watchTcAssignments.watch_id = 4
    with RawClient(service_url) as client:
        for number, command in enumerate(commands, 1):
            client.send(command)
            error = client.expect(pb.BaseCommand.ERROR)[0].error
            assert (error.request_id, error.error) == (number, pb.NotAllowedError)
        close = pb.BaseCommand(type=pb.BaseCommand.SCALABLE_TOPIC_CLOSE)
        close.scalableTopicClose.session_id = 1
        client.send(close)
        client.create_producer(new_topic())


def test_non_persistent_receipts_carry_id_zero(service_url: str) -> None:
    with RawClient(service_url) as client:
        topic = new_topic().replace("persistent://", "non-persistent://")
        client.create_producer(topic)
        client.send_bytes(RawClient.send_frame(7, b"x"))
        receipt = client.expect(pb.BaseCommand.SEND_RECEIPT)[0].send_receipt
        assert receipt.sequence_id == 7
        assert (receipt.message_id.ledgerId, receipt.message_id.entryId) == (0, 0)


def test_a_half_open_client_loses_its_producer_to_a_new_one(service_url: str) -> None:
    topic = new_topic()
    silent, alive = RawClient(service_url), RawClient(service_url, timeout_s=30)
    with silent, alive:
        first = silent.create_producer(topic, producer_name="same")
        assert isinstance(first, pb.CommandProducerSuccess)
        started = time.monotonic()
        second = alive.create_producer(topic, producer_name="same")  # dead never answers PING
        assert isinstance(second, pb.CommandProducerSuccess)
        assert 4 < time.monotonic() - started < 25
        silent.answers_pings = False
        assert [command.type for command in silent.expect_closed()] == [pb.BaseCommand.PING]
