"""Every command of the binary protocol, with every kind of role: who may, and how others hear.

The expected answers are written here a second time, by hand: a row of ``RULES`` that changes, or a
type of command that comes new, fails a test.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from magnetar.broker.auth.authorization import Caller, Permission, Resource
from magnetar.broker.connection.command_authorizer import RULES, CommandAuthorizer
from magnetar.broker.connection.handlers import HANDLERS
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.access_control import AccessControl
from magnetar.metadata.errors import SessionLostError
from tests.unit.broker.doubles import Broker, Client, message
from tests.unit.managed_ledger.cluster import eventually

C = pb.BaseCommand
NAME = C.Type.Name
TOPIC = "persistent://t1/ns/t"
ROLES = ("admin", "ten", "both", "prod", "cons", "guest", "nobody", "proxy", None)
ADMINS = {"admin", "ten"}
PRODUCERS = ADMINS | {"both", "prod", "guest"}
CONSUMERS = ADMINS | {"both", "cons"}
EVERYBODY = set(ROLES)
OF_NAMESPACE = ADMINS | {"both", "prod", "cons"}

# Command -> fields, roles that may send it
EXPECTED: dict[int, tuple[dict[str, Any], set[Any]]] = {
    C.CONNECT: ({"client_version": "x"}, EVERYBODY),
    C.AUTH_RESPONSE: ({}, EVERYBODY),
    C.PING: ({}, EVERYBODY),
    C.PONG: ({}, EVERYBODY),
    C.SEND: ({"producer_id": 1, "sequence_id": 1}, EVERYBODY),
    C.CLOSE_PRODUCER: ({"producer_id": 1, "request_id": 9}, EVERYBODY),
    C.ACK: ({"consumer_id": 1, "ack_type": 0}, EVERYBODY),
    C.FLOW: ({"consumer_id": 1, "messagePermits": 1}, EVERYBODY),
    C.REDELIVER_UNACKNOWLEDGED_MESSAGES: ({"consumer_id": 1}, EVERYBODY),
    C.CLOSE_CONSUMER: ({"consumer_id": 1, "request_id": 9}, EVERYBODY),
    C.WATCH_TOPIC_LIST_CLOSE: ({"watcher_id": 1, "request_id": 9}, EVERYBODY),
    C.UNSUBSCRIBE: ({"consumer_id": 1, "request_id": 9}, CONSUMERS),
    C.SEEK: ({"consumer_id": 1, "request_id": 9}, CONSUMERS),
    C.GET_LAST_MESSAGE_ID: ({"consumer_id": 1, "request_id": 9}, CONSUMERS),
    C.CONSUMER_STATS: ({"consumer_id": 1, "request_id": 9}, CONSUMERS),
    C.PARTITIONED_METADATA: ({"topic": TOPIC, "request_id": 9}, PRODUCERS | CONSUMERS),
    C.LOOKUP: ({"topic": TOPIC, "request_id": 9}, PRODUCERS | CONSUMERS),
    C.PRODUCER: ({"topic": TOPIC, "request_id": 9, "producer_id": 5}, PRODUCERS),
    C.SUBSCRIBE: (
        {"topic": TOPIC, "request_id": 9, "consumer_id": 5, "subscription": "s", "subType": 1},
        CONSUMERS,
    ),
    C.GET_TOPICS_OF_NAMESPACE: ({"namespace": "t1/ns", "request_id": 9}, OF_NAMESPACE),
    C.WATCH_TOPIC_LIST: (
        {"namespace": "t1/ns", "request_id": 9, "watcher_id": 1, "topics_pattern": ".*"},
        OF_NAMESPACE,
    ),
    C.GET_SCHEMA: ({"topic": TOPIC, "request_id": 9}, PRODUCERS | CONSUMERS),
    C.GET_OR_CREATE_SCHEMA: ({"topic": TOPIC, "request_id": 9}, PRODUCERS),
    C.TC_CLIENT_CONNECT_REQUEST: ({"request_id": 9, "tc_id": 1}, EVERYBODY),
    C.NEW_TXN: ({"request_id": 9}, EVERYBODY),
    C.ADD_PARTITION_TO_TXN: ({"request_id": 9}, EVERYBODY),
    C.ADD_SUBSCRIPTION_TO_TXN: ({"request_id": 9}, EVERYBODY),
    C.END_TXN: ({"request_id": 9}, EVERYBODY),
    C.END_TXN_ON_PARTITION: ({"request_id": 9}, {"admin"}),
    C.END_TXN_ON_SUBSCRIPTION: ({"request_id": 9}, {"admin"}),
    C.SCALABLE_TOPIC_LOOKUP: ({"session_id": 9, "topic": TOPIC}, EVERYBODY),
    C.SCALABLE_TOPIC_SUBSCRIBE: (
        {
            "request_id": 9,
            "topic": TOPIC,
            "subscription": "s",
            "consumer_name": "c",
            "consumer_id": 5,
            "consumer_type": pb.STREAM,
        },
        EVERYBODY,
    ),
    C.SCALABLE_TOPIC_CLOSE: ({"session_id": 9}, EVERYBODY),
    C.WATCH_SCALABLE_TOPICS: ({"watch_id": 9, "namespace": "t1/ns"}, EVERYBODY),
    C.WATCH_SCALABLE_TOPICS_CLOSE: ({"watch_id": 9}, EVERYBODY),
    C.WATCH_TC_ASSIGNMENTS: ({"watch_id": 9}, EVERYBODY),
    C.WATCH_TC_ASSIGNMENTS_CLOSE: ({"watch_id": 9}, EVERYBODY),
}
# Never taken by this broker; whoever sends one is cut off, with authorization or without.
NOT_TAKEN_NAMES = [
    "CONNECTED",
    "SEND_RECEIPT",
    "SEND_ERROR",
    "MESSAGE",
    "SUCCESS",
    "ERROR",
    "PRODUCER_SUCCESS",
    "PARTITIONED_METADATA_RESPONSE",
    "LOOKUP_RESPONSE",
    "CONSUMER_STATS_RESPONSE",
    "REACHED_END_OF_TOPIC",
    "GET_LAST_MESSAGE_ID_RESPONSE",
    "ACTIVE_CONSUMER_CHANGE",
    "GET_TOPICS_OF_NAMESPACE_RESPONSE",
    "GET_SCHEMA_RESPONSE",
    "AUTH_CHALLENGE",
    "ACK_RESPONSE",
    "GET_OR_CREATE_SCHEMA_RESPONSE",
    "NEW_TXN_RESPONSE",
    "ADD_PARTITION_TO_TXN_RESPONSE",
    "ADD_SUBSCRIPTION_TO_TXN_RESPONSE",
    "END_TXN_RESPONSE",
    "END_TXN_ON_PARTITION_RESPONSE",
    "END_TXN_ON_SUBSCRIPTION_RESPONSE",
    "TC_CLIENT_CONNECT_RESPONSE",
    "WATCH_TOPIC_LIST_SUCCESS",
    "WATCH_TOPIC_UPDATE",
    "TOPIC_MIGRATED",
    "SCALABLE_TOPIC_UPDATE",
    "SCALABLE_TOPIC_SUBSCRIBE_RESPONSE",
    "SCALABLE_TOPIC_ASSIGNMENT_UPDATE",
    "WATCH_SCALABLE_TOPICS_UPDATE",
    "WATCH_TC_ASSIGNMENTS_UPDATE",
]

DOCUMENT: dict[str, Any] = {
    "namespace_auth": {"prod": ["produce"], "cons": ["consume"], "both": ["produce", "consume"]},
    "destination_auth": {TOPIC: {"guest": ["produce"]}},
    "subscription_auth_roles": {"only": ["both"]},
}


async def make_broker() -> Broker:
    broker = Broker(
        authentication_enabled=True,
        anonymous_user_role="anonymous",
        authorization_enabled=True,
        super_user_roles="admin, admin2",
        proxy_roles="proxy",
    )
    await broker.start()
    resources = broker.service.resources
    info = {"adminRoles": ["ten"], "allowedClusters": ["standalone"]}
    await resources.create_tenant("t1", info)
    await resources.create_namespace("t1/ns", ["standalone"], 4, {"auth_policies": DOCUMENT})
    return broker


@pytest.fixture
async def guarded() -> AsyncIterator[Broker]:
    broker = await make_broker()
    yield broker
    await broker.close()


def parts(broker: Broker) -> tuple[AccessControl, CommandAuthorizer]:
    access, command_authorizer = broker.service.access, broker.service.command_authorizer
    assert access is not None
    assert command_authorizer is not None
    return access, command_authorizer


async def client_of(broker: Broker, role: str | None, original: str | None = None) -> Client:
    """A connection that authentication has given this role to."""
    client = broker.client()
    assert (await client.receive_one()).type == C.CONNECTED
    client.connection.role, client.connection.original_role = role, original
    return client


def command(kind: int, fields: dict[str, Any]) -> pb.BaseCommand:
    base = C(type=C.Type.ValueType(kind))
    by_number = {field.number: field.name for field in C.DESCRIPTOR.fields}
    part = getattr(base, by_number[kind])
    part.SetInParent()
    for name, value in fields.items():
        setattr(part, name, value)
    return base


def error_of(reply: pb.BaseCommand) -> tuple[int, str]:
    """Code and text, wherever the type of reply has them."""
    match reply.type:
        case C.ERROR:
            return reply.error.error, reply.error.message
        case C.LOOKUP_RESPONSE:
            assert reply.lookupTopicResponse.response == pb.CommandLookupTopicResponse.Failed
            return reply.lookupTopicResponse.error, reply.lookupTopicResponse.message
        case C.PARTITIONED_METADATA_RESPONSE:
            failed = reply.partitionMetadataResponse
            assert failed.response == pb.CommandPartitionedTopicMetadataResponse.Failed
            return failed.error, failed.message
        case C.GET_SCHEMA_RESPONSE:
            return reply.getSchemaResponse.error_code, reply.getSchemaResponse.error_message
        case C.GET_OR_CREATE_SCHEMA_RESPONSE:
            created = reply.getOrCreateSchemaResponse
            return created.error_code, created.error_message
        case C.CONSUMER_STATS_RESPONSE:
            return reply.consumerStatsResponse.error_code, reply.consumerStatsResponse.error_message
        case C.END_TXN_ON_PARTITION_RESPONSE:
            return reply.endTxnOnPartitionResponse.error, reply.endTxnOnPartitionResponse.message
        case C.END_TXN_ON_SUBSCRIPTION_RESPONSE:
            on_subscription = reply.endTxnOnSubscriptionResponse
            return on_subscription.error, on_subscription.message
    raise AssertionError(reply)


def test_every_type_of_command_has_a_rule() -> None:
    assert set(RULES) == set(EXPECTED)
    assert {NAME(C.Type.ValueType(kind)) for kind in set(C.Type.values()) - RULES.keys()} == set(
        NOT_TAKEN_NAMES
    )
    assert {*HANDLERS, C.SEND} == set(RULES)


async def ask(
    broker: Broker, kind: int, role: str | None, monkeypatch: pytest.MonkeyPatch, *, cold: bool
) -> tuple[bool, list[pb.BaseCommand]]:
    """Whether the command came through, and what its sender was told."""
    seen: list[Any] = []
    client = await client_of(broker, "admin")
    client.send(
        command(
            C.SUBSCRIBE,
            {"topic": TOPIC, "request_id": 1, "consumer_id": 1, "subscription": "s", "subType": 1},
        )
    )
    assert (await client.receive_one()).type == C.SUCCESS
    client.connection.role = role
    access, command_authorizer = parts(broker)
    broker.service.resources._access.clear()
    if not cold:
        await broker.service.resources.access("t1", "t1/ns")
    by_number = {field.number: field.name for field in C.DESCRIPTOR.fields}
    part = getattr(command(kind, EXPECTED[kind][0]), by_number[kind])
    before = access.refused
    with monkeypatch.context() as patch:
        patch.setitem(HANDLERS, kind, lambda _, taken: seen.append(taken))
        command_authorizer.take(client.connection, kind, part)
        await eventually(lambda: bool(seen) or access.refused > before)
    replies = [] if seen else await client.receive(1)
    assert client.reads()  # however long it took
    client.lose()
    await eventually(lambda: not broker.service.connections)
    return bool(seen), replies


@pytest.mark.parametrize("cold", [False, True], ids=["cached", "read"])
@pytest.mark.parametrize("kind", sorted(EXPECTED), ids=lambda kind: NAME(kind))
async def test_who_may_send_it(
    guarded: Broker, kind: int, cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == C.SEND:  # has its own path, where nothing is asked
        assert RULES[kind].needs is None
        return
    for role in ROLES:
        passed, replies = await ask(guarded, kind, role, monkeypatch, cold=cold)
        assert passed == (role in EXPECTED[kind][1]), (NAME(C.Type.ValueType(kind)), role)
        if not passed:
            code, text = error_of(replies[0])
            if kind in (C.END_TXN_ON_PARTITION, C.END_TXN_ON_SUBSCRIPTION):
                assert (code, text.split()[:2]) == (pb.NotAllowedError, ["TC", "client"])
            else:
                assert code == pb.AuthorizationError
                assert text.startswith("Client is not authorized to ")


def _note(seen: list[Any], connection: Any, taken: Any) -> None:
    seen.append(taken)


async def test_rights_end_at_their_tenant(guarded: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same commands about somebody else's topic, a missing namespace, a missing tenant."""
    command_authorizer, access = parts(guarded)[1], parts(guarded)[0]
    by_number = {field.number: field.name for field in C.DESCRIPTOR.fields}
    asked = 0
    for kind, (fields, allowed) in EXPECTED.items():
        if allowed == EVERYBODY:  # wherever it is about
            continue
        for place in ("public/default", "t1/none", "none/none"):
            elsewhere = {
                name: value.replace("t1/ns", place) if name in ("topic", "namespace") else value
                for name, value in fields.items()
            }
            if elsewhere == fields:
                continue
            for role in ROLES:
                seen: list[Any] = []
                client = await client_of(guarded, role)
                part = getattr(command(kind, elsewhere), by_number[kind])
                before = access.refused
                with monkeypatch.context() as patch:
                    patch.setitem(HANDLERS, kind, partial(_note, seen))
                    command_authorizer.take(client.connection, kind, part)
                    await eventually(lambda: bool(seen) or access.refused > before)  # noqa: B023
                rules_there = role == "admin" or (role == "ten" and place == "t1/none")
                assert bool(seen) == rules_there, (NAME(C.Type.ValueType(kind)), role, place)
                client.lose()
                asked += 1
    assert asked > 100


async def test_a_frame_passes_the_gate(guarded: Broker) -> None:
    client = await client_of(guarded, "nobody")
    client.send(command(C.LOOKUP, EXPECTED[C.LOOKUP][0]))
    assert error_of(await client.receive_one())[0] == pb.AuthorizationError
    client = await client_of(guarded, "cons")
    reply, _ = await client.produce(TOPIC)
    assert error_of(reply) == (pb.AuthorizationError, "Client is not authorized to Produce")
    assert not guarded.service.topics


async def test_messages_and_acknowledgments_ask_nothing(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What authorization may cost a message; a command is asked about once, from memory."""
    asked: list[Permission] = []
    real = AccessControl.may_nowait

    def count(self: AccessControl, caller: Any, permission: Any, resource: Any) -> bool | None:
        asked.append(permission)
        return real(self, caller, permission, resource)

    client = await client_of(guarded, "both")
    subscribe = {"topic": TOPIC, "request_id": 9, "consumer_id": 1, "subscription": "s"}
    client.send(command(C.SUBSCRIBE, {**subscribe, "subType": 1}))
    assert (await client.receive_one()).type == C.SUCCESS
    await client.produce(TOPIC)
    monkeypatch.setattr(AccessControl, "may_nowait", count)
    client.send(command(C.FLOW, {"consumer_id": 1, "messagePermits": 50}))
    client.feed(b"".join(message(number) for number in range(50)))
    answers = await client.receive(100)
    assert sorted({each.type for each in answers}) == [C.SEND_RECEIPT, C.MESSAGE]
    client.send(command(C.ACK, {"consumer_id": 1, "ack_type": 1}))
    assert asked == []
    client.send(command(C.LOOKUP, {"topic": TOPIC, "request_id": 10}))
    assert (await client.receive_one()).type == C.LOOKUP_RESPONSE
    assert asked == [Permission.LOOKUP]


async def test_commands_behind_one_that_waits_keep_their_order(guarded: Broker) -> None:
    client = await client_of(guarded, "prod")
    guarded.service.resources._access.clear()
    client.send(
        client.producer_command(TOPIC, 1),
        command(C.CLOSE_PRODUCER, {"producer_id": 1, "request_id": 77}),
        client.producer_command(TOPIC, 1, producer_name="second"),
    )
    assert not client.reads()
    first, second = await client.receive(2)
    assert (first.type, first.success.request_id) == (C.SUCCESS, 77)
    assert second.producer_success.producer_name == "second"
    assert client.reads()


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(guarded: Broker) -> None:
    client = await client_of(guarded, "prod")
    guarded.service.resources._access.clear()
    client.send(client.producer_command(TOPIC, 1))
    client.lose()
    assert parts(guarded)[1]._held == {}


async def test_an_initial_subscription_needs_the_right_to_consume(guarded: Broker) -> None:
    for role, subscription, may in (
        ("prod", "s", False),
        ("both", "s", True),
        ("both", "only", True),
        ("ten", "only", True),
    ):
        client = await client_of(guarded, role)
        reply, _ = await client.produce(TOPIC, initial_subscription_name=subscription)
        assert (reply.type == C.PRODUCER_SUCCESS) == may, role


async def test_names_that_mean_nothing_are_refused_as_such(guarded: Broker) -> None:
    client = await client_of(guarded, "nobody")
    for kind in (C.LOOKUP, C.PARTITIONED_METADATA, C.PRODUCER, C.SUBSCRIBE, C.GET_SCHEMA):
        client.send(command(kind, {**EXPECTED[kind][0], "topic": "a://b"}))
        assert error_of(await client.receive_one())[0] == pb.InvalidTopicName
    client.send(
        command(C.GET_TOPICS_OF_NAMESPACE, {"namespace": "a/b/../c", "request_id": 1}),
    )
    assert error_of(await client.receive_one())[0] == pb.InvalidTopicName


async def test_a_proxy_speaks_for_its_client_alone(guarded: Broker) -> None:
    await guarded.service.resources.update_policies(
        "t1/ns",
        lambda document: {
            **document,
            "auth_policies": {
                **DOCUMENT,
                "namespace_auth": {"proxy": ["produce"], "joe": ["produce"]},
            },
        },
    )
    for original, named, may in (
        ("joe", "", True),
        ("joe", "joe", True),
        ("joe", "nobody", False),
        ("nobody", "", False),
        ("nobody", "joe", False),
        (None, "joe", False),
    ):
        client = await client_of(guarded, "proxy", original)
        fields = {**EXPECTED[C.LOOKUP][0], "original_principal": named}
        client.send(command(C.LOOKUP, fields))
        reply = (await client.receive_one()).lookupTopicResponse
        failed = reply.response == pb.CommandLookupTopicResponse.Failed
        assert failed != may, (original, named)
    client = await client_of(guarded, "joe")
    client.send(command(C.LOOKUP, {**EXPECTED[C.LOOKUP][0], "original_principal": "admin"}))
    assert error_of(await client.receive_one())[0] == pb.AuthorizationError


# --- rights that are taken away


def without(role: str) -> Any:
    left = {name: each for name, each in DOCUMENT["namespace_auth"].items() if name != role}
    return lambda document: {**document, "auth_policies": {**DOCUMENT, "namespace_auth": left}}


async def test_producers_and_consumers_end_with_their_grant(guarded: Broker) -> None:
    prod, cons, both = [await client_of(guarded, role) for role in ("prod", "cons", "both")]
    assert (await prod.produce(TOPIC))[0].type == C.PRODUCER_SUCCESS
    assert (await both.produce(TOPIC))[0].type == C.PRODUCER_SUCCESS
    subscribe = EXPECTED[C.SUBSCRIBE][0]
    cons.send(command(C.SUBSCRIBE, subscribe))
    assert (await cons.receive_one()).type == C.SUCCESS

    await guarded.service.resources.update_policies("t1/ns", without("prod"))
    closed = await prod.receive_one()
    assert (closed.type, closed.close_producer.producer_id) == (C.CLOSE_PRODUCER, 1)
    await cons.expect_nothing()
    reply, _ = await prod.produce(TOPIC)
    assert error_of(reply)[0] == pb.AuthorizationError

    await guarded.service.resources.update_policies("t1/ns", without("cons"))
    closed = await cons.receive_one()
    assert (closed.type, closed.close_consumer.consumer_id) == (C.CLOSE_CONSUMER, 5)
    cons.send(command(C.SUBSCRIBE, subscribe))
    assert error_of(await cons.receive_one())[0] == pb.AuthorizationError
    await both.expect_nothing()
    topic = guarded.service.topics[TOPIC]
    assert len(topic.producers) == 1


async def test_a_revoked_producer_hears_of_what_it_sent_first(guarded: Broker) -> None:
    client = await client_of(guarded, "prod")
    assert (await client.produce(TOPIC))[0].type == C.PRODUCER_SUCCESS
    release = guarded.hold_storage()
    client.feed(message(1) + message(2))
    await guarded.service.resources.update_policies("t1/ns", without("prod"))
    access, _ = parts(guarded)
    await eventually(lambda: access._watch._follower._task is None)
    client.feed(message(3))
    await client.expect_nothing()
    release()
    replies = await client.receive(3)
    kinds = [reply.type for reply in replies]
    assert kinds == [C.SEND_RECEIPT, C.SEND_RECEIPT, C.CLOSE_PRODUCER]


async def test_tenant_admins_end_with_their_role(guarded: Broker) -> None:
    client = await client_of(guarded, "ten")
    assert (await client.produce(TOPIC))[0].type == C.PRODUCER_SUCCESS
    await guarded.service.resources.update_tenant("t1", {"adminRoles": ["other"]})
    assert (await client.receive_one()).type == C.CLOSE_PRODUCER


async def test_a_subscription_given_to_others_is_left(guarded: Broker) -> None:
    client = await client_of(guarded, "cons")
    client.send(command(C.SUBSCRIBE, EXPECTED[C.SUBSCRIBE][0]))
    assert (await client.receive_one()).type == C.SUCCESS
    auth = {**DOCUMENT, "subscription_auth_roles": {"s": ["both"]}}
    await guarded.service.resources.update_policies(
        "t1/ns", lambda document: {**document, "auth_policies": auth}
    )
    assert (await client.receive_one()).type == C.CLOSE_CONSUMER


async def test_watchers_of_topics_hear_nothing_more(guarded: Broker) -> None:
    client = await client_of(guarded, "cons")
    client.send(command(C.WATCH_TOPIC_LIST, EXPECTED[C.WATCH_TOPIC_LIST][0]))
    assert (await client.receive_one()).type == C.WATCH_TOPIC_LIST_SUCCESS
    await guarded.service.resources.update_policies("t1/ns", without("cons"))
    await eventually(lambda: not client.connection.watchers)


async def test_a_right_that_is_lost_while_the_topic_loads(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The creation isn't there yet when everybody is asked, so it asks for itself."""
    loader, resources = guarded.service.loader, guarded.service.resources
    load = loader.load

    async def slow_load(name: Any, *, create: bool, acquire: bool) -> Any:
        topic = await load(name, create=create, acquire=acquire)
        await resources.update_policies("t1/ns", without("prod"))
        access, _ = parts(guarded)
        await eventually(lambda: access._watch._follower._task is None)
        return topic

    monkeypatch.setattr(loader, "load", slow_load)  # the moment can't be hit from outside
    client = await client_of(guarded, "prod")
    client.send(client.producer_command(TOPIC))
    created, closed = await client.receive(2)
    assert (created.type, closed.type) == (C.PRODUCER_SUCCESS, C.CLOSE_PRODUCER)


class Use:
    """A use of rights outside of binary connections."""

    def __init__(self, role: str, topic: str = TOPIC, *, stubborn: bool = False) -> None:
        self.rights = [
            (Caller(role), Permission.CONSUME, Resource.of_topic(TopicName.parse(topic)))
        ]
        self.revoked = False
        self._stubborn = stubborn

    def revoke(self) -> None:
        self.revoked = True
        if self._stubborn:
            raise RuntimeError("can't be ended in order")


async def test_one_that_fails_to_end_does_not_save_the_others(guarded: Broker) -> None:
    access, _ = parts(guarded)
    uses = [Use("cons", stubborn=True), Use("cons"), Use("both"), Use("cons", stubborn=True)]
    for use in uses:
        access.start_use(use)
    await guarded.service.resources.update_policies("t1/ns", without("cons"))
    await eventually(lambda: sum(use.revoked for use in uses) == 3)
    assert not uses[2].revoked


async def test_a_use_that_starts_too_late_ends_at_once(guarded: Broker) -> None:
    access, _ = parts(guarded)
    await guarded.service.resources.access("t1", "t1/ns")
    late = Use("prod")
    access.start_use(late)
    assert late.revoked
    guarded.service.resources._access.clear()
    unread = Use("prod")
    access.start_use(unread)
    assert not unread.revoked
    await eventually(lambda: unread.revoked)


async def test_grants_that_cannot_be_read_are_read_again(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources, (access, _) = guarded.service.resources, parts(guarded)
    use = Use("cons")
    access.start_use(use)
    read, failures = resources.access, [0]

    async def fail_twice(tenant: str, namespace: str) -> Any:
        failures[0] += 1
        if failures[0] <= 2:
            raise SessionLostError("no store")
        return await read(tenant, namespace)

    monkeypatch.setattr(resources, "access", fail_twice)
    monkeypatch.setattr("magnetar.broker.service.store_follower._RETRY_S", 0.01)
    await resources.update_policies("t1/ns", without("cons"))
    await eventually(lambda: use.revoked)
    assert failures[0] >= 3


async def test_a_command_is_refused_while_grants_cannot_be_read(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(tenant: str, namespace: str) -> Any:
        raise SessionLostError("no store")

    client = await client_of(guarded, "prod")
    guarded.service.resources._access.clear()
    monkeypatch.setattr(guarded.service.resources, "access", fail)
    reply, _ = await client.produce(TOPIC)
    assert error_of(reply)[0] == pb.MetadataError
    reply, _ = await (await client_of(guarded, "admin")).produce(TOPIC)
    assert reply.type == C.PRODUCER_SUCCESS  # needs no document


async def test_refusals_are_audited_and_bounded(
    guarded: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    client = await client_of(guarded, "no\nbody")
    with caplog.at_level("WARNING", logger="magnetar.broker.audit"):
        for _ in range(500):
            client.send(command(C.LOOKUP, EXPECTED[C.LOOKUP][0]))
        await client.receive(500)
    lines = [
        record.getMessage() for record in caplog.records if record.name == "magnetar.broker.audit"
    ]
    assert lines[0].startswith("refused: ")
    assert 'role="no\\nbody"' in lines[0]
    assert f"resource={TOPIC}" in lines[0]
    assert 1 <= len(lines) < 200
    assert parts(guarded)[0].refused == 500


async def test_nothing_is_asked_while_authorization_is_off(broker: Broker) -> None:
    assert broker.service.access is None
    assert broker.service.command_authorizer is None
