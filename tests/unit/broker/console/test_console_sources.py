"""What sources tell that are no Magnetar, or topics of several partitions."""

import asyncio
import gc
import re
from html import unescape
from typing import Any

import httpx
import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from magnetar.broker.console.admin_api import AdminApi, AdminError, RemoteApi, value_of
from magnetar.broker.console.console import ClusterLook, Console
from magnetar.broker.console.pulsar_source import PulsarSource
from magnetar.broker.console.snapshot import (
    SnapshotHistory,
    explanation_of,
    explanations_of_partitions,
    page_of,
    rows_of,
    suspects_of,
)
from magnetar.broker.console.source import IndexQuery
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.topic_view import ClientQuery, topic_figures
from magnetar.broker.http.server.app import create_app
from magnetar.broker.index.history_answer import broker_history
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker


class OneBrokerIsSilent(AdminApi):
    """A cluster of two brokers and no topics; the figures of one can't be read."""

    def __init__(self, is_silent: bool = False) -> None:
        self._is_silent = is_silent

    def at(self, broker: str) -> AdminApi:
        return OneBrokerIsSilent("b2" in broker)

    async def call(self, method: str, path: str, query: Any = None, body: Any = None) -> Any:
        answers: dict[str, Any] = {
            "clusters": ["c"],
            "brokers/c": ["b1:8080", "b2:8080"],
            "brokers/leaderBroker": {"brokerId": "b1:8080"},
            "tenants": [],
            "clusters/c": {},
            "bookies/all": {"bookies": []},
            "bookies/racks-info": {},
            "broker-stats/topics": {},
            "broker-stats/load-report": {},
        }
        if self._is_silent:
            raise AdminError(503, "no route to host")
        return answers[path.removeprefix("/admin/v2/")]


class NeverAnswers(OneBrokerIsSilent):
    """More tenants than are asked for at the same time, and nothing of them."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def call(self, method: str, path: str, query: Any = None, body: Any = None) -> Any:
        if path.endswith("/tenants"):
            return [f"t{number}" for number in range(20)]
        if "/namespaces/" in path:
            self.is_asked.set()
            await asyncio.Event().wait()
        return await super().call(method, path, query, body)


async def test_a_console_may_end_while_it_reads_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits for its turn is none yet: Python warns of one that is never awaited."""
    monkeypatch.setattr("magnetar.broker.console.pulsar_source._WATCH_S", 0)
    api = NeverAnswers()
    source = PulsarSource(api)
    watching = asyncio.create_task(source.watch())
    await api.is_asked.wait()
    watching.cancel()
    await source.close()
    gc.collect()


async def test_a_broker_of_pulsar_that_is_silent_needs_attention() -> None:
    source = PulsarSource(OneBrokerIsSilent())
    console = Console(ClusterLook("c", source.product, "4"), lambda _: source)

    async def page(request: Request) -> Response:
        return await console.respond(request, "")

    transport = httpx.ASGITransport(Starlette(routes=[Route("/", page)]))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/")
    assert answer.status_code == 200
    assert '<a href="brokers/b2%3A8080"><b>b2:8080</b></a>: the broker is regist' in answer.text
    assert "no route to host" in answer.text
    assert "1 thing needs attention" in answer.text
    assert answer.text.count("silent since") == 1  # in the list of brokers


class RacksOfPulsar(AdminApi):
    """One bookie has joined and has a rack, one has none, and a third rack is left over."""

    async def call(self, method: str, path: str, query: Any = None, body: Any = None) -> Any:
        racks = {"b1:3181": {"rack": "/r1"}, "gone:3181": {"rack": "/r2"}}
        answers: dict[str, Any] = {
            "bookies/all": {"bookies": [{"bookieId": "b1:3181"}, {"bookieId": "b2:3181"}]},
            "bookies/racks-info": {"default": racks},
        }
        if (found := answers.get(path.removeprefix("/admin/v2/"))) is None:
            raise AdminError(404, "not asked by this page")
        return found


async def test_what_pulsar_does_not_tell_of_bookies_is_said_in_words() -> None:
    source = PulsarSource(RacksOfPulsar())
    console = Console(ClusterLook("c", source.product, "4"), lambda _: source)

    async def page(request: Request) -> Response:
        return await console.respond(request, "bookies")

    transport = httpx.ASGITransport(Starlette(routes=[Route("/", page)]))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        text = unescape((await client.get("/")).text)
    await console.close()
    await source.close()
    rows = re.findall(r'<tr id="[^"]+">(.*?)</tr>', text)
    shown = [re.sub("<[^>]+>", " ", row).split() for row in rows]
    assert [row[:3] for row in shown] == [
        ["b1:3181", "not", "told"],
        ["b2:3181", "not", "told"],
        ["gone:3181", "never", "joined,"],
    ]
    assert "/r1" in shown[0]
    assert "whether they are up or not" in text
    assert 'class="sy o"' not in text, "nobody says that they are well"


class OneTopicStands(AdminApi):
    """A broker of Apache Pulsar with one topic; counts how often this is asked for."""

    name = "persistent://public/default/orders"

    def __init__(self, stats: dict[str, Any]) -> None:
        self._stats, self.asked = stats, 0

    async def call(self, method: str, path: str, query: Any = None, body: Any = None) -> Any:
        topics = {"public/default": {"0x0_0xf": {"persistent": {self.name: self._stats}}}}
        answers: dict[str, Any] = {
            "tenants": ["public"],
            "namespaces/public": ["public/default"],
            "persistent/public/default": [self.name],
            "non-persistent/public/default": [],
            "clusters": ["c"],
            "brokers/c": ["b1:8080"],
            "broker-stats/topics": topics,
            "persistent/public/default/orders/stats": self._stats,
            "persistent/public/default/orders/compaction": {"status": "NOT_RUN"},
        }
        self.asked += path.endswith("/stats")
        return answers[path.removeprefix("/admin/v2/")]


CONSUMER = {"connectedSince": "2026-01-01T00:00:00Z", "availablePermits": 5, "unackedMessages": 5}


@pytest.mark.parametrize(
    ("consumers", "found", "why"),
    [
        (
            [],
            "subscription-idle",
            "it has a backlog of 4 entries and no consumer; messages are kept",
        ),
        ([CONSUMER | {"availablePermits": 0}], "subscription-stuck", "don't ask for messages"),
        (
            [CONSUMER | {"blockedConsumerOnUnackedMsgs": True}],
            "subscription-stuck",
            "nothing is delivered, and 4 entries wait. Its consumers have 5 messages that they"
            " didn't acknowledge, which is the limit.",
        ),
        # Ten minutes without an acknowledgement, but not known to be at a limit.
        ([CONSUMER], "subscription-slow", "consumers have 5 messages and acknowledge none"),
    ],
)
async def test_subscriptions_of_pulsar_that_stand_need_attention(
    consumers: list[dict[str, Any]], found: str, why: str
) -> None:
    stats = {"subscriptions": {"s": {"msgBacklog": 4, "consumers": consumers}}}
    stats["subscriptions"]["__compaction"] = {"msgBacklog": 9, "consumers": []}
    api = OneTopicStands(stats)
    source = PulsarSource(api)
    (finding,) = await source.findings()
    assert (finding["check"], finding["subject"]) == (found, f"{api.name}, subscription s")
    assert finding["sentence"].startswith(f"{api.name}, subscription s: ")
    assert why in finding["sentence"]
    listed = await source.subscriptions(IndexQuery())
    assert "Those of topics that no broker has loaded are missing." in listed.note
    await source.findings()
    assert api.asked == (1 if consumers else 0), "once for a snapshot"


async def test_a_compaction_of_pulsar_lacks_no_consumer() -> None:
    stats = {"subscriptions": {"__compaction": {"msgBacklog": 9, "consumers": []}}}
    source = PulsarSource(OneTopicStands(stats))
    found = await source.explanations(TopicPath.parse(OneTopicStands.name), stats)
    assert found["__compaction"]["reason"] == "notCompacted"


def test_what_pulsar_calls_none_is_no_type() -> None:
    """As of a subscription that the admin API created."""
    stats = {"orders": {"subscriptions": {"billing": {"type": "None", "msgBacklog": 1}}}}
    _, _, (row,), _ = rows_of([], {"b1:8080": stats})
    figures = run_at_once(topic_figures(stats["orders"], {}, ClientQuery()))
    assert (row["type"], figures.subscriptions[0].type) == ("", "")


def test_the_largest_of_many_subscriptions_are_looked_at() -> None:
    rows = [
        {"subscription": f"s{n}", "msgBacklog": n, "consumerCount": n % 2} for n in range(1, 100)
    ]
    found = suspects_of(rows, 3)
    assert [row["msgBacklog"] for row in found.busy] == [99, 97, 95]
    assert (found.idle, found.idle_count) == (rows[97], 49)


async def test_a_cluster_without_a_leader_says_so(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody() -> None:
        """As between two elections."""

    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        shown = []
        for _ in range(2):
            pages = [await client.get(f"/console/{path}") for path in ("", "brokers")]
            assert {page.status_code for page in pages} == {200}
            assert not any('class="fail"' in page.text for page in pages)
            shown.append("no leader" in pages[0].text)
            monkeypatch.setattr(broker.service.cluster_members, "leader", nobody)
    assert shown == [False, True]


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://other:8080/admin/v2/tenants?authoritative=true", None),
        ("http://other:8080/login", "another one"),
        ("http://user@other:8080/admin/v2/tenants", "another one"),
        ("ftp://other/admin/v2/tenants", "another one"),
        ("/admin/v2/tenants", "another one"),
        ("http://[", "no URL"),
        ("", "another one"),
    ],
)
async def test_where_the_credentials_of_a_console_go(location: str, reason: str | None) -> None:
    """As those of the command line: docs/guides/security.md, "Where credentials go"."""
    shown = []

    def answer(request: httpx.Request) -> httpx.Response:
        shown.append((request.url.host, request.headers.get("authorization")))
        if request.url.host == "first":
            return httpx.Response(307, headers={"Location": location})
        return httpx.Response(200, json=["public"])

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        for scheme in ("http", "https"):
            shown.clear()
            api = RemoteApi(client, f"{scheme}://first:1", lambda: {"Authorization": "Bearer s"})
            if reason is None and scheme == "http":
                assert await api.call("GET", "/admin/v2/tenants") == ["public"]
                assert shown == [("first", "Bearer s"), ("other", "Bearer s")]
                continue
            with pytest.raises(AdminError, match=reason or "another one"):  # TLS is never left
                await api.call("GET", "/admin/v2/tenants")
            assert shown == [("first", "Bearer s")]


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        ({"msgBacklog": 0}, "caughtUp"),
        ({"msgBacklog": 1}, "noConsumer"),
        ({"msgBacklog": 1, "consumers": [{"availablePermits": 0}]}, "noPermits"),
        (
            {"msgBacklog": 1, "consumers": [{"availablePermits": 5}], "msgRateOut": 1.0},
            "delivering",
        ),
        ({"msgBacklog": 1, "consumers": [{"availablePermits": 5}]}, None),
        ({"msgBacklog": 1, "consumers": [{"availablePermits": 5}], "type": "Failover"}, "pending"),
        (
            {"msgBacklog": 3, "msgDelayed": 1, "unackedMessages": 2}
            | {"consumers": [{"availablePermits": 5}]},
            "pending",
        ),
        ({"msgBacklog": 3, "msgDelayed": 3, "consumers": [{"availablePermits": 5}]}, "delayed"),
        (
            {"msgBacklog": 3, "unackedMessages": 3, "type": "Shared", "msgRateOut": 1.0}
            | {"consumers": [{"availablePermits": 5}]},
            "pending",
        ),
        (
            {"msgBacklog": 3, "unackedMessages": 2, "type": "Shared", "msgRateOut": 1.0}
            | {"consumers": [{"availablePermits": 5}]},
            "delivering",
        ),
        (
            {"msgBacklog": 3, "drainingHashesCount": 1, "consumers": [{"availablePermits": 5}]},
            "drainingHash",
        ),
        (
            {"msgBacklog": 1, "consumers": [{"blockedConsumerOnUnackedMsgs": True}]},
            "consumerUnackedLimit",
        ),
        (
            {"msgBacklog": 1, "consumers": [{}], "blockedSubscriptionOnUnackedMsgs": True},
            "subscriptionUnackedLimit",
        ),
    ],
)
def test_what_statistics_of_pulsar_tell(stats: dict[str, Any], reason: str | None) -> None:
    found = explanation_of(stats)
    assert (None if found is None else found.reason) == reason


def test_nobody_knows_the_delays_of_pulsar_without_a_consumer() -> None:
    found = explanation_of({"msgBacklog": 1, "msgDelayed": 0})
    assert found is not None
    assert found.message == "No consumer is connected."
    assert "does not tell before then whether messages are delayed" in found.next


_READS = {"consumerName": "reads", "availablePermits": 9}
_STANDS = {"consumerName": "stands", "availablePermits": 0, "lastConsumedTimestamp": 5}
_FULL = {"consumerName": "full", "availablePermits": 9, "blockedConsumerOnUnackedMsgs": True}


@pytest.mark.parametrize(
    ("stats", "reason", "sentence"),
    [
        (
            {"type": "Failover", "activeConsumerName": "stands", "consumers": [_READS, _STANDS]},
            "noPermits",
            "Consumer stands has no permits: its client has asked for no more messages.",
        ),
        (
            {"type": "Failover", "activeConsumerName": "reads", "consumers": [_READS, _STANDS]},
            "pending",
            "The consumer asks for messages and gets none",
        ),
        (
            {"type": "Shared", "consumers": [_FULL, _STANDS]},
            "noPermits",
            "no more messages. 1 other consumer has as many unacknowledged messages as they may.",
        ),
        (
            {"type": "Shared", "msgRateOut": 0.1, "consumers": [_READS]},
            "delivering",
            "Messages were delivered within the last minute",
        ),
    ],
)
def test_who_of_the_consumers_of_pulsar_keeps_messages_waiting(
    stats: dict[str, Any], reason: str, sentence: str
) -> None:
    found = explanation_of({"msgBacklog": 1, **stats})
    assert found is not None
    assert found.reason == reason
    assert sentence in found.message


def test_reasons_of_partitions_of_pulsar() -> None:
    reads = {"msgBacklog": 2, "msgRateOut": 1.0, "consumers": [_READS]}
    stands = {"msgBacklog": 9, "consumers": [_STANDS]}
    untold = {"msgBacklog": 9, "consumers": [_READS], "type": "Shared"}
    parts = [
        ("0", {"subscriptions": {"a": reads, "b": reads, "c": reads}}),
        ("1", {"subscriptions": {"a": stands, "b": untold}}),
    ]
    found = run_at_once(explanations_of_partitions("abc", parts))
    assert found["a"]["reason"] == "noPermits"
    assert found["a"]["message"].startswith("Partition 1: Consumer stands ")
    assert "b" not in found  # partition 1 may stand still
    assert found["c"]["reason"] == "delivering"


def test_a_failure_of_pulsar_is_told_without_its_stack_trace() -> None:
    reason = "\n --- An unexpected error occurred in the server ---\n\nMessage: HTTP 500 {\n}\n\n"
    body = orjson.dumps({"reason": f"{reason}Stacktrace:\n\njava.lang.Exception\n\tat A.b"})
    with pytest.raises(AdminError, match=r"^HTTP 500 \{\n\}$"):
        value_of(500, body, "", "")


async def test_reasons_of_a_partitioned_topic(broker: Broker) -> None:
    topic = "persistent/public/default/wide"
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.put(f"/admin/v2/{topic}/partitions", json=2)).is_success
        assert (await client.put(f"/admin/v2/{topic}/subscription/s")).is_success
        body = {"producerName": "p", "messages": [{"payload": "x", "key": "k"}]}
        assert (await client.post(f"/topics/{topic}-partition-1", json=body)).is_success
        page = (await client.get(f"/console/topic/{topic}/subscriptions?open=s")).text
    assert 'data-reason="noConsumer"' in page
    assert "Partition 1: No consumer" in page


def test_the_history_takes_topics_of_pulsar_which_tells_fewer_figures() -> None:
    name = "persistent://public/default/orders"
    stats = {name: {"msgRateIn": 2.0, "subscriptions": {"billing": {"msgBacklog": 3}}}}
    topics, _, subscriptions, _ = rows_of([name], {"b1:8080": stats})
    history = SnapshotHistory()
    history.add(60_000, topics, subscriptions)
    assert broker_history(history.recorder, "all")["series"]["msgRateIn"] == [2.0]


def test_system_topics_of_pulsar_are_in_a_view_of_their_own() -> None:
    """As in Magnetar, whose index has none."""
    stats = {"msgRateIn": 1.0, "subscriptions": {"__compaction": {"msgBacklog": 9}}}
    system = [
        "persistent://public/default/__change_events",
        "persistent://public/default/orders-billing__transaction_pending_ack",
        "persistent://pulsar/127.0.0.1:8080/healthcheck",
        "persistent://pulsar/system/anything",
    ]
    own = "persistent://public/default/__orders"
    served = dict.fromkeys([own, *system], stats)
    topics, system_topics, subscriptions, _ = rows_of([], {"b1:8080": served})
    assert [row["topic"] for row in subscriptions] == [own]
    page = page_of(topics, IndexQuery(), "", system_topics)
    assert [row["topic"] for row in page.rows] == [own]
    assert (page.total, page.views["system"]) == (1, 4)
    page = page_of(topics, IndexQuery(view="system", q="DEFAULT"), "", system_topics)
    assert [row["topic"] for row in page.rows] == system[:2]
    assert page.views["system"] == 2
