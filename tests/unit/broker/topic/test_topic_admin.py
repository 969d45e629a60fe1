"""Administration of topics on a broker in memory: properties, truncation, deletion, grants."""

import asyncio
import dataclasses
from typing import Any

import httpx
import pytest

from magnetar.broker.errors import (
    PersistenceError,
    PreconditionFailedError,
    SubscriptionFencedError,
    TopicBusyError,
    TopicFencedError,
)
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.persistent_topic import EPOCH_PROPERTY, PersistentTopic
from magnetar.broker.topic.topic_permissions import granted, names_of, of_topic
from magnetar.managed_ledger.cursor.errors import CursorBusyError, CursorWriteError
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.managed_ledger import PROPERTIES_BYTES_MAX
from magnetar.managed_ledger.position import EARLIEST
from tests.unit.broker.doubles import Broker

PREFIX = "persistent://public/default/"


def name(text: str) -> TopicName:
    return TopicName.parse(text)


async def topic_of(broker: Broker, text: str = "t") -> PersistentTopic:
    topic = await broker.service.loader.load(name(text), create=True)
    assert isinstance(topic, PersistentTopic)
    return topic


async def test_users_properties_and_the_epoch_don_t_meet(broker: Broker) -> None:
    topic = await topic_of(broker)
    await asyncio.gather(
        topic._store_epoch(7), topic.update_properties(lambda before: {**before, "a": "b"})
    )
    assert topic.properties == {"a": "b"}
    assert topic.ledger.properties == {"a": "b", EPOCH_PROPERTY: "7"}
    with pytest.raises(PreconditionFailedError, match="reserved"):
        await topic.update_properties(lambda before: {**before, EPOCH_PROPERTY: "1"})
    with pytest.raises(PreconditionFailedError, match=f"at most {PROPERTIES_BYTES_MAX}"):
        await topic.update_properties(lambda before: {**before, "x": "y" * PROPERTIES_BYTES_MAX})
    await topic.update_properties(lambda _: {})
    assert topic.ledger.properties == {EPOCH_PROPERTY: "7"}
    await broker.service.loader.unload(str(topic.name))
    assert (await topic_of(broker)).epoch == 7


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (CursorBusyError("reset"), SubscriptionFencedError),
        (ManagedLedgerError("x"), PersistenceError),
    ],
)
async def test_a_truncation_that_fails_says_why(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, raised: Exception, told: type[Exception]
) -> None:
    topic = await topic_of(broker)

    async def fail(*_: Any) -> None:
        raise raised

    monkeypatch.setattr(type(topic.ledger), "truncate", fail)
    with pytest.raises(told):
        await topic.truncate()
    monkeypatch.undo()
    await topic.truncate()
    assert not topic.fenced


async def test_a_topic_that_is_closed_is_neither_truncated_nor_trimmed(broker: Broker) -> None:
    topic = await topic_of(broker)
    await broker.service.loader.unload(str(topic.name))
    with pytest.raises(TopicFencedError):
        await topic.truncate()
    with pytest.raises(TopicFencedError):
        await topic.trim()


async def test_a_partitioned_topic_in_use_stays_whole(broker: Broker) -> None:
    service, base = broker.service, name("p")
    await service.directory.create_partitioned(base, 5)
    last = await service.loader.load(base.partition(4), create=False)
    subscription = await last.create_subscription("s")
    subscription.consumers.append(object())  # type: ignore[arg-type] # anybody
    with pytest.raises(TopicBusyError):
        await service.directory.delete_partitioned(base)
    assert len(await service.directory.names("public/default")) == 5
    subscription.consumers.clear()
    await service.directory.delete_partitioned(base)
    assert await service.directory.names("public/default") == []
    assert await service.directory.partitions(base) is None


async def test_grants_go_with_their_topic(broker: Broker) -> None:
    service, base = broker.service, name("p")
    await service.directory.create_partitioned(base, 2)
    await topic_of(broker, "q")
    topics = [*names_of(base, 2), *names_of(name("q"), None)]
    await service.policies.update_namespace(
        "public/default", lambda before: granted(before, topics, "joe", ["produce"])
    )

    async def roles(topic: str) -> dict[str, list[str]]:
        policies = await service.resources.policies("public/default")
        assert policies is not None
        return of_topic(policies.document, PREFIX + topic)

    assert await roles("p-partition-1") == await roles("q") == {"joe": ["produce"]}
    await service.directory.delete(base.partition(0))
    assert await roles("p-partition-0") == {"joe": ["produce"]}, "the partition may come back"
    await service.directory.delete_partitioned(base)
    assert await roles("p") == await roles("p-partition-0") == await roles("p-partition-1") == {}
    assert await roles("q") == {"joe": ["produce"]}
    await service.directory.delete(name("q"))
    assert await roles("q") == {}


async def test_new_partitions_get_the_subscriptions_of_any_old_one(broker: Broker) -> None:
    service, base = broker.service, name("p")
    await service.directory.create_partitioned(base, 2)
    await service.directory.delete(base.partition(0))
    second = await service.loader.load(base.partition(1), create=False)
    await second.create_subscription("s", (-1, -1), {"team": "x"})
    await service.directory.update_partitions(base, 4)
    for index in (2, 3):
        topic = await service.loader.load(base.partition(index), create=False)
        assert topic.subscriptions["s"].properties == {"team": "x"}
    assert not await service.directory.exists(base.partition(0)), "it isn't made by this"


async def test_lists_show_names_as_they_are(broker: Broker) -> None:
    names = ["a b", "a%2Fb", "a%b", "ü", "a+b", "plain", "z-partition-x"]
    for each in names:
        await broker.service.directory.create(name(PREFIX + each))
    assert await broker.service.directory.names("public/default") == sorted(
        PREFIX + each for each in names
    )


# --- a subscription that is replicated


REPLICATED = {"pulsar.replicated.subscription": 1}


async def test_a_replicated_subscription_stays_one(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await topic_of(broker)
    plain = await topic.create_subscription("plain")
    found = await topic.create_subscription("s")
    assert isinstance(found, PersistentSubscription)
    await found.set_replicated(True)
    await found.set_replicated(True)
    await (await topic.create_subscription("another")).set_replicated(True)
    assert caplog.text.count("has no geo-replication") == 1  # of the topic
    assert found.cursor.state.properties == REPLICATED
    found.acknowledge_cumulative(None, found.cursor.mark_delete, {"checkpoint": 7})
    assert found.cursor.state.properties == {"checkpoint": 7, **REPLICATED}
    await found.reset(EARLIEST)
    assert found.cursor.state.properties == REPLICATED
    assert [x.replicated for x in (plain, found)] == [False, True]

    await broker.service.loader.unload(str(topic.name))
    topic = await topic_of(broker)
    stats = {name: x.stats(0)["isReplicated"] for name, x in topic.subscriptions.items()}
    assert stats == {"plain": False, "s": True, "another": True}
    await topic.subscriptions["s"].set_replicated(False)
    await broker.service.loader.unload(str(topic.name))
    again = (await topic_of(broker)).subscriptions["s"]
    assert isinstance(again, PersistentSubscription)
    assert (again.replicated, again.cursor.state.properties) == (False, {})


async def test_without_replicated_subscriptions_there_are_none(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = broker.service
    topic = await topic_of(broker)
    await (await topic.create_subscription("before")).set_replicated(True)
    off = dataclasses.replace(service.config, enable_replicated_subscriptions=False)
    monkeypatch.setattr(service, "config", off)
    await service.loader.unload(str(topic.name))
    topic = await topic_of(broker)
    await (await topic.create_subscription("later")).set_replicated(True)
    await topic.subscriptions["before"].reset(EARLIEST)
    stats = [topic.subscriptions[name].stats(0) for name in ("before", "later")]
    assert [(x["isReplicated"], x["replicated"]) for x in stats] == [(False, False)] * 2

    on = dataclasses.replace(off, enable_replicated_subscriptions=True)
    monkeypatch.setattr(service, "config", on)
    await service.loader.unload(str(topic.name))
    topic = await topic_of(broker)
    assert topic.subscriptions["before"].replicated, "its mark is kept"
    assert not topic.subscriptions["later"].replicated


async def test_a_failed_write_of_the_mark_says_so_and_is_stored_by_the_next(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await topic_of(broker)
    found = await topic.create_subscription("s")
    assert isinstance(found, PersistentSubscription)

    async def fail(*_: Any, whole: bool) -> None:
        raise CursorWriteError("no")

    monkeypatch.setattr(type(found.cursor._writer), "persist", fail)
    with pytest.raises(PersistenceError, match="Cursor of s"):
        await found.set_replicated(True)
    monkeypatch.undo()
    await found.cursor.flush()
    await broker.service.loader.unload(str(topic.name))
    assert (await topic_of(broker)).subscriptions["s"].replicated


async def test_rest_refuses_replication_that_is_switched_off() -> None:
    broker = await Broker(enable_replicated_subscriptions=False).start()
    topic = await topic_of(broker)
    await topic.create_subscription("s")
    url = "/admin/v2/persistent/public/default/t/subscription/s/replicatedSubscriptionStatus"
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        codes = [(await client.post(url, json=wanted)).status_code for wanted in (True, False)]
    assert codes == [412, 204]
    await broker.close()
