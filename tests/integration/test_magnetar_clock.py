"""The official client at embedded brokers whose clock tests set ahead."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.embedding import EmbeddedBroker
from magnetar.errors import EmbeddedError
from magnetar.fresh_namespace import FreshNamespace
from tests.official_client import client_of

_MS_MAX = 30_000
_DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Its clock is already ahead when a test begins."""
    with magnetar.embedded(clock="virtual", forceDeleteTenantAllowed=True) as broker:
        broker.advance("30d")
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[pulsar.Client]:
    with client_of(broker.service_url) as client:
        yield client


@pytest.fixture
def space(broker: EmbeddedBroker) -> Iterator["Space"]:
    with Space(broker) as space:
        yield space


class Space(FreshNamespace):
    """With one topic, whose admin calls are short."""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """``path`` begins behind the topic's."""
        return self.admin(method, f"/admin/v2/persistent/{self.namespace}/t/{path}", body)

    def set(self, policy: str, value: Any) -> None:
        self.admin("POST", f"/admin/v2/namespaces/{self.namespace}/{policy}", value)

    def backlog(self) -> int:
        count: int = self.ask("GET", "stats")["subscriptions"]["s"]["msgBacklog"]
        return count


def is_empty(consumer: pulsar.Consumer) -> bool:
    """Nothing has come: what the broker has sent is there within a few milliseconds."""
    try:
        consumer.receive(100)
    except pulsar.Timeout:
        return True
    return False


def test_a_day_s_delay_passes_at_once(broker: EmbeddedBroker, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("t")
    for payload in (b"first", b"second"):
        producer.send(payload, deliver_after=_DAY)
        broker.advance("23h 59m")
        assert is_empty(consumer)
        broker.advance(timedelta(minutes=1))
        message = consumer.receive(_MS_MAX)
        assert message.data() == payload
        consumer.acknowledge(message)
    with pytest.raises(ValueError, match="back"):
        broker.advance(-1)
    with pytest.raises(ValueError, match="no duration"):
        broker.advance("2 hours")
    for endless in (float("nan"), float("inf"), 1e30, 10**400, "9" * 400 + "w"):
        with pytest.raises(ValueError, match="10,000 years"):
            broker.advance(endless)


def test_a_real_clock_is_not_advanced() -> None:
    with magnetar.embedded() as broker, pytest.raises(EmbeddedError, match='clock="virtual"'):
        broker.advance("1h")
    with pytest.raises(EmbeddedError, match="isn't running"):
        magnetar.embedded(clock="virtual").advance("1h")
    with pytest.raises(ValueError, match="lunar"):
        magnetar.embedded(clock="lunar")  # type: ignore[arg-type] # the test's point


def test_messages_outlive_their_time_to_live_by_one_check(
    space: Space, client: pulsar.Client
) -> None:
    space.set("messageTTL", 3600)
    topic = space.topic("t")
    client.subscribe(topic, "s").close()
    client.create_producer(topic).send(b"x")
    space.advance("59m")
    assert space.backlog() == 1
    space.advance("7m")
    assert space.backlog() == 0


def test_retained_ledgers_go_in_time(space: Space, client: pulsar.Client) -> None:
    space.set("retention", {"retentionTimeInMinutes": 600, "retentionSizeInMB": -1})
    topic = space.topic("t")
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    for payload in (b"x" * 1000, b"y"):
        producer.send(payload)
        consumer = client.subscribe(topic, "s")
        consumer.acknowledge(consumer.receive(_MS_MAX))
        consumer.close()  # or the acknowledgment would leave 100 ms later
        space.advance("5h")  # a ledger is written for four hours at most
        assert space.ask("GET", "stats")["storageSize"] > 1000
    space.advance("5h")
    assert 0 < space.ask("GET", "stats")["storageSize"] < 1000


def test_the_last_message_is_retained_no_longer_than_others(
    space: Space, client: pulsar.Client
) -> None:
    """Its ledger is closed after four hours, give or take 5 %, and kept for one hour more."""
    space.set("retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
    topic = space.topic("t")
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x" * 1000)
    consumer.acknowledge(consumer.receive(_MS_MAX))
    consumer.close()
    space.advance("4h 47m")
    assert space.ask("GET", "stats")["storageSize"] > 1000
    space.advance("46m")  # and two of the periodic checks
    assert space.ask("GET", "stats")["storageSize"] == 0
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()


def test_what_nobody_uses_goes_in_time(space: Space, client: pulsar.Client) -> None:
    space.set("subscriptionExpirationTime", 60)
    inactive = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 7200,
        "deleteWhileInactive": True,
    }
    space.set("inactiveTopicPolicies", inactive)
    topic = space.topic("t")
    client.subscribe(topic, "s").close()
    space.advance("58m")
    assert list(space.ask("GET", "stats")["subscriptions"]) == ["s"]
    space.advance("10m")
    assert list(space.ask("GET", "stats")["subscriptions"]) == []
    space.advance("3h")
    assert space.admin("GET", f"/admin/v2/persistent/{space.namespace}") == []


def test_a_backlog_may_be_too_old(space: Space, client: pulsar.Client) -> None:
    quota = {"limitTime": 7200, "policy": "consumer_backlog_eviction"}
    space.set("backlogQuota?backlogQuotaType=message_age", quota)
    topic = space.topic("t")
    client.subscribe(topic, "s").close()
    client.create_producer(topic).send(b"x")
    space.advance("1h")
    assert space.backlog() == 1
    space.advance("70m")
    assert space.backlog() == 0


def test_a_reader_finds_messages_by_their_own_stamps(space: Space, client: pulsar.Client) -> None:
    topic = space.topic("t")
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    stamps = []
    for number in range(3):
        producer.send(b"%d" % number)
        message = consumer.receive(_MS_MAX)
        stamps.append(message.publish_timestamp())
        consumer.acknowledge(message)
        space.advance("1h")
    consumer.seek(stamps[1])
    assert [consumer.receive(_MS_MAX).data() for _ in range(2)] == [b"1", b"2"]
    assert is_empty(consumer)


def test_a_lease_of_rest_ends_in_time(space: Space, client: pulsar.Client) -> None:
    topic = space.topic("t")
    client.create_producer(topic).send(b"x")
    path = f"/topics/persistent/{space.namespace}/t/subscription/s/messages"
    query = "?type=Shared&position=earliest&leaseMs=120000&waitMs="
    (first,) = space.admin("GET", f"{path}{query}30000&consumer=one")["messages"]
    space.advance("119s")
    assert space.admin("GET", f"{path}{query}0&consumer=other")["messages"] == []
    space.advance("1s")
    (again,) = space.admin("GET", f"{path}{query}30000&consumer=other")["messages"]
    assert again["messageId"] == first["messageId"]
