"""REST produce and consume of a real server; consume is Magnetar's own, skipped on others."""

import base64
import secrets
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.official_client import open_client
from tests.standalone_process import StandaloneProcess


@pytest.fixture
def topic(http: httpx.Client) -> Iterator[str]:
    name = f"public/default/rest-{secrets.token_hex(5)}"
    assert http.put(f"/admin/v2/persistent/{name}").status_code == 204
    yield name
    http.delete(f"/admin/v2/persistent/{name}?force=true")


@pytest.fixture
def subscription(
    http: httpx.Client, topic: str, external_server: tuple[str, str] | None
) -> Iterator[str]:
    if external_server is not None and http.get("/admin/v2/brokers/version").text[:1] != "0":
        pytest.skip("REST consume is Magnetar's own")
    path = f"/topics/persistent/{topic}/subscription/s"
    assert http.put(f"{path}/session").status_code == 200
    yield path
    http.delete(f"{path}/session")


def produce(http: httpx.Client, topic: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    answer = http.post(f"/topics/persistent/{topic}", json={"messages": list(messages)})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["messagePublishResults"]
    assert len(results) == len(messages)
    return results


def take(http: httpx.Client, path: str, count: int, **query: Any) -> list[dict[str, Any]]:
    """Poll until that many messages came."""
    messages: list[dict[str, Any]] = []
    deadline = time.monotonic() + 30
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came"
        params = {"max": count - len(messages), "waitMs": 1000, **query}
        answer = http.get(f"{path}/messages", params=params)
        assert answer.status_code == 200, answer.text
        messages += answer.json()["messages"]
    return messages


def test_produce_answers_each_message_in_order(http: httpx.Client, topic: str) -> None:
    results = produce(http, topic, *({"payload": str(i)} for i in range(20)))
    assert [result.get("errorCode", 0) for result in results] == [0] * 20
    ids = [tuple(map(int, result["messageId"].split(":"))) for result in results]
    assert ids == sorted(ids)
    last = http.get(f"/admin/v2/persistent/{topic}/lastMessageId").json()
    assert (last["ledgerId"], last["entryId"]) == ids[-1][:2]


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"messages": []},
        {"messages": [5]},
        {"messages": [{}]},
        {"messages": [{"payload": 5}]},
        {"messages": [{"payload": "x", "key": 5}]},
        {"messages": [{"payload": "x", "properties": {"a": 1}}]},
        {"messages": [{"payload": "x", "eventTime": "soon"}]},
        {"messages": [{"payload": "x", "sequenceId": -1}]},
        {"messages": [{"payload": "x"}], "valueSchema": "not json"},
    ],
)
def test_a_bad_body_is_refused_and_stores_nothing(
    http: httpx.Client, topic: str, subscription: str, body: Any
) -> None:
    answer = http.post(f"/topics/persistent/{topic}", json=body)
    assert answer.status_code == 400
    assert answer.json()["reason"]
    assert http.get(f"/admin/v2/persistent/{topic}/stats").json()["msgInCounter"] == 0


def test_text_that_is_not_json(http: httpx.Client, topic: str) -> None:
    headers = {"content-type": "application/json"}
    answer = http.post(f"/topics/persistent/{topic}", content=b"{", headers=headers)
    assert answer.status_code == 400


def test_messages_come_back_whole(http: httpx.Client, topic: str, subscription: str) -> None:
    produce(
        http,
        topic,
        {"payload": "héllo", "key": "k", "properties": {"a": "b"}, "eventTime": "5"},
        {"payload": ""},
    )
    first, second = take(http, subscription, 2)
    assert (first["payload"], first["encoding"], first["key"]) == ("héllo", "text", "k")
    assert (first["properties"], first["eventTime"]) == ({"a": "b"}, 5)
    assert second["payload"] == ""
    assert "key" not in second


def test_acknowledged_messages_do_not_come_again(
    http: httpx.Client, topic: str, subscription: str
) -> None:
    produce(http, topic, *({"payload": str(i)} for i in range(4)))
    messages = take(http, subscription, 4)
    tokens = [message["token"] for message in messages]
    acked = http.post(f"{subscription}/ack", json={"tokens": tokens[:2]})
    assert acked.json() == {"acknowledged": 2, "alreadyAcknowledged": [], "unknown": []}
    assert http.delete(f"{subscription}/session").status_code == 204
    again = take(http, subscription, 2)
    assert [message["payload"] for message in again] == ["2", "3"]


def test_an_answered_acknowledgement_survives_a_kill(fresh_standalone: StandaloneProcess) -> None:
    topic, path = "public/default/kept", "/topics/persistent/public/default/kept/subscription/s"
    with httpx.Client(base_url=fresh_standalone.admin_url, timeout=30) as http:
        assert http.put(f"{path}/session").status_code == 200
        produce(http, topic, *({"payload": str(i)} for i in range(3)))
        tokens = [message["token"] for message in take(http, path, 3)]
        acked = http.post(f"{path}/ack", json={"tokens": tokens[:2]})
        assert acked.json()["acknowledged"] == 2
        fresh_standalone.kill()
    fresh_standalone.start()
    with httpx.Client(base_url=fresh_standalone.admin_url, timeout=30) as http:
        assert [message["payload"] for message in take(http, path, 1)] == ["2"]
        again = http.post(f"{path}/ack", json={"tokens": tokens}).json()
        assert again == {"acknowledged": 1, "alreadyAcknowledged": tokens[:2], "unknown": []}


def test_a_returned_message_comes_again(http: httpx.Client, topic: str, subscription: str) -> None:
    produce(http, topic, {"payload": "x"})
    (first,) = take(http, subscription, 1)
    returned = http.post(f"{subscription}/nack", json={"tokens": [first["token"]]})
    assert returned.json() == {"returned": 1, "alreadyAcknowledged": [], "unknown": []}
    (second,) = take(http, subscription, 1)
    assert second["token"] == first["token"]
    assert second["redeliveryCount"] == first["redeliveryCount"] + 1


def test_an_unacknowledged_message_comes_again_after_its_lease(
    http: httpx.Client, topic: str, subscription: str
) -> None:
    http.delete(f"{subscription}/session")
    produce(http, topic, {"payload": "x"})
    (first,) = take(http, subscription, 1, leaseMs=1000, position="earliest")
    (second,) = take(http, subscription, 1)
    assert second["token"] == first["token"]


def test_an_empty_poll_waits_and_answers(http: httpx.Client, topic: str, subscription: str) -> None:
    start = time.monotonic()
    answer = http.get(f"{subscription}/messages", params={"waitMs": 300})
    assert answer.json()["messages"] == []
    assert time.monotonic() - start >= 0.25


@pytest.mark.parametrize("tokens", [[], ["x"], [5], ["AAAA"], None])
def test_bad_tokens(http: httpx.Client, topic: str, subscription: str, tokens: Any) -> None:
    assert http.post(f"{subscription}/ack", json={"tokens": tokens}).status_code == 400


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_batches_of_the_official_client_are_unpacked(
    http: httpx.Client, topic: str, subscription: str, service_url: str, compression: str
) -> None:
    pulsar = pytest.importorskip("pulsar")
    client = open_client(service_url)
    try:
        producer = client.create_producer(
            f"persistent://{topic}",
            compression_type=getattr(pulsar.CompressionType, compression),
            batching_enabled=True,
            batching_max_publish_delay_ms=200,
        )
        for i in range(10):
            producer.send_async(bytes([0xFF]) + b"x" * 100 + str(i).encode(), lambda *_: None)
        producer.flush()
        messages = take(http, subscription, 10)
    finally:
        client.close()
    payloads = [base64.b64decode(message["payload"]) for message in messages]
    assert payloads == [bytes([0xFF]) + b"x" * 100 + str(i).encode() for i in range(10)]
