"""Statistics of topics after what happened to them; Magnetar, or Pulsar by the options."""

import secrets
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pulsar
import pytest

from tests.waiting import wait_until


@pytest.fixture
def name(admin: httpx.Client) -> Iterator[str]:
    name = f"statistics-{secrets.token_hex(4)}"
    yield name
    for suffix in ("?force=true", "/partitions?force=true"):
        admin.delete(f"/persistent/public/default/{name}{suffix}")


def answer(admin: httpx.Client, path: str) -> dict[str, Any]:
    response = admin.get(path)
    response.raise_for_status()
    found: dict[str, Any] = response.json()
    return found


def unload(admin: httpx.Client, path: str) -> None:
    assert admin.put(f"{path}/unload").status_code == 204


def test_what_a_topic_knows_of_its_past_survives_an_unload(
    admin: httpx.Client, client: pulsar.Client, name: str
) -> None:
    path = f"/persistent/public/default/{name}"
    began_ms = time.time() * 1000
    producer = client.create_producer(f"public/default/{name}", batching_enabled=False)
    created_ms = answer(admin, f"{path}/stats")["topicCreationTimeStamp"]
    producer.send(b"x")
    published_ms = answer(admin, f"{path}/stats")["lastPublishTimeStamp"]
    assert began_ms - 60_000 < created_ms <= published_ms + 60_000  # perhaps another clock
    producer.close()
    for _ in range(2):
        unload(admin, path)
        stats = answer(admin, f"{path}/stats")
        assert stats["topicCreationTimeStamp"] == created_ms
        assert began_ms - 1 <= stats["lastPublishTimeStamp"] <= published_ms


def test_the_time_of_the_last_message_is_nought_without_one(
    admin: httpx.Client, client: pulsar.Client, name: str
) -> None:
    path = f"/persistent/public/default/{name}"
    client.create_producer(f"public/default/{name}").close()
    unload(admin, path)
    assert answer(admin, f"{path}/stats")["lastPublishTimeStamp"] == 0


def test_holes_are_shown_as_they_are_stored(
    admin: httpx.Client, client: pulsar.Client, name: str
) -> None:
    path, topic = f"/persistent/public/default/{name}", f"public/default/{name}"
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(8):
        producer.send(b"%d" % number)
    messages = [consumer.receive(60_000) for _ in range(8)]
    for number in (0, 1, 3, 4, 6):
        consumer.acknowledge(messages[number])
    ledger = messages[0].message_id().ledger_id()

    def backlog() -> int:
        count: int = answer(admin, f"{path}/stats")["subscriptions"]["s"]["msgBacklog"]
        return count

    wait_until(lambda: backlog() == 3, "the acknowledgements")
    shown = answer(admin, f"{path}/internalStats")["cursors"]["s"]
    assert shown["markDeletePosition"] == f"{ledger}:1"
    assert shown["readPosition"] == f"{ledger}:8"
    assert shown["individuallyDeletedMessages"] == (
        f"[({ledger}:2..{ledger}:4],({ledger}:5..{ledger}:6]]"
    )
    assert shown["numberOfEntriesSinceFirstNotAckedMessage"] == 7
    consumer.close()
    producer.close()
    unload(admin, path)
    stored = answer(admin, f"{path}/internal-info")["cursors"]["s"]
    assert stored["markDelete"] == {"ledgerId": ledger, "entryId": 1}
    assert stored["individualDeletedMessages"] == [
        {"from": {"ledgerId": ledger, "entryId": low}, "to": {"ledgerId": ledger, "entryId": high}}
        for low, high in ((2, 4), (5, 6))
    ]


def test_a_sum_over_partitions_keeps_times_and_means(
    admin: httpx.Client, client: pulsar.Client, name: str
) -> None:
    path, topic = f"/persistent/public/default/{name}", f"public/default/{name}"
    assert admin.put(f"{path}/partitions", json=2).status_code == 204
    consumer = client.subscribe(topic, "s", consumer_name="c")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(20):
        producer.send(b"%d" % number)
    for _ in range(20):
        consumer.receive(60_000)
    stats = answer(admin, f"{path}/partitioned-stats")
    parts = list(stats["partitions"].values())
    created = [each["topicCreationTimeStamp"] for each in parts]
    assert stats["topicCreationTimeStamp"] == min(created)
    (total,) = stats["subscriptions"]["s"]["consumers"]
    each = [part["subscriptions"]["s"]["consumers"][0] for part in parts]
    assert len(each) == 2
    for field in ("firstMessagesSentTimestamp", "firstConsumedFlowTimestamp"):
        assert total[field] in [one[field] for one in each]  # not their sum
    assert total["avgMessagesPerEntry"] in (0, 1)  # Pulsar doesn't sum it up
    assert total["msgOutCounter"] == 20
