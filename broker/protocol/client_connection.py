"""The client's side of a connection, without I/O: what arrives becomes events, what is asked bytes.

Its shell is `broker/client/async_client_connection.py`.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message as Command

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    COMMAND_FIELDS,
    FRAME_PADDING_BYTES,
    MAX_MESSAGE_BYTES,
    FrameReader,
    encode,
)

PROTOCOL_VERSION: Final = 21
CONNECTED, AUTH_CHALLENGE, ANSWER, REFUSAL = "connected", "auth challenge", "answer", "refusal"
PRODUCER, CONSUMER = "producer", "consumer"

_NAMES: Final = dict(COMMAND_FIELDS.values())
_KINDS: Final[dict[int, tuple[str, str]]] = {
    pb.BaseCommand.CONNECTED: (CONNECTED, ""),
    pb.BaseCommand.AUTH_CHALLENGE: (AUTH_CHALLENGE, ""),
    pb.BaseCommand.SEND_RECEIPT: (PRODUCER, "producer_id"),
    pb.BaseCommand.SEND_ERROR: (PRODUCER, "producer_id"),
    pb.BaseCommand.CLOSE_PRODUCER: (PRODUCER, "producer_id"),
    pb.BaseCommand.MESSAGE: (CONSUMER, "consumer_id"),
    pb.BaseCommand.CLOSE_CONSUMER: (CONSUMER, "consumer_id"),
    pb.BaseCommand.REACHED_END_OF_TOPIC: (CONSUMER, "consumer_id"),
    pb.BaseCommand.ACTIVE_CONSUMER_CHANGE: (CONSUMER, "consumer_id"),
}
"""Of what isn't an answer to a request: what it is about, and the field with its id."""


class Refusal(NamedTuple):
    """Why a request failed."""

    code: int
    """Of ``ServerError``."""
    message: str


class ServerEvent(NamedTuple):
    """Something that the server has sent."""

    kind: str
    """CONNECTED, AUTH_CHALLENGE; ANSWER or REFUSAL of a request; of a PRODUCER or CONSUMER."""
    id: int
    """Of the request, the producer or the consumer."""
    command: Any
    """``pb.CommandMessage`` and the like; of a REFUSAL a `Refusal`."""
    body: bytes
    """Of a message: from its checksum magic on."""


def encode_send(
    producer_id: int, metadata: pb.MessageMetadata, body: bytes, sequence_id: int
) -> bytes:
    """The frame of one entry."""
    send = pb.CommandSend(
        producer_id=producer_id,
        sequence_id=sequence_id,
        num_messages=metadata.num_messages_in_batch,
    )
    if metadata.highest_sequence_id:
        send.highest_sequence_id = metadata.highest_sequence_id
    if metadata.num_chunks_from_msg > 1:
        send.is_chunk = True
    if metadata.HasField("txnid_most_bits"):
        send.txnid_most_bits = metadata.txnid_most_bits
        send.txnid_least_bits = metadata.txnid_least_bits
    return encode(send, body)


class ClientConnection:
    """Answers PING by itself. Ids of requests, producers and consumers come from one sequence."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        frame_bytes_max: int = MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES,
    ) -> None:
        """``write`` takes whole frames for the server."""
        self._write = write
        self._reader = FrameReader(frame_bytes_max)
        self._ids = itertools.count(1)

    def next_id(self) -> int:
        return next(self._ids)

    def connect(
        self, client_version: str, auth: tuple[str, bytes], original_principal: str | None = None
    ) -> None:
        """Say hello; CONNECTED or a REFUSAL follows.

        Args:
            auth: method and credentials; the method "": none.
            original_principal: in whose name a proxy connects.
        """
        hello = pb.CommandConnect(client_version=client_version, protocol_version=PROTOCOL_VERSION)
        if auth[0]:
            hello.auth_method_name, hello.auth_data = auth
            hello.feature_flags.supports_auth_refresh = True
        if original_principal is not None:
            hello.original_principal = original_principal
        self.tell(hello)

    def authenticate(self, auth: tuple[str, bytes]) -> None:
        """After an AUTH_CHALLENGE: the credentials that there are now."""
        data = pb.AuthData(auth_method_name=auth[0], auth_data=auth[1])
        self.tell(pb.CommandAuthResponse(response=data))

    def tell(self, command: Command) -> None:
        """Send a command that has no answer."""
        self._write(encode(command))

    def request(self, command: Any) -> int:
        """Send a command; the id that its ANSWER or REFUSAL will have."""
        command.request_id = self.next_id()
        self._write(encode(command))
        return int(command.request_id)

    def receive(self, data: bytes) -> Iterator[ServerEvent]:
        """What is complete with these bytes, each as it is asked for.

        Raises:
            MalformedFrameError: the connection is of no use any more.
        """
        for base, body in self._reader.feed(data):
            if base.type == pb.BaseCommand.PING:
                self.tell(pb.CommandPong())
                continue
            command = getattr(base, _NAMES[base.type])
            kind, id_field = _KINDS.get(base.type, (ANSWER, "request_id"))
            id_ = getattr(command, id_field, 0)
            if kind is ANSWER and (refusal := _refusal(command)) is not None:
                yield ServerEvent(REFUSAL, id_, refusal, body)
            else:
                yield ServerEvent(kind, id_, command, body)


def _refusal(answer: Any) -> Refusal | None:
    match answer:
        case pb.CommandError():
            return Refusal(answer.error, answer.message)
        case (
            pb.CommandAckResponse()
            | pb.CommandTcClientConnectResponse()
            | pb.CommandNewTxnResponse()
            | pb.CommandAddPartitionToTxnResponse()
            | pb.CommandAddSubscriptionToTxnResponse()
            | pb.CommandEndTxnResponse()
            | pb.CommandEndTxnOnPartitionResponse()
            | pb.CommandEndTxnOnSubscriptionResponse()
        ) if answer.HasField("error"):
            return Refusal(answer.error, answer.message)
        case pb.CommandGetOrCreateSchemaResponse() if answer.HasField("error_code"):
            return Refusal(answer.error_code, answer.error_message)
    return None
