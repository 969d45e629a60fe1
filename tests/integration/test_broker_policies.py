"""Quotas and rates with the official client; the same against Apache Pulsar.

Times are only ever bounded from below: a loaded machine is late, never early.
"""

import json
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.official_client import client_of

DEADLINE_S = 30.0
KILOBYTE = bytes(995)
BLOCKED = {
    "producer_request_hold": pulsar.ProducerBlockedQuotaExceededError,
    "producer_exception": pulsar.ProducerBlockedQuotaExceededException,
}


@pytest.fixture
def client(service_url: str) -> Iterator[pulsar.Client]:
    with client_of(service_url, operation_timeout_seconds=15) as client:
        yield client


class Space:
    """A namespace of the test's own, and one topic in it."""

    def __init__(self, admin: httpx.Client, namespace: str) -> None:
        self.admin, self.namespace = admin, namespace
        self.topic = f"persistent://{namespace}/t"

    def set(self, policy: str, value: object, method: str = "POST") -> None:
        path = f"/admin/v2/namespaces/{self.namespace}/{policy}"
        answer = self.admin.request(method, path, json=value)
        assert answer.is_success, answer.text

    def stats(self) -> dict[str, Any]:
        answer = self.admin.get(f"/admin/v2/persistent/{self.namespace}/t/stats")
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def websocket(self) -> ClientConnection:
        """A producer's."""
        url = str(self.admin.base_url).replace("http://", "ws://").rstrip("/")
        url += f"/ws/v2/producer/persistent/{self.namespace}/t"
        return connect(url, compression=None, open_timeout=DEADLINE_S)

    def check_quotas(self) -> None:
        assert self.admin.get("/admin/v2/brokers/backlog-quota-check").status_code == 204

    def wait_for(self, field: str, expected: object, read: Any) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while (found := read(self.stats())) != expected:
            assert time.monotonic() < deadline, f"{field} is {found}, not {expected}"
            time.sleep(0.05)


@pytest.fixture
def space(admin_url: str) -> Iterator[Space]:
    with httpx.Client(base_url=admin_url, timeout=30) as admin:
        tenant = f"t{secrets.token_hex(4)}"
        clusters = admin.get("/admin/v2/clusters").json()  # others may have added some
        allowed = {"allowedClusters": ["standalone"] if "standalone" in clusters else clusters}
        assert admin.put(f"/admin/v2/tenants/{tenant}", json=allowed).is_success
        assert admin.put(f"/admin/v2/namespaces/{tenant}/ns").is_success
        yield Space(admin, f"{tenant}/ns")
        for topic in admin.get(f"/admin/v2/persistent/{tenant}/ns").json():
            admin.delete(f"/admin/v2/persistent/{tenant}/ns/{topic.rsplit('/', 1)[1]}?force=true")
        admin.delete(f"/admin/v2/namespaces/{tenant}/ns")
        admin.delete(f"/admin/v2/tenants/{tenant}")


def backlog_of_twenty(client: pulsar.Client, space: Space) -> tuple[Any, Any]:
    consumer = client.subscribe(
        space.topic, "s", consumer_type=ConsumerType.Shared, receiver_queue_size=1
    )
    producer = client.create_producer(
        space.topic, batching_enabled=False, send_timeout_millis=5_000
    )
    for number in range(20):
        producer.send(b"%05d" % number + KILOBYTE)
    return consumer, producer


def drain(consumer: Any, until: bytes) -> list[bytes]:
    """Numbers of the messages up to one."""
    got: list[bytes] = []
    while not got or got[-1] != until:
        message = consumer.receive(int(DEADLINE_S * 1_000))
        got.append(message.data()[:5])
        consumer.acknowledge(message)
    return got


@pytest.mark.parametrize("action", BLOCKED)
def test_a_large_backlog_blocks_producers(client: pulsar.Client, space: Space, action: str) -> None:
    consumer, producer = backlog_of_twenty(client, space)
    space.set("backlogQuota", {"limitSize": 10_000, "limitTime": -1, "policy": action})
    space.check_quotas()
    space.wait_for("producers", 0, lambda stats: len(stats["publishers"]))
    with pytest.raises(BLOCKED[action]):
        client.create_producer(space.topic)
    # Held until the time to send is over, or failed at once with the reason.
    blocked = pulsar.Timeout if action == "producer_request_hold" else BLOCKED[action]
    with pytest.raises(blocked):
        producer.send(b"more")
    assert drain(consumer, b"00019") == [b"%05d" % number for number in range(20)]
    space.wait_for("backlog", 0, lambda stats: stats["subscriptions"]["s"]["msgBacklog"])
    client.create_producer(space.topic).send(b"again")


def test_eviction_drops_the_oldest_messages(client: pulsar.Client, space: Space) -> None:
    consumer, producer = backlog_of_twenty(client, space)
    space.set(
        "backlogQuota",
        {"limitSize": 10_000, "limitTime": -1, "policy": "consumer_backlog_eviction"},
    )
    space.check_quotas()
    space.wait_for("small", True, lambda stats: stats["backlogSize"] < 10_000)
    left = space.stats()["subscriptions"]["s"]["msgBacklog"]
    assert left in {8, 9}
    assert len(space.stats()["publishers"]) == 1
    producer.send(b"last.")
    got = drain(consumer, b"last.")
    assert got[-1 - left :] == [*(b"%05d" % number for number in range(20 - left, 20)), b"last."]
    assert len(got) <= left + 3  # the client had prefetched a few


def test_a_publish_rate_slows_producers_down(client: pulsar.Client, space: Space) -> None:
    space.set("publishRate", {"publishThrottlingRateInMsg": 200, "publishThrottlingRateInByte": -1})
    producer = client.create_producer(space.topic, batching_enabled=False)
    done = threading.Semaphore(0)
    failed: list[object] = []

    def on_sent(result: object, _: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)
        done.release()

    started = time.monotonic()
    for _ in range(1_000):
        producer.send_async(bytes(100), on_sent)
    for _ in range(1_000):
        assert done.acquire(timeout=DEADLINE_S)
    # A second's worth may come at once, and pieces of what one read brings on top.
    assert time.monotonic() - started >= 2.5
    assert not failed
    stats = space.stats()
    assert stats["msgInCounter"] == 1_000
    assert stats["publishRateLimitedTimes"] > 0


def test_a_publish_rate_slows_rest_down(
    space: Space, external_server: tuple[str, str] | None
) -> None:
    if external_server is not None:
        pytest.skip("Pulsar's REST isn't limited")
    space.set("publishRate", {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": -1})
    messages = [{"payload": "aGk="}] * 50
    started = time.monotonic()
    for _ in range(8):
        answer = space.admin.post(
            f"/topics/persistent/{space.namespace}/t", json={"messages": messages}
        )
        assert answer.status_code == 200
        assert all(each["errorCode"] == 0 for each in answer.json()["messagePublishResults"])
    assert time.monotonic() - started >= 2.0
    assert space.stats()["msgInCounter"] == 400


def test_a_publish_rate_slows_websockets_down(
    space: Space, external_server: tuple[str, str] | None
) -> None:
    if external_server is not None:
        pytest.skip("Pulsar's WebSocket proxy waits for its own client only")
    space.set("publishRate", {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": -1})
    started = time.monotonic()
    with space.websocket() as socket:
        for number in range(400):
            socket.send(json.dumps({"payload": "aGk=", "context": str(number)}))
        for number in range(400):
            answer = json.loads(socket.recv(timeout=DEADLINE_S))
            assert (answer["result"], answer["context"]) == ("ok", str(number))
    assert time.monotonic() - started >= 2.0
    assert space.stats()["msgInCounter"] == 400


def test_a_websocket_is_refused_while_the_backlog_is_large(
    client: pulsar.Client, space: Space, external_server: tuple[str, str] | None
) -> None:
    if external_server is not None:
        pytest.skip("Pulsar leaves the upgrade without an answer for more than 30 s")
    backlog_of_twenty(client, space)
    space.set(
        "backlogQuota", {"limitSize": 10_000, "limitTime": -1, "policy": "producer_exception"}
    )
    with pytest.raises(InvalidStatus) as refused:
        space.websocket()
    assert refused.value.response.status_code == 503


@pytest.mark.parametrize("of", ["topic", "subscriptions", "one subscription"])
def test_a_dispatch_rate_slows_consumers_down(client: pulsar.Client, space: Space, of: str) -> None:
    producer = client.create_producer(space.topic, batching_enabled=False)
    for _ in range(999):
        producer.send_async(b"x", None)
    producer.send(b"x")
    rate = {
        "dispatchThrottlingRateInMsg": 200,
        "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }
    if of == "one subscription":
        path = f"/admin/v2/persistent/{space.namespace}/t/s/dispatchRate"
        assert space.admin.post(path, json=rate).is_success
    else:
        space.set("dispatchRate" if of == "topic" else "subscriptionDispatchRate", rate)
    started = time.monotonic()
    consumer = client.subscribe(space.topic, "s", initial_position=InitialPosition.Earliest)
    for _ in range(1_000):
        consumer.acknowledge(consumer.receive(int(DEADLINE_S * 1_000)))
    assert time.monotonic() - started >= 2.5
    assert space.stats()["subscriptions"]["s"]["msgOutCounter"] == 1_000


def test_unacknowledged_messages_are_limited(client: pulsar.Client, space: Space) -> None:
    space.set("maxUnackedMessagesPerConsumer", 10)
    consumer = client.subscribe(space.topic, "s", consumer_type=ConsumerType.Shared)
    producer = client.create_producer(space.topic, batching_enabled=False)
    for number in range(100):
        producer.send(b"%05d" % number)
    space.wait_for(
        "blocked",
        True,
        lambda stats: stats["subscriptions"]["s"]["consumers"][0]["blockedConsumerOnUnackedMsgs"],
    )
    assert space.stats()["subscriptions"]["s"]["unackedMessages"] < 100
    got: set[bytes] = set()
    while len(got) < 100:
        message = consumer.receive(int(DEADLINE_S * 1_000))
        got.add(message.data())
        consumer.acknowledge(message)


def test_a_delay_beyond_the_longest_is_refused(
    space: Space, external_server: tuple[str, str] | None
) -> None:
    """By REST: the C++ client sends a refused message again and again."""
    if external_server is not None:
        pytest.skip("Pulsar's REST isn't limited")
    space.set(
        "delayedDelivery", {"active": True, "tickTime": 1_000, "maxDeliveryDelayInMillis": 60_000}
    )
    now_ms = int(time.time() * 1_000)
    answer = space.admin.post(
        f"/topics/persistent/{space.namespace}/t",
        json={
            "messages": [
                {"payload": "aGk=", "deliverAt": now_ms + delay_ms}
                for delay_ms in (3_600_000, 30_000)
            ]
        },
    )
    codes = [each["errorCode"] for each in answer.json()["messagePublishResults"]]
    assert codes[0] != 0
    assert codes[1] == 0
