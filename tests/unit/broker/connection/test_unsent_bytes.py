"""What waits for clients that don't read: bounds of a connection and of the broker, and progress.

A broker with real topics and connections; the sockets are models, that take so many bytes until
their client reads.
"""

import asyncio
import itertools
import random
import socket
from collections.abc import Callable, Sequence

import pytest
import uvicorn
from uvicorn.server import ServerState

from magnetar.broker.connection.connection import Connection
from magnetar.broker.dispatch import unsent_budget
from magnetar.broker.dispatch.unsent_budget import (
    BUDGET_BYTES,
    LEAST_PIECE_BYTES,
    PIECE_BYTES,
    UnsentBudget,
)
from magnetar.broker.http.websocket.protocol import CorkedWebSocketProtocol
from magnetar.broker.listener.tcp_socket import (
    KERNEL_UNSENT_BYTES_MAX,
    KERNEL_UNSENT_FIRST_BYTES,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.unit.broker.doubles import Broker, Client, MemoryTransport, message
from tests.unit.broker.topic.test_races import subscribe

HIGH, HEADERS = 16 * 1024, 1.1
"""Of connectionWriteBufferHighBytes; MESSAGE commands are a tenth of what is sent here at most."""


class SocketTransport(MemoryTransport):
    """Writes as uvloop's does: what the socket doesn't take waits, and pauses the protocol."""

    client: Client

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.taken = capacity, 0  # bytes in the socket
        self.is_paused = False
        self.messages = 0

    def writelines(self, buffers: Sequence[bytes | memoryview]) -> None:
        super().writelines(buffers)
        self.unsent += sum(map(len, buffers))
        self._move()

    def read(self, size: int) -> None:
        """The client reads."""
        self.taken = max(0, self.taken - size)
        self._move()

    def _move(self) -> None:
        moved = min(self.unsent, self.capacity - self.taken)
        self.unsent -= moved
        self.taken += moved
        if self.unsent > HIGH and not self.is_paused:
            self.is_paused = True
            self.client.connection.pause_writing()
        elif not self.unsent and self.is_paused:
            self.is_paused = False
            self.client.connection.resume_writing()


async def consumers(broker: Broker, count: int, sub_type: int, capacity: int) -> list[Client]:
    """Connections with a consumer each, of a subscription each or of one Shared one."""
    clients = []
    for number in range(count):
        client = broker.client(port=6000 + number)
        await client.receive_one()
        is_shared = sub_type != pb.CommandSubscribe.Exclusive
        command = subscribe(1, "s" if is_shared else f"s{number}", durable=True)
        command.subscribe.subType = pb.CommandSubscribe.SubType.ValueType(sub_type)
        command.subscribe.initialPosition = pb.CommandSubscribe.Earliest
        client.send(command)
        await client.receive_one()
        transport = SocketTransport(capacity)
        transport.client = client
        client.connection._transport = transport  # type: ignore[assignment] # a double
        client.transport, client._seen = transport, 0
        clients.append(client)
    return clients


def flow(client: Client, permits: int) -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = 1, permits
    client.send(command)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sub_type", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared])
async def test_what_waits_is_bounded_and_who_reads_goes_on(
    broker: Broker, sub_type: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the clients read nothing until the others have everything, or all of the rest."""
    rng, budget = random.Random(seed), 400_000
    monkeypatch.setattr(unsent_budget, "BUDGET_BYTES", budget)
    producer = broker.client(port=5001)
    await producer.receive_one()
    await producer.produce()
    topic = broker.service.topics["persistent://public/default/t"]
    clients = await consumers(broker, 20, sub_type, capacity=100_000)
    reading = clients[1::2]
    total, shared = 300, sub_type == pb.CommandSubscribe.Shared
    for each in clients:
        flow(each, 10_000)
    worst = 0
    for sequence in range(total):
        producer.feed(message(sequence, rng.randbytes(rng.choice((100, 1_000, 20_000)))))
        if sequence % 50 == 0:
            await asyncio.sleep(0)
    for _ in range(20_000):
        await asyncio.sleep(0)
        waiting = [each.transport.unsent for each in clients]
        assert max(waiting) <= (PIECE_BYTES + 2 * HIGH) * HEADERS
        worst = max(worst, sum(waiting))
        for each in rng.sample(reading, 2):
            assert isinstance(each.transport, SocketTransport)
            each.transport.read(rng.randint(1, 200_000))
        got = [count(each) for each in clients]
        if (sum(got) if shared else min(got[1::2])) == total:
            break
    else:
        pytest.fail(f"those that read don't go on: {got}")
    least = len(clients) * (LEAST_PIECE_BYTES + 2 * HIGH)
    assert worst <= (budget + PIECE_BYTES + least) * HEADERS
    assert shared or worst > budget, "nothing was put to the test"
    for each in clients:  # now all of them read
        assert isinstance(each.transport, SocketTransport)
        each.transport.capacity = 1 << 30
        each.transport.read(0)
    for _ in range(500):
        await asyncio.sleep(0)
    got = [count(each) for each in clients]
    assert sum(got) == (total if shared else total * len(clients))
    assert broker.service.unsent_budget.total == 0
    assert topic.subscriptions


def count(client: Client) -> int:
    """Messages that were written for it, in the socket or not."""
    assert isinstance(client.transport, SocketTransport)
    new = sum(each.type == pb.BaseCommand.MESSAGE for each in client.take())
    client.transport.messages += new
    return client.transport.messages


async def test_what_a_lost_connection_held_waits_no_more(broker: Broker) -> None:
    producer = broker.client(port=5001)
    await producer.receive_one()
    await producer.produce()
    (client,) = await consumers(broker, 1, pb.CommandSubscribe.Exclusive, capacity=1_000)
    producer.feed(message(0, bytes(1 << 20)))
    await producer.receive(1)
    flow(client, 10)
    await client.receive_one()
    assert broker.service.unsent_budget.total > 1_000_000
    client.lose()
    assert broker.service.unsent_budget.total == 0


class SystemTransport(MemoryTransport):
    def __init__(self, opened: socket.socket) -> None:
        super().__init__()
        self._opened = opened

    def get_extra_info(self, name: str) -> object:
        return self._opened if name == "socket" else None

    def set_write_buffer_limits(self, high: int, low: int = 0) -> None:
        pass


def binary(broker: Broker) -> Connection:
    return Connection(broker.service)


async def no_app(scope: object, receive: object, send: object) -> None:
    pass


def websocket(_: Broker) -> CorkedWebSocketProtocol:
    config = uvicorn.Config(no_app, loop="none", log_config=None)
    config.load()
    return CorkedWebSocketProtocol(config=config, server_state=ServerState(), app_state={})


@pytest.mark.parametrize("protocol_of", [binary, websocket])
async def test_the_system_takes_more_for_clients_that_read(
    broker: Broker, protocol_of: Callable[[Broker], Connection | CorkedWebSocketProtocol]
) -> None:
    taken = list[int]()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        protocol = protocol_of(broker)
        protocol.connection_made(SystemTransport(ours))  # type: ignore[arg-type] # a double
        for _ in range(7):
            taken.append(ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT))
            protocol.pause_writing()
            protocol.resume_writing()
        protocol.connection_lost(None)
    doubled = [KERNEL_UNSENT_FIRST_BYTES << times for times in range(7)]
    assert taken == [min(size, KERNEL_UNSENT_BYTES_MAX) for size in doubled]
    assert taken[-2:] == [KERNEL_UNSENT_BYTES_MAX] * 2


def test_pieces_are_small_while_much_waits() -> None:
    budget = UnsentBudget()
    budget.changed(BUDGET_BYTES)
    assert budget.piece_bytes == PIECE_BYTES
    budget.changed(1)
    assert budget.piece_bytes == LEAST_PIECE_BYTES == 2 * budget.turn_bytes
    budget.changed(-1)
    assert budget.piece_bytes == PIECE_BYTES


@pytest.mark.parametrize("waits", [0, BUDGET_BYTES + 1])
async def test_a_turn_hands_over_one_piece_while_much_waits(broker: Broker, waits: int) -> None:
    """Those of 500 consumers that read nothing held others for a turn of several pieces each."""
    producer = broker.client(port=5001)
    await producer.receive_one()
    await producer.produce()
    (client,) = await consumers(broker, 1, pb.CommandSubscribe.Exclusive, capacity=1 << 30)
    for sequence in range(100):
        producer.feed(message(sequence, bytes(1_000)))
    await producer.receive(100)
    broker.service.unsent_budget.changed(waits)
    flow(client, 1_000)
    written = [0]
    while written[-1] < 100:
        await asyncio.sleep(0)
        written.append(count(client))
    most = max(now - before for before, now in itertools.pairwise(written))
    assert most == (LEAST_PIECE_BYTES // 1_056 if waits else 100)  # with their heads
