"""Compiled code and Python read the same of ACKs, in transactions and not: what is acknowledged or
pending, and answers."""

import random
from collections.abc import AsyncIterator
from struct import pack

import pytest
import pytest_asyncio

from magnetar.broker.connection.command_turns import COST_PER_TURN, IDS_PER_COST
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import varint
from magnetar.broker.protocol.plain_sends import scan_ack, scan_acks
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.transaction.pending_ack_log import PendingAckLog
from magnetar.broker.transaction.transaction_id import TransactionId
from tests.unit.broker.doubles import Broker, Client, message
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(scan_acks is None, reason="installed without a C compiler")

ROUNDS = 1_000
ROUNDS_OF_TRANSACTIONS = 20
"""Then others begin: else everything is acknowledged soon."""
MESSAGES = 60
ENTRIES = 900
ROUNDS_OF_ENTRIES = 60


class Side:
    """A client with two consumers of one subscription, one that is not durable, and an unknown."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._seen = 0

    async def begin(self) -> None:
        client = self.client
        await client.receive_one()
        await client.produce()
        for consumer_id, name in enumerate(("s", "s", "r"), 1):
            command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
            asked = command.subscribe
            asked.topic, asked.subscription, asked.request_id = "t", name, consumer_id
            asked.consumer_id, asked.durable = consumer_id, name == "s"
            asked.subType = pb.CommandSubscribe.Shared
            client.send(command)
            await client.receive_one()
            command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
            command.flow.consumer_id, command.flow.messagePermits = consumer_id, 1000
            client.send(command)
        client.feed(b"".join(message(x, num_messages_in_batch=9) for x in range(MESSAGES)))
        await client.receive(3 * MESSAGES)
        self.ledger_id = self.subscription.ledger.last_confirmed[0]
        # The first one isn't compiled code's: the connection doesn't expect it yet.
        client.feed(frame(ack_of(1, 0, 0, 77)))
        await client.receive_one()
        self._seen = len(client.transport.written)

    @property
    def subscription(self) -> PersistentSubscription:
        consumer = self.client.connection.consumers[1]
        assert isinstance(consumer, Consumer)
        assert isinstance(consumer.subscription, PersistentSubscription)
        return consumer.subscription

    @property
    def log(self) -> PendingAckLog:
        assert self.subscription.transactions is not None
        return self.subscription.transactions.log

    async def read(self, data: bytes) -> tuple[object, ...]:
        """What came of these bytes."""
        connection = self.client.connection
        try:
            end: object = connection._take_frames(memoryview(data), len(data), COST_PER_TURN)
        except Exception as error:
            end = type(error), str(error)
        await eventually(lambda: self.log.is_open and not self.log._waiting)
        await self.subscription.cursor.write_now()  # what is acknowledged is answered
        await eventually(lambda: not connection._flush_scheduled)
        written = self.client.transport.written
        answers, self._seen = frames_of(bytes(written[self._seen :])), len(written)
        core = self.log.core
        acks = {name: (acks.individual, acks.cumulative) for name, acks in core._open.items()}
        consumers = [(x.acks, x.unacked) for x in self.subscription.consumers]
        state = self.subscription.cursor.state
        acked = state.mark_delete, state.ranges(ENTRIES), state._batch_sets
        return end, answers, acks, core._pending, core._live, consumers, acked

    async def end(self, transaction: TransactionId) -> None:
        await self.subscription.end_transaction(transaction, -1, commit=False)
        await eventually(lambda: not self.client.connection._flush_scheduled)
        self._seen = len(self.client.transport.written)


def frames_of(data: bytes) -> list[bytes]:
    """Sorted: what is recorded in memory may be answered before or behind what is refused."""
    frames = list[bytes]()
    while data:
        end = 4 + int.from_bytes(data[:4])
        frames.append(data[:end])
        data = data[end:]
    return sorted(frames)


def ack_of(consumer_id: int, ledger_id: int, entry_id: int, least: int) -> bytes:
    command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.Individual)
    command.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    command.txnid_most_bits, command.txnid_least_bits, command.request_id = 0, least, 7
    return command.SerializeToString()


def frame(command: bytes, behind: bytes = b"") -> bytes:
    start = bytes((0x08, 10, 0x52)) + varint(len(command)) + command
    return pack(">II", 4 + len(start) + len(behind), len(start)) + start + behind


class Noise:
    """ACKs as clients write them, and as nobody should."""

    def __init__(self, seed: int, ledger_id: int) -> None:
        self.rng = random.Random(seed)
        self._ledger_id, self._least = ledger_id, seed // ROUNDS_OF_TRANSACTIONS * 2

    def read(self) -> bytes:
        """Runs of one consumer and transaction, and often the beginning of one more frame."""
        rng, frames = self.rng, list[bytes]()
        for _ in range(rng.randint(1, 3)):
            consumer_id, least = rng.choice((1, 1, 1, 2, 2, 3, 4)), self._least + rng.randrange(2)
            count = rng.choice((1, 3, 10))
            frames += [self.one(consumer_id, least) for _ in range(count)]
        data = b"".join(frames)
        return data[: rng.randrange(len(data))] if rng.random() < 0.1 else data

    def one(self, consumer_id: int, least: int) -> bytes:
        rng = self.rng
        command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.Individual)
        entry_id = rng.choice((rng.randrange(MESSAGES), rng.randrange(MESSAGES + 2), 2**64 - 1))
        ledger_id = rng.choice((*[self._ledger_id] * 30, 2**64 - 1))
        named = command.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        if rng.random() < 0.4:
            named.batch_size = rng.choice((9, 9, 9, 0, 64, 65, -1, 2**31 - 1))
        for _ in range(rng.choice((0, 0, 0, 1, 1, 1, 2)) if named.batch_size else 0):
            named.ack_set.append(rng.choice((rng.randrange(512), 0, -1, 511)))
        if rng.random() < 0.2:
            named.partition, named.batch_index = rng.choice((-1, 3)), rng.choice((-1, 70))
        if rng.random() < 0.03:
            command.message_id.add(ledgerId=ledger_id, entryId=rng.randrange(MESSAGES))
        if rng.random() < 0.03:
            command.properties.add(key="k", value=1)
        if rng.random() < 0.03:
            command.validation_error = pb.CommandAck.ChecksumMismatch
        command.txnid_least_bits = least
        if rng.random() < 0.97:
            command.txnid_most_bits = 0
        if rng.random() < 0.97:
            command.request_id = rng.choice((0, 1, 127, 128, 2**40, 2**64 - 1))
        data = command.SerializeToString()
        if rng.random() < 0.1:
            data = self.mangled(data)
        return frame(data, b"x" * rng.choice((*[0] * 30, 1)))

    def mangled(self, data: bytes) -> bytes:
        rng = self.rng
        match rng.randrange(4):
            case 0:
                return data[: rng.randrange(len(data))]
            case 1:
                at = rng.randrange(len(data))
                return data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]
            case 2:  # a number that is longer than it need be
                return data + b"\x40" + varint(rng.randrange(1 << 9))[:-1] + b"\x81\x80\x00"
            case _:
                return data + varint(rng.randrange(1 << 8)) + varint(rng.randrange(1 << 9))


class NoiseOfEntries(Noise):
    """The same without transactions, of many entries each."""

    def one(self, consumer_id: int, least: int) -> bytes:
        rng = self.rng
        command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.Individual)
        for _ in range(rng.choice((0, *[1] * 8, rng.randrange(40)))):
            ledger_id = rng.choice((*[self._ledger_id] * 300, 2**63, 2**64 - 1))
            entry_id = rng.choice((*[rng.randrange(ENTRIES)] * 300, 2**32, 2**64 - 1))
            named = command.message_id.add(ledgerId=ledger_id, entryId=entry_id)
            if rng.random() < 0.2:
                named.partition, named.batch_index = rng.choice((-1, 3)), rng.choice((-1, 70))
            if rng.random() < 0.1:
                named.batch_size = rng.choice((9, 65, -1))
            if rng.random() < 0.01:
                named.ack_set.append(rng.choice((rng.randrange(512), 0, -1)))
            if rng.random() < 0.01:
                named.first_chunk_message_id.ledgerId = self._ledger_id
                named.first_chunk_message_id.entryId = rng.randrange(ENTRIES)
        if rng.random() < 0.03:
            command.ack_type = pb.CommandAck.Cumulative
            for named in command.message_id:
                named.entryId %= 20  # else nothing would be left for the others
        if rng.random() < 0.03:
            command.properties.add(key="k", value=1)
        if rng.random() < 0.03:
            command.validation_error = pb.CommandAck.ChecksumMismatch
        if rng.random() < 0.5:
            command.request_id = rng.choice((0, 1, 127, 128, 2**40, 2**64 - 1))
        data = command.SerializeToString()
        if rng.random() < 0.1:
            data = self.mangled(data)
        return frame(data, b"x" * rng.choice((*[0] * 30, 1)))


@pytest_asyncio.fixture
async def sides() -> AsyncIterator[list[Side]]:
    brokers = [await Broker(transaction_coordinator_enabled=True).start() for _ in range(2)]
    found = [Side(broker.client()) for broker in brokers]
    for each in found:
        await each.begin()
    yield found
    for broker in brokers:
        await broker.close()


async def test_any_acks_are_read_as_python_reads_them(
    sides: list[Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, python = sides
    monkeypatch.setattr(python.client.connection, "_scans_acks", False)
    assert scan_acks is not None
    assert compiled.ledger_id == python.ledger_id
    runs = taken = refused = bad = 0
    for seed in range(ROUNDS):
        data = Noise(seed, compiled.ledger_id).read()
        pending = len(compiled.log.core.positions)
        found, wanted = [await side.read(data) for side in sides]
        assert found == wanted, f"round {seed}: {data.hex()}"
        run = scan_acks(memoryview(data), 0, len(data), 256)
        runs += run is not None and len(run[4]) > 1
        taken += len(compiled.log.core.positions) > pending
        bad += isinstance(wanted[0], tuple)
        answers = wanted[1]
        assert isinstance(answers, list)
        refused += any(b"is acknowledged in a transaction" in answer for answer in answers)
        if (seed + 1) % ROUNDS_OF_TRANSACTIONS == 0:
            least = seed // ROUNDS_OF_TRANSACTIONS * 2
            for side in sides:
                for each in (least, least + 1):
                    await side.end(TransactionId(0, each))
    assert min(runs, taken, refused, bad) > ROUNDS // 50, (runs, taken, refused, bad)


async def test_any_acks_of_entries_are_read_as_python_reads_them(
    sides: list[Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, python = sides
    monkeypatch.setattr(python.client.connection, "_scans_acks", False)
    assert scan_ack is not None
    for side in sides:
        side.client.feed(b"".join(map(message, range(MESSAGES, ENTRIES))))
        await side.client.receive(3 * (ENTRIES - MESSAGES))
        side._seen = len(side.client.transport.written)
    long = bad = 0
    for seed in range(ROUNDS_OF_ENTRIES):
        data = NoiseOfEntries(seed, compiled.ledger_id).read()
        found, wanted = [await side.read(data) for side in sides]
        assert found == wanted, f"round {seed}: {data.hex()}"
        size = 8 + int.from_bytes(data[4:8])
        long += len(data) >= size > 136 and scan_ack(memoryview(data), 8, size, 99) is not None
        bad += isinstance(wanted[0], tuple)
    assert min(long, bad) > ROUNDS_OF_ENTRIES // 50, (long, bad)
    assert 0 < compiled.subscription.cursor.state.backlog < ENTRIES - 200


@pytest.mark.parametrize(
    "unlike",
    [
        *(ack_of(2, 1, 3, 5), ack_of(1, 1, 3, 6), ack_of(1, 1, 3, 5)[:-2]),
        *(ack_of(1, 1, 3, 5) + more for more in (b"\x10\x01", b"\x1a\x04\x08\x01\x10\x04")),
        ack_of(1, 1, 3, 5) + b"\x20\x02",
    ],
    ids=["consumer", "transaction", "no request", "cumulative", "two ids", "validation error"],
)
def test_a_run_is_of_one_transaction_and_plain(unlike: bytes) -> None:
    assert scan_acks is not None
    parted = pb.CommandAck.FromString(ack_of(1, 2**64 - 1, 2, 5))
    parted.message_id[0].ack_set.append(-2)
    parted.message_id[0].batch_size = 64
    first = [frame(ack_of(1, 1, 1, 5)), frame(parted.SerializeToString())]
    data = b"".join((*first, frame(unlike), frame(ack_of(1, 1, 4, 5))))
    run = scan_acks(memoryview(data), 0, len(data), 256)
    acks = [((1, 1), 0, 0), ((-1, 2), 2**64 - 2, 64)]
    assert run == (len(b"".join(first)), 1, 0, 5, [7, 7], acks)
    assert scan_acks(memoryview(data), 0, len(data), 1) == (len(first[0]), 1, 0, 5, [7], acks[:1])
    assert scan_acks(memoryview(data), 0, len(first[0]) - 1, 256) is None


def test_bounds_are_those_of_the_buffer() -> None:
    assert scan_acks is not None
    assert scan_ack is not None
    for scan in (scan_ack, scan_acks):
        with pytest.raises(IndexError, match="bytes 0 to 9 of 8"):
            scan(memoryview(bytes(8)), 0, 9, 256)


def test_an_ack_of_entries_is_plain_up_to_a_number_of_them() -> None:
    assert scan_ack is not None
    command = pb.CommandAck(consumer_id=3, ack_type=pb.CommandAck.Individual)
    for entry_id in range(200):
        command.message_id.add(ledgerId=7, entryId=entry_id, partition=-1, batch_size=100)
    data = memoryview(frame(command.SerializeToString())[8:])
    positions = [(7, entry_id) for entry_id in range(200)]
    assert scan_ack(data, 0, len(data), 200) == (3, None, positions)
    assert scan_ack(data, 0, len(data), 199) is None
    assert scan_ack(data, 0, len(data) - 1, 200) is None


async def test_a_long_ack_takes_a_larger_part_of_the_tick(sides: list[Side]) -> None:
    client = sides[0].client
    command = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
    for entry_id in range(MESSAGES):
        command.message_id.add(ledgerId=sides[0].ledger_id, entryId=entry_id)
    data = frame(command.SerializeToString())
    turns = client.connection.service.command_turns
    client.feed(data * 32)
    assert turns.left == COST_PER_TURN - 32 * (1 + MESSAGES // IDS_PER_COST)


async def test_an_id_that_no_message_has_is_refused(sides: list[Side]) -> None:
    """Not held, either: it has no record, and the connection is still there."""
    client = sides[0].client
    for ledger_id, entry_id in ((sides[0].ledger_id, 2**64 - 1), (2**63, 0)):
        client.feed(frame(ack_of(1, ledger_id, entry_id, 78)))
        assert (await client.receive_one()).ackResponse.error == pb.NotAllowedError
    assert TransactionId(0, 78) not in sides[0].log.core.transactions
    assert not client.connection.closed
