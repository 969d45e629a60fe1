"""Settings that change while the broker runs."""

import ast
import re
from pathlib import Path

import orjson
import pytest

from magnetar.broker.config import BrokerConfig, key_of
from magnetar.broker.errors import PreconditionFailedError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.pulsar_settings import FEATURES, LACKING
from magnetar.broker.service.dynamic_configuration import DYNAMIC_FIELDS, PATH, DynamicConfiguration
from magnetar.broker.subscription.persistent_subscription import (
    PersistentSubscription,
    dispatch_limits,
)
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.broker.doubles import Broker as LiveBroker
from tests.unit.metadata.event_log import EventLog

ROOT = Path(__file__).resolve().parents[4]


class Broker:
    def __init__(self, store: EmbeddedMetadataStore, base: BrokerConfig) -> None:
        self.applied = EventLog[BrokerConfig]()
        self.settings = DynamicConfiguration(store, base, self._apply)

    async def _apply(self, config: BrokerConfig) -> None:
        self.applied(config)

    @property
    def config(self) -> BrokerConfig:
        return self.applied.events[-1]


@pytest.fixture
async def store() -> EmbeddedMetadataStore:
    return EmbeddedMetadataStore.open(None)


async def test_a_value_holds_at_once_and_goes_back(store: EmbeddedMetadataStore) -> None:
    broker = Broker(store, BrokerConfig(max_tenants=7))
    await broker.settings.renew()
    assert broker.applied.events == [], "nothing is stored, so nothing changes"
    await broker.settings.set("maxTenants", "9")
    await broker.settings.set("allowAutoTopicCreation", "false")
    assert (broker.config.max_tenants, broker.config.allow_auto_topic_creation) == (9, False)
    values = {"maxTenants": "9", "allowAutoTopicCreation": "false"}
    assert await broker.settings.values() == values
    stored = await store.get(PATH)
    assert stored is not None
    assert orjson.loads(stored.value) == values
    await broker.settings.delete("maxTenants")
    assert broker.config.max_tenants == 7, "what the broker was started with"
    assert not broker.config.allow_auto_topic_creation
    await broker.settings.delete("maxTenants")


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("clusterName", "x", "Can't update non-dynamic configuration"),
        ("nope", "1", "Can't update non-dynamic configuration"),
        ("maxTenants", "many", "maxTenants='many'"),
        ("maxTenants", "-1", "too small"),
        ("allowAutoTopicCreation", "perhaps", "not true or false"),
        ("allowAutoTopicCreationType", "weird", "not one of"),
        ("defaultNumPartitions", "0", "must be positive"),
    ],
)
async def test_what_does_not_fit_is_refused(
    store: EmbeddedMetadataStore, key: str, text: str, message: str
) -> None:
    broker = Broker(store, BrokerConfig())
    with pytest.raises(PreconditionFailedError, match=message):
        await broker.settings.set(key, text)
    assert await store.get(PATH) is None
    assert broker.applied.events == []


async def test_only_dynamic_settings_can_be_deleted(store: EmbeddedMetadataStore) -> None:
    with pytest.raises(PreconditionFailedError, match="Can't delete non-dynamic"):
        await Broker(store, BrokerConfig()).settings.delete("clusterName")


async def test_unlimited_is_a_value(store: EmbeddedMetadataStore) -> None:
    broker = Broker(store, BrokerConfig())
    await broker.settings.set("defaultRetentionSizeInMB", "-1")
    await broker.settings.set("defaultRetentionTimeInMinutes", "-1")
    assert broker.config.default_retention_size_in_mb == -1


async def test_all_brokers_follow_and_a_restarted_one_too(store: EmbeddedMetadataStore) -> None:
    here = Broker(store.new_session(), BrokerConfig())
    there = Broker(store.new_session(), BrokerConfig(max_tenants=3, max_namespaces_per_tenant=4))
    await here.settings.renew()
    await there.settings.renew()
    await here.settings.set("maxTenants", "8")
    (config,) = await there.applied.until(lambda events: len(events) == 1)
    assert (config.max_tenants, config.max_namespaces_per_tenant) == (8, 4)
    await here.settings.delete("maxTenants")
    configs = await there.applied.until(lambda events: len(events) == 2)
    assert configs[-1].max_tenants == 3
    await here.settings.set("maxTenants", "5")
    restarted = Broker(store.new_session(), BrokerConfig())
    await restarted.settings.renew()
    assert restarted.config.max_tenants == 5


async def test_what_another_version_stored_stops_nobody(store: EmbeddedMetadataStore) -> None:
    await store.put(
        PATH, orjson.dumps({"maxTenants": "x", "newerSetting": "1", "maxTopicsPerNamespace": "6"})
    )
    broker = Broker(store, BrokerConfig())
    await broker.settings.renew()
    assert broker.config.max_topics_per_namespace == 6
    assert broker.config.max_tenants == 0


def test_dynamic_settings_are_read_when_they_are_used() -> None:
    """What a constructor or a module reads would stay as it was at the start."""
    found = []
    for path in (ROOT / "broker").rglob("*.py"):
        name = str(path.relative_to(ROOT))
        if name in {"broker/config.py", "broker/policies/effective.py"}:
            continue
        for part in ast.walk(ast.parse(path.read_text())):
            if not isinstance(part, ast.FunctionDef) or part.name != "__init__":
                continue
            found += [
                (name, each.attr)
                for each in ast.walk(part)
                if isinstance(each, ast.Attribute)
                and each.attr in DYNAMIC_FIELDS
                # ``self.x`` of the class's own is not the setting
                and not (isinstance(each.value, ast.Name) and each.value.id == "self")
            ]
    assert found == []


async def test_a_loaded_topic_has_the_value_when_the_call_returns(broker: LiveBroker) -> None:
    service = broker.service
    name = TopicName.parse("persistent://public/default/live")
    topic = await service.loader.load(name, create=True)
    subscription = await topic.create_subscription("s", EARLIEST)
    settings = service.dynamic_configuration
    for key, text in (
        ("maxUnackedMessagesPerConsumer", "7"),
        ("maxProducersPerTopic", "2"),
        ("dispatchThrottlingRatePerTopicInMsg", "9"),
        ("defaultRetentionTimeInMinutes", "3"),
        ("maxMessagePublishBufferSizeInMB", "5"),
        ("dispatcherMaxReadBatchSize", "11"),
    ):
        await settings.set(key, text)
    assert topic.policies.max_unacked_per_consumer == 7
    assert topic.policies.max_producers == 2
    assert topic.policies.dispatch_rate.messages == 9
    assert isinstance(topic, PersistentTopic)
    assert topic.ledger.config.retention_ms == 3 * 60_000
    assert service.ledgers.append_budget.bytes_max == 5 * 1024 * 1024
    assert isinstance(subscription, PersistentSubscription)
    limits = dispatch_limits(service.config, topic.policies)
    assert limits.unacked_per_consumer == 7
    assert subscription._limits == limits
    await settings.delete("maxUnackedMessagesPerConsumer")
    assert topic.policies.max_unacked_per_consumer == 50_000
    later = await service.loader.load(TopicName.parse(f"{name}2"), create=True)
    assert later.policies.max_producers == 2, "topics loaded afterwards have it too"


def test_names_are_pulsars() -> None:
    names = DynamicConfiguration.names()
    assert len(set(names)) == len(names) == len(DYNAMIC_FIELDS)
    assert names == [key_of(field) for field in DYNAMIC_FIELDS]
    assert {"maxTenants", "maxMessagePublishBufferSizeInMB"} <= set(names)


@pytest.mark.parametrize("key", [*LACKING, *FEATURES])
async def test_what_is_not_kept_is_not_taken(key: str, store: EmbeddedMetadataStore) -> None:
    broker = Broker(store, BrokerConfig())
    reason = LACKING[key].instead if key in LACKING else ""
    with pytest.raises(PreconditionFailedError, match=f"non-dynamic.*{re.escape(reason)}"):
        await broker.settings.set(key, "another")
    assert await broker.settings.values() == {}


async def test_what_is_not_kept_and_was_stored_is_told_once(
    store: EmbeddedMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    values = {"strictTopicNameEnabled": "true", "maxTenants": "9", "numIOThreads": "5"}
    await store.put(PATH, orjson.dumps(values))
    broker = Broker(store, BrokerConfig())
    await broker.settings.renew()
    assert broker.config.max_tenants == 9
    await broker.settings.set("maxTenants", "8")
    first, second = [record.getMessage() for record in caplog.records]
    assert "ignored strictTopicNameEnabled: not in this version: topics may be named" in first
    assert "ignored numIOThreads: not a dynamic setting" in second
