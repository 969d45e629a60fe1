"""The index of a broker tells what its topics' statistics tell, of all that exist."""

import asyncio
from collections.abc import Awaitable
from types import NoneType
from typing import Any

import pytest

from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.index import broker_index, figure_table
from magnetar.broker.index.broker_index import IndexTables
from magnetar.broker.index.figure_table import (
    UNLOADED,
    UNLOADED_HERE,
    PageQuery,
    PageScan,
    subscription_key,
)
from magnetar.broker.index.topic_figures import TOPIC_FIELDS
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic.topic_stats import add_earliest_times
from magnetar.bundles.ownership import OWNERS_ROOT
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata import loop_turns
from magnetar.metadata.errors import MetadataError
from tests.unit.broker.doubles import Broker, message
from tests.unit.managed_ledger.cluster import eventually

PREFIX = "persistent://public/default/"


async def make(broker: Broker, name: str, subscriptions: int = 1, messages: int = 0) -> Any:
    topic = await broker.service.loader.load(TopicName.parse(name), create=True)
    for number in range(subscriptions):
        await topic.create_subscription(f"s{number}")
    if messages:
        client = broker.client()
        await client.receive_one()
        await client.produce(name)
        for number in range(messages):
            client.feed(message(number))
        await client.receive(messages)
    return topic


async def rows(tables: IndexTables, **query: Any) -> dict[str, dict[str, Any]]:
    page = await tables.topic_page(PageQuery(**query))
    assert page.total == len(page.rows)
    return {row["topic"].removeprefix(PREFIX): row for row in page.rows}


async def test_rows_are_the_statistics(broker: Broker) -> None:
    topic = await make(broker, "t", subscriptions=2, messages=3)
    await make(broker, "non-persistent://public/default/volatile", subscriptions=0)
    tables = await broker.service.index.tables()
    stats = topic.stats()
    await add_earliest_times(topic, stats)
    row = (await rows(tables))["t"]
    each = stats["subscriptions"].values()
    assert row == {
        "topic": PREFIX + "t",
        "broker": broker.service.broker_id,
        **{name: stats[name] for name in TOPIC_FIELDS if name in stats},
        "msgBacklog": sum(one["msgBacklog"] for one in each),
        "maxMsgBacklog": 3,
        "producerCount": 1,
        "consumerCount": 0,
        "subscriptionCount": 2,
        "msgBacklogTrend": 0.0,
        "idleSince": topic.last_publish_ms,
        "backlogQuotaUsage": None,
        "catchUpSeconds": None,
    }
    assert row["msgBacklog"] == 6
    assert row["storageSize"] > 0
    assert row["earliestMsgPublishTimeInBacklogs"] == 1_700_000_000_000
    page = await tables.subscription_page(PageQuery(text="s1"))
    assert page.total == 2
    assert [(row["subscription"], row["msgBacklog"], row["type"]) for row in page.rows] == [
        ("s1", 3, None)
    ]
    sums = (await tables.sums())["public/default"]
    assert (sums["topicCount"], sums["msgBacklog"], sums["maxMsgBacklog"]) == (2, 6, 3)
    assert sums["loadedTopicCount"] == 2


async def test_the_oldest_message_is_read_where_no_cache_has_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(broker, "t", messages=1)
    monkeypatch.setattr(ManagedLedger, "cached_head", lambda log, position: None)
    tables = await broker.service.index.tables()

    assert (await rows(tables))["t"]["earliestMsgPublishTimeInBacklogs"] == 1_700_000_000_000


async def test_a_topic_is_idle_since_its_last_message(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after it was loaded again, when only the entry knows it."""
    await make(broker, "old", messages=1)
    await make(broker, "empty")
    broker.cluster.now_ms += 7 * 24 * 3600 * 1000
    for name in ("old", "empty"):
        await broker.service.loader.unload(PREFIX + name)
        await broker.service.loader.load(TopicName.parse(name), create=False)
    monkeypatch.setattr(ManagedLedger, "cached_head", lambda log, position: None)
    tables = await broker.service.index.tables()
    await eventually(lambda: tables._reading_last is not None and tables._reading_last.done())
    found = await rows(tables)
    assert found["old"]["idleSince"] == 1_700_000_000_000
    loaded = broker.service.topics[PREFIX + "empty"]
    assert found["empty"]["idleSince"] == loaded.created_ms
    page = await tables.topic_page(PageQuery(view="idle"))
    assert [row["topic"] for row in page.rows] == [PREFIX + "old"]
    assert page.views["idle"] == 1


async def limit_backlog(broker: Broker, limit_bytes: int) -> None:
    quota = {"limitSize": limit_bytes, "limitTime": -1, "policy": "producer_request_hold"}
    await broker.service.policies.update_namespace(
        "public/default",
        lambda old: {**old, "backlog_quota_map": {"destination_storage": quota}},
    )


async def test_a_topic_near_its_quota_is_found(broker: Broker) -> None:
    topic = await make(broker, "t", messages=10)
    await make(broker, "less", messages=1)
    tables = await broker.service.index.tables()
    assert (await rows(tables))["t"]["backlogQuotaUsage"] is None
    backlog_bytes = topic.stats()["backlogSize"]
    for limit, near in ((backlog_bytes * 5 // 4, ["t"]), (backlog_bytes * 5 // 3, [])):
        await limit_backlog(broker, limit)
        await tables.renew()
        found = await rows(tables)
        assert found["t"]["backlogQuotaUsage"] == backlog_bytes / limit
        assert 0 < found["less"]["backlogQuotaUsage"] < 0.2
        page = await tables.topic_page(PageQuery(view="nearQuota"))
        assert [row["topic"].removeprefix(PREFIX) for row in page.rows] == near


async def test_topics_come_and_go(broker: Broker) -> None:
    await make(broker, "a")
    tables = await broker.service.index.tables()
    assert list(await rows(tables)) == ["a"]
    await make(broker, "b")  # its name comes by an event
    await tables.renew()
    assert {name: row["broker"] for name, row in (await rows(tables)).items()} == {
        "a": broker.service.broker_id,
        "b": broker.service.broker_id,
    }
    await broker.service.loader.unload(PREFIX + "a")
    await tables.renew()
    assert (await rows(tables))["a"]["broker"] is None
    assert (await rows(tables))["a"]["msgBacklog"] is None
    assert (await tables.subscription_page(PageQuery())).total == 1
    await broker.service.directory.delete(TopicName.parse("a"))
    await tables.renew()
    assert list(await rows(tables)) == ["b"]


async def test_subscriptions_come_and_go(broker: Broker) -> None:
    topic = await make(broker, "t", subscriptions=2)
    tables = await broker.service.index.tables()
    await topic.delete_subscription("s0")
    await topic.create_subscription("other")
    await tables.renew()
    page = await tables.subscription_page(PageQuery())
    assert [row["subscription"] for row in page.rows] == ["other", "s1"]


async def test_it_is_there_only_while_somebody_asks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_index, "_EVERY_S", 0.0)
    index = broker.service.index
    first = await index.tables()
    assert await index.tables() is first
    monkeypatch.setattr(broker_index, "_KEEP_S", 0.0)
    await eventually(lambda: index._tables is None)
    monkeypatch.setattr(broker_index, "_KEEP_S", 60.0)
    assert await index.tables() is not first


async def test_a_part_is_there_before_all_of_many_topics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await make(broker, name)
    await broker.service.loader.unload(PREFIX + "a")
    listed, tenants = asyncio.Event(), broker.service.resources.tenants

    async def late() -> list[str]:
        await listed.wait()
        return await tenants()

    monkeypatch.setattr(broker.service.resources, "tenants", late)
    monkeypatch.setattr(broker_index, "_FIRST_ROWS", 1)
    index = broker.service.index
    tables = await index.tables(partial=True)
    whole = asyncio.ensure_future(index.tables())
    page = await tables.topic_page(PageQuery(sort="subscriptionCount", descending=True))
    assert {row["topic"].removeprefix(PREFIX) for row in page.rows} == {"b", "c"}
    assert [row["subscriptionCount"] for row in page.rows] == [1, 1]
    assert not page.is_complete
    assert page.read == (2, 2)
    assert not whole.done()
    listed.set()
    assert await whole is tables
    assert (await tables.topic_page(PageQuery())).is_complete
    assert list(await rows(tables)) == ["a", "b", "c"]


async def test_few_topics_are_waited_for(broker: Broker) -> None:
    await make(broker, "a")
    tables = await broker.service.index.tables(partial=True)
    assert (await tables.topic_page(PageQuery())).is_complete


async def test_names_that_cannot_be_read_are_an_error_of_that_request_alone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> list[str]:
        raise MetadataError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(broker.service.resources, "tenants", fail)
        with pytest.raises(ServiceNotReadyError, match="lost"):
            await broker.service.index.tables()
        with pytest.raises(ServiceNotReadyError, match="lost"):
            await broker.service.index.tables(partial=True)
    await broker.service.index.tables()


async def test_who_asks_the_same_gets_the_same_scan(broker: Broker) -> None:
    await make(broker, "t")
    tables = await broker.service.index.tables()
    one, other = await asyncio.gather(*(tables.topic_page(PageQuery()) for _ in range(2)))
    assert one is other
    assert await tables.topic_page(PageQuery()) is one
    await make(broker, "u")
    assert (await tables.topic_page(PageQuery())).total == 2


async def test_pages_that_are_asked_for_at_once_are_found_one_after_the_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each would have its turn at each round of the loop, and others would wait for all."""
    monkeypatch.setattr(figure_table, "SLICE_ROWS", 1)
    monkeypatch.setattr(loop_turns, "TURN_S", 0.0)
    for number in range(3):
        await make(broker, f"t{number}")
    tables = await broker.service.index.tables()
    steps, step = list[int](), PageScan.step

    def noted(scan: PageScan) -> bool:
        steps.append(id(scan))
        return step(scan)

    monkeypatch.setattr(PageScan, "step", noted)
    queries = [PageQuery(limit=limit) for limit in (1, 2, 3)]
    await asyncio.gather(*map(tables.topic_page, queries))
    assert len(steps) == 9
    assert [len(set(steps[start : start + 3])) for start in (0, 3, 6)] == [1, 1, 1]


async def turns_beside(work: Awaitable[Any]) -> int:
    """Turns of the loop that others have until it is done."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


async def test_others_have_turns_between_rows_and_between_namespaces(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may have a thousand rows, and a cluster as many namespaces: these were 6 and 29 ms."""
    for number in range(40):
        await broker.service.resources.create_namespace(f"public/n{number}", ["standalone"], 4, {})
        await make(broker, f"persistent://public/n{number}/t")
    tables = await broker.service.index.tables()
    monkeypatch.setattr(loop_turns, "TURN_S", 0.0)
    assert await turns_beside(tables.topic_page(PageQuery(limit=40))) > 40
    assert await turns_beside(tables.subscription_page(PageQuery(limit=40))) > 40
    assert await turns_beside(tables.sums()) > 40


async def test_a_row_that_is_gone_while_a_page_is_made_is_left_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await make(broker, name)
    tables = await broker.service.index.tables()
    topic_row, slot_of = tables._topic_row, tables.topics.slot_of

    def row_of(slot: int) -> dict[str, Any]:
        if slot == slot_of[PREFIX + "a"]:
            tables.topics.remove(slot_of[PREFIX + "b"])
        return topic_row(slot)

    monkeypatch.setattr(tables, "_topic_row", row_of)
    page = await tables.topic_page(PageQuery())
    assert [row["topic"] for row in page.rows] == [PREFIX + "a", PREFIX + "c"]


async def test_nothing_is_told_of_a_topic_that_is_gone_before_a_look(broker: Broker) -> None:
    """Of one that is deleted, and of one that was never stored and no look has met."""
    await make(broker, "stored")
    tables = await broker.service.index.tables()
    await broker.service.loader.delete(PREFIX + "stored")
    await make(broker, "non-persistent://public/default/volatile", subscriptions=0)
    await broker.service.loader.unload("non-persistent://public/default/volatile")
    assert len(tables.topics) == 2
    await tables.renew()
    assert not await rows(tables)


async def test_a_subscription_that_is_deleted_during_a_look_gets_no_row(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_index, "_SUBSCRIPTIONS_A_STEP", 1)
    topic = await make(broker, "t", subscriptions=2)
    tables = await broker.service.index.tables()
    await topic.create_subscription("late")
    look = tables._look(tables.topics.slot_of[topic.full_name], topic, 0.0)
    next(look)
    await topic.delete_subscription("late")
    assert [*look] == [None]
    page = await tables.subscription_page(PageQuery())
    assert [row["subscription"] for row in page.rows] == ["s0", "s1"]


async def test_what_is_kept_of_each_row_are_texts_and_numbers(broker: Broker) -> None:
    """Of a hundred thousand tuples the first collections of garbage would hold the loop for 10 ms
    and more."""
    for number in range(30):
        await make(broker, f"t{number}", messages=1)
    tables = await broker.service.index.tables()
    for holder in (tables, tables.topics, tables.subscriptions):
        for name, kept in vars(holder).items():
            if isinstance(kept, list | dict) and len(kept) >= 30:
                values = kept.values() if isinstance(kept, dict) else kept
                assert {*map(type, kept), *map(type, values)} <= {str, int, NoneType}, name
    assert len(tables.subscriptions.slot_of) == len(tables.topics.slot_of) == 30


async def test_a_line_break_in_a_name_makes_no_two_subscriptions_one(broker: Broker) -> None:
    assert subscription_key("a\nb", "c") != subscription_key("a", "b\nc")
    await make(broker, "a\nb")
    tables = await broker.service.index.tables()
    (row,) = (await tables.subscription_page(PageQuery())).rows
    assert (row["topic"], row["subscription"]) == (f"{PREFIX}a\nb", "s0")


async def test_an_unloaded_topic_is_told_by_the_owner_of_its_bundle(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the bundles of one namespace are another broker's, then nobody's."""
    service = broker.service
    await make(broker, "mine")
    for name in ("theirs", "nobodys"):
        await service.resources.create_namespace(f"public/{name}", ["c"], 1)
        full = f"persistent://public/{name}/t"
        await make(broker, full)
        await service.loader.unload(full)
        await service.bundles.release_namespace(f"public/{name}")
    bundle = await service.bundles.bundle_of("persistent://public/theirs/t")
    await service.store.put(f"{OWNERS_ROOT}/{bundle}", b"{}")
    monkeypatch.setattr(service, "sharing", object())
    tables = await service.index.tables()

    async def told(place_max: int) -> list[str]:
        page = await tables.topic_page(PageQuery(place_max=place_max))
        return [row["topic"].split("/")[3] for row in page.rows]

    assert await told(UNLOADED) == ["default", "nobodys"]
    assert await told(UNLOADED_HERE) == ["default"]
    await service.store.delete(f"{OWNERS_ROOT}/{bundle}")
    await tables.renew()
    assert await told(UNLOADED) == ["default", "nobodys", "theirs"]
    await service.loader.unload(PREFIX + "mine")  # its bundle stays here
    await tables.renew()
    assert await told(UNLOADED_HERE) == ["default"]
