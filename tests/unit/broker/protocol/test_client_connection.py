"""The client's side of a connection: frames that leave, events out of what arrives."""

from typing import Any

import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.client_connection import (
    ANSWER,
    AUTH_CHALLENGE,
    CONNECTED,
    CONSUMER,
    PRODUCER,
    PROTOCOL_VERSION,
    REFUSAL,
    ClientConnection,
    Refusal,
    ServerEvent,
    encode_send,
)
from magnetar.broker.protocol.framing import (
    FrameReader,
    MalformedFrameError,
    encode,
)
from tests.raw_client import encode_command


class Line:
    """A connection and what it has sent."""

    def __init__(self) -> None:
        self._sent: list[bytes] = []
        self.core = ClientConnection(self._sent.append)

    @property
    def sent(self) -> list[pb.BaseCommand]:
        data, self._sent[:] = b"".join(self._sent), []
        return [command for command, _ in FrameReader().feed(data)]

    def get(self, *commands: Any) -> list[ServerEvent]:
        return list(self.core.receive(b"".join(map(encode, commands))))


def test_each_command_has_the_number_of_its_field() -> None:
    for field in pb.BaseCommand.DESCRIPTOR.fields[1:]:
        assert field.number in pb.BaseCommand.Type.values(), field.name


def test_hello() -> None:
    line = Line()
    line.core.connect("me", ("token", b"t"), "joe")
    (command,) = line.sent
    assert command.type == pb.BaseCommand.CONNECT
    hello = command.connect
    assert (hello.client_version, hello.protocol_version) == ("me", PROTOCOL_VERSION)
    assert (hello.auth_method_name, hello.auth_data) == ("token", b"t")
    assert hello.feature_flags.supports_auth_refresh
    assert hello.original_principal == "joe"
    line.core.connect("me", ("", b""))
    assert not line.sent[0].connect.HasField("auth_method_name")
    connected = pb.CommandConnected(server_version="s", max_message_size=7)
    assert line.get(connected) == [ServerEvent(CONNECTED, 0, connected, b"")]


def test_credentials_are_asked_for_again() -> None:
    line = Line()
    (event,) = line.get(pb.CommandAuthChallenge(server_version="s"))
    assert event.kind == AUTH_CHALLENGE
    line.core.authenticate(("basic", b"u:p"))
    response = line.sent[0].authResponse.response
    assert (response.auth_method_name, response.auth_data) == ("basic", b"u:p")


def test_a_ping_is_answered_between_events() -> None:
    line = Line()
    flow = pb.CommandFlow(consumer_id=1, messagePermits=5)
    line.core.tell(flow)
    success = pb.CommandSuccess(request_id=9)
    assert [event.id for event in line.get(pb.CommandPing(), success, pb.CommandPing())] == [9]
    told, *pongs = line.sent
    assert told.flow == flow
    assert [each.type for each in pongs] == [pb.BaseCommand.PONG] * 2
    assert all(each.HasField("pong") for each in pongs)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (pb.CommandSuccess(request_id=3), ANSWER),
        (pb.CommandProducerSuccess(request_id=3, producer_name="p"), ANSWER),
        (pb.CommandAckResponse(request_id=3, consumer_id=8), ANSWER),
        (pb.CommandGetOrCreateSchemaResponse(request_id=3), ANSWER),
        (pb.CommandGetSchemaResponse(request_id=3, error_code=pb.TopicNotFound), ANSWER),
        (pb.CommandError(request_id=3, error=pb.TopicNotFound, message="why"), REFUSAL),
        (
            pb.CommandAckResponse(
                request_id=3, consumer_id=8, error=pb.TopicNotFound, message="why"
            ),
            REFUSAL,
        ),
        (
            pb.CommandGetOrCreateSchemaResponse(
                request_id=3, error_code=pb.TopicNotFound, error_message="why"
            ),
            REFUSAL,
        ),
        *(
            (kind(request_id=3, error=pb.TopicNotFound, message="why"), REFUSAL)
            for kind in (
                pb.CommandEndTxnOnPartitionResponse,
                pb.CommandEndTxnOnSubscriptionResponse,
            )
        ),
        (pb.CommandEndTxnOnSubscriptionResponse(request_id=3), ANSWER),
    ],
)
def test_answers(answer: Any, kind: str) -> None:
    line = Line()
    ids = [line.core.request(pb.CommandUnsubscribe(consumer_id=8)) for _ in range(3)]
    assert [each.unsubscribe.request_id for each in line.sent] == ids == [1, 2, 3]
    (event,) = line.get(answer)
    what = answer if kind is ANSWER else Refusal(pb.TopicNotFound, "why")
    assert event == ServerEvent(kind, 3, what, b"")


def test_what_is_for_producers_and_consumers() -> None:
    line = Line()
    id_ = pb.MessageIdData(ledgerId=1, entryId=2)
    commands = [
        pb.CommandSendReceipt(producer_id=4, sequence_id=1),
        pb.CommandSendError(producer_id=4, sequence_id=1, error=pb.ChecksumError, message=""),
        pb.CommandCloseProducer(producer_id=4, request_id=77),
        pb.CommandCloseConsumer(consumer_id=5, request_id=77),
        pb.CommandReachedEndOfTopic(consumer_id=5),
        pb.CommandActiveConsumerChange(consumer_id=5),
        pb.CommandMessage(consumer_id=5, message_id=id_),
    ]
    found = [(event.kind, event.id) for event in line.get(*commands)]
    assert found == [(PRODUCER, 4)] * 3 + [(CONSUMER, 5)] * 4
    (message,) = line.core.receive(encode(commands[-1], b"\x0e\x01body"))
    assert message == ServerEvent(CONSUMER, 5, commands[-1], b"\x0e\x01body")


def test_a_frame_that_is_none_leaves_those_before_it() -> None:
    line = Line()
    events = line.core.receive(encode(pb.CommandSuccess(request_id=1)) + b"\xff" * 8)
    assert next(events).kind is ANSWER
    with pytest.raises(MalformedFrameError):
        next(events)


def test_the_send_of_an_entry() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=6, publish_time=1)
    for more, wanted in (
        ({}, pb.CommandSend(producer_id=2, sequence_id=6, num_messages=1)),
        (
            {"num_messages_in_batch": 3, "highest_sequence_id": 8},
            pb.CommandSend(producer_id=2, sequence_id=6, num_messages=3, highest_sequence_id=8),
        ),
        (
            {"num_chunks_from_msg": 2},
            pb.CommandSend(producer_id=2, sequence_id=6, num_messages=1, is_chunk=True),
        ),
    ):
        entry = pb.MessageMetadata(**more)  # type: ignore[arg-type] # of different types
        entry.MergeFrom(metadata)
        ((command, body),) = FrameReader().feed(encode_send(2, entry, b"body", 6))
        assert (command.send, body) == (wanted, b"body")
    assert encode(wanted) == encode_command(pb.BaseCommand(type=pb.BaseCommand.SEND, send=wanted))
