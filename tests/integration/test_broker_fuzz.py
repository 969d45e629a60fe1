"""Hostile clients at the port while a well-behaved one measures; seeded and bounded.

Passing means: the good client's messages all arrive in order and in time, the log holds no
traceback, and nothing of the hostile connections is left. Replay a failure by its seed, which is in
the test's name.
"""

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode_body
from tests.nightly import NIGHTLY
from tests.official_client import open_client
from tests.raw_client import ConnectionClosedError, RawClient, encode_command
from tests.standalone_process import StandaloneProcess

LIMIT_S = 30.0  # of one answer; far above what a loaded machine needs
HOSTILE_S = 10.0  # of one seed
COMMANDS = 700  # of one seed, over all its connections
IDS = 4  # producers and consumers of a hostile connection
EDGES = (0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63))
BASE = "persistent://public/default/fuzz"
NAMES = ("", " ", "/", "..", "a b\n", "\0", "\u202e", "\U0001f600", "x" * 5_000, "(a+)+$", "a://b")
TOPICS = (f"{BASE}-0", f"{BASE}-1", f"non-{BASE}", f"{BASE}-0-partition-99999999999", f"{BASE}/..")
INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64),
}
# Everything a client may send; CONNECT, and what closes at once, come from mutation.
FIELDS = (
    *("subscribe", "producer", "send", "ack", "flow", "unsubscribe", "seek", "close_producer"),
    *("close_consumer", "redeliverUnacknowledgedMessages", "partitionMetadata", "lookupTopic"),
    *("consumerStats", "getLastMessageId", "getTopicsOfNamespace", "getSchema", "watchTopicList"),
    *("getOrCreateSchema", "watchTopicListClose", "newTxn", "addPartitionToTxn", "ping"),
)


class Forge:
    """Commands of the right form with absurd contents."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ledgers = [0]  # ids that the broker told, so that some hit

    def frame(self) -> bytes:
        field = self.rng.choice(FIELDS)
        descriptor = pb.BaseCommand.DESCRIPTOR.fields_by_name[field]
        command = pb.BaseCommand(type=pb.BaseCommand.Type.ValueType(descriptor.number))
        message = getattr(command, field)
        message.SetInParent()
        self._fill(message)
        if field == "send":
            return self._send(command)
        if field == "flow":
            command.flow.messagePermits = max(1, command.flow.messagePermits)  # 0 closes
        return encode_command(command)

    def opening(self) -> Iterator[bytes]:
        """Producers and consumers, so that the rest meets some."""
        for index in range(IDS):
            command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
            command.producer.topic = self.rng.choice(TOPICS[:3])
            command.producer.producer_id = command.producer.request_id = index
            yield encode_command(command)
            command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
            subscribe = command.subscribe
            subscribe.topic, subscribe.subscription = self.rng.choice(TOPICS[:3]), f"s{index % 2}"
            subscribe.consumer_id = subscribe.request_id = index
            subscribe.subType = self.rng.choice(pb.CommandSubscribe.SubType.values())
            subscribe.initialPosition = pb.CommandSubscribe.Earliest
            yield encode_command(command)
            command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
            command.flow.consumer_id, command.flow.messagePermits = index, 1_000
            yield encode_command(command)

    def mutate(self, frame: bytes) -> bytes:
        """A few bytes changed, left out or put in between."""
        rng, data = self.rng, bytearray(frame)
        for _ in range(rng.choice((1, 1, 3))):
            at = rng.randrange(len(data))
            wanted = rng.randrange(3)
            if wanted == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif wanted == 1:
                del data[at : at + rng.randrange(1, 6)]
            else:
                data[at:at] = rng.randbytes(rng.randrange(1, 6))
        return bytes(data) or b"\0"

    def _send(self, command: pb.BaseCommand) -> bytes:
        metadata = pb.MessageMetadata()
        self._fill(metadata)
        if self.rng.random() < 0.8:
            metadata.ClearField("txnid_least_bits")  # else it would only be refused
            metadata.ClearField("marker_type")
        body = encode_body(metadata, self.rng.randbytes(self.rng.choice((0, 1, 5_000))))
        return encode_command(command, body)

    def _fill(self, message: Message, depth: int = 0) -> None:
        rng = self.rng
        for field in message.DESCRIPTOR.fields:
            if not field.is_required and rng.random() < 0.5:
                continue
            values = getattr(message, field.name)
            count = rng.choice((1, 1, 3, 4_500 if depth == 0 else 3)) if field.is_repeated else 1
            for _ in range(count):
                if field.message_type is not None:
                    if depth < 3:
                        inner = values.add() if field.is_repeated else values
                        inner.SetInParent()
                        self._fill(inner, depth + 1)
                elif field.is_repeated:
                    values.append(self._value(field))
                else:
                    setattr(message, field.name, self._value(field))

    def _value(self, field: Any) -> Any:
        rng, name = self.rng, field.name
        if field.enum_type is not None:
            return rng.choice(field.enum_type.values).number
        if field.cpp_type in INTEGERS:
            low, end = INTEGERS[field.cpp_type]
            if name in ("producer_id", "consumer_id"):
                return rng.randrange(IDS)
            if name == "ledgerId" and rng.random() < 0.7:
                return rng.choice(self.ledgers)
            value = rng.choice(EDGES) if rng.random() < 0.4 else rng.randrange(8)
            return value if low <= value < end else 1
        if field.type == FieldDescriptor.TYPE_STRING:
            known = {
                "topic": TOPICS,
                "subscription": ("s0", "s1"),
                "namespace": ("public/default",),
            }
            return rng.choice(known.get(name, NAMES) if rng.random() < 0.9 else NAMES)
        return rng.random() < 0.5 if field.type == FieldDescriptor.TYPE_BOOL else rng.randbytes(9)


class Witness(threading.Thread):
    """The well-behaved client: sends, receives and acknowledges one message after the other."""

    def __init__(self, service_url: str) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self.rounds = 0
        self._service_url = service_url
        self._stopped = threading.Event()

    def __enter__(self) -> "Witness":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join(2 * LIMIT_S)
        assert not self.is_alive(), "the good client hangs"
        if self.failure is not None:
            raise self.failure
        assert self.rounds > 0

    def run(self) -> None:
        client = open_client(self._service_url)
        try:
            topic = f"persistent://public/default/witness-{time.monotonic_ns()}"
            consumer = client.subscribe(topic, "s")
            # No retries hide a lost receipt: the timeout fails the send.
            producer = client.create_producer(topic, send_timeout_millis=int(LIMIT_S * 1000))
            while self.rounds == 0 or not self._stopped.is_set():
                payload = b"%d" % self.rounds
                producer.send(payload)
                message = consumer.receive(int(LIMIT_S * 1000))
                assert message.data() == payload, "lost, repeated or out of order"
                consumer.acknowledge(message)
                self.rounds += 1
                self._stopped.wait(0.002)
        except BaseException as error:
            self.failure = error
        finally:
            client.close()


@pytest.fixture(autouse=True)
def unharmed(server: StandaloneProcess) -> Iterator[None]:
    """What every test here expects of the server afterwards."""
    before = len(server.log)
    with Witness(server.service_url):
        yield
    deadline = time.monotonic() + LIMIT_S
    while (left := _open_connections(server)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == 0, "connections of clients that are gone"
    said = server.log[before:]
    found = re.search(r"Traceback|internal error|never awaited|never retrieved|CRITICAL", said)
    assert found is None, said[max(0, found.start() - 2_000) : found.start() + 4_000]


def _open_connections(server: StandaloneProcess) -> int:
    """Sockets of the broker's port that the process still holds."""
    ours = f"{server.port:04X}"
    count = 0
    for line in Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines()[1:]:
        local, _, state = line.split()[1:4]
        count += local.endswith(f":{ours}") and state == "01"
    return count


def hostile_session(service_url: str, forge: Forge, count: int) -> int:
    """One connection's worth of nonsense; how many commands went out before it was closed."""
    rng, sent = forge.rng, 0
    client = RawClient(service_url, timeout_s=LIMIT_S)
    try:
        client.send_bytes(b"".join(forge.opening()))
        for _ in range(rng.choice((0, 2 * IDS))):  # sometimes too early for what is being opened
            _note(forge, client.receive()[0])
        while sent < count:
            frame = forge.frame()
            sent += 1
            chance = rng.random()
            if chance < 0.01:
                frame = forge.mutate(frame)
            elif chance < 0.02:
                client.send_bytes(frame[: rng.randrange(len(frame))])
                break
            client.send_bytes(frame)
            if chance > 0.8:
                _drain(client, forge)
        _drain(client, forge)
    except ConnectionClosedError:
        pass  # its right
    finally:
        if rng.random() < 0.3:  # RST instead of FIN
            linger = (1).to_bytes(4, "little") + bytes(4)
            client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()
    return sent


def _drain(client: RawClient, forge: Forge) -> None:
    try:
        while True:
            _note(forge, client.receive(0.001)[0])
    except TimeoutError:
        return


def _note(forge: Forge, command: pb.BaseCommand) -> None:
    if command.type == pb.BaseCommand.SEND_RECEIPT:
        ledger_id = command.send_receipt.message_id.ledgerId
        if ledger_id < 2**63 and ledger_id not in forge.ledgers:
            forge.ledgers.append(ledger_id)


@pytest.mark.parametrize("seed", range(4 if NIGHTLY else 2))
def test_forged_commands(server: StandaloneProcess, seed: int) -> None:
    forge, sent, deadline = Forge(seed), 0, time.monotonic() + HOSTILE_S
    while sent < COMMANDS and time.monotonic() < deadline:
        sent += hostile_session(server.service_url, forge, forge.rng.choice((5, 50, 200)))
    assert sent > 0


def test_connections_that_die_in_the_middle_of_a_send(server: StandaloneProcess) -> None:
    rng, topic = random.Random(1), f"{BASE}-dies"
    for index in range(60):
        client = RawClient(server.service_url)
        client.create_producer(topic)
        frame = client.send_frame(index, b"x" * rng.choice((10, 200_000)))
        client.send_bytes(frame[: rng.randrange(1, len(frame))])
        client.close()
    with RawClient(server.service_url) as client:
        client.create_producer(topic)
        client.send_bytes(client.send_frame(0, b"whole"))
        receipt = client.expect(pb.BaseCommand.SEND_RECEIPT)[0].send_receipt
        assert receipt.message_id.entryId == 0, "no half message was stored"


def test_many_idle_connections(server: StandaloneProcess) -> None:
    clients = [RawClient(server.service_url) for _ in range(400)]
    for client in clients:
        client.close()


def test_many_producers_on_one_connection(server: StandaloneProcess) -> None:
    count = 3_000
    with RawClient(server.service_url, timeout_s=LIMIT_S) as client:
        command, frames = pb.BaseCommand(type=pb.BaseCommand.PRODUCER), []
        for index in range(count):
            command.producer.topic = f"{BASE}-many"
            command.producer.producer_id = command.producer.request_id = index
            frames.append(encode_command(command))
        client.send_bytes(b"".join(frames))
        for _ in range(count):
            client.expect(pb.BaseCommand.PRODUCER_SUCCESS)


def test_acknowledgments_of_what_is_not_there(server: StandaloneProcess) -> None:
    topic = f"{BASE}-acks"
    with RawClient(server.service_url) as client:
        client.subscribe(topic, "s", subType=pb.CommandSubscribe.Shared)
        client.create_producer(topic)
        client.flow(10)
        client.send_bytes(client.send_frame(0, b"stays"))
        (ledger_id, entry_id), _ = client.receive_message()
        ids = [
            (ledger, entry)
            for ledger in (ledger_id, ledger_id + 1, 0, 2**63 - 1, 2**64 - 1)
            for entry in (entry_id + 1, 2**32, 2**32 + entry_id, 2**63 - 1, 2**64 - 1)
        ]
        for request_id, ack_set in enumerate(([], [0], [-1], [1, 2, 3]), start=1):
            command = pb.BaseCommand(type=pb.BaseCommand.ACK)
            ack = command.ack
            ack.consumer_id, ack.ack_type, ack.request_id = 1, pb.CommandAck.Individual, request_id
            for ledger, entry in ids:
                ack.message_id.add(ledgerId=ledger, entryId=entry, ack_set=ack_set)
            client.send(command)
            assert (
                client.expect(pb.BaseCommand.ACK_RESPONSE)[0].ackResponse.request_id == request_id
            )
        redeliver = pb.BaseCommand(type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        redeliver.redeliverUnacknowledgedMessages.consumer_id = 1
        for ledger, entry in [*ids, (ledger_id, entry_id)]:
            redeliver.redeliverUnacknowledgedMessages.message_ids.add(
                ledgerId=ledger, entryId=entry
            )
        client.send(redeliver)
        assert client.receive_message() == ((ledger_id, entry_id), b"stays")


def test_lying_message_counts_stop_no_consumer(server: StandaloneProcess) -> None:
    topic, lies = f"{BASE}-lies", (0, -1, -(2**31), 2**31 - 1)
    kinds = (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover)
    with RawClient(server.service_url) as sender, RawClient(server.service_url) as reader:
        sender.create_producer(topic)
        for index, kind in enumerate(kinds):
            reader.subscribe(topic, f"s{index}", index, subType=kind)
            reader.flow(100, index)
        for sequence_id, claimed in enumerate(lies):
            command = pb.BaseCommand(type=pb.BaseCommand.SEND)
            command.send.producer_id, command.send.sequence_id = 1, sequence_id
            command.send.num_messages = claimed
            metadata = pb.MessageMetadata(
                producer_name="x",
                sequence_id=sequence_id,
                publish_time=2**64 - 1,
                num_messages_in_batch=claimed,
                uncompressed_size=2**32 - 1,
                compression=pb.ZSTD,
            )
            sender.send_bytes(encode_command(command, encode_body(metadata, b"zz")))
        sender.send_bytes(sender.send_frame(len(lies), b"truth"))
        told = [reader.receive_message()[1] for _ in range(len(kinds) * (len(lies) + 1))]
        assert told.count(b"truth") == len(kinds)


def test_a_reader_that_never_reads(server: StandaloneProcess) -> None:
    """Ten times what the broker may hold for one connection waits; its memory shows no more."""
    topic, payload, count = f"{BASE}-slow", bytes(250_000), 320
    with RawClient(server.service_url) as lazy, RawClient(server.service_url) as sender:
        lazy.subscribe(topic, "s")
        lazy.flow(1_000_000)
        sender.create_producer(topic)
        before = _resident_bytes(server)
        for sequence_id in range(count):
            sender.send_bytes(sender.send_frame(sequence_id, payload))
            sender.expect(pb.BaseCommand.SEND_RECEIPT)
        # The entry cache may keep all of it; what is sent must not come on top.
        assert _resident_bytes(server) - before < count * len(payload) * 2.5
        assert [len(lazy.receive_message()[1]) for _ in range(count)] == [len(payload)] * count


def _resident_bytes(server: StandaloneProcess) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4_096


def test_seek_unsubscribe_and_delete_under_load(server: StandaloneProcess) -> None:
    topic, stopped = f"{BASE}-churn", threading.Event()
    url = f"{server.admin_url}/admin/v2/{topic.replace('://', '/')}?force=true"
    workers = [
        *(threading.Thread(target=_until, args=(stopped, _produce, server, topic)) for _ in "ab"),
        *(threading.Thread(target=_until, args=(stopped, _consume, server, topic)) for _ in "ab"),
    ]
    for worker in workers:
        worker.start()
    answers: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    while answers.count(204) < 5 and time.monotonic() < deadline:
        stopped.wait(0.3)
        answers.append(httpx.delete(url, timeout=LIMIT_S).status_code)
    stopped.set()
    for worker in workers:
        worker.join(2 * LIMIT_S)
        assert not worker.is_alive()
    assert set(answers) <= {204, 404}, answers
    assert 204 in answers


def _until(
    stopped: threading.Event, work: Callable[..., None], server: StandaloneProcess, name: str
) -> None:
    turn = 0
    while not stopped.is_set():
        turn += 1
        try:
            with RawClient(server.service_url, timeout_s=LIMIT_S) as client:
                work(client, name, turn)
        except ConnectionClosedError:
            continue


def _produce(client: RawClient, topic: str, turn: int) -> None:
    if isinstance(client.create_producer(topic), pb.CommandError):
        return  # it is just being deleted
    for first in range(0, 500, 50):
        frames = [client.send_frame(first + index, b"x" * 300) for index in range(50)]
        client.send_bytes(b"".join(frames))
        for _ in frames:
            if client.receive()[0].type == pb.BaseCommand.CLOSE_PRODUCER:
                return


def _consume(client: RawClient, topic: str, turn: int) -> None:
    subscription = f"s{turn % 2}"
    kind = pb.CommandSubscribe.Shared
    if isinstance(client.subscribe(topic, subscription, subType=kind), pb.CommandError):
        return
    client.flow(1_000)
    if turn % 3 == 0:
        command = pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE)
        command.unsubscribe.consumer_id, command.unsubscribe.request_id = 1, 77
        command.unsubscribe.force = True
    else:
        command = pb.BaseCommand(type=pb.BaseCommand.SEEK)
        command.seek.consumer_id, command.seek.request_id = 1, 77
        command.seek.message_publish_time = turn
    client.send(command)
    client.wait_for(lambda answer: 77 in (answer.success.request_id, answer.error.request_id))


@pytest.mark.parametrize("namespace", ["public/..", "./default", "public/...x", "../.."])
def test_namespaces_that_look_like_folders(server: StandaloneProcess, namespace: str) -> None:
    with RawClient(server.service_url) as client:
        command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
        command.getTopicsOfNamespace.namespace = namespace
        command.getTopicsOfNamespace.request_id = 1
        client.send(command)
        client.wait_for(
            lambda c: 1 in (c.error.request_id, c.getTopicsOfNamespaceResponse.request_id)
        )
        assert isinstance(client.create_producer(f"persistent://{namespace}/t"), pb.CommandError)
    for path in (f"namespaces/{namespace}", f"namespaces/{namespace}/topics"):
        request = httpx.Request("GET", server.admin_url)
        # httpx would resolve the dots
        request.url = httpx.URL(server.admin_url, raw_path=f"/admin/v2/{path}".encode())
        with httpx.Client(timeout=60) as http:
            assert http.send(request).status_code in (404, 412)


@pytest.mark.parametrize("count", [10**8, 2**31, 10**20, "9" * 5_000, -1], ids=str)
def test_absurd_partition_counts_are_refused(server: StandaloneProcess, count: object) -> None:
    url = f"{server.admin_url}/admin/v2/persistent/public/default/absurd/partitions"
    assert httpx.put(url, json=count, timeout=LIMIT_S).status_code in (400, 406)
    assert httpx.get(url, timeout=LIMIT_S).status_code == 404
