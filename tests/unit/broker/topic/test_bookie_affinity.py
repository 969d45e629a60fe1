"""New ledgers of a topic name the groups of bookies that its namespace is kept on."""

import json
from collections.abc import AsyncIterator

import pytest

from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.bundles.bookie_affinity import BookieAffinity
from magnetar.bundles.local_policies import LOCAL_POLICIES_ROOT
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.managed_ledger.cluster import eventually

NAMESPACE = "public/default"
TOPIC = "persistent://public/default/t"
ROLLOVER = {
    "managed_ledger_max_entries_per_ledger": 1,
    "managed_ledger_min_ledger_rollover_time_minutes": 0,
}
Groups = dict[str, str] | None


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(**ROLLOVER).start()
    yield broker
    await broker.close()


async def producing(broker: Broker, topic: str = TOPIC) -> tuple[Client, PersistentTopic]:
    client = broker.client()
    await client.receive_one()
    await client.produce(topic=topic)
    loaded = broker.service.topics[topic]
    assert isinstance(loaded, PersistentTopic)
    return client, loaded


async def publish(client: Client, sequence: int) -> None:
    client.feed(message(sequence))
    assert len(receipts(await client.receive(1))) == 1


async def metadata(topic: PersistentTopic, ledger_id: int) -> LedgerMetadata:
    found = await topic.ledger.client.read_ledger_metadata(ledger_id)
    assert found is not None
    return found


async def groups(topic: PersistentTopic, ledger_id: int) -> Groups:
    """What the ledger's custom metadata say; None: nothing."""
    stored = (await metadata(topic, ledger_id)).custom_metadata.get("EnsemblePlacementPolicyConfig")
    return None if stored is None else json.loads(stored)["properties"]


async def newest(topic: PersistentTopic) -> Groups:
    return await groups(topic, topic.ledger.lists.info.ledgers[-1].ledger_id)


async def test_a_change_holds_from_the_next_ledger_on(broker: Broker) -> None:
    factory = broker.service.bundles.factory
    client, topic = await producing(broker)
    await publish(client, 0)
    assert await newest(topic) is None
    seen = []
    for number, affinity in enumerate(
        (BookieAffinity("ssd", "hdd"), BookieAffinity("tape"), BookieAffinity(), None)
    ):
        await factory.set_bookie_affinity(NAMESPACE, affinity)
        before = topic.ledger.lists.info.ledgers[-1].ledger_id
        for sequence in (1, 2):  # the second one cannot be in the ledger that was open
            await publish(client, 2 * number + sequence)
        assert topic.ledger.lists.info.ledgers[-1].ledger_id > before
        seen.append(await newest(topic))
    assert seen == [
        {"isolationBookieGroups": "ssd", "secondaryIsolationBookieGroups": "hdd"},
        {"isolationBookieGroups": "tape"},
        {},
        None,
    ]


async def test_cursors_are_kept_on_the_groups_too(broker: Broker) -> None:
    await broker.service.bundles.factory.set_bookie_affinity(NAMESPACE, BookieAffinity("ssd"))
    client, topic = await producing(broker)
    await topic.create_subscription("s", EARLIEST)
    cursor = topic.subscriptions["s"].cursor
    assert cursor is not None
    for sequence in range(3):
        await publish(client, sequence)
    created = []
    create = topic.ledger.client.create_ledger

    async def note(*args: object, **options: object) -> object:
        writer = await create(*args, **options)  # type: ignore[arg-type] # as it is called
        created.append(writer.ledger_id)
        return writer

    topic.ledger.client.create_ledger = note  # type: ignore[assignment, method-assign] # sees it
    position = topic.ledger.lists.info.ledgers[1].ledger_id, 0
    cursor.ack([position])
    await cursor.write_now()
    await eventually(lambda: bool(created))
    assert [await groups(topic, each) for each in created] == [{"isolationBookieGroups": "ssd"}]


@pytest.mark.parametrize(("topic", "group"), [("t", ""), ("__change_events", "*")])
async def test_strict_affinity_keeps_other_topics_off_the_groups(topic: str, group: str) -> None:
    broker = await Broker(strict_bookie_affinity_enabled=True).start()
    name = f"persistent://public/default/{topic}"
    client, loaded = await producing(broker, name)
    await publish(client, 0)
    both = {"isolationBookieGroups": group, "secondaryIsolationBookieGroups": group}
    assert await newest(loaded) == both
    await broker.close()


async def test_a_damaged_document_lets_no_ledger_begin(broker: Broker) -> None:
    """Nothing is stored on bookies that the namespace may not use."""
    client, topic = await producing(broker)
    path = f"{LOCAL_POLICIES_ROOT}/{NAMESPACE}"
    await broker.cluster.store.put(path, b"{")
    client.feed(message(0))
    appends = topic.ledger.appends
    assert appends is not None
    await eventually(lambda: appends.create_failure_ms > 0)
    assert not topic.ledger.lists.info.ledgers


async def test_a_topic_says_which_bookies_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one bookie is in a group, and the topic's namespace is kept on another one."""
    monkeypatch.setattr(BookiePool, "groups_of", lambda *_: frozenset({"hdd"}))
    broker = await Broker().start()
    factory = broker.service.bundles.factory
    await factory.set_bookie_affinity(NAMESPACE, BookieAffinity("ssd"))
    topic = await broker.service.loader.load(TopicName.parse(TOPIC), create=True)
    assert isinstance(topic, PersistentTopic)
    why = run_at_once(topic.explain_publishing())
    assert why is not None
    missing = "a new ledger needs 1 more writable bookie of those of group ssd; then no group"
    assert missing in why.message
    client = broker.client()
    await client.receive_one()
    refused, _ = await client.produce(topic=TOPIC)
    lacks = "1 bookies are asked for, 1 are missing of those of group ssd; then no group"
    assert refused.error.message == lacks
    await factory.set_bookie_affinity(NAMESPACE, BookieAffinity("hdd"))
    await factory.bookie_affinity(NAMESPACE)
    assert topic.ledger.missing_bookies[0] == 0
    await broker.close()
