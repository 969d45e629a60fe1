"""Recent history is what lists and statistics tell, with and without somebody who looks."""

from typing import Any

import pytest

from magnetar.broker.index import broker_index
from magnetar.broker.index.figure_recorder import TOTAL
from magnetar.broker.index.figure_table import PageQuery
from magnetar.broker.index.history import POINT_MS
from magnetar.broker.index.history_answer import broker_history, topic_history
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker, message
from tests.unit.managed_ledger.cluster import eventually

PREFIX = "persistent://public/default/"


async def fill(broker: Broker, messages: int) -> None:
    for name in ("a", "b", "__change_events"):
        topic = await broker.service.loader.load(TopicName.parse(name), create=True, forced=True)
        await topic.create_subscription("s")
    if messages:
        await send(broker, messages)


async def send(broker: Broker, messages: int) -> None:
    client = broker.client()
    await client.receive_one()
    await client.produce("a")
    for number in range(messages):
        client.feed(message(number))
    await client.receive(messages)


async def test_a_look_of_the_index_is_a_point(broker: Broker) -> None:
    await fill(broker, 3)
    tables = await broker.service.index.tables()
    recorder = broker.service.figure_recorder
    found = broker_history(recorder, "me")
    sums = (await tables.sums())["public/default"]
    for name in ("msgBacklog", "storageSize", "msgRateIn"):
        assert found["series"][name] == [pytest.approx(sums[name])]
    assert found["series"]["msgBacklog"] == [3]
    assert found["series"]["publishLatencyP99Ms"][0] > 0
    assert found["brokers"]["me"]["since"] == found["since"] == found["times"][0]
    assert found["brokers"]["me"]["msgBacklog"] == 3
    one = run_at_once(topic_history(recorder, PREFIX + "a", ["s", "gone"]))
    assert one["series"]["msgBacklog"] == [3]
    assert one["subscriptions"]["s"]["series"] == {"msgBacklog": [3]}
    assert one["subscriptions"]["gone"]["since"] is None
    assert run_at_once(topic_history(recorder, PREFIX + "__change_events", []))["since"] is None
    await tables.renew()
    assert broker_history(recorder, "me") == found  # ten seconds have not passed


async def test_the_sampling_of_rates_is_a_point_without_anybody_who_looks(broker: Broker) -> None:
    await fill(broker, 3)
    service, recorder = broker.service, broker.service.figure_recorder
    now_ms = service.wall_clock()
    for number in range(2):
        await service.periodic_tasks._sample(now_ms + number * POINT_MS)
    assert service.index._tables is None
    found = recorder.totals.series(TOTAL)
    assert found is not None
    assert found.times_ms == [now_ms, now_ms + POINT_MS]
    assert found.values["msgBacklog"] == [3, 3]
    stored = [service.topics[PREFIX + name].stored_bytes for name in ("a", "b")]
    assert found.values["storageSize"][-1] == sum(stored) > 0
    assert len(recorder.topics) == 2


async def test_rates_are_sampled_oftener_while_somebody_looks(broker: Broker) -> None:
    tasks = broker.service.periodic_tasks
    assert tasks._sample_pause_ms() == 60_000
    await broker.service.index.tables()
    assert tasks._sample_pause_ms() == POINT_MS
    tasks._sample_took_ms = 350.0
    assert tasks._sample_pause_ms() == 35_000, "at most 1 % of the time"


async def test_the_sampling_of_rates_looks_for_the_index_at_very_many_topics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One walk and not two. It tells what a look tells, of topics that come and go, too."""
    await fill(broker, 3)
    service, tasks = broker.service, broker.service.periodic_tasks
    tables = await service.index.tables()
    monkeypatch.setattr(broker_index, "_LONG_S", 0.0)
    walks, walk = 0, service.topics.walk

    def counted() -> Any:
        nonlocal walks
        walks += 1
        yield from walk()
        if walks == 1:  # behind the last one others come, and one goes and comes
            service.topics[PREFIX + "late"] = late
            service.topics[PREFIX + "b"] = again

    monkeypatch.setattr(service.topics, "walk", counted)
    await service.topics[PREFIX + "a"].delete_subscription("s")
    late = await service.loader.load(TopicName.parse("late"), create=True)
    again = service.topics[PREFIX + "b"]
    await again.create_subscription("new")
    for name in ("late", "b"):
        del service.topics[PREFIX + name]
    await service.loader.unload(PREFIX + "gone")
    now_ms = service.wall_clock()
    await tasks._sample(now_ms + POINT_MS)
    assert walks == 1
    assert [each.times_ms for each in (service.figure_recorder.totals.series(TOTAL),) if each] == [
        [now_ms, now_ms + POINT_MS]
    ]

    async def told() -> Any:
        pages = await tables.topic_page(PageQuery()), await tables.subscription_page(PageQuery())
        return [page.rows for page in pages], [page.views for page in pages]

    found = await told()
    await tables.renew()
    assert await told() == found
    assert {row["topic"] for row in found[0][0] if row["broker"]} == {
        *(PREFIX + name for name in ("a", "b", "late"))
    }
    assert [(row["topic"], row["subscription"]) for row in found[0][1]] == [
        (PREFIX + "b", "new"),
        (PREFIX + "b", "s"),
    ]


async def test_a_topic_that_is_unloaded_has_no_history_any_more(broker: Broker) -> None:
    await fill(broker, 1)
    service = broker.service
    now_ms = service.wall_clock()
    await service.periodic_tasks._sample(now_ms)
    await service.loader.unload(PREFIX + "a")
    await eventually(lambda: PREFIX + "a" not in service.topics)
    await service.periodic_tasks._sample(now_ms + POINT_MS)
    assert run_at_once(topic_history(service.figure_recorder, PREFIX + "a", ["s"]))["since"] is None
    assert len(service.figure_recorder.subscriptions) == 1


async def test_a_trend_is_known_at_the_first_look(broker: Broker) -> None:
    await fill(broker, 0)
    service = broker.service
    now_ms = service.wall_clock()
    await service.periodic_tasks._sample(now_ms - 100_000)
    await send(broker, 10)
    row = (await (await service.index.tables()).subscription_page(PageQuery(text="/a"))).rows[0]
    assert row["msgBacklog"] == 10
    assert row["msgBacklogTrend"] == pytest.approx(0.1, rel=0.1)
