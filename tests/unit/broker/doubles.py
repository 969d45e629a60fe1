"""A broker on a real managed ledger over a model bookie, and clients that are only bytes."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from magnetar.broker.config import BrokerConfig
from magnetar.broker.connection.connection import Connection
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    FrameReader,
    encode_body,
)
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.service.virtual_clock import VirtualClock
from tests.raw_client import encode_command
from tests.unit.managed_ledger.cluster import Cluster, eventually

Frame = tuple[pb.BaseCommand, bytes]


class MemoryTransport:
    """What a connection writes, and whether it reads; the peer is the test."""

    def __init__(self, host: str = "10.0.0.1", port: int = 5000) -> None:
        self.peer = (host, port)
        self.written = bytearray()
        self.writes = 0
        self.reading = True
        self.closed = False
        self.unsent = 0

    def get_extra_info(self, name: str) -> object:
        assert name in ("peername", "ssl_object", "socket")
        return self.peer if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert high > low > 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def writelines(self, buffers: Sequence[bytes | memoryview]) -> None:
        assert not self.closed
        self.writes += 1
        for buffer in buffers:
            self.written += buffer

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed, self.unsent = True, 0

    def is_closing(self) -> bool:
        return self.closed


class Broker:
    """One broker with its cluster; ``await close()`` ends all of it."""

    has_virtual_clock = False

    def __init__(self, **settings: object) -> None:
        self.cluster = Cluster(1 << 22)
        self.cluster.now_ms = 1_700_000_000_000
        self.ledgers = self.cluster.factory()
        config = replace(BrokerConfig(), **settings)  # type: ignore[arg-type] # test's duty

        def clock() -> int:
            return self.cluster.now_ms

        self.clock = VirtualClock(clock)
        self.service = BrokerService(
            *(config, self.cluster.sessions[-1], self.ledgers),
            clock=clock,
            virtual_clock=self.clock if self.has_virtual_clock else None,
        )
        self.service.service_url = "pulsar://broker.example:6650"

    @property
    def bookie(self) -> object:
        return self.cluster.connections[0]

    async def start(self) -> "Broker":
        await self.service.start(8080)
        return self

    async def close(self) -> None:
        await self.service.close()
        await self.cluster.close()

    def hold_storage(self) -> Callable[[], None]:
        """Entries stay unconfirmed until the result is called."""
        connection = self.cluster.connections[0]
        connection.hold_adds = True
        return connection.release

    def client(self, *, connect: bool = True, version: int = 21, port: int = 5000) -> "Client":
        client = Client(self.service, port)
        if connect:
            client.connect(version)
        return client


class Client:
    """The peer of one connection."""

    def __init__(self, service: BrokerService, port: int = 5000) -> None:
        self.transport = MemoryTransport(port=port)
        self.connection = Connection(service)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type] # a double
        self._reader = FrameReader()
        self._seen = 0
        self.request_ids = itertools.count(1)

    def feed(self, data: bytes, piece: int = 1 << 20) -> None:
        """Let the connection read ``data``, at most ``piece`` bytes a time."""
        rest = memoryview(data)
        while rest and not self.connection.closed:
            target = self.connection.get_buffer(-1)
            count = min(len(target), len(rest), piece)
            assert count > 0
            target[:count] = rest[:count]
            self.connection.buffer_updated(count)
            rest = rest[count:]

    def send(self, *commands: pb.BaseCommand) -> None:
        self.feed(b"".join(map(encode_command, commands)))

    def take(self) -> list[pb.BaseCommand]:
        """What was written since the last call."""
        data = bytes(self.transport.written[self._seen :])
        self._seen += len(data)
        return [command for command, _ in self._reader.feed(data)]

    async def receive(self, count: int = 1) -> list[pb.BaseCommand]:
        """Exactly ``count`` commands, waiting for them."""
        found: list[pb.BaseCommand] = []

        def enough() -> bool:
            found.extend(self.take())
            return len(found) >= count

        await eventually(enough)
        assert len(found) == count, found
        return found

    async def receive_one(self) -> pb.BaseCommand:
        return (await self.receive(1))[0]

    async def expect_nothing(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        assert self.take() == []

    async def expect_something(self) -> None:
        """Wait until new bytes were written."""
        await eventually(lambda: len(self.transport.written) > self._seen)

    def reads(self) -> bool:
        """Whether the broker reads from this client."""
        return self.transport.reading

    def lose(self) -> None:
        """The network is gone."""
        self.transport.closed = True
        self.connection.connection_lost(None)

    # --- commands

    def connect(self, version: int = 21) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        command.connect.client_version = "test"
        command.connect.protocol_version = version
        self.send(command)

    def producer_command(
        self, topic: str = "t", producer_id: int = 1, **fields: object
    ) -> pb.BaseCommand:
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        producer = command.producer
        producer.topic, producer.producer_id = topic, producer_id
        producer.request_id = next(self.request_ids)
        for name, value in fields.items():
            setattr(producer, name, value)
        return command

    async def produce(self, topic: str = "t", producer_id: int = 1, **fields: object) -> Frame:
        """Create a producer; the answer, PRODUCER_SUCCESS or ERROR."""
        self.send(self.producer_command(topic, producer_id, **fields))
        return await self.receive_one(), b""

    def close_producer(self, producer_id: int = 1) -> int:
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = producer_id
        command.close_producer.request_id = request_id = next(self.request_ids)
        self.send(command)
        return request_id


def message(
    sequence_id: int,
    payload: bytes = b"payload",
    producer_id: int = 1,
    *,
    highest: int = 0,
    checksum: bool = True,
    damage: bool = False,
    in_command: int | None = None,
    **fields: object,
) -> bytes:
    """A SEND frame; ``in_command``: its transaction of coordinator 0, as Go names it."""
    command = pb.BaseCommand(type=pb.BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id = producer_id, sequence_id
    if highest:
        command.send.highest_sequence_id = highest
    if in_command is not None:
        command.send.txnid_most_bits, command.send.txnid_least_bits = 0, in_command
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=sequence_id, publish_time=1_700_000_000_000
    )
    for name, value in fields.items():
        setattr(metadata, name, value)
    body = encode_body(metadata, payload)
    if damage:
        body = body[:-1] + bytes((body[-1] ^ 1,))
    return encode_command(command, body if checksum else body[6:])


def receipts(commands: Sequence[pb.BaseCommand]) -> list[tuple[int, int, int]]:
    """(sequence id, ledger, entry) of SEND_RECEIPTs; fails on anything else."""
    found = []
    for command in commands:
        assert command.type == pb.BaseCommand.SEND_RECEIPT, command
        receipt = command.send_receipt
        found.append((receipt.sequence_id, receipt.message_id.ledgerId, receipt.message_id.entryId))
    return found
