"""Messages shown by the admin API: by id, peeked, examined; Magnetar, or Pulsar by the options."""

import json
import secrets
import time
from collections.abc import Iterator
from functools import partial

import httpx
import pulsar
import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.raw_client import RawClient

get = partial(httpx.get, timeout=30)


@pytest.fixture
def path(admin_url: str) -> Iterator[str]:
    name = f"public/default/shown-{secrets.token_hex(5)}"
    url = f"{admin_url}/admin/v2/persistent/{name}"
    assert httpx.put(url, timeout=30).status_code == 204
    yield url
    httpx.delete(f"{url}?force=true", timeout=30)


@pytest.fixture
def topic(path: str) -> str:
    return "persistent://" + path.split("/persistent/", 1)[1]


def test_a_message_is_shown_decompressed_with_its_metadata(
    client: pulsar.Client, path: str, topic: str
) -> None:
    client.subscribe(topic, "s")  # keeps the message
    producer = client.create_producer(
        topic, compression_type=pulsar.CompressionType.LZ4, batching_enabled=False
    )
    sent = producer.send(
        b"hello " * 9, properties={"a": "b"}, partition_key="k", event_timestamp=1_700_000_000_123
    )
    url = f"{path}/ledger/{sent.ledger_id()}/entry/"
    answer = get(f"{url}{sent.entry_id()}")
    assert (answer.status_code, answer.content) == (200, b"hello " * 9)
    headers = answer.headers
    assert headers["X-Pulsar-Message-ID"] == f"{sent.ledger_id()}:{sent.entry_id()}"
    assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"a": "b"}
    assert headers["X-Pulsar-partition-key"] == "k"
    assert headers["X-Pulsar-event-time"] == "2023-11-14T22:13:20.123Z"
    assert headers["X-Pulsar-compression"] == "LZ4"
    assert headers["X-Pulsar-uncompressed-size"] == "54"
    assert get(f"{path}/ledger/999999999/entry/0").status_code == 404


def test_a_lying_producer_can_not_forge_headers(service_url: str, path: str, topic: str) -> None:
    with RawClient(service_url) as raw:
        raw.subscribe(topic, "s")  # keeps the message
        raw.create_producer(topic)
        name = "p\r\nX-Forged: 1\r\n\r\n\\\u00fc"
        end_of_time = 2**64 - 1
        raw.send_bytes(raw.send_frame(0, b"x", producer_name=name, publish_time=end_of_time))
        message_id = raw.expect(pb.BaseCommand.SEND_RECEIPT)[0].send_receipt.message_id
    answer = get(f"{path}/ledger/{message_id.ledgerId}/entry/{message_id.entryId}")
    assert (answer.status_code, answer.content) == (200, b"x")
    assert "X-Forged" not in answer.headers
    # Pulsar shows a blank for what a header can't hold (docs/reference/http-differences.md).
    shown = (r"p\r\nX-Forged: 1\r\n\r\n\\\xfc", "p  X-Forged: 1    \\\u00fc")
    assert answer.headers["X-Pulsar-producer-name"] in shown
    # Pulsar takes the time for a negative one.
    assert answer.headers["X-Pulsar-publish-time"][:10] in ("9999-12-31", "1969-12-31")


def test_peek_skips_what_is_acknowledged_and_shows_batches_framed(
    client: pulsar.Client, path: str, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(3):
        producer.send(b"%d" % n)
    batching = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=1000
    )
    for _ in range(2):
        batching.send_async(b"batched", lambda *_: None)
    batching.flush()
    messages = [consumer.receive(30_000) for _ in range(5)]
    consumer.acknowledge(messages[1])
    consumer.close()
    peek = f"{path}/subscription/s/position/"
    assert get(f"{peek}1").content == b"0"
    assert get(f"{peek}2").content == b"2"
    batch = get(f"{peek}3")
    assert batch.headers["X-Pulsar-num-batch-message"] == "2"
    assert batch.content.count(b"batched") == 2
    assert get(f"{peek}4").status_code == 404


def test_examine_counts_from_either_end(client: pulsar.Client, path: str, topic: str) -> None:
    client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(3):
        producer.send(b"%d" % n)
    url = f"{path}/examinemessage"
    for end, nth, payload in (("earliest", 1, b"0"), ("latest", 1, b"2"), ("latest", 3, b"0")):
        query: dict[str, str | int] = {"initialPosition": end, "messagePosition": nth}
        assert get(url, params=query).content == payload


def test_peek_of_an_unknown_subscription_shows_the_first_messages(
    client: pulsar.Client, path: str, topic: str
) -> None:
    client.subscribe(topic, "keeper")
    client.create_producer(topic).send(b"first")
    assert b"first" in get(f"{path}/subscription/unknown/position/1").content
    assert get(f"{path}/subscription/unknown/position/2").status_code == 404


def test_an_id_is_found_by_time(client: pulsar.Client, path: str, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(3):
        producer.send(b"%d" % n)
        time.sleep(0.01)
    messages = [consumer.receive(30_000) for _ in range(3)]
    for message in messages:
        at, expected = message.publish_timestamp(), message.message_id()
        answer = get(f"{path}/messageid/{at}").json()
        assert (answer["ledgerId"], answer["entryId"]) == (
            expected.ledger_id(),
            expected.entry_id(),
        )
    last = messages[2].message_id()
    answer = get(f"{path}/messageid/{messages[2].publish_timestamp() + 60_000}").json()
    assert (answer["ledgerId"], answer["entryId"]) == (last.ledger_id(), last.entry_id() + 1)
