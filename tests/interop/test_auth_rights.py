"""What a role may do, before and while its clients are at work."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pulsar
import pytest

from tests.interop.conftest import RECEIVE_MS
from tests.interop.secured import Namespace, Secured
from tests.waiting import wait_until


@pytest.fixture
def clients(secured: Secured) -> "Iterator[_Clients]":
    with ExitStack() as stack:
        yield _Clients(secured, stack)


class _Clients:
    """One client for each role; they end behind the test, before its namespace does."""

    def __init__(self, secured: Secured, stack: ExitStack) -> None:
        self._secured = secured
        self._stack = stack
        self._known: dict[str, pulsar.Client] = {}

    def __getitem__(self, role: str) -> pulsar.Client:
        if role not in self._known:
            client = self._secured.client(self._secured.token(role))
            self._known[role] = self._stack.enter_context(client)
        return self._known[role]


def _may_produce(client: pulsar.Client, topic: str) -> bool:
    try:
        producer = client.create_producer(topic)
    except pulsar.AuthorizationError:
        return False
    producer.send(b"x")
    producer.close()
    return True


def _may_consume(client: pulsar.Client, topic: str, subscription: str) -> bool:
    try:
        client.subscribe(topic, subscription, pulsar.ConsumerType.Shared).close()
    except pulsar.AuthorizationError:
        return False
    return True


# --- grants


def test_grants_of_a_namespace(clients: _Clients, namespace: Namespace) -> None:
    namespace.grant("prod", "produce")
    namespace.grant("cons", "consume")
    namespace.grant("both", "produce", "consume")
    namespace.grant("worker", "functions", "sources", "sinks")
    seen = {
        role: (
            _may_produce(clients[role], namespace.topic("t")),
            _may_consume(clients[role], namespace.topic("t"), f"s-{role}"),
        )
        for role in ("admin", "ten", "both", "prod", "cons", "worker", "nobody")
    }
    assert seen == {
        "admin": (True, True),
        "ten": (True, True),
        "both": (True, True),
        "prod": (True, False),
        "cons": (False, True),
        "worker": (False, False),
        "nobody": (False, False),
    }


def test_grants_of_a_topic_are_for_it_alone(clients: _Clients, namespace: Namespace) -> None:
    _may_produce(clients["admin"], namespace.topic("one"))
    _may_produce(clients["admin"], namespace.topic("two"))
    namespace.grant("guest", "produce", "consume", topic="one")
    limited = clients["guest"]
    assert _may_produce(limited, namespace.topic("one"))
    assert _may_consume(limited, namespace.topic("one"), "s")
    assert not _may_produce(limited, namespace.topic("two"))
    assert not _may_consume(limited, namespace.topic("two"), "s")
    namespace.revoke("guest", topic="one")
    assert not _may_produce(limited, namespace.topic("one"))


def test_another_namespace_is_another_matter(
    secured: Secured, clients: _Clients, namespace: Namespace
) -> None:
    other = namespace.name.replace("/ns", "/other")
    secured.admin("PUT", f"/namespaces/{other}")
    namespace.grant("both", "produce", "consume")
    assert _may_produce(clients["both"], namespace.topic("t"))
    assert not _may_produce(clients["both"], f"persistent://{other}/t")
    assert _may_produce(clients["ten"], f"persistent://{other}/t")
    assert not _may_produce(clients["ten"], "persistent://public/default/t")
    with pytest.raises(pulsar.TopicNotFound):
        clients["both"].create_producer("persistent://no-such-tenant/ns/t")
    secured.admin("DELETE", f"/namespaces/{other}?force=true")


def test_readers_need_the_right_to_consume(clients: _Clients, namespace: Namespace) -> None:
    namespace.grant("prod", "produce")
    namespace.grant("cons", "consume")
    _may_produce(clients["prod"], namespace.topic("t"))
    first = pulsar.MessageId.earliest
    with pytest.raises(pulsar.AuthorizationError):
        clients["prod"].create_reader(namespace.topic("t"), first)
    reader = clients["cons"].create_reader(namespace.topic("t"), first)
    assert reader.read_next(RECEIVE_MS).data() == b"x"


@pytest.mark.parametrize("subscriptions", ["none", "both"])
def test_subscriptions_with_roles_of_their_own(
    secured: Secured, clients: _Clients, namespace: Namespace, subscriptions: str
) -> None:
    """Who may consume may not use a subscription that is for others."""
    for role in ("one", "two"):
        namespace.grant(role, "consume")
    path = f"/namespaces/{namespace.name}/permissions"
    secured.admin(
        "POST", f"{path}/subscription/mine", ["one"] if subscriptions == "none" else ["one", "two"]
    )
    topic = namespace.topic("t")
    assert _may_consume(clients["one"], topic, "mine")
    assert _may_consume(clients["two"], topic, "mine") is (subscriptions == "both")
    assert _may_consume(clients["two"], topic, "everybodys")
    assert not _may_consume(clients["nobody"], topic, "mine")
    secured.admin("DELETE", f"{path}/mine/one")
    assert not _may_consume(clients["one"], topic, "mine") or subscriptions == "none"


def test_subscriptions_named_after_their_role(
    secured: Secured, clients: _Clients, namespace: Namespace
) -> None:
    namespace.grant("cons", "consume")
    topic = namespace.topic("t")
    secured.admin("POST", f"/namespaces/{namespace.name}/subscriptionAuthMode", "Prefix")
    assert not _may_consume(clients["cons"], topic, "free")
    assert _may_consume(clients["cons"], topic, "cons-1")
    assert _may_consume(clients["ten"], topic, "free")


# --- while clients are at work


def test_a_refused_client_works_once_it_has_the_right(
    clients: _Clients, namespace: Namespace
) -> None:
    client, topic = clients["late"], namespace.topic("t")
    assert not _may_produce(client, topic)
    assert not _may_consume(client, topic, "s")
    namespace.grant("late", "consume")
    assert not _may_produce(client, topic)
    assert _may_consume(client, topic, "s")
    namespace.grant("late", "produce", "consume")
    assert _may_produce(client, topic)
    namespace.revoke("late")
    assert not _may_produce(client, topic)
    assert not _may_consume(client, topic, "s")


def test_what_a_grant_leaves_goes_on(clients: _Clients, namespace: Namespace) -> None:
    """Changes of others' rights, and more rights, disturb nobody."""
    namespace.grant("both", "produce", "consume")
    topic = namespace.topic("t")
    consumer = clients["both"].subscribe(topic, "s")
    producer = clients["both"].create_producer(topic)
    stats = namespace.stats("t")
    before = [each["connectedSince"] for each in stats["publishers"]]
    namespace.grant("other", "produce")
    namespace.grant("both", "produce", "consume", "functions")
    namespace.revoke("other")
    for number in range(20):
        producer.send(b"%d" % number)
        assert consumer.receive(RECEIVE_MS).data() == b"%d" % number
    assert [each["connectedSince"] for each in namespace.stats("t")["publishers"]] == before


def _sends(producer: Any) -> bool:
    try:
        producer.send(b"late")
    except pulsar.PulsarException:
        return False
    return True


def test_revoked_rights_end_what_is_open(clients: _Clients, namespace: Namespace) -> None:
    namespace.grant("prod", "produce")
    namespace.grant("cons", "consume")
    topic = namespace.topic("t")
    consumer = clients["cons"].subscribe(topic, "s")
    producer = clients["prod"].create_producer(topic, send_timeout_millis=3_000)
    producer.send(b"first")
    assert consumer.receive(RECEIVE_MS).data() == b"first"
    namespace.revoke("prod")
    namespace.revoke("cons")

    def members() -> int:
        stats = namespace.stats("t")
        return len(stats["publishers"]) + len(stats["subscriptions"]["s"]["consumers"])

    wait_until(lambda: not _sends(producer))
    wait_until(lambda: members() == 0)


def test_who_gets_the_right_back_is_served_again(
    secured: Secured, clients: _Clients, namespace: Namespace
) -> None:
    namespace.grant("both", "produce", "consume")
    topic = namespace.topic("t")
    for _ in range(2):
        assert _may_produce(clients["both"], topic)
        assert _may_consume(clients["both"], topic, "s")
        namespace.revoke("both")
        assert not _may_produce(clients["both"], topic)
        namespace.grant("both", "produce", "consume")


def test_the_tenants_admins_change(
    secured: Secured, clients: _Clients, namespace: Namespace
) -> None:
    tenant, topic = namespace.name.partition("/")[0], namespace.topic("t")
    assert _may_produce(clients["ten"], topic)
    assert not _may_produce(clients["next"], topic)
    info = {"adminRoles": ["next"], "allowedClusters": ["standalone"]}
    secured.admin("POST", f"/tenants/{tenant}", info)
    assert _may_produce(clients["next"], topic)
    assert not _may_produce(clients["ten"], topic)


# --- partitions, several topics, patterns


def test_partitioned_topics(secured: Secured, clients: _Clients, namespace: Namespace) -> None:
    """A grant of the topic is one of its partitions, of later ones too."""
    path = f"/persistent/{namespace.name}/parts"
    secured.admin("PUT", f"{path}/partitions", 2)
    limited, topic = clients["guest"], namespace.topic("parts")
    with pytest.raises(pulsar.AuthorizationError):
        limited.create_producer(topic)
    namespace.grant("guest", "produce", "consume", topic="parts")
    secured.admin("POST", f"{path}/partitions", 4)
    consumer = limited.subscribe(topic, "s")
    producer = limited.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    for number in range(8):
        producer.send(b"%d" % number)
    assert {consumer.receive(RECEIVE_MS).data() for _ in range(8)} == {
        b"%d" % number for number in range(8)
    }
    assert len(limited.get_topic_partitions(topic)) == 4
    assert _may_produce(limited, f"{topic}-partition-3")
    with pytest.raises(pulsar.AuthorizationError):
        clients["nobody"].get_topic_partitions(topic)


def test_several_topics_need_the_right_on_each(clients: _Clients, namespace: Namespace) -> None:
    topics = [namespace.topic(name) for name in ("one", "two")]
    for topic in topics:
        assert _may_produce(clients["admin"], topic)
    namespace.grant("guest", "consume", topic="one")
    with pytest.raises(pulsar.AuthorizationError):
        clients["guest"].subscribe(topics, "s")
    namespace.grant("guest", "consume", topic="two")
    clients["guest"].subscribe(topics, "s").close()


def test_patterns_need_a_right_of_the_namespace(clients: _Clients, namespace: Namespace) -> None:
    """A list of topics is the namespace's: rights on each of them don't open it."""
    for name in ("p-one", "p-two", "q"):
        assert _may_produce(clients["admin"], namespace.topic(name))
    pattern = re.compile(f"persistent://{namespace.name}/p-.*")
    for name in ("p-one", "p-two"):
        namespace.grant("guest", "consume", topic=name)
    with pytest.raises(pulsar.LookupError):  # the client's name for it
        clients["guest"].subscribe(pattern, "s")
    namespace.grant("prod", "produce")
    with pytest.raises(pulsar.AuthorizationError):  # sees the names, may not read
        clients["prod"].subscribe(pattern, "s")
    namespace.grant("guest", "consume")
    consumer = clients["guest"].subscribe(
        pattern, "s", initial_position=pulsar.InitialPosition.Earliest
    )
    names = {consumer.receive(RECEIVE_MS).topic_name().rsplit("/", 1)[1] for _ in range(2)}
    assert names == {"p-one", "p-two"}


def test_a_pattern_with_rights_on_some_of_its_topics(
    clients: _Clients, namespace: Namespace
) -> None:
    """Who sees all names but may read one only gets nothing: subscribing is all or nothing."""
    for name in ("p-one", "p-two"):
        assert _may_produce(clients["admin"], namespace.topic(name))
    namespace.grant("guest", "produce")
    namespace.grant("guest", "consume", topic="p-one")
    pattern = re.compile(f"persistent://{namespace.name}/p-.*")
    with pytest.raises(pulsar.AuthorizationError):
        clients["guest"].subscribe(pattern, "s")
    namespace.grant("guest", "consume", topic="p-two")
    clients["guest"].subscribe(pattern, "s").close()


def test_schemas_need_the_right_to_produce(clients: _Clients, namespace: Namespace) -> None:
    class Order(pulsar.schema.Record):  # type: ignore[misc]  # the client has no types
        number = pulsar.schema.Integer()

    schema, topic = pulsar.schema.JsonSchema(Order), namespace.topic("typed")
    namespace.grant("prod", "produce")
    namespace.grant("cons", "consume")
    with pytest.raises(pulsar.AuthorizationError):
        clients["nobody"].create_producer(topic, schema=schema)
    producer = clients["prod"].create_producer(topic, schema=schema)
    consumer = clients["cons"].subscribe(topic, "s", schema=schema)
    producer.send(Order(number=7))
    assert consumer.receive(RECEIVE_MS).value().number == 7


def test_dead_letters_need_the_right_to_produce_them(
    clients: _Clients, namespace: Namespace
) -> None:
    """The client publishes them itself, in its own name."""
    namespace.grant("prod", "produce")
    namespace.grant("cons", "consume")
    topic = namespace.topic("t")
    policy = pulsar.ConsumerDeadLetterPolicy(1, namespace.topic("dead"))
    consumer = clients["cons"].subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=policy,
    )
    assert _may_produce(clients["prod"], topic)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1_000)
    # It can't be moved away, so it stays
    assert "dead" not in str(namespace.secured.admin("GET", f"/persistent/{namespace.name}"))
    wait_until(lambda: namespace.stats("t")["subscriptions"]["s"]["msgBacklog"] == 1)
