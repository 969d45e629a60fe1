"""Loading, creating and deleting topics, lookups and lists."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from crc32c import crc32c

from magnetar.broker.errors import (
    AlreadyExistsError,
    BrokerError,
    NotAllowedError,
    PreconditionFailedError,
    TopicBusyError,
    TopicNotFoundError,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic import topic_list as topic_list
from magnetar.broker.topic import topic_loader
from magnetar.broker.topic.topic_list import TopicPattern, topics_hash
from magnetar.bundles.lookup import BrokerLookup
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.managed_ledger_info import DELETING
from magnetar.managed_ledger.stored_info import read_stored
from magnetar.metadata.errors import MetadataWriteError
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker, Client, message
from tests.unit.managed_ledger.cluster import eventually

PREFIX = "persistent://public/default/"


def name(text: str) -> TopicName:
    return TopicName.parse(text)


async def ready(broker: Broker) -> Client:
    client = broker.client()
    await client.receive_one()
    return client


# --- loading


@pytest.mark.parametrize("closes", [True, False])
async def test_all_topics_are_closed_some_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """Though one of them can't be: a task for each of very many would be one long turn."""
    monkeypatch.setattr(topic_loader, "_CLOSED_AT_ONCE", 2)
    loader, running, most = broker.service.loader, 0, 0
    for number in range(5):
        await loader.load(name(f"t{number}"), create=True)
    unload = loader.unload

    async def counted(full: str, *arguments: Any, **named: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await unload(full, *arguments, **named)
            if full.endswith("t0"):
                raise ManagedLedgerError("planted")
        finally:
            running -= 1

    monkeypatch.setattr(loader, "unload", counted)
    await (
        loader.close() if closes else loader.unload_bundle("public/default/0x00000000_0xffffffff")
    )
    assert most == 2
    assert not broker.service.topics


async def test_concurrent_loads_make_one_topic(broker: Broker) -> None:
    topics = await asyncio.gather(
        *(broker.service.loader.load(name("t"), create=True) for _ in range(10))
    )
    assert len(set(map(id, topics))) == 1
    assert list(broker.service.topics) == [PREFIX + "t"]


async def test_a_load_that_may_create_is_not_spoilt_by_one_that_may_not(broker: Broker) -> None:
    first = asyncio.ensure_future(broker.service.loader.load(name("t"), create=False))
    second = asyncio.ensure_future(broker.service.loader.load(name("t"), create=True))
    with pytest.raises(TopicNotFoundError):
        await first
    assert (await second).full_name == PREFIX + "t"


async def test_a_topic_that_is_unloaded_comes_back_with_its_subscriptions(broker: Broker) -> None:
    topic = await broker.service.loader.load(name("t"), create=True)
    await topic.create_subscription("s", (-1, -1), {"color": "red"})
    with pytest.raises(AlreadyExistsError):
        await topic.create_subscription("s")
    await broker.service.loader.unload(str(topic.name))
    assert topic.fenced
    assert not broker.service.topics
    again = await broker.service.loader.load(name("t"), create=False)
    assert again is not topic
    assert list(again.subscriptions) == ["s"]


async def test_unloading_a_bundle_closes_exactly_its_topics(broker: Broker) -> None:
    for index in range(20):
        await broker.service.loader.load(name(f"t{index}"), create=True)
    victim = await broker.service.bundles.bundle_of(PREFIX + "t0")
    inside = {
        topic
        for topic in broker.service.topics
        if await broker.service.bundles.bundle_of(topic) == victim
    }
    everything = set(broker.service.topics)
    await broker.service.bundles.release(victim)
    assert set(broker.service.topics) == everything - inside
    assert 0 < len(inside) < 20
    again = await broker.service.loader.load(name("t0"), create=False)
    assert not again.fenced


async def test_a_topic_is_loaded_while_boundaries_are_read_again_and_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are while many bundles of the namespace are acquired at once."""
    monkeypatch.setattr(broker.service.bundles, "bundle_of_nowait", lambda name: None)
    topic = await broker.service.loader.load(TopicName.parse("t"), create=True)
    assert broker.service.topics == {str(topic.name): topic}


async def test_automatic_creation_follows_broker_and_namespace() -> None:
    broker = await Broker(allow_auto_topic_creation=False).start()
    service = broker.service
    try:
        with pytest.raises(TopicNotFoundError):
            await service.loader.load(name("t"), create=True)
        await service.policies.update_namespace(
            "public/default",
            lambda old: {**old, "autoTopicCreationOverride": {"allowAutoTopicCreation": True}},
        )
        await service.loader.load(name("t"), create=True)
        with pytest.raises(TopicNotFoundError):
            await service.loader.load(name("persistent://no/namespace/t"), create=True)
    finally:
        await broker.close()


async def test_partitions_are_only_those_there_are(broker: Broker) -> None:
    service = broker.service
    await service.directory.create_partitioned(name("p"), 2)
    assert await service.directory.partitions(name("p")) == 2
    partitions = [PREFIX + "p-partition-0", PREFIX + "p-partition-1"]
    assert await service.directory.names("public/default", "persistent") == partitions
    assert not service.topics, "they are loaded when they are used"
    with pytest.raises(NotAllowedError):
        await service.loader.load(name("p-partition-2"), create=True)
    with pytest.raises(NotAllowedError):
        await service.loader.load(name("p"), create=True)
    # without metadata it is an ordinary name
    await service.loader.load(name("other-partition-7"), create=True)
    with pytest.raises(AlreadyExistsError):
        await service.directory.create_partitioned(name("p"), 3)
    with pytest.raises(AlreadyExistsError):
        await service.directory.create(name("p"))
    with pytest.raises(PreconditionFailedError):
        await service.directory.update_partitions(name("p"), 1)


async def test_a_partition_whose_deletion_was_cut_short_is_made_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, log_name = broker.service, name("p-partition-0").ml_name
    log = await broker.ledgers.open(log_name, ManagedLedgerConfig())

    async def refuse(path: str, version: int | None = None) -> None:
        raise MetadataWriteError(path, OSError())

    with monkeypatch.context() as patch:
        patch.setattr(log.store, "delete", refuse)
        with pytest.raises(MetadataWriteError):
            await log.delete()
    left = await read_stored(broker.cluster.store, log_name)
    assert left is not None
    await service.directory.create_partitioned(name("p"), 1)
    made = await read_stored(broker.cluster.store, log_name)
    assert made is not None
    assert (left.info.properties, made.info.properties) == ({DELETING: "true"}, {})


@pytest.mark.parametrize("head_start", range(-12, 13))
async def test_a_topic_never_is_both_plain_and_partitioned(broker: Broker, head_start: int) -> None:
    topic = name(PREFIX + "t")
    service = broker.service

    async def after(turns: int, creation: Coroutine[Any, Any, object]) -> BrokerError | None:
        for _ in range(turns):
            await asyncio.sleep(0)
        try:
            await creation
        except BrokerError as error:
            return error
        return None

    plain, partitioned = await asyncio.gather(
        after(max(0, head_start), service.loader.load(topic, create=True)),
        after(max(0, -head_start), service.directory.create_partitioned(topic, 2, None)),
    )
    is_plain = await service.resources.is_stored(topic)
    is_partitioned = await service.directory.partitions(topic) is not None
    assert (is_plain, is_partitioned) == (plain is None, partitioned is None)
    assert not (is_plain and is_partitioned)


async def test_new_partitions_get_the_subscriptions_of_the_old_ones(broker: Broker) -> None:
    service = broker.service
    await service.directory.create_partitioned(name("p"), 1)
    first = await service.loader.load(name("p-partition-0"), create=False)
    await first.create_subscription("s")
    await service.directory.update_partitions(name("p"), 3)
    assert await service.directory.partitions(name("p")) == 3
    last = await service.loader.load(name("p-partition-2"), create=False)
    assert list(last.subscriptions) == ["s"]


async def test_deleting(broker: Broker) -> None:
    service = broker.service
    client = await ready(broker)
    await client.produce()
    with pytest.raises(TopicNotFoundError):
        await service.directory.delete(name("nothing"))
    with pytest.raises(TopicBusyError):
        await service.directory.delete(name("t"))
    await service.directory.delete(name("t"), force=True)
    assert (await client.receive_one()).close_producer.producer_id == 1
    assert not await service.directory.exists(name("t"))
    await service.directory.create_partitioned(name("p"), 2)
    await service.directory.delete_partitioned(name("p"))
    assert await service.directory.partitions(name("p")) is None
    assert await service.directory.names("public/default") == []


async def test_topics_nobody_uses_are_deleted_after_a_minute(broker: Broker) -> None:
    service = broker.service
    for topic in ("idle", "used", "subscribed"):
        await service.loader.load(name(topic), create=True)
    client = await ready(broker)
    await client.produce("used")
    await service.topics[PREFIX + "subscribed"].create_subscription("s")
    sweep = service.background_tasks.delete_inactive
    broker.cluster.now_ms += 59_000
    await sweep(broker.cluster.now_ms)
    assert len(service.topics) == 3
    broker.cluster.now_ms += 1_000
    await sweep(broker.cluster.now_ms)
    assert sorted(service.topics) == [PREFIX + "subscribed", PREFIX + "used"]
    assert not await service.directory.exists(name("idle"))
    client.lose()
    broker.cluster.now_ms += 59_999
    await sweep(broker.cluster.now_ms)
    assert PREFIX + "used" in service.topics
    broker.cluster.now_ms += 60_001
    await sweep(broker.cluster.now_ms)
    assert sorted(service.topics) == [PREFIX + "subscribed"]


async def test_an_idle_topic_with_data_stays_until_deletion_is_asked_for(broker: Broker) -> None:
    service = broker.service
    client = await ready(broker)
    await client.produce("full")
    client.feed(message(0, b"kept"))
    await client.receive(1)
    client.lose()
    sweep = service.background_tasks.delete_inactive
    for _ in range(3):
        broker.cluster.now_ms += 600_000
        await sweep(broker.cluster.now_ms)
    assert PREFIX + "full" in service.topics
    policies = {"maxInactiveDurationSeconds": 60, "deleteWhileInactive": True}
    await service.policies.update_namespace(
        "public/default", lambda document: {**document, "inactive_topic_policies": policies}
    )
    await sweep(broker.cluster.now_ms)
    assert PREFIX + "full" not in service.topics


async def test_statistics_have_rates_of_the_last_sample(broker: Broker) -> None:
    client = await ready(broker)
    await client.produce(producer_name="me")
    topic = broker.service.topics[PREFIX + "t"]
    run_at_once(topic.sample_steps(broker.cluster.now_ms))
    client.feed(b"".join(message(n, b"x" * 100) for n in range(10)))
    await client.receive(10)
    broker.cluster.now_ms += 2_000
    run_at_once(topic.sample_steps(broker.cluster.now_ms))
    stats = topic.stats()
    assert (stats["msgRateIn"], stats["msgInCounter"]) == (5.0, 10)
    (publisher,) = stats["publishers"]
    assert (publisher["producerName"], publisher["address"]) == ("me", "/10.0.0.1:5000")
    assert publisher["msgRateIn"] == 5.0
    assert publisher["accessMode"] == "Shared"
    assert stats["storageSize"] > 1_000


# --- PARTITIONED_METADATA, LOOKUP


async def partitions(client: Client, topic: str, **fields: bool) -> tuple[int, int, int]:
    command = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA)
    command.partitionMetadata.topic, command.partitionMetadata.request_id = topic, 77
    for field, value in fields.items():
        setattr(command.partitionMetadata, field, value)
    client.send(command)
    reply = (await client.receive_one()).partitionMetadataResponse
    assert reply.request_id == 77
    assert reply.HasField("response")
    return reply.response, reply.partitions, reply.error


async def test_partitioned_metadata(broker: Broker) -> None:
    client = await ready(broker)
    success, failed = 0, 1
    await broker.service.directory.create_partitioned(name("p"), 3)
    assert await partitions(client, "p") == (success, 3, 0)
    assert await partitions(client, "p-partition-0") == (success, 0, 0)
    assert await partitions(client, "new") == (success, 0, 0)
    assert not await broker.service.directory.exists(name("new"))
    assert await partitions(client, "bad//name") == (failed, 0, pb.InvalidTopicName)
    without = {"metadata_auto_creation_enabled": False}
    assert await partitions(client, "new", **without) == (failed, 0, pb.TopicNotFound)
    await broker.service.directory.create(name("plain"))
    assert await partitions(client, "plain", **without) == (success, 0, 0)
    assert await partitions(client, "no/namespace/x") == (failed, 0, pb.TopicNotFound)


async def test_partitioned_topics_are_created_by_asking_when_that_is_the_default() -> None:
    broker = await Broker(
        allow_auto_topic_creation_type="partitioned", default_num_partitions=4
    ).start()
    try:
        client = await ready(broker)
        assert await partitions(client, "new") == (0, 4, 0)
        assert await broker.service.directory.partitions(name("new")) == 4
        assert await partitions(client, "other-partition-1") == (0, 0, 0)
    finally:
        await broker.close()


async def lookup(client: Client, topic: str, listener: str = "") -> pb.CommandLookupTopicResponse:
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = topic, 5
    command.lookupTopic.advertised_listener_name = listener
    client.send(command)
    reply = (await client.receive_one()).lookupTopicResponse
    assert reply.request_id == 5
    return reply


async def test_lookup(broker: Broker) -> None:
    client = await ready(broker)
    found = await lookup(client, "t")
    assert found.response == pb.CommandLookupTopicResponse.Connect
    assert (found.brokerServiceUrl, found.authoritative) == ("pulsar://broker.example:6650", True)
    assert not broker.service.topics
    failed = pb.CommandLookupTopicResponse.Failed
    for topic, code in (
        ("a/b", pb.InvalidTopicName),
        ("persistent://no/where/t", pb.TopicNotFound),
    ):
        answer = await lookup(client, topic)
        assert (answer.response, answer.error) == (failed, code)
        assert answer.message
    unknown = await lookup(client, "t", "internal")
    assert unknown.error == pb.ServiceNotReady
    assert "the broker do not have internal listener" in unknown.message


async def closed_to(broker: Broker, *listeners: str) -> str:
    """Where a client is sent whose connection made these lookups, when its topic moves."""
    new_owner = BrokerLookup(
        *("pulsar://heir:1", None, "http://heir:2", None),
        {"near": {"brokerServiceUrl": "pulsar://near:3"}, "far": {"brokerHttpUrl": "http://far:4"}},
    )
    client = await ready(broker)
    await client.produce("t")
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription = "t", "s"
    request.subType = pb.CommandSubscribe.Exclusive
    request.consumer_id, request.request_id = 1, 9
    client.send(command)
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS
    for listener in listeners:
        await lookup(client, "t", listener)
    await broker.service.loader.unload(PREFIX + "t", new_owner)
    closed = await client.receive(2)
    told = {closed[0].close_producer.assignedBrokerServiceUrl}
    told.add(closed[1].close_consumer.assignedBrokerServiceUrl)
    assert {each.type for each in closed} == {
        pb.BaseCommand.CLOSE_PRODUCER,
        pb.BaseCommand.CLOSE_CONSUMER,
    }
    assert len(told) == 1
    return told.pop()


@pytest.mark.parametrize(
    ("listeners", "url"),
    [
        ((), ""),  # it looked the topic up elsewhere, by who knows what listener
        (("",), "pulsar://heir:1"),
        (("near", "near"), "pulsar://near:3"),
        (("far",), ""),  # no binary address there
        (("unknown",), ""),
        (("near", "", "near"), ""),
    ],
)
async def test_who_looks_up_by_a_listener_is_sent_to_that_one_of_the_next_broker(
    broker: Broker, listeners: tuple[str, ...], url: str
) -> None:
    assert await closed_to(broker, *listeners) == url


async def test_too_many_lookups(broker: Broker) -> None:
    client = await ready(broker)
    broker.service.lookups = 50_000
    assert (await lookup(client, "t")).error == pb.TooManyRequests
    assert (await partitions(client, "t"))[2] == pb.TooManyRequests
    broker.service.lookups = 0
    assert (await lookup(client, "t")).error == 0
    assert broker.service.lookups == 0


# --- lists and watchers


async def topics_of(client: Client, **fields: object) -> pb.CommandGetTopicsOfNamespaceResponse:
    command = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
    request = command.getTopicsOfNamespace
    request.request_id, request.namespace = 9, "public/default"
    for field, value in fields.items():
        setattr(request, field, value)
    client.send(command)
    return (await client.receive_one()).getTopicsOfNamespaceResponse


def test_the_hash_of_a_list_is_pulsar_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_at_once(topics_hash([])) == "00000000"
    assert run_at_once(topics_hash(["persistent://public/default/a"])) == "e4a876e3"
    monkeypatch.setattr(topic_list, "_HASHED", 1)
    assert run_at_once(topics_hash(["a", "b", "c"])) == crc32c(b"a,b,c").to_bytes(4, "little").hex()


def test_patterns_match_without_domain_and_partition() -> None:
    pattern = TopicPattern("persistent://public/default/a.*")
    assert pattern.matches(name("a1"))
    assert pattern.matches(name("non-persistent://public/default/a-partition-3"))
    assert not pattern.matches(name("ba"))
    assert not TopicPattern("public/default/p").matches(name("p-partition"))
    assert TopicPattern("public/default/p").matches(name("p-partition-12"))
    with pytest.raises(BrokerError, match="pattern"):
        TopicPattern("(")


async def test_topics_of_a_namespace(broker: Broker) -> None:
    client = await ready(broker)
    for topic in ("a1", "a2", "b", "non-persistent://public/default/a3", "__change_events"):
        await broker.service.loader.load(name(topic), create=True)
    await broker.service.directory.create_partitioned(name("ap"), 1)
    everything = await topics_of(client)
    persistent = [PREFIX + topic for topic in ("a1", "a2", "ap-partition-0", "b")]
    assert list(everything.topics) == persistent
    assert (everything.filtered, everything.changed) == (False, True)
    mode = pb.CommandGetTopicsOfNamespace
    assert list((await topics_of(client, mode=mode.NON_PERSISTENT)).topics) == [
        "non-persistent://public/default/a3"
    ]
    assert len((await topics_of(client, mode=mode.ALL)).topics) == 5
    some = await topics_of(client, topics_pattern="persistent://public/default/a.*")
    assert list(some.topics) == persistent[:3]
    assert some.filtered
    same = await topics_of(
        client, topics_pattern="public/default/a.*", topics_hash=some.topics_hash
    )
    assert (same.changed, list(same.topics)) == (False, [])
    long = await topics_of(client, topics_pattern="a" * 51)
    assert not long.filtered
    assert list((await topics_of(client, namespace="no/where")).topics) == []


async def watch(client: Client, pattern: str, **fields: object) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id, request.watcher_id = 3, 8
    request.namespace, request.topics_pattern = "public/default", pattern
    for field, value in fields.items():
        setattr(request, field, value)
    client.send(command)
    return await client.receive_one()


async def test_watchers_are_told_what_comes_and_goes(broker: Broker) -> None:
    client = await ready(broker)
    await broker.service.directory.create(name("a1"))
    success = (await watch(client, "public/default/a.*")).watchTopicListSuccess
    assert (success.request_id, success.watcher_id) == (3, 8)
    assert list(success.topic) == [PREFIX + "a1"]
    await broker.service.directory.create(name("b"))
    await broker.service.directory.create(name("a2"))
    update = (await client.receive_one()).watchTopicUpdate
    assert (list(update.new_topics), list(update.deleted_topics)) == ([PREFIX + "a2"], [])
    assert update.topics_hash == run_at_once(topics_hash([PREFIX + "a1", PREFIX + "a2"]))
    await broker.service.directory.delete(name("a1"))
    gone = (await client.receive_one()).watchTopicUpdate
    assert (list(gone.new_topics), list(gone.deleted_topics)) == ([], [PREFIX + "a1"])
    # the same watcher again is a refresh, and says nothing new when the hash is known
    again = await watch(client, "public/default/a.*", topics_hash=gone.topics_hash)
    assert list(again.watchTopicListSuccess.topic) == []
    command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE)
    command.watchTopicListClose.request_id, command.watchTopicListClose.watcher_id = 4, 8
    client.send(command)
    assert (await client.receive_one()).success.request_id == 4
    await broker.service.directory.create(name("a3"))
    await client.expect_nothing()


async def test_what_changes_while_a_list_is_made_is_in_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list is made in steps, in which others get their turns: nothing of theirs may be lost."""
    client = await ready(broker)
    for number in range(40):
        await broker.service.directory.create(name(f"a{number:02}"))
    monkeypatch.setattr(topic_list, "_SLICE", 1)
    command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id, request.watcher_id = 3, 8
    request.namespace, request.topics_pattern = "public/default", "public/default/a.*"
    client.send(command)
    async with asyncio.timeout(30):
        while not broker.service.watchers._turns:  # noqa: ASYNC110 # nothing tells of that
            await asyncio.sleep(0)
    await broker.service.directory.delete(name("a07"))
    await broker.service.directory.create(name("a99"))
    await broker.service.directory.create(name("a98"))
    await broker.service.directory.delete(name("a98"))
    known = {PREFIX + f"a{number:02}" for number in range(40)}
    found: set[str] = set()

    def all_told() -> bool:
        for told in client.take():  # the list, then what has changed since
            found.update(told.watchTopicListSuccess.topic, told.watchTopicUpdate.new_topics)
            found.difference_update(told.watchTopicUpdate.deleted_topics)
        return found == known - {PREFIX + "a07"} | {PREFIX + "a99"}

    await eventually(all_told)


async def test_lists_of_a_connection_are_made_one_by_one_and_in_steps(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 lists of 3,000 topics held the loop for four seconds, 1,000 watchers for twenty."""
    client = await ready(broker)
    names = [PREFIX + f"a{number}" for number in range(1_000)]
    matched = 0
    matches = TopicPattern.matches

    def count(pattern: TopicPattern, topic: TopicName) -> bool:
        nonlocal matched
        matched += 1
        return matches(pattern, topic)

    async def list_topics(namespace: str, mode: str) -> list[str]:
        return names

    monkeypatch.setattr(TopicPattern, "matches", count)
    monkeypatch.setattr(broker.service.directory, "names", list_topics)
    watchers, pattern = broker.service.watchers, TopicPattern("public/default/a.*9")
    lists = [
        asyncio.ensure_future(
            watchers.matching(client.connection, "public/default", "persistent", pattern)
        )
        for _ in range(20)
    ]
    most, before = 0, 0
    while not all(each.done() for each in lists):
        await asyncio.sleep(0)
        most, before = max(most, matched - before), matched
    assert matched == 20_000
    assert most <= 250
    assert {tuple(each.result()) for each in lists} == {
        tuple(each for each in names if each.endswith("9"))
    }
    assert watchers._turns == {}


async def test_a_connection_remembers_a_bounded_number_of_names(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await ready(broker)
    for number in range(5):
        await broker.service.directory.create(name(f"a{number}"))
    monkeypatch.setattr(topic_list, "_KNOWN_MAX", 7)
    for watcher_id in (1, 2):
        assert (await watch(client, "public/default/a.*", watcher_id=watcher_id)).HasField(
            "watchTopicListSuccess"
        )
    refused = await watch(client, "public/default/a.*", watcher_id=3)
    assert "Too many topic list watchers" in refused.error.message
    # One that it has may be asked for again
    assert (await watch(client, "public/default/a.*", watcher_id=2)).HasField(
        "watchTopicListSuccess"
    )


async def test_watch_faults(broker: Broker) -> None:
    client = await ready(broker)
    assert (await watch(client, "(")).error.error == pb.InvalidTopicName
    assert (await watch(client, "a" * 51)).error.error == pb.NotAllowedError
    await watch(client, "public/default/.*")
    client.lose()
    await eventually(lambda: not broker.service.watchers._by_namespace)


# --- transactions


async def test_transactions_are_declined_where_clients_look(broker: Broker) -> None:
    client = await ready(broker)
    begin = pb.BaseCommand(type=pb.BaseCommand.NEW_TXN)
    begin.newTxn.request_id = 3
    client.send(begin)
    error = (await client.receive_one()).error
    assert (error.request_id, error.error) == (3, pb.NotAllowedError)
