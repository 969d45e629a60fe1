"""Hostile bytes on the port of a real process: their sender is refused, a bystander isn't hurt."""

import contextlib
import random
import secrets
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.integration.failure_tools import (
    new_topic,
    open_producer,
    open_reader,
    read_numbers,
    send_all,
    take_receipts,
)
from tests.raw_client import RawClient, encode_command
from tests.standalone_process import StandaloneProcess

MIB = 1024 * 1024
U32, U64 = 2**32 - 1, 2**64 - 1
I32 = 2**31 - 1
LIES: list[dict[str, Any]] = [
    {"num_messages_in_batch": I32},
    {"num_messages_in_batch": -1},
    {"uuid": "u", "num_chunks_from_msg": I32, "chunk_id": I32, "total_chunk_msg_size": I32},
    {"uuid": "u", "num_chunks_from_msg": -1, "chunk_id": -1, "total_chunk_msg_size": -1},
    {"uncompressed_size": U32, "compression": pb.ZSTD},
    {"deliver_at_time": -(2**63), "publish_time": U64, "event_time": U64},
    {"highest_sequence_id": U64},
]
"""Metadata of otherwise fine messages."""


@pytest.fixture
def bystander(server: StandaloneProcess) -> Iterator[None]:
    """A producer and a consumer that work before and after; no handler failed meanwhile."""
    topic, offset = new_topic(), len(server.log)
    before = server.resident_bytes()
    with (
        open_producer(server.service_url, topic) as producer,
        open_reader(server.service_url, topic) as reader,
    ):
        for first in (0, 100):
            send_all(producer, range(first, first + 100))
            take_receipts(producer, 100)
            assert read_numbers(reader, 100) == list(range(first, first + 100))
            if first == 0:
                yield
    assert "Traceback" not in server.log[offset:], server.log[offset:]
    assert server.resident_bytes() - before < 64 * MIB


def command(kind: int) -> pb.BaseCommand:
    return pb.BaseCommand(type=kind)  # type: ignore[arg-type] # plain ints are fine at run time


def good_frames(topic: str) -> list[bytes]:
    """A conversation whose every frame is fine."""
    connect = command(pb.BaseCommand.CONNECT)
    connect.connect.client_version, connect.connect.protocol_version = "fuzz", 21
    producer = command(pb.BaseCommand.PRODUCER)
    producer.producer.topic = topic
    producer.producer.producer_id, producer.producer.request_id = 1, 1
    subscribe = command(pb.BaseCommand.SUBSCRIBE)
    subscribe.subscribe.topic, subscribe.subscribe.subscription = topic, "fuzz"
    subscribe.subscribe.subType = pb.CommandSubscribe.Shared
    subscribe.subscribe.consumer_id, subscribe.subscribe.request_id = 1, 2
    flow = command(pb.BaseCommand.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = 1, 10
    ack = command(pb.BaseCommand.ACK)
    ack.ack.consumer_id, ack.ack.ack_type = 1, pb.CommandAck.Individual
    ack.ack.message_id.add(ledgerId=1, entryId=1)
    seek = command(pb.BaseCommand.SEEK)
    seek.seek.consumer_id, seek.seek.request_id, seek.seek.message_publish_time = 1, 3, 1
    commands = (connect, producer, subscribe, flow, ack, seek)
    frames = [encode_command(each) for each in commands]
    frames[3:3] = [RawClient.send_frame(n, b"x" * 50, num_messages_in_batch=2) for n in range(3)]
    return frames


def mutated(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        match rng.randrange(4):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at : at + 4] = rng.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"))
            case 2:
                del out[at : at + rng.randint(1, 8)]
            case _:
                out[at:at] = rng.randbytes(rng.randint(1, 8))
        out = out or bytearray(1)
    return bytes(out)


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("seed", range(3))
def test_mutated_conversations(server: StandaloneProcess, seed: int) -> None:
    rng = random.Random(seed)
    frames = good_frames(new_topic())
    for _ in range(400):
        spoilt = rng.randrange(len(frames))
        data = b"".join(
            mutated(frame, rng) if at >= spoilt and rng.random() < 0.5 else frame
            for at, frame in enumerate(frames)
        )
        with (
            socket.create_connection(("127.0.0.1", server.port), 30) as client,
            contextlib.suppress(OSError),  # closed by the server: fine
        ):
            client.sendall(data)
            client.settimeout(0.02)
            while client.recv(1 << 16):
                pass


@pytest.mark.usefixtures("bystander")
def test_announced_sizes_and_counts_that_lie(server: StandaloneProcess) -> None:
    """The numbers are only what a client says: nothing is allocated, skipped or owed for them."""
    url, topic = server.service_url, new_topic()
    with open_producer(url, topic) as producer, open_reader(url, topic) as reader:
        for number, lie in enumerate(LIES):
            producer.send_bytes(RawClient.send_frame(number, b"%012d" % number, **lie))
            answer = producer.receive()[0]
            assert answer.type in (pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SEND_ERROR), answer
        for _ in range(5):
            reader.flow(U32)
        assert int(reader.receive_message()[1][:12]) == 0
        reader.ack([(U64, U64), (2**63, 0), (0, 2**63 - 1)] * 1000)
        reader.ack([(2**63 - 1, 2**63 - 1)], cumulative=True, request_id=99)
        told = reader.wait_for(lambda c: c.type == pb.BaseCommand.ACK_RESPONSE)[0]
        assert told.ackResponse.request_id == 99
        assert told.ackResponse.HasField("error")
    with open_reader(url, topic) as reader:
        reader.flow(1)
        assert int(reader.receive_message()[1][:12]) == 0  # the mad ack moved nothing else


@pytest.mark.usefixtures("bystander")
def test_names_of_any_bytes_stay_in_the_data_directory(server: StandaloneProcess) -> None:
    """A name is never a path: what is legal is stored encoded."""
    before = set(server.data.parent.iterdir())
    names = ["..%2f..%2fescape", "a%00b", "é" * 50, "-" * 200, "." * 5, "nul\x01"]
    with RawClient(server.service_url) as client:
        for at, name in enumerate(names):
            topic = f"persistent://public/default/{name}-{secrets.token_hex(4)}"
            client.create_producer(topic, at)
            client.subscribe(topic, "../../" + name, consumer_id=at)
    assert set(server.data.parent.iterdir()) == before
