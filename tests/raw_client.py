"""A blocking client of the binary protocol for tests that must see every frame.

It knows framing and protobuf only (``broker.protocol``): no reconnects, no retries, no queues.
What the server answers is what the test sees.
"""

import itertools
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    FrameReader,
    encode_body,
    parse_entry_body,
)

Frame = tuple[pb.BaseCommand, bytes]
Position = tuple[int, int]


def encode_command(command: pb.BaseCommand, body: bytes = b"") -> bytes:
    """The frame of any command, also of one that ``framing.encode`` would not make."""
    data = command.SerializeToString()
    return struct.pack(">II", len(data) + 4 + len(body), len(data)) + data + body


class ConnectionClosedError(Exception):
    """The server ended the connection."""


class RawClient:
    """One TCP connection. Answers PING by itself; everything else is handed to the caller."""

    def __init__(self, service_url: str, *, connect: bool = True, timeout_s: float = 30.0) -> None:
        host, port = service_url.removeprefix("pulsar://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._timeout_s = timeout_s
        self.request_ids = itertools.count(1)
        self.answers_pings = True
        if connect:
            try:
                self.connected = self.connect()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    # --- frames

    def send_bytes(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionClosedError(str(error)) from error

    def send(self, command: pb.BaseCommand) -> None:
        self.send_bytes(encode_command(command))

    def receive(self, timeout_s: float | None = None) -> Frame:
        """The next frame that is no PING.

        Raises:
            ConnectionClosedError: the server closed.
            TimeoutError: nothing came in time.
        """
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame[0].type == pb.BaseCommand.PING and self.answers_pings:
                    pong = pb.BaseCommand(type=pb.BaseCommand.PONG)
                    pong.pong.SetInParent()
                    self.send(pong)
                    continue
                return frame
            self._fill(deadline)

    def _fill(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no frame in time")
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(1 << 18)
        except TimeoutError:
            raise TimeoutError("no frame in time") from None
        except OSError as error:
            raise ConnectionClosedError(str(error)) from error
        if not data:
            raise ConnectionClosedError("closed by the server")
        self._frames.extend(self._reader.feed(data))

    def expect(self, kind: int, timeout_s: float | None = None) -> Frame:
        """The next frame, which must be of this type."""
        frame = self.receive(timeout_s)
        assert frame[0].type == kind, f"expected {pb.BaseCommand.Type.Name(kind)}, got {frame[0]}"  # type: ignore[arg-type] # plain ints are fine at run time
        return frame

    def wait_for(self, wanted: Callable[[pb.BaseCommand], bool]) -> Frame:
        """Skip frames until one is wanted."""
        while True:
            frame = self.receive()
            if wanted(frame[0]):
                return frame

    def expect_closed(self, timeout_s: float = 30.0) -> list[pb.BaseCommand]:
        """Read until the server closes; what it still said."""
        said = []
        while True:
            try:
                said.append(self.receive(timeout_s)[0])
            except ConnectionClosedError:
                return said

    # --- commands

    def connect(self, version: int = 21, **fields: object) -> pb.CommandConnected:
        command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        command.connect.client_version = "Magnetar-Test"
        command.connect.protocol_version = version
        for name, value in fields.items():
            setattr(command.connect, name, value)
        self.send(command)
        return self.expect(pb.BaseCommand.CONNECTED)[0].connected

    def look_up(self, topic: str, wait_s: float = 60.0) -> str:
        """URL of who serves it, as this broker says once it can tell."""
        command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
        command.lookupTopic.topic, command.lookupTopic.authoritative = topic, False
        deadline = time.monotonic() + wait_s
        while True:
            command.lookupTopic.request_id = request_id = next(self.request_ids)
            self.send(command)
            answer, _ = self.wait_for(
                lambda c, wanted=request_id: c.lookupTopicResponse.request_id == wanted  # type: ignore[misc]
            )
            found = answer.lookupTopicResponse
            if found.response == pb.CommandLookupTopicResponse.Connect:
                return str(found.brokerServiceUrl)
            if found.response == pb.CommandLookupTopicResponse.Redirect:
                command.lookupTopic.authoritative = found.authoritative
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    def create_producer(
        self, topic: str, producer_id: int = 1, **fields: object
    ) -> pb.CommandProducerSuccess | pb.CommandError:
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        producer = command.producer
        producer.topic, producer.producer_id = topic, producer_id
        producer.request_id = request_id = next(self.request_ids)
        for name, value in fields.items():
            setattr(producer, name, value)
        self.send(command)
        answer, _ = self.wait_for(
            lambda c: request_id in (c.producer_success.request_id, c.error.request_id)
        )
        return answer.error if answer.type == pb.BaseCommand.ERROR else answer.producer_success

    @staticmethod
    def send_frame(
        sequence_id: int, payload: bytes, producer_id: int = 1, **metadata: object
    ) -> bytes:
        """One unbatched SEND as bytes."""
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = producer_id, sequence_id
        head = pb.MessageMetadata(
            producer_name="raw", sequence_id=sequence_id, publish_time=int(time.time() * 1000)
        )
        for name, value in metadata.items():
            setattr(head, name, value)
        return encode_command(command, encode_body(head, payload))

    def subscribe(
        self, topic: str, subscription: str, consumer_id: int = 1, **fields: object
    ) -> pb.CommandSuccess | pb.CommandError:
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic, subscribe.subscription = topic, subscription
        subscribe.consumer_id = consumer_id
        subscribe.subType = pb.CommandSubscribe.Exclusive
        subscribe.request_id = request_id = next(self.request_ids)
        for name, value in fields.items():
            if name == "start_message_id":
                subscribe.start_message_id.CopyFrom(value)  # type: ignore[arg-type] # test's duty
            else:
                setattr(subscribe, name, value)
        self.send(command)
        answer, _ = self.wait_for(
            lambda c: request_id in (c.success.request_id, c.error.request_id)
        )
        return answer.error if answer.type == pb.BaseCommand.ERROR else answer.success

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = consumer_id, permits
        self.send(command)

    def ack(
        self,
        positions: list[Position],
        consumer_id: int = 1,
        *,
        cumulative: bool = False,
        request_id: int | None = None,
    ) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.ACK)
        ack = command.ack
        ack.consumer_id = consumer_id
        ack.ack_type = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
        for ledger_id, entry_id in positions:
            ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        if request_id is not None:
            ack.request_id = request_id
        self.send(command)

    def receive_message(self, timeout_s: float | None = None) -> tuple[Position, bytes]:
        """Position and payload of the next MESSAGE; other frames are skipped."""
        while True:
            command, body = self.receive(timeout_s)
            if command.type == pb.BaseCommand.MESSAGE:
                message_id = command.message.message_id
                return (message_id.ledgerId, message_id.entryId), bytes(parse_entry_body(body)[1])
