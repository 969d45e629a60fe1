"""The metrics page in the making: its text, and that it never keeps the loop to itself."""

import asyncio
import math
from itertools import pairwise
from typing import NoReturn

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp, Receive, Scope, Send

from magnetar.broker.dispatch.explanation import STALL_MS, STALLS, Reason
from magnetar.broker.errors import PersistenceError, TopicNotFoundError
from magnetar.broker.http import streamed_answers
from magnetar.broker.http.metrics import metrics as metrics
from magnetar.broker.http.metrics.broker_metrics import CacheRates
from magnetar.broker.http.metrics.metrics import metrics_pieces
from magnetar.broker.http.metrics.prometheus_page import BLOCK_ROWS, PrometheusPage, label
from magnetar.broker.http.metrics.topic_metrics import TopicMetrics
from magnetar.broker.http.middleware.request_context import HttpMetrics
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription_admin import clear_backlog
from magnetar.managed_ledger.errors import ManagedLedgerError
from tests.unit.broker.doubles import Broker, message


def samples(page: bytes) -> dict[str, float]:
    """Value by series as it is written, by the official parser."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            key = f"{sample.name}{{{labels}}}"
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


class Labels(str):
    """Counts those that are in memory."""

    alive = 0

    def __new__(cls, text: str) -> "Labels":
        cls.alive += 1
        return super().__new__(cls, text)

    def __del__(self) -> None:
        Labels.alive -= 1


def test_a_page_leaves_memory_as_it_is_read() -> None:
    """At once it would hold the loop for 10 ms: 100,000 topics have many labels."""
    page, rows = PrometheusPage("c"), 10 * BLOCK_ROWS
    table = page.table(("a", "b"))
    for number in range(rows):
        table.add(Labels(f'n="{number}"'), (number, 0.5))
    alive = [Labels.alive for _ in page.pieces()]
    assert alive[:10] == [rows] * 10
    assert max(before - after for before, after in pairwise(alive)) <= BLOCK_ROWS
    assert alive[-1] <= 2 * BLOCK_ROWS


def test_series_of_one_metric_stand_together() -> None:
    page = PrometheusPage("c")
    first, second = page.table(("a", "b")), page.table(("b", "c"))
    page.add("b", page.base, 7)
    for number in range(3):
        first.add(f'n="{number}"', (number, 0.5))
        second.add(f'm="{number}"', (number, 2.5))
    page.add_summary("d", [("0.5", math.nan)], 0, 0.0)
    assert b"".join(page.pieces()).decode().splitlines() == [
        "# TYPE a gauge",
        'a{n="0"} 0.0',
        'a{n="1"} 1.0',
        'a{n="2"} 2.0',
        "# TYPE b gauge",
        'b{cluster="c"} 7',
        *(f'b{{n="{number}"}} 0.5' for number in range(3)),
        *(f'b{{m="{number}"}} {number}.0' for number in range(3)),
        "# TYPE c gauge",
        *(f'c{{m="{number}"}} 2.5' for number in range(3)),
        "# TYPE d summary",
        'd{cluster="c",quantile="0.5"} NaN',
        'd_count{cluster="c"} 0',
        'd_sum{cluster="c"} 0.0',
    ]


def test_a_table_without_rows_leaves_no_trace() -> None:
    page = PrometheusPage("c")
    page.table(("a", "b"))
    assert list(page.pieces()) == []


@pytest.mark.parametrize("rows", [1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 10 * BLOCK_ROWS])
def test_no_piece_is_long(rows: int) -> None:
    page = PrometheusPage("c")
    names = [f"m{number}" for number in range(5)]
    table = page.table(names)
    for number in range(rows):
        table.add(f'n="{number}"', (number,) * 5)
        page.add("single", f'n="{number}"', number)
    pieces = list(page.pieces())
    assert max(piece.count(b"\n") - piece.count(b"#") for piece in pieces) <= BLOCK_ROWS
    found = samples(b"".join(pieces))
    assert len(found) == 6 * rows
    assert all(found[f"{name}{{n={n}}}"] == n for name in [*names, "single"] for n in range(rows))


def test_labels_are_escaped() -> None:
    page = PrometheusPage('a"b\\c\nd')
    page.add("m", page.base, 1)
    assert samples(b"".join(page.pieces())) == {'m{cluster=a"b\\c\nd}': 1}
    assert label("n", 'x"') == 'n="x\\""'


async def load(broker: Broker, count: int, subscriptions: int = 0) -> None:
    for number in range(count):
        name = TopicName.parse(f"persistent://public/default/t{number}")
        topic = await broker.service.loader.load(name, create=True)
        for each in range(subscriptions):
            await topic.create_subscription(f"s{each}")


async def test_others_run_between_topics_and_between_pieces(broker: Broker) -> None:
    """Every look at the clock finds the turn over: then no step may follow another directly."""
    await load(broker, 300, 1)
    loop, ticks, running = asyncio.get_running_loop(), 0, True

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if running:
            loop.call_soon(tick)

    loop.call_soon(tick)
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 1.0
        return now_s

    pieces, at_piece = [], []
    async for piece in metrics_pieces(broker.service, HttpMetrics(), CacheRates(), clock=clock):
        pieces.append(piece)
        at_piece.append(ticks)
    running = False
    page = b"".join(pieces)
    series = page.count(b"\n") - page.count(b"# TYPE")
    assert series > 300 * 40
    assert at_piece[0] >= 300, "one turn a topic, before the first piece"
    assert ticks - 300 >= series // BLOCK_ROWS, "one turn a block of lines"
    assert len(set(at_piece)) == len(pieces), "and one after each piece"


async def test_a_topic_with_many_subscriptions_takes_many_steps(broker: Broker) -> None:
    await load(broker, 1, 200)
    page = PrometheusPage("c")
    assert len(list(TopicMetrics(page, broker.service).steps())) >= 200 // 32
    found = samples(b"".join(page.pieces()))
    assert len([name for name in found if name.startswith("pulsar_subscription_back_log{")]) == 200


async def test_what_is_unloaded_in_the_middle_is_left_out(broker: Broker) -> None:
    await load(broker, 4, 40)
    page = PrometheusPage("c")
    topics = TopicMetrics(page, broker.service)
    steps = topics.steps()
    next(steps)  # 32 subscriptions of t0
    first = broker.service.topics["persistent://public/default/t0"]
    await first.delete_subscription("s35", force=True)
    name = TopicName.parse("persistent://public/default/t2")
    await broker.service.directory.delete(name, force=True)
    for _ in steps:
        pass
    found = samples(b"".join(page.pieces()))
    assert found["pulsar_topics_count{cluster=c,namespace=public/default}"] == 3
    backlogs = [key for key in found if key.startswith("pulsar_subscription_back_log{")]
    assert len(backlogs) == 39 + 40 + 40
    assert not [key for key in found if "/t2" in key]


async def test_the_page_agrees_with_statistics(broker: Broker) -> None:
    await load(broker, 2, 3)
    pages = metrics_pieces(broker.service, HttpMetrics(), CacheRates())
    found = samples(b"".join([piece async for piece in pages]))
    topic = broker.service.topics["persistent://public/default/t1"]
    stats = topic.stats()
    base = f"cluster={broker.service.cluster}"
    labels = f"{base},namespace=public/default,topic={topic.full_name}"
    for series, field in (
        ("pulsar_in_messages_total", "msgInCounter"),
        ("pulsar_out_bytes_total", "bytesOutCounter"),
        ("pulsar_storage_size", "storageSize"),
        ("pulsar_storage_backlog_quota_limit", "backlogQuotaLimitSize"),
        ("pulsar_storage_backlog_age_seconds", "oldestBacklogMessageAgeSeconds"),
        ("pulsar_publish_rate_limit_times", "publishRateLimitedTimes"),
    ):
        assert found[f"{series}{{{labels}}}"] == stats[field], series
    assert found[f"pulsar_subscriptions_count{{{labels}}}"] == 3
    assert found[f"pulsar_broker_subscriptions_count{{{base}}}"] == 6


class AnswerOf:
    """The application, asked with another version of HTTP."""

    def __init__(self, app: ASGIApp, http_version: str) -> None:
        self._app = app
        self._version = http_version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "http_version": self._version}, receive, send)


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
@pytest.mark.parametrize("http_version", ["1.1", "1.0"])
async def test_a_large_page_is_sent_in_pieces(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, encoding: str, http_version: str
) -> None:
    monkeypatch.setattr(metrics, "PIECE_BYTES", 2_000)
    monkeypatch.setattr(streamed_answers, "_WHOLE_BYTES", 2_000)
    await load(broker, 20, 1)
    app = AnswerOf(create_app(broker.service), http_version)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/metrics", headers={"Accept-Encoding": encoding})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert answer.headers.get("content-encoding", "identity") == encoding
    assert ("content-length" in answer.headers) == (http_version == "1.0"), "which has no chunks"
    assert len(samples(answer.content)) > 20 * 40


async def page_of(broker: Broker) -> dict[str, float]:
    pages = metrics_pieces(broker.service, HttpMetrics(), CacheRates())
    return samples(b"".join([piece async for piece in pages]))


async def test_connections_that_are_not_read_are_throttled(broker: Broker) -> None:
    client, _ = broker.client(), broker.client(port=5001)
    name = f"pulsar_broker_throttled_connections{{cluster={broker.service.cluster}}}"
    assert (await page_of(broker))[name] == 0
    client.connection.pause_for_process()
    assert (await page_of(broker))[name] == 1
    client.connection.resume_for_process()
    assert (await page_of(broker))[name] == 0


async def test_throttled_dispatch_shows_from_its_first_event_on(broker: Broker) -> None:
    await load(broker, 1, 1)
    (topic,) = broker.service.topics.values()
    subscription = topic.subscriptions["s0"]
    assert isinstance(subscription, PersistentSubscription)
    assert not [name for name in await page_of(broker) if "dispatch_throttled" in name]
    subscription._rate.events = {"dispatchThrottledMsgEventsByTopicLimit": 3}
    found = await page_of(broker)
    (series,) = [name for name in found if "dispatch_throttled" in name]
    assert series.startswith("pulsar_subscription_dispatch_throttled_msg_events{")
    assert series.endswith("subscription=s0,reason=topic}")
    assert found[series] == 3


async def test_subscriptions_that_get_nothing_are_counted_by_reason(broker: Broker) -> None:
    await load(broker, 1, 2)
    client = broker.client()
    await client.receive_one()
    await client.produce("t0")
    client.feed(message(0))
    await client.receive(1)
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = "t0", "s0"
    command.subscribe.subType, command.subscribe.consumer_id = pb.CommandSubscribe.Shared, 1
    command.subscribe.request_id = next(client.request_ids)
    client.send(command)
    await client.receive_one()

    async def stalls() -> dict[str, float]:
        prefix = f"magnetar_subscriptions_stalled{{cluster={broker.service.cluster},reason="
        return {
            name.removeprefix(prefix).rstrip("}"): count
            for name, count in (await page_of(broker)).items()
            if name.startswith(prefix)
        }

    found = await stalls()
    assert found.keys() == STALLS
    assert {reason for reason, count in found.items() if count} == {Reason.NO_CONSUMER}
    broker.cluster.now_ms += STALL_MS
    found = await stalls()
    assert {reason: count for reason, count in found.items() if count} == {
        Reason.NO_CONSUMER: 1,
        Reason.NO_PERMITS: 1,
    }
    (topic,) = broker.service.topics.values()
    for each in topic.subscriptions.values():
        assert isinstance(each, PersistentSubscription)
        await clear_backlog(each)
    assert not any((await stalls()).values())


async def test_bytes_of_system_topics_stand_apart(broker: Broker) -> None:
    for number, local in enumerate(("plain", "__change_events"), 1):
        name = TopicName.parse(f"persistent://public/default/{local}")
        topic = await broker.service.loader.load(name, create=True)
        topic.bytes_in = 10 * number
    found = await page_of(broker)
    base = f"cluster={broker.service.cluster}"
    assert found[f"pulsar_broker_in_bytes_total{{{base},system_topic=false}}"] == 10
    assert found[f"pulsar_broker_in_bytes_total{{{base},system_topic=true}}"] == 20


async def test_failed_loads_are_counted(broker: Broker) -> None:
    absent = TopicName.parse("persistent://public/default/absent")
    with pytest.raises(TopicNotFoundError):
        await broker.service.loader.load(absent, create=False)
    name = f"topic_load_failed_total{{cluster={broker.service.cluster}}}"
    assert (await page_of(broker))[name] == 0, "an answer, no failure"
    broker.service.ledgers.open = failing  # type: ignore[method-assign] # the storage is away
    with pytest.raises(PersistenceError):
        await broker.service.loader.load(absent, create=True)
    assert (await page_of(broker))[name] == 1


async def failing(*_: object, **__: object) -> NoReturn:
    raise ManagedLedgerError("no storage")


async def test_looks_at_backlogs_are_timed(broker: Broker) -> None:
    await broker.service.background_tasks.check_backlogs()
    await broker.service.background_tasks.check_backlogs()
    found = await page_of(broker)
    base = f"cluster={broker.service.cluster}"
    name = "pulsar_storage_backlog_quota_check_duration_seconds"
    assert found[f"{name}_count{{{base}}}"] == 2
    assert found[f"{name}_bucket{{{base},le=+Inf}}"] == 2


def test_pages_of_several_processes_are_one() -> None:
    pages = []
    for process in ("a", "b"):
        page = PrometheusPage("c", process)
        if process == "b":
            page.add("only", page.base, 1, "counter")
        page.add("both", page.base, 2)
        page.add_summary("summary", [("0.5", math.nan)], 3, 4.5)
        pages.append(page)
    first, second = pages
    first.add_page(b"".join(second.pieces()))
    lines = b"".join(first.pieces()).decode().splitlines()
    assert lines == [
        "# TYPE both gauge",
        'both{cluster="c",process="a"} 2',
        'both{cluster="c",process="b"} 2',
        "# TYPE summary summary",
        'summary{cluster="c",process="a",quantile="0.5"} NaN',
        'summary_count{cluster="c",process="a"} 3',
        'summary_sum{cluster="c",process="a"} 4.5',
        'summary{cluster="c",process="b",quantile="0.5"} NaN',
        'summary_count{cluster="c",process="b"} 3',
        'summary_sum{cluster="c",process="b"} 4.5',
        "# TYPE only counter",
        'only{cluster="c",process="b"} 1',
    ]
