"""Inputs that stand for much work, at every port: nobody else waits for them.

What is judged: no turn of the loop is long (stalls.py), the log has no traceback, and the broker
answers. Some seeds in CI; `make fuzz` takes others and larger sizes.
"""

import base64
import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests import raw_transactions
from tests.heavy_inputs import HeavyInputs
from tests.integration.failure_tools import new_topic, open_producer, publish
from tests.nightly import NIGHTLY
from tests.raw_client import ConnectionClosedError, RawClient
from tests.standalone_process import StandaloneProcess

WAIT_S = 60
FRAME_CHARACTERS_MAX = (4 if NIGHTLY else 1) * 1024 * 1024
SETTINGS = {
    "webSocketMaxTextFrameSize": FRAME_CHARACTERS_MAX,
    "transactionCoordinatorEnabled": "true",
}
BODY_BYTES_MAX = 60 * 1024 * 1024 if NIGHTLY else 8 * 1024 * 1024
FIRST = int(os.environ.get("MAGNETAR_FUZZ_SEED", "0"))
SEEDS = range(FIRST, FIRST + (30 if NIGHTLY else 2))


@pytest.fixture
def http(server: StandaloneProcess) -> Iterator[httpx.Client]:
    before = len(server.log)
    with httpx.Client(base_url=server.admin_url, timeout=WAIT_S) as client:
        yield client
        assert client.get("/readyz").status_code == 200
    assert "Traceback" not in server.log[before:]


def made(seed: int) -> HeavyInputs:
    return HeavyInputs(random.Random(seed))


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def take(http: httpx.Client, topic: str, least: int) -> int:
    """Messages that a REST consumer gets: so many at least, then until nothing comes."""
    count = 0
    subscription = f"/topics/{path_of(topic)}/subscription/rest"
    while True:
        wait_ms = 200 if count >= least else 30_000
        query: dict[str, Any] = {"position": "earliest", "waitMs": wait_ms, "max": 1_000}
        answer = http.get(f"{subscription}/messages", params=query)
        assert answer.status_code == 200, answer.text[:500]
        messages = answer.json()["messages"]
        if not messages:
            return count
        count += len(messages)
        tokens = [message["token"] for message in messages]
        assert http.post(f"{subscription}/ack", json={"tokens": tokens}).status_code == 200
        if count > 5_000:  # as all the others
            return count


@pytest.mark.parametrize("seed", SEEDS)
def test_definitions(server: StandaloneProcess, http: httpx.Client, seed: int) -> None:
    inputs = made(seed)
    for number in range(6):
        topic, (kind, data) = new_topic(), inputs.schema()
        info = {"type": kind, "schema": data.decode(), "properties": {}}
        path = topic.replace("persistent://", "/admin/v2/schemas/")
        if number % 2:
            assert http.post(f"{path}/schema", json=info).status_code < 500
            continue
        with RawClient(server.service_url) as client:
            command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
            producer = command.producer
            producer.topic, producer.producer_id, producer.request_id = topic, 1, 1
            schema = producer.schema
            schema.name, schema.schema_data = "s", data
            kinds = {"AVRO": pb.Schema.Avro, "JSON": pb.Schema.Json}
            schema.type = kinds.get(kind, pb.Schema.ProtobufNative)
            with suppress(ConnectionClosedError):
                client.send(command)
                client.receive(WAIT_S)


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_of_binary_clients(
    server: StandaloneProcess, http: httpx.Client, seed: int
) -> None:
    inputs, topic, stored = made(seed), new_topic(), 3
    ws_url = server.admin_url.replace("http://", "ws://")
    with open_producer(server.service_url, topic) as producer:
        for frame in inputs.sends():
            producer.send_bytes(frame)
            answer = producer.receive(WAIT_S)[0]
            is_stored = answer.type == pb.BaseCommand.SEND_RECEIPT
            assert is_stored or "metadata" in answer.send_error.message
            stored += is_stored
    publish(server.service_url, topic, range(3))
    with RawClient(server.service_url, timeout_s=WAIT_S) as client:
        earliest = pb.CommandSubscribe.Earliest
        client.subscribe(topic, "s", initialPosition=earliest)
        client.flow(10_000_000)
        positions = [client.receive_message()[0] for _ in range(stored)]
        for command in inputs.acks(positions):
            client.send(command)
        command = pb.BaseCommand(type=pb.BaseCommand.CONSUMER_STATS)
        command.consumerStats.request_id, command.consumerStats.consumer_id = 1, 1
        client.send(command)
        client.wait_for(lambda said: said.type == pb.BaseCommand.CONSUMER_STATS_RESPONSE)
    with RawClient(server.service_url, timeout_s=WAIT_S) as client:
        key_shared = pb.CommandSubscribe.Key_Shared
        client.subscribe(topic, "k", subType=key_shared, initialPosition=earliest)
        client.flow(10_000_000)
        for _ in range(stored):
            client.ack([client.receive_message()[0]])
    assert take(http, topic, 3) >= 3
    for position in positions:
        path = f"/admin/v2/{path_of(topic)}/ledger/{position[0]}/entry/{position[1]}"
        with suppress(httpx.RemoteProtocolError):  # a header line of megabytes: the key
            assert http.get(path).status_code in (200, 500)
    queue = f"receiverQueueSize={inputs.rng.choice((1, 1_000))}"
    reader = f"{ws_url}/ws/v2/reader/{path_of(topic)}?messageId=earliest&{queue}"
    last = base64.b64encode(b"%012d" % 2).decode()
    with connect(reader, compression=None, max_size=None, ping_interval=None) as socket:
        for _ in range(3_000):
            message = json.loads(socket.recv(timeout=WAIT_S))
            if message["payload"].startswith(last):
                break
            socket.send(json.dumps({"messageId": message["messageId"]}))


def test_transactions_of_many_topics(server: StandaloneProcess, http: httpx.Client) -> None:
    with RawClient(server.service_url, timeout_s=WAIT_S) as client:
        client.look_up(raw_transactions.assigned(0))
        assert not raw_transactions.connect_to_coordinator(client).HasField("error")
        transaction = raw_transactions.begin(client)
        many = map(str, range(100_000))
        refused = raw_transactions.add_partitions(client, transaction, *many)
        assert refused.error == pb.NotAllowedError
        topic = new_topic()
        names = [f"{topic}-{number}" for number in range(1_000)]
        taken = raw_transactions.add_partitions(client, transaction, *names)
        assert not taken.HasField("error")
        assert not raw_transactions.end(client, transaction, commit=False).HasField("error")


@pytest.mark.parametrize("seed", SEEDS)
def test_bodies_of_messages(http: httpx.Client, seed: int) -> None:
    inputs, topic, stored = made(seed), new_topic(), 0
    if seed % 2:
        partitions = f"/admin/v2/{path_of(topic)}/partitions"
        assert http.put(partitions, json=4).status_code == 204
    headers = {"Content-Type": "application/json"}
    for _ in range(4):
        body = inputs.publish_body(BODY_BYTES_MAX)
        answer = http.post(f"/topics/{path_of(topic)}", content=body, headers=headers)
        assert answer.status_code < 500, answer.text[:500]
        if answer.status_code == 200:
            results = answer.json()["messagePublishResults"]
            stored += sum(result["errorCode"] == 0 for result in results)
    assert take(http, topic, min(stored, 5_000)) >= min(stored, 5_000)


@pytest.mark.parametrize("seed", SEEDS)
def test_frames_of_producers(server: StandaloneProcess, http: httpx.Client, seed: int) -> None:
    inputs, topic = made(seed), new_topic()
    partitions = f"/admin/v2/{path_of(topic)}/partitions"
    assert http.put(partitions, json=3).status_code == 204
    ws_url = server.admin_url.replace("http://", "ws://")
    for kind in ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"):
        batching = inputs.rng.choice(("true", "false"))
        query = f"compressionType={kind}&batchingEnabled={batching}"
        url = f"{ws_url}/ws/v2/producer/{path_of(topic)}?{query}"
        with connect(url, compression=None, ping_interval=None) as socket:
            frames = [inputs.frame(FRAME_CHARACTERS_MAX) for _ in range(2)]
            frames += [inputs.frame(60_000) for _ in range(3)]
            with suppress(ConnectionClosed):
                for frame in frames:
                    socket.send(frame)
                for _ in frames:
                    assert json.loads(socket.recv(timeout=WAIT_S))["context"] == "c"


class Peer:
    """One connection to the HTTP port."""

    def __init__(self, server: StandaloneProcess) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.web_port), WAIT_S)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        threading.Thread(target=self._socket.sendall, args=(data,), daemon=True).start()

    def read(self, wanted: bytes, count: int = 1) -> bytes:
        """Until that came so often."""
        got, found = b"", 0
        while found < count:
            part = self._socket.recv(1 << 18)
            assert part, got[-500:]
            found += (got[-len(wanted) + 1 :] + part).count(wanted)
            got += part
        return got


HOST = b"Host: localhost\r\n"
PIECES = 40_000 if NIGHTLY else 4_000


def test_a_body_of_chunks_of_one_byte(server: StandaloneProcess, http: httpx.Client) -> None:
    topic = new_topic()
    body = json.dumps({"messages": [{"payload": "x" * 10 * PIECES}]}).encode()
    head = f"POST /topics/{path_of(topic)} HTTP/1.1\r\nContent-Type: application/json\r\n".encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with Peer(server) as peer:
        peer.send(head + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert b'errorCode":0' in peer.read(b"}")
    assert take(http, topic, 1) == 1


def test_requests_that_come_at_once(server: StandaloneProcess, http: httpx.Client) -> None:
    with Peer(server) as peer:
        count = PIECES // 5
        peer.send(
            b"GET /livez HTTP/1.1\r\n"
            + HOST
            + b"\r\n"
            + b"GET / HTTP/1.1\r\nHost:localhost\r\n\r\n" * count
        )
        peer.read(b"HTTP/1.1 ", count + 1)


def test_frames_without_content(server: StandaloneProcess, http: httpx.Client) -> None:
    topic = new_topic()
    head = f"GET /ws/v2/producer/{path_of(topic)} HTTP/1.1\r\nConnection: Upgrade\r\n".encode()
    upgrade = b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    pong, text = b"\x8a\x80\0\0\0\0", b'{"payload":""}'
    with Peer(server) as peer:
        peer.send(head + HOST + upgrade + key)
        peer.read(b"\r\n\r\n")
        peer.send(pong * 10 * PIECES + bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text)
        peer.read(b'"result":"ok"')
