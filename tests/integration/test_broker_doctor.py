"""``magnetar doctor`` against a running broker, with faults planted in it."""

import json
import uuid
from typing import Any

import httpx
import pulsar
import pytest

from magnetar.broker.cli.main import main


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
    assert "subscription s exceeds the backlog quota destination_storage" in quota_found["sentence"]
