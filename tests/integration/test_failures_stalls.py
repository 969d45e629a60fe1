"""Small inputs that stood for much work: no turn of a real process's loop is long because of one.

The process looks at its own loop; each test ends with what it saw (tests/stalls.py).
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import compress
from magnetar.broker.protocol.framing import encode_body, encode_command
from magnetar.broker.schema.definition import version_bytes
from tests.integration.failure_tools import new_topic, open_producer, open_reader, read_numbers
from tests.integration.failure_tools import publish as publish_numbers
from tests.standalone_process import StandaloneProcess
from tests.unit.broker_schema.test_bounded_values import doubling, wide


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path_factory.mktemp("failures-stalls") / "data") as process:
        yield process


@pytest.fixture
def http(server: StandaloneProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.admin_url, timeout=60) as client:
        yield client


def path_of(topic: str) -> str:
    return "/topics/" + topic.replace("://", "/")


def open_session(http: httpx.Client, topic: str) -> str:
    subscription = f"{path_of(topic)}/subscription/s"
    assert http.put(f"{subscription}/session").status_code == 200
    return subscription


def send(server: StandaloneProcess, topic: str, metadata: pb.MessageMetadata, data: bytes) -> None:
    with open_producer(server.service_url, topic) as producer:
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = 1, 0
        producer.send_bytes(encode_command(command, encode_body(metadata, data)))
        producer.expect(pb.BaseCommand.SEND_RECEIPT)


def metadata_of(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)


@pytest.mark.parametrize("schema", [doubling(40), wide(3_990)], ids=["doubling", "wide"])
def test_a_schema_of_values_without_bytes(http: httpx.Client, schema: Any) -> None:
    topic = new_topic()
    info = {"type": "AVRO", "schema": json.dumps(schema), "properties": {}}
    path = topic.replace("persistent://", "/admin/v2/schemas/")
    answer = http.post(f"{path}/schema", json=info)
    assert answer.status_code in (400, 409, 422), answer.text
    assert "take no bytes" in answer.text


def test_values_that_stand_for_much(server: StandaloneProcess, http: httpx.Client) -> None:
    """As large as definitions may be, decoded and encoded."""
    topic = new_topic()
    info = {"type": "AVRO", "schema": json.dumps(wide(900)), "properties": {}}
    path = topic.replace("persistent://", "/admin/v2/schemas/")
    assert http.post(f"{path}/schema", json=info).status_code == 202
    subscription = open_session(http, topic)
    payload = b"\xfe\x01" + b"\x01" * 127 + b"\0"
    send(server, topic, metadata_of(schema_version=version_bytes(0)), payload)
    answer = http.get(f"{subscription}/messages", params={"decode": "true"})
    assert "too many values" in answer.json()["messages"][0]["decodeError"]


def test_a_union_of_thousands_of_branches(http: httpx.Client) -> None:
    branches = ["int", *({"type": "fixed", "name": f"f{n}", "size": 1} for n in range(3_900))]
    schema = json.dumps({"type": "array", "items": branches}).encode()
    value = json.dumps({"type": "AVRO", "schema": base64.b64encode(schema).decode()})
    body = {"valueSchema": value, "messages": [{"payload": "[" + ",".join("1" * 15_000) + "]"}]}
    answer = http.post(path_of(new_topic()), json=body)
    assert answer.json()["messagePublishResults"][0]["errorCode"] == 0, answer.text


@pytest.mark.parametrize("count", [200_000, 1_000_000])
def test_a_batch_by_count(server: StandaloneProcess, http: httpx.Client, count: int) -> None:
    topic = new_topic()
    subscription = open_session(http, topic)
    data = (struct.pack(">I", 2) + b"\x18\x00") * count
    batch = {"num_messages_in_batch": count, "compression": pb.ZSTD}
    metadata = metadata_of(uncompressed_size=len(data), **batch)
    send(server, topic, metadata, compress(pb.ZSTD, data))
    publish_numbers(server.service_url, topic, range(1))
    answer = http.get(f"{subscription}/messages", params={"max": 500})
    messages = answer.json()["messages"]
    if count > 262_144:  # skipped
        messages = messages or http.get(f"{subscription}/messages").json()["messages"]
        assert messages[0]["payload"].startswith("000000000000")
    else:
        assert messages[0]["payload"] == ""


@pytest.mark.parametrize("known", [True, False])
def test_a_million_words_of_ack_sets(
    server: StandaloneProcess, http: httpx.Client, known: bool
) -> None:
    topic = new_topic()
    receipts = publish_numbers(server.service_url, topic, range(100))
    with open_reader(server.service_url, topic) as reader:
        ack = pb.BaseCommand(type=pb.BaseCommand.ACK)
        ack.ack.consumer_id, ack.ack.ack_type = 1, pb.CommandAck.Individual
        for ledger_id, entry_id in receipts.values():
            ledger_id += 0 if known else 1_000_000
            ack.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id, ack_set=[1] * 4_096)
        reader.send(ack)
        assert read_numbers(reader, 1) == [0]


def test_a_long_key_and_deep_json(server: StandaloneProcess, http: httpx.Client) -> None:
    topic = new_topic()
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    assert http.put(f"{path}/partitions", json=4).status_code == 204
    body = {"messages": [{"key": "k" * 500_000, "payload": "x"}]}
    answer = http.post(path_of(topic), json=body)
    assert answer.json()["messagePublishResults"][0]["errorCode"] == 0, answer.text
    assert "Traceback" not in server.log
