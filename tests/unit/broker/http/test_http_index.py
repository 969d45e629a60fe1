"""Pages of topics and subscriptions over HTTP: what is asked for, and what each role may see."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from magnetar.broker.cluster.broker_client import BrokerCall, BrokerUnreachableError
from magnetar.broker.http.routing.scatter_gather import (
    PartResult,
    ScatterGather,
    ScatterResults,
)
from magnetar.broker.http.server.app import create_app
from magnetar.broker.index.broker_index import BrokerIndex
from magnetar.broker.index.topic_figures import SUBSCRIPTION_VIEWS, TOPIC_VIEWS
from magnetar.broker.protocol.topic_name import TopicName
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import client_of
from tests.unit.broker.http.test_http_access import make_app

TOPICS = ("t1/ns/a", "t1/ns/b", "t1/other/c", "t2/ns/d-partition-0", "t2/ns/e")


async def ask(broker: Broker, path: str, role: str | None = None) -> Any:
    async with client_of(create_app(broker.service), role) as client:
        answer = await client.get(f"/admin/v2/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()


def names(answer: Any) -> list[str]:
    return [row["topic"].removeprefix("persistent://") for row in answer["topics"]]


async def fill(broker: Broker) -> None:
    grants: dict[str, dict[str, Any]] = {
        "t1/ns": {"namespace_auth": {"cons": ["consume"]}},
        "t1/other": {},
        "t2/ns": {"destination_auth": {"persistent://t2/ns/d": {"cons": ["produce"]}}},
    }
    for tenant in ("t1", "t2"):
        await broker.service.resources.create_tenant(tenant, {"adminRoles": [f"admin-{tenant}"]})
    for namespace, auth in grants.items():
        await broker.service.resources.create_namespace(
            namespace, ["c"], 4, {"auth_policies": auth}
        )
    for name in TOPICS:
        topic = await broker.service.loader.load(TopicName.parse(name), create=True, forced=True)
        await topic.create_subscription("s")


@pytest.fixture
async def guarded() -> AsyncIterator[Broker]:
    """With authorization; roles are set in front of the application."""
    broker = Broker(
        authentication_enabled=True,
        anonymous_user_role="anonymous",
        authorization_enabled=True,
        super_user_roles="admin",
        proxy_roles="proxy",
    )
    await broker.start()
    broker.service.config = replace(
        broker.service.config, authentication_enabled=False, authorization_enabled=False
    )
    await fill(broker)
    yield broker
    await broker.close()


async def test_pages_follow_each_other(broker: Broker) -> None:
    await fill(broker)
    for order, expected in (("asc", sorted(TOPICS)), ("desc", sorted(TOPICS, reverse=True))):
        found: list[str] = []
        after = ""
        while True:
            answer = await ask(broker, f"topics-index?limit=2&order={order}{after}")
            found += names(answer)
            assert (answer["total"], answer["matching"]) == (5, 5)
            if answer["next"] is None:
                break
            after = f"&after={answer['next']}"
        assert found == expected
    answer = await ask(broker, "topics-index?q=T1/&sort=subscriptionCount&view=noSubscription")
    assert (answer["matching"], answer["topics"]) == (0, [])
    assert answer["total"] == 5
    answer = await ask(broker, "topics-index?namespace=t2/ns&sort=msgBacklog")
    assert names(answer) == ["t2/ns/d-partition-0", "t2/ns/e"]
    assert await ask(broker, "topics-index?namespace=t2&sort=msgBacklog") == answer
    assert (await ask(broker, "topics-index?namespace=t1"))["total"] == 3
    assert (await ask(broker, "topics-index?namespace=t"))["total"] == 0
    sums = (await ask(broker, "namespaces-index"))["namespaces"]
    assert {name: each["topicCount"] for name, each in sums.items()} == {
        "t1/ns": 2,
        "t1/other": 1,
        "t2/ns": 2,
    }


@pytest.mark.parametrize(
    ("role", "seen"),
    [
        ("admin", TOPICS),
        ("admin-t1", TOPICS[:3]),
        ("cons", (*TOPICS[:2], TOPICS[3])),
        ("nobody", ()),
        (None, ()),
    ],
)
async def test_a_role_sees_what_it_may_look_up(
    guarded: Broker, role: str | None, seen: tuple[str, ...]
) -> None:
    answer = await ask(guarded, "topics-index", role)
    assert names(answer) == list(seen)
    assert (answer["total"], answer["matching"]) == (len(seen), len(seen))
    answer = await ask(guarded, "subscriptions-index?sort=msgBacklog", role)
    assert [row["topic"].removeprefix("persistent://") for row in answer["subscriptions"]] == [
        *seen
    ]
    sums = (await ask(guarded, "namespaces-index", role))["namespaces"]
    assert sum(each["topicCount"] for each in sums.values()) == len(seen)


async def test_a_role_sees_of_certain_rows_what_it_may_look_up(guarded: Broker) -> None:
    full = ["persistent://t1/ns/a", "persistent://t1/other/c", "persistent://t1/ns/gone"]
    for role, seen in (("admin", ["t1/ns/a", "t1/other/c"]), ("cons", ["t1/ns/a"])):
        asked = quote(json.dumps(full))
        assert names(await ask(guarded, f"topics-index?only={asked}", role)) == seen
        asked = quote(json.dumps([[each, "s"] for each in full] + [["persistent://t1/ns/a", "x"]]))
        answer = await ask(guarded, f"subscriptions-index?only={asked}&sort=msgBacklog", role)
        assert [row["topic"] for row in answer["subscriptions"]] == [
            f"persistent://{each}" for each in seen
        ]
        assert answer["total"] == len(seen)


async def test_only_a_superuser_sees_with_the_eyes_of_another_role(guarded: Broker) -> None:
    assert names(await ask(guarded, "topics-index?role=admin-t1", "admin")) == list(TOPICS[:3])
    assert names(await ask(guarded, "topics-index?role=admin", "nobody")) == []
    asked = "topics-index?role=proxy&originalRole=cons"  # the proxy itself has no grants
    assert names(await ask(guarded, asked, "admin")) == []


@pytest.mark.parametrize(
    "query",
    [
        *("sort=nonsense", "order=up", "limit=0", "limit=1001", "view=x", "after=x"),
        *("after=1.0:t", "only=x", "only=5", "only=[[[]]]", "only=[]&grouped=true"),
        f"only={[*range(1001)]}",
    ],
)
async def test_what_cannot_be_answered_is_refused(broker: Broker, query: str) -> None:
    async with client_of(create_app(broker.service), None) as client:
        answer = await client.get(f"/admin/v2/topics-index?{query}")
    assert answer.status_code == 400
    assert answer.json()["reason"]


def test_views_are_documented() -> None:
    document = make_app().state.openapi()
    for path, views in (("topics", TOPIC_VIEWS), ("subscriptions", SUBSCRIPTION_VIEWS)):
        operation = document["paths"][f"/admin/v2/{path}-index"]["get"]
        said = next(each for each in operation["parameters"] if each["name"] == "view")
        assert said["schema"]["anyOf"][0]["enum"] == [*views]
        shown = operation["responses"]["200"]["content"]["application/json"]["example"]
        assert list(shown["views"]) == list(views)


async def test_nothing_is_kept_before_the_first_request(broker: Broker) -> None:
    index = broker.service.index
    assert isinstance(index, BrokerIndex)
    assert index._tables is None
    await ask(broker, "topics-index")
    assert index._tables is not None


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> list[BrokerCall]:
    """Of two other brokers one is silent; the calls that they get."""
    calls: list[BrokerCall] = []

    async def ask(
        spread: ScatterGather, here: Any, call: BrokerCall, *, answer_s: float
    ) -> ScatterResults[Any]:
        calls.append(call)
        row = {"topic": "persistent://t1/ns/bb", "broker": "b2:80", "msgBacklog": 7}
        row |= {"subscription": "s"} if "subscriptions" in call.path else {}
        rows: dict[str, Any] = {key: [row] for key in ("topics", "subscriptions")}
        if "after" in call.query:
            rows = {"topics": []}
        page = {"asOf": 1, "total": 1, "matching": 1, "views": {"backlog": 1}, "next": None}
        sums: dict[str, Any] = {"t1/ns": {"topicCount": 1, "msgBacklog": 7, "maxMsgBacklog": 7}}
        answer = {"asOf": 1, "namespaces": sums} if "namespaces" in call.path else page | rows
        silent = BrokerUnreachableError("Broker b3:80 can't be reached")
        results = [PartResult("b1:80", await here()), PartResult("b2:80", answer)]
        return ScatterResults([*results, PartResult("b3:80", error=silent)], "brokers")

    monkeypatch.setattr(ScatterGather, "brokers", ask)
    return calls


async def test_pages_of_all_brokers_are_one(
    broker: Broker, other: list[BrokerCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(broker)
    monkeypatch.setattr(broker.service, "sharing", object())
    answer = await ask(broker, "topics-index?limit=3")
    assert names(answer) == ["t1/ns/a", "t1/ns/b", "t1/ns/bb"]
    assert (answer["total"], answer["views"]["backlog"], answer["asOf"]) == (6, 1, 1)
    assert answer["silentBrokers"] == {"b3:80": "Broker b3:80 can't be reached"}
    assert other == [BrokerCall("GET", "/admin/v2/topics-index", "limit=3&local=true")]
    answer = await ask(broker, f"topics-index?limit=3&after={answer['next']}")
    assert names(answer) == ["t1/other/c", "t2/ns/d-partition-0", "t2/ns/e"]
    answer = await ask(broker, "topics-index?limit=1&sort=msgBacklog")
    assert names(answer) == ["t1/ns/bb"]
    answer = await ask(broker, "subscriptions-index?sort=msgBacklog&limit=2")
    assert [row["topic"][-2:] for row in answer["subscriptions"]] == ["bb", "/a"]
    answer = await ask(broker, "namespaces-index")
    assert answer["namespaces"]["t1/ns"]["topicCount"] == 3
    assert answer["namespaces"]["t1/ns"]["maxMsgBacklog"] == 7
    assert list(answer["silentBrokers"]) == ["b3:80"]
    other.clear()
    assert len(names(await ask(broker, "topics-index?local=true"))) == 5
    assert other == []


async def test_others_are_asked_what_the_visitor_may_see(
    guarded: Broker, other: list[BrokerCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded.service, "sharing", object())
    await ask(guarded, "topics-index?role=admin", "cons")
    await ask(guarded, "topics-index", "admin")
    assert [call.query for call in other] == ["role=cons&local=true", "local=true"]


async def test_history_is_of_all_brokers_and_names_the_silent_ones(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(broker)
    await ask(broker, "topics-index")
    own = await ask(broker, "history")
    assert list(own["brokers"]) == [broker.service.broker_id]
    assert len(own["times"]) == len(own["series"]["msgBacklog"]) == 1
    asked: list[BrokerCall] = []

    async def brokers(self: Any, here: Any, call: BrokerCall, *, answer_s: float) -> Any:
        asked.append(call)
        other = {**await here(), "brokers": {"other": {"since": 1}}}
        silent = BrokerUnreachableError("Broker third can't be reached")
        found = [PartResult("me", await here()), PartResult("other", other)]
        return ScatterResults([*found, PartResult("third", error=silent)], "brokers")

    monkeypatch.setattr(ScatterGather, "brokers", brokers)
    monkeypatch.setattr(broker.service, "sharing", object())
    found = await ask(broker, "history")
    assert found["series"]["storageSize"] == [2 * own["series"]["storageSize"][0]]
    assert set(found["brokers"]) == {broker.service.broker_id, "other"}
    assert found["silentBrokers"] == {"third": "Broker third can't be reached"}
    assert asked[0].query == "local=true"
    assert (await ask(broker, "history?local=true"))["brokers"] == own["brokers"]


async def test_history_of_a_topic_is_the_sum_of_its_partitions(broker: Broker) -> None:
    await fill(broker)
    await broker.service.directory.create_partitioned(TopicName.parse("t1/ns/p"), 2, {})
    for number in range(2):
        part = TopicName.parse(f"t1/ns/p-partition-{number}")
        topic = await broker.service.loader.load(part, create=True)
        await topic.create_subscription("s")
    await ask(broker, "topics-index")
    for name, count in (("t1/ns/a", 1), ("t1/ns/p", 2)):
        found = await ask(broker, f"persistent/{name}/history")
        assert len(found["times"]) == 1
        stats = "stats" if count == 1 else "partitioned-stats"
        size = (await ask(broker, f"persistent/{name}/{stats}"))["storageSize"]
        assert found["series"]["storageSize"] == [size]
        assert list(found["subscriptions"]) == ["s"]
    async with client_of(create_app(broker.service), None) as client:
        answer = await client.get("/admin/v2/persistent/t1/ns/missing/history")
        assert answer.status_code == 404


async def test_rows_have_their_history_and_when_they_are_caught_up(broker: Broker) -> None:
    await fill(broker)
    for kind, fields in (
        ("topics", ["msgRateIn", "msgBacklog"]),
        ("subscriptions", ["msgBacklog"]),
    ):
        (row, *_) = (await ask(broker, f"{kind}-index?points=24"))[kind]
        assert row["history"] == {field: [0.0] for field in fields}
        assert row["catchUpSeconds"] == 0
        (row, *_) = (await ask(broker, f"{kind}-index"))[kind]
        assert "history" not in row
