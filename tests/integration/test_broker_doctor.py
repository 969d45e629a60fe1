"""``magnetar doctor`` against a running broker, with faults planted in it."""

import json
import uuid
from typing import Any

import httpx
import pulsar
import pytest

import magnetar
from magnetar.broker.cli.main import main
from tests.official_client import client_of


@pytest.fixture
def namespace(http: httpx.Client) -> str:
    name = f"public/doctor-{uuid.uuid4().hex[:8]}"
    assert http.put(f"/admin/v2/namespaces/{name}").status_code == 204
    return name


@pytest.fixture
def topic(namespace: str) -> str:
    return f"persistent://{namespace}/t"


def examined(
    admin_url: str, capsys: pytest.CaptureFixture[str], subject: str
) -> dict[str, dict[str, Any]]:
    """The findings by check about a subject, of a broker that others use at the same time."""
    assert main(["doctor", "--admin-url", admin_url, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["notLookedAt"] == []
    found = [each for each in report["findings"] if each["subject"].startswith(subject)]
    return {each["check"]: each for each in found}


def test_producers_that_a_quota_holds(
    http: httpx.Client,
    client: pulsar.Client,
    admin_url: str,
    namespace: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    producer.send(b"x" * 100)
    quota = {"limitSize": 10, "limitTime": -1, "policy": "producer_request_hold"}
    answer = http.post(f"/admin/v2/namespaces/{namespace}/backlogQuota", json=quota)
    assert answer.status_code == 204
    quota_found = examined(admin_url, capsys, topic)["backlog-quota"]
    assert quota_found["severity"] == "critical"
    assert "the backlog quota destination_storage is 10 bytes" in quota_found["sentence"]


def test_a_consumer_that_asks_for_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        magnetar.embedded(clock="virtual") as broker,
        client_of(broker.service_url) as client,
    ):
        client.subscribe("t", "nobody").close()
        shared = pulsar.ConsumerType.Shared
        consumer = client.subscribe("t", "hangs", consumer_type=shared, receiver_queue_size=1)
        producer = client.create_producer("t", batching_enabled=False)
        for _ in range(5):
            producer.send(b"x")
        broker.advance("2m")
        found = examined(broker.web_url, capsys, "persistent://public/default/t")
        consumer.close()
    assert set(found) == {"subscription-stuck", "subscription-idle"}
    stuck = found["subscription-stuck"]
    assert stuck["severity"] == "critical"
    assert "5 entries wait. Consumer" in stuck["sentence"]
    assert "has no permits" in stuck["sentence"]
    assert stuck["command"].endswith("topics explain persistent://public/default/t -s hangs")
    assert found["subscription-idle"]["severity"] == "note"
