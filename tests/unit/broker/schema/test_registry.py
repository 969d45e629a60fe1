"""The registry on a real store: versions, races, deletion, bounds, damage."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from random import Random

import pytest

from magnetar.broker.errors import (
    BrokerMetadataError,
    IncompatibleSchemaError,
    InvalidSchemaError,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.compatibility import Strategy
from magnetar.broker.schema.definition import SchemaDefinition, StoredSchema
from magnetar.broker.schema.history import HISTORY_BYTES_MAX, VERSIONS_MAX, SchemaHistory
from magnetar.broker.schema.registry import SchemaRegistry, SchemaRules
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.broker.schema.builders import avro, optional, plain, protobuf_native, record

TOPIC = TopicName.parse("persistent://public/default/a%2Fb")
PATH = "/schemas/public/default/a%252Fb"
FULL = SchemaRules()
ANY = SchemaRules(Strategy.ALWAYS_COMPATIBLE)


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedMetadataStore]:
    store = EmbeddedMetadataStore.open(None)
    yield store
    await store.close()


@pytest.fixture
async def registry(store: EmbeddedMetadataStore) -> AsyncIterator[SchemaRegistry]:
    clock = itertools.count(1_000)
    registry = SchemaRegistry(store, lambda: next(clock))
    yield registry
    registry.close()


async def test_versions_count_from_zero_and_equal_definitions_share_one(
    registry: SchemaRegistry,
) -> None:
    first = avro(record("a"), owner="me")
    assert await registry.latest(TOPIC) is None
    assert await registry.register(TOPIC, first, FULL) == 0
    assert await registry.register(TOPIC, avro(record("a", optional("b"))), FULL) == 1
    assert await registry.register(TOPIC, first, FULL) == 0
    assert await registry.register(TOPIC, avro(record("a", doc="spelled anew")), FULL) == 0
    latest = await registry.latest(TOPIC)
    assert latest is not None
    assert (latest.version, latest.timestamp_ms) == (1, 1_001)
    stored = (await registry.history(TOPIC)).get(0)
    assert stored is not None
    assert dict(stored.definition.properties) == {"owner": "me"}


async def test_all_partitions_and_brokers_see_one_history(
    registry: SchemaRegistry, store: EmbeddedMetadataStore
) -> None:
    session = store.new_session()
    other = SchemaRegistry(session, lambda: 0)
    await registry.register(TOPIC.partition(3), plain("STRING"), FULL)
    assert await other.find(TOPIC.partition(0), plain("STRING")) == 0
    assert await other.find(TOPIC, plain("INT8")) is None
    other.close()
    await session.close()


async def test_memory_that_trails_is_not_believed(
    registry: SchemaRegistry, store: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker's change, of which no event has come yet."""
    await registry.register(TOPIC, plain("STRING"), FULL)
    assert await registry.get(TOPIC, 0) is not None  # in memory now
    monkeypatch.setattr(registry._cache, "invalidate", lambda path: None)
    session = store.new_session()
    other = SchemaRegistry(session, lambda: 0)
    await other.drop(TOPIC)
    await other.register(TOPIC, plain("INT8"), FULL)
    await other.register(TOPIC, plain("INT16"), ANY)
    found = await registry.get(TOPIC, 1)
    assert found is not None
    assert found.definition == plain("INT16")
    assert await registry.latest(TOPIC) == found
    await registry.check_consumer(TOPIC, plain("INT16"), Strategy.FULL)
    assert await registry.register(TOPIC, plain("INT16"), FULL) == 1
    other.close()
    await session.close()


async def test_racing_producers_agree(
    registry: SchemaRegistry, store: EmbeddedMetadataStore
) -> None:
    session = store.new_session()
    other = SchemaRegistry(session, lambda: 0)
    definitions = [avro(record(f"a{n % 5}")) for n in range(40)]
    versions = await asyncio.gather(
        *(
            (registry, other)[n % 2].register(TOPIC, definition, ANY)
            for n, definition in enumerate(definitions)
        )
    )
    history = await registry.history(TOPIC)
    assert [each.version for each in history.versions] == [0, 1, 2, 3, 4]
    for version, definition in zip(versions, definitions, strict=True):
        stored = history.get(version)
        assert stored is not None
        assert stored.definition == definition
    other.close()
    await session.close()


async def test_the_rules_are_kept(registry: SchemaRegistry) -> None:
    await registry.register(TOPIC, avro(record("a")), FULL)
    with pytest.raises(IncompatibleSchemaError):
        await registry.register(TOPIC, avro(record("b")), FULL)
    with pytest.raises(IncompatibleSchemaError):
        await registry.check(TOPIC, avro(record("b")), Strategy.BACKWARD)
    await registry.check(TOPIC, avro(record("b")), Strategy.ALWAYS_COMPATIBLE)
    with pytest.raises(InvalidSchemaError):
        await registry.register(TOPIC, SchemaDefinition("AVRO", b"{"), ANY)
    closed = SchemaRules(Strategy.ALWAYS_COMPATIBLE, auto_update=False)
    with pytest.raises(IncompatibleSchemaError, match="auto updating"):
        await registry.register(TOPIC, avro(record("a", optional("b"))), closed)
    assert await registry.register(TOPIC, avro(record("a")), closed) == 0
    assert (await registry.history(TOPIC)).last_version == 0


async def test_consumers_are_checked(registry: SchemaRegistry) -> None:
    with pytest.raises(IncompatibleSchemaError):
        await registry.check_consumer(TOPIC, plain("STRING"), Strategy.FULL)
    await registry.register(TOPIC, avro(record("a")), FULL)
    for strategy in Strategy:
        await registry.check_consumer(TOPIC, avro(record("a")), strategy)
    with pytest.raises(IncompatibleSchemaError):
        await registry.check_consumer(TOPIC, plain("STRING"), Strategy.FULL)


async def test_deletion_hides_and_versions_count_on(registry: SchemaRegistry) -> None:
    assert await registry.delete(TOPIC) == -1
    await registry.register(TOPIC, avro(record("a")), FULL)
    assert await registry.delete(TOPIC) == 1
    assert await registry.delete(TOPIC) == 1
    history = await registry.history(TOPIC)
    assert (history.latest(), history.live, history.get(0)) == (None, (), None)
    assert await registry.find(TOPIC, avro(record("a"))) is None
    assert await registry.register(TOPIC, plain("STRING"), FULL) == 2
    await registry.drop(TOPIC)
    await registry.drop(TOPIC)
    assert await registry.register(TOPIC, plain("INT8"), FULL) == 0


async def test_large_histories_fit_and_come_back(registry: SchemaRegistry) -> None:
    doc = "".join(chr(33 + n * 7919 % 89) for n in range(400_000))
    for n in range(4):
        assert await registry.register(TOPIC, avro(record(f"a{n}", doc=doc)), ANY) == n
    stored = (await registry.history(TOPIC)).get(2)
    assert stored is not None
    assert stored.definition == avro(record("a2", doc=doc))


@pytest.mark.parametrize(
    ("count", "definition_bytes"),
    [(VERSIONS_MAX, 4), (HISTORY_BYTES_MAX // 500_000, 500_000), (2, 450_000)],
)
async def test_the_end_of_room_is_told(
    registry: SchemaRegistry, store: EmbeddedMetadataStore, count: int, definition_bytes: int
) -> None:
    random = Random(count)
    noise = random.randbytes(definition_bytes) if count == 2 else b"x" * definition_bytes
    versions = tuple(
        StoredSchema(n, 0, SchemaDefinition("EXTERNAL", b"%d" % n + noise[n:]))
        for n in range(count)
    )
    await store.put(PATH, SchemaHistory(versions).encode())
    more = SchemaDefinition("EXTERNAL", random.randbytes(500_000))
    with pytest.raises(IncompatibleSchemaError, match="delete the schema"):
        await registry.register(TOPIC, more, FULL)
    assert await registry.delete(TOPIC) == count
    assert await registry.register(TOPIC, more, FULL) == count + 1


def test_histories_survive_the_node() -> None:
    history = SchemaHistory().appended(plain("STRING"), 1).marked_deleted(2)
    for definition in (
        avro(record("a"), p="q"),
        SchemaDefinition("KEY_VALUE", b"\0\0\0\x01\xff"),
        protobuf_native("p.M"),
    ):
        history = history.appended(definition, 3)
    again = SchemaHistory.decode("/x", history.encode())
    assert again == history
    assert [dict(each.definition.properties) for each in again.live] == [{"p": "q"}, {}, {}]
    assert SchemaHistory.decode("/x", b"") == SchemaHistory()


@pytest.mark.parametrize(
    "value",
    [
        *(b"x", b"[]", b"{}", b'{"format":2,"versions":[]}', b"\x28\xb5\x2f\xfdgarbage"),
        b'{"format":1,"versions":[{"version":0}]}',
        b'{"format":1,"versions":3}',
    ],
)
async def test_damaged_nodes_are_named(
    registry: SchemaRegistry, store: EmbeddedMetadataStore, value: bytes
) -> None:
    await store.put(PATH, value)
    for call in (
        registry.latest(TOPIC),
        registry.register(TOPIC, plain("STRING"), FULL),
        registry.delete(TOPIC),
    ):
        with pytest.raises(BrokerMetadataError, match="schema"):
            await call


async def test_a_store_that_is_gone_is_told(
    registry: SchemaRegistry, store: EmbeddedMetadataStore
) -> None:
    await store.close()
    for call in (
        registry.latest(TOPIC),
        registry.register(TOPIC, plain("STRING"), FULL),
        registry.delete(TOPIC),
        registry.drop(TOPIC),
    ):
        with pytest.raises(BrokerMetadataError):
            await call
