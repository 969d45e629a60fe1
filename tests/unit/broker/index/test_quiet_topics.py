"""A topic in which nothing happens is neither sampled nor looked at, and tells what it would."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.broker.index import broker_index
from magnetar.broker.index.broker_index import IndexTables
from magnetar.broker.index.figure_recorder import TOTAL
from magnetar.broker.index.figure_table import UNKNOWN, PageQuery
from magnetar.broker.index.history import POINT_MS
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.rate_limits.rate_sampler import RateSampler
from magnetar.broker.subscription.subscription_admin import skip_messages
from magnetar.broker.topic import activity_mark
from magnetar.managed_ledger.position import EARLIEST
from tests.unit.broker.doubles import Broker, Client, message

FULL = "persistent://public/default/t"


class Quiet:
    """A topic with three messages, a producer, and three subscriptions: of one a consumer."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.service = broker, broker.service
        self.sent = 0

    async def open(self) -> None:
        topic = await self.service.loader.load(TopicName.parse("t"), create=True)
        for name in ("a", "b", "c"):
            await topic.create_subscription(name)
        self.peer: Client = self.broker.client()
        await self.peer.receive_one()
        await self.peer.produce("t")
        await self.send(3)
        await self.subscribe()
        self.topic.subscriptions["a"].clear_backlog()
        self.tables: IndexTables = await self.service.index.tables()

    @property
    def topic(self) -> Any:
        return self.service.topics[FULL]

    async def send(self, count: int) -> None:
        for _ in range(count):
            self.peer.feed(message(self.sent))
            self.sent += 1
        await self.peer.receive(count)

    async def subscribe(self) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        command.subscribe.topic, command.subscribe.subscription = FULL, "c"
        command.subscribe.subType = pb.CommandSubscribe.Shared
        command.subscribe.consumer_id = command.subscribe.request_id = 7
        self.peer.send(command)
        await self.peer.receive_one()

    async def walk(self, times: int = 1) -> None:
        for _ in range(times):
            self.broker.cluster.now_ms += POINT_MS
            await self.service.periodic_tasks._sample(self.service.wall_clock())

    async def told(self, tables: IndexTables) -> Any:
        """But for the trends, which tables that are new can't know."""
        pages = await tables.topic_page(PageQuery()), await tables.subscription_page(PageQuery())
        unsure = {"msgBacklogTrend", "catchUpSeconds"}
        return [[{x: row[x] for x in row if x not in unsure} for row in p.rows] for p in pages]

    async def told_anew(self) -> Any:
        tables = IndexTables(self.service)
        await tables.open()
        self.service.topics.on_loaded = self.tables._loaded
        found = await self.told(tables)
        tables._names.close()
        return found


@pytest.fixture
async def quiet(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Quiet:
    monkeypatch.setattr(broker_index, "_LONG_S", 0.0)
    found = Quiet(broker)
    await found.open()
    return found


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often rates are sampled and topics looked at."""
    done = {"samples": 0, "looks": 0}

    def counted(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            done[what] += 1
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(RateSampler, "sample", counted("samples", RateSampler.sample))
    monkeypatch.setattr(IndexTables, "_look", counted("looks", IndexTables._look))
    return done


async def settle(quiet: Quiet, work: dict[str, int]) -> None:
    """Until nothing is left to do."""
    for _ in range(40):  # a trend needs some minutes
        work["samples"] = work["looks"] = 0
        await quiet.walk()
        if not any(work.values()):
            trends = quiet.tables.subscriptions.columns["msgBacklogTrend"]
            assert set(trends) <= {0.0, UNKNOWN}, "they still change"
            return
    raise AssertionError(work)


async def publish(quiet: Quiet) -> None:
    await quiet.send(2)


async def skip(quiet: Quiet) -> None:
    await skip_messages(quiet.topic.subscriptions["b"], 1)


async def skip_all(quiet: Quiet) -> None:
    quiet.topic.subscriptions["b"].clear_backlog()


async def reset(quiet: Quiet) -> None:
    await quiet.topic.subscriptions["a"].reset(EARLIEST)


async def take(quiet: Quiet) -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = 7, 2
    quiet.peer.send(command)
    await quiet.peer.receive(2)


async def go(quiet: Quiet) -> None:
    quiet.topic.subscriptions["c"].disconnect_all()
    await quiet.peer.receive_one()


async def leave(quiet: Quiet) -> None:
    quiet.topic.remove_producer(next(iter(quiet.topic.producers.values())))


async def create(quiet: Quiet) -> None:
    await quiet.topic.create_subscription("new")


async def delete(quiet: Quiet) -> None:
    await quiet.topic.delete_subscription("b")


async def limit(quiet: Quiet) -> None:
    quota = {"limitSize": 1_000, "limitTime": -1, "policy": "producer_request_hold"}
    await quiet.service.policies.update_namespace(
        "public/default",
        lambda old: {**old, "backlog_quota_map": {"destination_storage": quota}},
    )


async def load_again(quiet: Quiet) -> None:
    await quiet.service.loader.unload(FULL)
    await quiet.service.loader.load(TopicName.parse("t"), create=False)


async def unload(quiet: Quiet) -> None:
    await quiet.service.loader.unload(FULL)


@pytest.mark.parametrize(
    "happen",
    [
        *(publish, skip, skip_all, reset, take, go, leave, create, delete),
        *(limit, load_again, unload),
    ],
)
async def test_what_happens_is_told_by_the_next_walk(
    quiet: Quiet, work: dict[str, int], happen: Callable[[Quiet], Awaitable[None]]
) -> None:
    await settle(quiet, work)
    before = await quiet.told(quiet.tables)
    assert before == await quiet.told_anew()
    await happen(quiet)
    await quiet.walk()
    if (reading := quiet.tables._reading_last) is not None:
        await asyncio.wait({reading})
    found = await quiet.told(quiet.tables)
    assert found == await quiet.told_anew()
    assert found != before
    if happen is not limit:  # the share of a quota may depend on an age
        await settle(quiet, work)
        assert await quiet.told(quiet.tables) == await quiet.told_anew()


async def test_the_history_goes_on(quiet: Quiet, work: dict[str, int]) -> None:
    await settle(quiet, work)
    await quiet.walk(2)
    recorder = quiet.service.figure_recorder
    assert not any(work.values())
    for history, key in (
        (recorder.totals, TOTAL),
        (recorder.topics, FULL),
        (recorder.subscriptions, (FULL, "b")),
    ):
        found = history.series(key)
        assert found is not None
        assert found.times_ms[-1] == quiet.service.wall_clock()
        assert found.values["msgBacklog"][-3:] == [3 if key == (FULL, "b") else 6] * 3
        if history is not recorder.subscriptions:
            assert found.values["storageSize"][-1] == quiet.topic.stored_bytes > 0


async def test_rates_are_those_since_the_last_walk(quiet: Quiet, work: dict[str, int]) -> None:
    await settle(quiet, work)
    await quiet.walk(5)
    assert not any(work.values())
    await quiet.send(20)
    await quiet.walk()
    topic = quiet.topic
    assert topic.rates.rates[1] == 2.0
    assert next(iter(topic.producers.values())).rates.rates[1] == 2.0
    await take(quiet)
    await quiet.walk()
    assert topic.rates.rates[1] == 0.0
    assert topic.subscriptions["c"].rates.rates[0] == 0.2
    assert topic.subscriptions["c"].consumers[0].rates.rates[0] == 0.2


async def test_a_look_of_its_own_leaves_it_out_too(quiet: Quiet, work: dict[str, int]) -> None:
    await settle(quiet, work)
    await quiet.tables.renew()
    assert not any(work.values())
    await quiet.send(1)
    await quiet.tables.renew()
    assert work["looks"] == 1
    await quiet.tables.renew()
    assert work["looks"] == 2, "no sample has found it quiet again"


async def test_a_look_before_the_sample_does_not_keep_old_rates(
    quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few topics, looks are taken between samples."""
    monkeypatch.setattr(broker_index, "_LONG_S", 1e9)
    for name in ("a", "b", "c"):
        await quiet.topic.delete_subscription(name, force=True)
    await quiet.peer.receive_one()
    await quiet.walk(2)
    await quiet.send(20)
    for rate in (2.0, 0.0):
        await quiet.walk()
        await quiet.tables.renew()
        assert (await quiet.told(quiet.tables))[0][0]["msgRateIn"] == rate


async def test_who_takes_anothers_place_is_seen(quiet: Quiet, work: dict[str, int]) -> None:
    """Also within the same millisecond: a clock may stand still."""
    await quiet.topic.delete_subscription("b")
    await quiet.topic.delete_subscription("c", force=True)
    quiet.topic.subscriptions["a"].active_ms = 0
    await settle(quiet, work)
    await quiet.topic.delete_subscription("a")
    await quiet.topic.create_subscription("other")
    quiet.topic.subscriptions["other"].active_ms = 0
    await quiet.walk()
    assert [row["subscription"] for row in (await quiet.told(quiet.tables))[1]] == ["other"]


async def test_the_rates_of_a_new_consumer_begin_at_once(
    quiet: Quiet, work: dict[str, int]
) -> None:
    await settle(quiet, work)
    await go(quiet)
    await quiet.subscribe()
    await quiet.walk()
    assert work["samples"]


async def test_one_with_very_many_clients_is_looked_at(
    quiet: Quiet, work: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await settle(quiet, work)
    monkeypatch.setattr(activity_mark, "_CLIENTS_MAX", 2)
    await quiet.walk()
    assert work["looks"] == 1
    assert work["samples"]
