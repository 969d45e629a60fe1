"""``explain`` by REST and command line, with the official client."""

import json
import secrets
from typing import Any

import httpx
import pulsar
import pytest

from magnetar.broker.cli.main import main
from tests.waiting import wait_until

SHARED = pulsar.ConsumerType.Shared


def reason(admin: httpx.Client, url: str, message: pulsar.MessageId | None = None) -> str:
    known = {}
    if message is not None:
        known = {"messageId": f"{message.ledger_id()}:{message.entry_id()}"}
    answer = admin.get(url, params=known)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["reason"])


def test_what_becomes_of_messages(
    admin: httpx.Client,
    admin_url: str,
    client: pulsar.Client,
    capsys: pytest.CaptureFixture[str],
) -> None:
    local = f"explain-{secrets.token_hex(4)}"
    topic, path = f"persistent://public/default/{local}", f"/persistent/public/default/{local}"
    url = f"{path}/subscription/s/explain"
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, receiver_queue_size=2)
    assert reason(admin, url) == "noProducer"
    producer = client.create_producer(topic, batching_enabled=False)
    assert reason(admin, url) == "caughtUp"
    ids = [producer.send(b"x") for _ in range(6)]
    wait_until(lambda: reason(admin, url) == "noPermits", "a client that takes nothing")
    assert reason(admin, url, ids[0]) == "pending"
    assert reason(admin, url, ids[5]) == "noPermits"
    consumer.acknowledge(consumer.receive(30_000))
    wait_until(lambda: reason(admin, url, ids[0]) == "acknowledged", "an acknowledgment")
    consumer.close()
    assert admin.get(f"{path}/explain").json()["s"]["reason"] == "noConsumer"
    missing = {"messageId": "999999:0"}
    everywhere = admin.get(f"{path}/explain", params=missing).json()
    assert {of: each["reason"] for of, each in everywhere.items()} == {"s": "pastEnd"}

    def said(*words: str) -> Any:
        assert main(["admin", "--admin-url", admin_url, "topics", "explain", topic, *words]) == 0
        return json.loads(capsys.readouterr().out)

    assert said("-s", "s")["message"] == "No consumer is connected."
    assert said("-s", "s", "-m", f"{ids[0].ledger_id()}:0")["reason"] == "acknowledged"
    assert list(said()) == ["s"]
    admin.delete(path, params={"force": "true"})


def test_partitions_and_refusals(admin: httpx.Client) -> None:
    local = f"explain-{secrets.token_hex(4)}"
    path = f"/persistent/public/default/{local}"
    url = f"{path}/subscription/s/explain"
    assert admin.get(url).status_code == 404
    assert admin.put(f"{path}/partitions", json=2).is_success
    assert admin.get(url).status_code == 404
    assert admin.put(f"{path}/subscription/s").is_success
    names = [f"persistent://public/default/{local}-partition-{nth}" for nth in range(2)]
    answer = admin.get(url).json()
    assert {name: each["reason"] for name, each in answer.items()} == dict.fromkeys(
        names, "noProducer"
    )
    answer = admin.get(f"{path}/explain").json()
    assert {name: list(each) for name, each in answer.items()} == {name: ["s"] for name in names}

    def asked(base: str, message: str) -> httpx.Response:
        return admin.get(f"{base}/subscription/s/explain", params={"messageId": message})

    assert asked(path, "7:0:1").json()["reason"] == "pastEnd"
    assert asked(f"{path}-partition-1", "7:0:1").json()["reason"] == "pastEnd"
    assert asked(f"{path}-partition-1", "7:0").json()["reason"] == "pastEnd"
    assert asked(f"{path}-partition-1", "7:0:1:3").json()["reason"] == "pastEnd"
    assert asked(f"{path}-partition-1", "7:0:0").status_code == 412
    assert [asked(path, text).status_code for text in ("7:0", "7:0:2")] == [412, 412]
    assert [asked(path, text).json()["reason"] for text in ("-1:-1", "-1:-1:0")] == ["notFound"] * 2
    assert [asked(path, text).status_code for text in ("7", "x:y", "-1:0")] == [400, 400, 400]
    assert asked(path, "x:y").json()["reason"].endswith("ledger:entry:partition:batch index")
    for printed in ("7:0:1:-1", "(7,0,1,-1)", "(7,0,1,2)"):
        assert asked(path, printed).json()["reason"] == "pastEnd"
    volatile = f"/non-persistent/public/default/{local}"
    assert asked(volatile, "7:0").status_code == 405
    admin.delete(f"{path}/partitions", params={"force": "true"})


def test_what_no_consumer_acknowledged_for_its_application(
    admin: httpx.Client, client: pulsar.Client
) -> None:
    """What expired, and what clients moved to a retry letter or dead letter topic."""
    local = f"explain-{secrets.token_hex(4)}"
    topic, path = f"persistent://public/default/{local}", f"/persistent/public/default/{local}"
    url = f"{path}/subscription/s/explain"
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    sent = client.create_producer(topic, batching_enabled=False).send(b"x")
    where = {"messageId": f"{sent.ledger_id()}:{sent.entry_id()}"}
    consumer.acknowledge(consumer.receive(30_000))
    wait_until(lambda: reason(admin, url, sent) == "acknowledged", "an acknowledgment")
    assert "letterTopics" not in admin.get(url, params=where).json()
    assert admin.put(f"{path}-s-DLQ").is_success
    assert admin.get(url, params=where).json()["letterTopics"] == [f"{topic}-s-DLQ"]
    assert admin.put(f"{path}/subscription/t", json={"ledgerId": -1, "entryId": -1}).is_success
    url = f"{path}/subscription/t/explain"

    def expired() -> bool:
        admin.post(f"{path}/subscription/t/expireMessages/1")  # what is older than a second
        told = admin.get(url).json()
        return (
            told.get("expiredEntries") == 1 and "1 entry expired unacknowledged" in told["message"]
        )

    wait_until(expired, "the expiry")
    assert admin.get(url, params=where).json()["expiredEntries"] == 1
    for each in (path, f"{path}-s-DLQ"):
        admin.delete(each, params={"force": "true"})


def test_without_storage(admin: httpx.Client, client: pulsar.Client) -> None:
    local = f"explain-{secrets.token_hex(4)}"
    topic = f"non-persistent://public/default/{local}"
    consumer = client.subscribe(topic, "s")
    url = f"/non-persistent/public/default/{local}/subscription/s/explain"
    wait_until(lambda: reason(admin, url) == "noProducer", "a consumer with permits")
    client.create_producer(topic)
    assert reason(admin, url) == "delivering"
    consumer.close()
