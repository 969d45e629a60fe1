"""Compiled code and Python read the same of SENDs: batches, errors and answers, for any bytes."""

import random
from collections.abc import AsyncIterator
from struct import pack
from typing import Any

import pytest
import pytest_asyncio
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.connection.command_turns import COST_PER_TURN
from magnetar.broker.producer.producer import Producer
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import FLAG_TRANSACTION, make_header
from magnetar.broker.protocol.framing import METADATA_BYTES_MAX, encode_body, varint
from magnetar.broker.protocol.plain_sends import scan_sends, scan_transaction
from magnetar.broker.transaction import markers
from magnetar.broker.transaction.markers import (
    ABORT,
    COMMIT,
    SNAPSHOT,
    end_marker,
    snapshot_marker,
    transaction_in,
)
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import TransactionSnapshot
from tests.unit.broker.doubles import Broker, Client, message

pytestmark = pytest.mark.skipif(scan_sends is None, reason="installed without a C compiler")

ENDED = TransactionId(0, 3)
ROUNDS = 4_000
SECOND_IS_CHECKED = 2_000
"""From this round on the second producer's messages must be encrypted."""
VARINTS = (0x08, 0x10, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40, 0x48, 0x58, 0x60, 0x88, 0x98, 0xA0)
MORE_VARINTS = (0xB0, 0xB8, 0xC0, 0xC8, 0xD8, 0xE0, 0xE8, 0xF0, 0xF8, 0x108, 0x110, 0x7F8)
PLAIN_VARINTS = (0x10, 0x18, 0x40, 0x48, 0x58, 0x60, 0x98, 0xB0, 0xB8, 0xC0, 0xC8, 0xF0)
PLAIN_BYTES = (0x0A, 0x22, 0x32, 0x82, 0x92, 0x102)
BYTES = (0x0A, 0x12, 0x22, 0x2A, 0x32, 0x3A, 0x6A, 0x72, 0x7A, 0x82, 0x92, 0xD2, 0x102, 0x7FA)


class Pair:
    """Two connections of one broker, of which one reads without compiled code.

    Where there are transactions, the one of sequence 3 has ended.
    """

    def __init__(self, compiled: Client, python: Client) -> None:
        self.clients = [compiled, python]
        python.connection.sends.scan = None

    def read(self, data: bytes) -> list[Any]:
        """What each made of the bytes."""
        return [self._read(client, data) for client in self.clients]

    def _read(self, client: Client, data: bytes) -> Any:
        connection = client.connection
        sends = connection.sends
        try:
            end: object = connection._take_frames(memoryview(data), len(data), COST_PER_TURN)
        except Exception as error:
            end = type(error), str(error)
        batches = {
            producer_id: (
                *(batch.heads, batch.bodies, batch.sequence_ids, batch.highest_ids),
                *(batch.entry_bytes, batch.message_count, batch.chunked_count),
                *(batch.unfinished, batch.transactions),
            )
            for producer_id, batch in sends._batches.items()
        }
        answers = b"".join(connection._outgoing)
        faults = {key: list(queue) for key, queue in sends._faults.items()}
        sends._batches.clear()
        sends._faults.clear()
        connection._outgoing.clear()
        return end, batches, faults, answers


@pytest_asyncio.fixture(params=[False, True], ids=["none", "transactions"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    broker = await Broker(transaction_coordinator_enabled=request.param).start()
    yield broker
    await broker.close()


async def pair_of(broker: Broker) -> Pair:
    clients = []
    for name in ("compiled", "python"):
        client = broker.client()
        await client.receive_one()  # CONNECTED
        for producer_id in (1, 2):
            await client.produce(f"{name}-{producer_id}", producer_id)
            if broker.service.config.transaction_coordinator_enabled:
                producer = client.connection.producers[producer_id]
                assert isinstance(producer, Producer)
                await producer.topic.end_transaction(ENDED, -1, commit=True)
        client.connection._outgoing.clear()
        clients.append(client)
    return Pair(*clients)


def frame(command: bytes, body: bytes) -> bytes:
    start = bytes((0x08, 6, 0x32)) + varint(len(command)) + command
    return pack(">II", 4 + len(start) + len(body), len(start)) + start + body


class Noise:
    """SENDs as clients write them, and as nobody should."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def reads(self) -> bytes:
        """Frames, and often the beginning of one more."""
        rng = self.rng
        data = b"".join(self.one() for _ in range(rng.randint(1, 6)))
        return data[: rng.randrange(len(data))] if rng.random() < 0.1 else data

    def one(self) -> bytes:
        rng = self.rng
        producer_id = rng.choice((1, 1, 1, 2))
        if rng.random() < 0.5:
            names = rng.sample(sorted(self.FIELDS), rng.randint(0, 3))
            fields: dict[str, Any] = {name: rng.choice(self.FIELDS[name]) for name in names}
            highest = rng.choice((0, 0, 5, 2**64 - 1))
            if rng.random() < 0.3:
                fields |= {"txnid_most_bits": 0, "txnid_least_bits": rng.choice((1, 2, 3, 2**63))}
            return message(
                *(rng.choice((0, 7, 2**64 - 1)), rng.randbytes(rng.randint(0, 40)), producer_id),
                highest=highest,
                in_command=rng.choice((None, None, 2, 3)),
                checksum=rng.random() < 0.9,
                damage=rng.random() < 0.05,
                **fields,
            )
        command = self.mangled(b"\x08" + varint(producer_id) + b"\x10\x05", command=True)
        metadata = self.mangled(b"\x0a\x01p\x10\x05\x18\x80\x94\xeb\xdc\x03", command=False)
        rest = pack(">I", len(metadata) + (rng.random() < 0.02)) + metadata + rng.randbytes(9)
        return frame(command, pack(">HI", 0x0E01, crc32c(rest)) + rest)

    def entry(self) -> bytes:
        """A body as it is stored, often of a transaction, sometimes a marker."""
        metadata = b"\x0a\x01p\x10\x05\x18\x80\x94\xeb\xdc\x03"
        for tag in (0xA0, 0xB0, 0xB8):
            if self.rng.random() < (0.3 if tag == 0xA0 else 0.8):
                metadata += self.number(tag) + self.number(self.rng.choice((0, 7, 21, 300, 2**63)))
        metadata = self.mangled(metadata, command=False)
        rest = pack(">I", len(metadata) + (self.rng.random() < 0.02)) + metadata + b"payload"
        return pack(">HI", 0x0E01, crc32c(rest)) + rest if self.rng.random() < 0.9 else rest

    FIELDS: dict[str, tuple[object, ...]] = {  # noqa: RUF012 # read only
        "partition_key": ("", "k", "key of more than a few bytes", "ключ"),
        "ordering_key": (b"", b"\xff\x00", b"12345"),
        "partition_key_b64_encoded": (True, False),
        "deliver_at_time": (0, 1, -1, 2**62),
        "event_time": (0, 2**64 - 1),
        "compression": (0, 1, 2, 3, 4),
        "uncompressed_size": (0, 70, 2**32 - 1),
        "num_messages_in_batch": (1, 3, 7, 1000, 0, -1, 2**31 - 1),
        "marker_type": (10,),
        "txnid_least_bits": (0, 3),
        "txnid_most_bits": (0, 3),
        "highest_sequence_id": (9,),
        "null_value": (True,),
        "schema_version": (b"\x01",),
        "replicated_from": ("r1",),
        "uuid": ("u",),
        "num_chunks_from_msg": (2,),
        "chunk_id": (0, 1),
    }

    def mangled(self, fields: bytes, *, command: bool) -> bytes:
        rng = self.rng
        is_plain = rng.random() < 0.5
        for _ in range(rng.choice((0, 0, 1, 2, 4))):
            added = self.field(is_plain=is_plain)
            fields = added + fields if rng.random() < 0.3 else fields + added
        kind = rng.random()
        if kind < 0.05:
            return fields[: rng.randrange(len(fields))]
        if kind < 0.15:
            at = rng.randrange(len(fields))
            return fields[:at] + bytes((rng.randrange(256),)) + fields[at + 1 :]
        if kind < 0.2:
            return fields + varint(rng.randrange(1 << 12)) + varint(rng.randrange(1 << 9))
        return fields if not command else fields[:120]

    def field(self, *, is_plain: bool) -> bytes:
        rng = self.rng
        if rng.random() < 0.5:
            tag = rng.choice(PLAIN_VARINTS if is_plain else VARINTS + MORE_VARINTS)
            return self.number(tag) + self.number(
                rng.choice((0, 1, 127, 128, 2**31 - 1, 2**31, 2**32 + 5, 2**63, 2**64 - 1))
            )
        tag = rng.choice(PLAIN_BYTES if is_plain else BYTES)
        if tag == 0x22 and rng.random() < 0.8:
            value = b"".join(
                self.number(rng.choice((0x0A, 0x12, 0x12, 0x1A, 0x08))) + self.number(1) + b"v"
                for _ in range(rng.randint(0, 3))
            )
        else:
            value = rng.choice((b"", b"ab", b"\xc3\xa4", b"\xff", b"x" * 200))
        return self.number(tag) + self.number(len(value)) + value

    def number(self, value: int) -> bytes:
        """As protobuf writes it; seldom longer than it need be, or than may be."""
        data = varint(value)
        if self.rng.random() < 0.03:
            zeros = self.rng.choice((1, 3, 5, 9))
            data = data[:-1] + bytes((data[-1] | 0x80,)) + b"\x80" * (zeros - 1) + b"\x00"
        return data


@pytest.mark.asyncio
async def test_any_bytes_are_read_as_python_reads_them(broker: Broker) -> None:
    pair = await pair_of(broker)
    assert scan_sends is not None
    plain = named = refused = 0
    for seed in range(ROUNDS):
        if seed == SECOND_IS_CHECKED:
            for client in pair.clients:
                producer = client.connection.producers[2]
                assert isinstance(producer, Producer)
                producer.encryption_required = producer.checked = True
        data = Noise(seed).reads()
        compiled, python = pair.read(data)
        assert compiled == python, f"round {seed}: {data.hex()}"
        run = scan_sends(memoryview(data), 0, len(data), 1 << 20, METADATA_BYTES_MAX)
        plain += run is not None
        named += run is not None and run[8] is not None
        refused += isinstance(python[0], tuple)
    assert plain > ROUNDS // 8, "else this compares nothing"
    assert named > ROUNDS // 30
    assert refused > ROUNDS // 50


def test_any_entry_is_of_the_transaction_that_python_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scan_transaction is not None
    noise, found = Noise(1), 0
    bodies = [noise.entry() for _ in range(ROUNDS)]
    bodies += [body[:size] for body in bodies[:10] for size in range(len(body))]
    bodies += [
        *(end_marker(TransactionId(2**64 - 1, 5), 9, commit=commit)[1] for commit in (True, False)),
        snapshot_marker(TransactionSnapshot(uptoLedger=1, uptoEntry=2), 9)[1],
    ]
    compiled = [transaction_in(body) for body in bodies]
    found = sum(scan_transaction(body) is not None for body in bodies)
    monkeypatch.setattr(markers, "scan_transaction", None)
    for body, one in zip(bodies, compiled, strict=True):
        assert one == transaction_in(body), body.hex()
    assert found > ROUNDS // 20, "else this compares nothing"
    assert compiled[-3:] == [
        *((kind, TransactionId(2**64 - 1, 5), 9) for kind in (COMMIT, ABORT)),
        (SNAPSHOT, TransactionId(0, 0), 9),
    ]
    no_marker = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, marker_type=0)
    assert transaction_in(encode_body(no_marker, b"")) is None


@pytest.mark.asyncio
async def test_an_ordinary_message_is_plain(broker: Broker) -> None:
    assert scan_sends is not None
    sends = [
        *(message(1), message(2, partition_key="k"), message(3, ordering_key=b"o")),
        *(
            message(4, deliver_at_time=9),
            message(5, schema_version=b"\0"),
            message(6, event_time=1),
        ),
    ]
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1)
    metadata.properties.add(key="k", value="v")
    command = pb.CommandSend(producer_id=1, sequence_id=7)
    sends.append(frame(command.SerializeToString(), encode_body(metadata, b"")))
    sends += [message(8, num_messages_in_batch=2), message(9, num_messages_in_batch=1)]
    data = b"".join(sends)
    run = scan_sends(memoryview(data), 0, len(data), 1 << 20, METADATA_BYTES_MAX)
    assert run is not None
    assert (run[0], run[4]) == (len(data), list(range(1, 10)))
    assert run[8] is None, "none is of a transaction"
    assert scan_sends(memoryview(data), 0, len(data), 1 << 20, 10) is None, "metadata too large"


def test_an_ordinary_message_of_a_transaction_is_plain() -> None:
    assert scan_sends is not None
    of_two = [
        message(number, in_command=named, txnid_most_bits=1, txnid_least_bits=least)
        for number, (named, least) in enumerate([(7, 7), (None, 2**64 - 1)])
    ]
    data = message(0) + b"".join(of_two)
    run = scan_sends(memoryview(data), 0, len(data), 1 << 20, METADATA_BYTES_MAX)
    assert run is not None
    assert run[8] == {1: (1, 7), 2: (1, 2**64 - 1)}
    assert [head[3] for head in run[2]] == [0, FLAG_TRANSACTION, FLAG_TRANSACTION]


@given(
    compression=st.sampled_from(pb.CompressionType.values()),
    count=st.integers(-1, 70_000) | st.just(2**31 - 1),
    payload_bytes=st.integers(0, 2_000),
    unpacked_bytes=st.integers(0, 2**32 - 1) | st.integers(0, 100_000),
    has_key=st.booleans(),
)
def test_a_batch_counts_as_many_messages_as_its_bytes_can_hold(
    compression: "pb.CompressionType.ValueType",
    count: int,
    payload_bytes: int,
    unpacked_bytes: int,
    has_key: bool,
) -> None:
    assert scan_sends is not None
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        compression=compression,
        uncompressed_size=unpacked_bytes,
        num_messages_in_batch=count,
    )
    if has_key:
        metadata.partition_key = "k"
    command = pb.CommandSend(producer_id=1, sequence_id=1)
    body = encode_body(metadata, bytes(payload_bytes))
    data = frame(command.SerializeToString(), body)
    run = scan_sends(memoryview(data), 0, len(data), 1 << 20, METADATA_BYTES_MAX)
    if count < 0:
        assert run is None
    else:
        assert run is not None
        assert run[2] == [make_header(metadata, payload_bytes)]


@pytest.mark.parametrize(
    "unlike",
    [
        *(message(2, producer_id=2), message(2, num_messages_in_batch=-1)),
        *(message(2, marker_type=1), message(2, damage=True), message(2, in_command=1)),
        *(message(2, num_chunks_from_msg=2), message(2, payload=b"x" * 500)),
        *(message(2, txnid_most_bits=1), message(2, txnid_least_bits=1)),
    ],
)
def test_a_run_ends_in_front_of_what_it_doesnt_know(unlike: bytes) -> None:
    assert scan_sends is not None
    data = message(1) + unlike + message(3)
    run = scan_sends(memoryview(data), 0, len(data), 200, METADATA_BYTES_MAX)
    assert run is not None
    assert run[4] == [1]


def test_bounds_are_those_of_the_buffer() -> None:
    assert scan_sends is not None
    with pytest.raises(IndexError, match="bytes 0 to 9 of 8"):
        scan_sends(memoryview(bytes(8)), 0, 9, 1 << 20, METADATA_BYTES_MAX)
