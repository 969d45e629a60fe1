"""A page asks for the subscriptions that it shows; it tells what statistics of all would tell."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from magnetar.broker.console.admin_api import RemoteApi
from magnetar.broker.console.kept_order import KeptOrder, name_lists
from magnetar.broker.console.pulsar_source import PulsarSource
from magnetar.broker.console.source import Source, StatsLists
from magnetar.broker.console.subject import topic_stats
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.topic_view import (
    HOLDERS_MAX,
    ROWS_MAX,
    ClientQuery,
    TopicFigures,
    stored_topics,
    topic_figures,
)
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker

TOPIC = "persistent/public/default/t"
STATS = f"/admin/v2/{TOPIC}/stats"
PATH = TopicPath.parse("persistent://public/default/t")
NAMES = [f"s{number:03}" for number in range(130)]
"""The first ones have the largest backlogs."""
WITH_CONSUMERS = NAMES[125]


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found


@pytest.fixture
async def topic(client: httpx.AsyncClient, broker: Broker) -> None:
    """Ten subscriptions between two messages each, consumers and producers."""
    assert (await client.put(f"/admin/v2/{TOPIC}")).is_success
    body = {"producerName": "p", "messages": [{"payload": "x"}]}
    for number, name in enumerate(NAMES, 1):
        assert (await client.put(f"/admin/v2/{TOPIC}/subscription/{name}")).is_success
        if number % 10 == 0:
            assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
    peer = broker.client()
    await peer.receive_one()
    for number in range(1, 4):
        await peer.produce(str(PATH), producer_name=f"p{number}", producer_id=number)
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic, subscribe.subscription = str(PATH), WITH_CONSUMERS
        subscribe.subType, subscribe.consumer_id = pb.CommandSubscribe.Shared, number
        subscribe.consumer_name, subscribe.request_id = f"c{number}", number
        peer.send(command)
        await peer.receive_one()


@pytest.mark.usefixtures("topic")
async def test_statistics_of_a_part(client: httpx.AsyncClient) -> None:
    """Sums and counts are those of all."""
    every = (await client.get(STATS, params={"getEarliestTimeInBacklog": "true"})).json()
    subscriptions = every.pop("subscriptions")
    counts = {"subscriptionCount": 130, "consumerCount": 3, "producerCount": 3}

    async def part(**query: Any) -> dict[str, Any]:
        answer = await client.get(STATS, params={"getEarliestTimeInBacklog": "true", **query})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    for most, names in ((0, []), (1, []), (3, [NAMES[7], "none"]), (100, [WITH_CONSUMERS])):
        found = await part(subscriptionsMax=most, subscriptions=orjson.dumps(names).decode())
        listed = {*NAMES[:most], *names, NAMES[0]} - {"none"}
        assert found.pop("subscriptions") == {
            name: {**subscriptions[name], "consumerCount": len(subscriptions[name]["consumers"])}
            for name in listed
        }
        assert found == {**every, **counts}
    found = await part(subscriptionsMax=3, excludeConsumers="true", excludePublishers="true")
    assert (found["publishers"], found["producerCount"]) == ([], 3)
    found = await part(subscriptions=orjson.dumps([WITH_CONSUMERS, "none"]).decode())
    assert found["subscriptions"] == {WITH_CONSUMERS: subscriptions[WITH_CONSUMERS]}
    for wrong in (("subscriptionsMax", "-1"), ("subscriptions", '"s"'), ("subscriptions", "[")):
        assert (await client.get(STATS, params=[wrong])).status_code == 400, wrong
    assert (await client.put(f"/admin/v2/{TOPIC}p/partitions", json=1)).is_success
    refused = await client.get(f"/admin/v2/{TOPIC}p/partitioned-stats?subscriptionsMax=1")
    assert refused.status_code == 400


@pytest.mark.usefixtures("topic")
async def test_reasons_of_a_part(client: httpx.AsyncClient) -> None:
    every = (await client.get(f"/admin/v2/{TOPIC}/explain")).json()
    names = [NAMES[3], WITH_CONSUMERS]
    query = {"subscriptions": orjson.dumps([*names, "none"]).decode()}
    part = (await client.get(f"/admin/v2/{TOPIC}/explain", params=query)).json()
    assert part == {name: every[name] for name in names}


KEPT = KeptOrder.of([(NAMES[number],) for number in (120, 5, 129, 0)])


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    "query",
    [
        ClientQuery(),
        ClientQuery(WITH_CONSUMERS),
        ClientQuery(WITH_CONSUMERS, text="C2"),
        ClientQuery("none"),
        ClientQuery(shown=KEPT),
        ClientQuery(NAMES[128], shown=KEPT),
    ],
)
async def test_a_page_of_either_source_has_the_same_figures(
    client: httpx.AsyncClient, query: ClientQuery
) -> None:
    """Apache Pulsar's is asked for all subscriptions, Magnetar's for those of the page."""
    api = RemoteApi(client, "http://localhost", dict)
    whole, own = PulsarSource(api), Source(api)
    found = list[TopicFigures]()
    for source in (own, whole):
        partitions, stats = await source.topic_stats(
            PATH, query, StatsLists(ROWS_MAX, producers=True, partitions=True)
        )
        assert partitions == 0
        explained = await own.explanations(PATH, {})
        await source.add_consumers(PATH, stats, explained, query)
        found.append(run_at_once(topic_figures(stats, explained, query)))
        assert len(stats["subscriptions"]) == (
            130 if source is whole else len(stats["subscriptions"])
        )
    part, every = found
    assert part == every
    assert (part.subscription_count, part.consumers, part.producers.total) == (130, 3, 3)
    assert part.behind == (NAMES[0], 13)
    await whole.close()


async def test_only_tabs_that_show_partitions_ask_for_each(
    client: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures above the tabs are the same."""
    path, calls = f"{TOPIC}-parted", list[bool]()
    assert (await client.put(f"/admin/v2/{path}/partitions", json=3)).is_success
    assert (await client.put(f"/admin/v2/{path}/subscription/s")).is_success
    body = {"producerName": "p", "messages": [{"payload": "x"}]}
    for number in (0, 2, 2):
        answer = await client.post(f"/topics/{path}-partition-{number}", json=body)
        assert answer.is_success

    assert (await client.post(f"/admin/v2/{path}/terminate/partitions")).is_success

    async def asked(*args: Any, per_partition: bool, **part: Any) -> tuple[int, Any]:
        calls.append(per_partition)
        return await topic_stats(*args, per_partition=per_partition, **part)

    monkeypatch.setattr("magnetar.broker.console.source.topic_stats", asked)
    found = dict[str, str]()
    for tab in ("partitions", "messages", "schema", "policies", "storage", "permissions"):
        page = (await client.get(f"/console/topic/{path}/{tab}")).text
        assert "Partition 0: The topic is terminated." in page, tab
        found[tab] = page[page.index('<dl class="pn fig">') : page.index("</dl>")]
    assert "3" in found["partitions"].partition("Largest backlog")[2]
    assert len(set(found.values())) == 1
    assert calls == [True, False, False, False, False, False]


def test_names_of_a_call_are_no_longer_than_servers_take() -> None:
    names = [f"{'ä' * 80}{number}" for number in range(100)]
    texts = [*name_lists(names)]
    assert [name for text in texts for name in orjson.loads(text)] == names
    sizes = [len(str(httpx.QueryParams({"only": text}))) for text in texts]
    assert max(sizes) < 4_100
    assert len(texts) < 15
    assert [*name_lists([])] == []


PARTED = "/admin/v2/persistent/public/default/parted"


async def partitions_used(client: httpx.AsyncClient, count: int, but: set[int]) -> None:
    """Makes a partitioned topic, and takes away some of its partitions."""
    assert (await client.put(f"{PARTED}/partitions", json=count)).is_success
    for number in range(count):
        path = f"{PARTED}-partition-{number}"
        assert (await client.put(f"{path}/subscription/s")).is_success
        if number in but:
            assert (await client.delete(path, params={"force": True})).is_success


@pytest.mark.parametrize(("first", "most", "names"), [(0, 2, "02"), (2, 2, "35"), (4, 9, "")])
async def test_some_of_the_partitions_that_exist(
    client: httpx.AsyncClient, first: int, most: int, names: str
) -> None:
    await partitions_used(client, 6, {1, 4})
    page = {"firstPartition": first, "partitionsMax": most}
    whole = (await client.get(f"{PARTED}/partitioned-internalStats")).json()
    part = (await client.get(f"{PARTED}/partitioned-internalStats", params=page)).json()
    assert part.pop("existingPartitions") == len(whole["partitions"]) == 4
    assert [name[-1] for name in part["partitions"]] == [*names]
    shown = {name: each for name, each in whole["partitions"].items() if name[-1] in names}
    assert part == {**whole, "partitions": shown}
    infos = (await client.get(f"{PARTED}/internal-info")).json()
    info = (await client.get(f"{PARTED}/internal-info", params=page)).json()
    shown = {name: each for name, each in infos["partitions"].items() if name[-1] in names}
    assert info == {**infos, "partitions": shown}


@pytest.mark.parametrize("first", [0, ROWS_MAX])
async def test_the_page_of_ledgers_is_that_of_all_partitions(
    client: httpx.AsyncClient, first: int
) -> None:
    await partitions_used(client, ROWS_MAX + 9, {3, ROWS_MAX + 2})
    whole, info = [
        (await client.get(f"{PARTED}/{path}", params={"cursorsMax": HOLDERS_MAX})).json()
        for path in ("partitioned-internalStats", "internal-info")
    ]
    page = {"firstPartition": first, "partitionsMax": ROWS_MAX, "cursorsMax": HOLDERS_MAX}
    part = (await client.get(f"{PARTED}/partitioned-internalStats", params=page)).json()
    of_whole = run_at_once(stored_topics("t", first, whole, info))
    assert run_at_once(stored_topics("t", first, part, info)) == of_whole
    assert len(of_whole.rows) == (ROWS_MAX if not first else 7)
    path = "/console/topic/persistent/public/default/parted/storage"
    shown = (await client.get(path, params={"first": first})).text
    for row in of_whole.rows:
        assert row.name.rpartition("/")[2] in shown
