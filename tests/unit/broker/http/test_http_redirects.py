"""Requests about what another broker owns are answered with its address."""

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from magnetar.broker.cluster.broker_client import as_authoritative
from magnetar.broker.http.routing.redirects import named_topic
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import OWNERS_ROOT, Redirect
from tests.unit.broker.doubles import Broker

A = "/admin/v2/persistent/public/default"
Ask = Callable[..., Awaitable[httpx.Response]]
NS = "/admin/v2/namespaces/public/default"
OTHER = BrokerLookup(
    "pulsar://other:6650", "pulsar+ssl://other:6651", "http://other:8080", "https://other:8443"
)


@pytest.fixture
async def ask(broker: Broker) -> AsyncIterator[Ask]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client.request


async def give_away(broker: Broker, topic: str, owner: BrokerLookup = OTHER) -> str:
    """Let another broker own the topic's bundle; its range."""
    bundle = await broker.service.bundles.bundle_of(f"persistent://public/default/{topic}")
    await broker.service.bundles.release(bundle)
    await broker.service.store.put(f"{OWNERS_ROOT}/{bundle}", owner.encode())
    return bundle.rpartition("/")[2]


async def release(broker: Broker, topic: str) -> str:
    """Let nobody own the topic's bundle; its name."""
    bundle = await broker.service.bundles.bundle_of(f"persistent://public/default/{topic}")
    await broker.service.bundles.release(bundle)
    return bundle


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"{A}/new"),
        ("GET", f"{A}/t/stats"),
        ("GET", f"{A}/t/internalStats?metadata=true&authoritative=false"),
        ("GET", f"{A}/t/subscriptions"),
        ("PUT", f"{A}/t/subscription/a%2Fb"),
        ("POST", f"{A}/t/subscription/s/skip_all"),
        ("GET", f"{A}/t/examinemessage?initialPosition=earliest"),
        ("DELETE", f"{A}/t?force=true"),
        ("POST", "/topics/persistent/public/default/t"),
    ],
)
async def test_calls_about_a_topic_go_to_its_owner(
    broker: Broker, ask: Ask, method: str, path: str
) -> None:
    await broker.service.directory.create(TopicName.parse("t"))
    await give_away(broker, "t")
    await give_away(broker, "new")
    body = {"messages": [{"payload": "x"}]} if path.startswith("/topics") else None
    answer = await ask(method, path, json=body)
    assert (answer.status_code, answer.content) == (307, b"")
    assert answer.headers["Location"] == f"http://other:8080{path}"


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/unload"), ("PUT", "/split?unload=true"), ("DELETE", ""), ("DELETE", "?force=true")],
)
async def test_calls_about_a_bundle_go_to_its_owner(
    broker: Broker, ask: Ask, method: str, path: str
) -> None:
    bundle = await give_away(broker, "t")
    answer = await ask(method, f"{NS}/{bundle}{path}")
    assert answer.status_code == 307
    assert answer.headers["Location"] == f"http://other:8080{NS}/{bundle}{path}"
    assert (await ask("GET", f"{NS}/bundles")).json()["numBundles"] == 32, "nothing was split"


async def test_nobody_is_sent_from_a_secure_address_to_another(broker: Broker) -> None:
    await give_away(broker, "t")
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
        answer = await client.get(f"{A}/t/stats")
    assert answer.headers["Location"] == f"https://other:8443{A}/t/stats"


async def test_an_owner_without_an_address_is_waited_for(broker: Broker, ask: Ask) -> None:
    await give_away(broker, "t", BrokerLookup("pulsar://other:6650", None, None, None))
    answer = await ask("GET", f"{A}/t/stats")
    assert answer.status_code == 503
    assert "owned by another broker" in answer.json()["reason"]


async def test_calls_about_all_partitions_are_not_sent_round(broker: Broker, ask: Ask) -> None:
    """Its partitions may have several owners, of whom each would send on the whole call."""
    assert (await ask("PUT", f"{A}/p/partitions", json=4)).status_code == 204
    bundles = broker.service.bundles
    base = await bundles.bundle_of("persistent://public/default/p")
    names = [f"p-partition-{index}" for index in range(4)]
    foreign = [
        name
        for name in names
        if await bundles.bundle_of(f"persistent://public/default/{name}") != base
    ]
    assert foreign
    await give_away(broker, foreign[0])
    assert (await ask("GET", f"{A}/p/subscriptions")).status_code == 503
    assert (await ask("GET", f"{A}/{foreign[0]}/subscriptions")).status_code == 307
    assert (await ask("GET", f"{A}/p/partitions")).json()["partitions"] == 4


NOBODYS = [
    ("PUT", f"{A}/new"),
    ("POST", "/topics/persistent/public/default/t"),
    ("POST", f"{NS}/{{bundle}}/clearBacklog"),
    ("POST", f"{NS}/{{bundle}}/unsubscribe/s"),
    ("DELETE", f"{NS}/{{bundle}}?force=true"),
    ("PUT", f"{NS}/{{bundle}}/split?unload=true"),
]


def body_of(path: str) -> object:
    return {"messages": [{"payload": "x"}]} if path.startswith("/topics") else None


@pytest.mark.parametrize("is_leaders_choice", [True, False])
@pytest.mark.parametrize(("method", "path"), NOBODYS)
async def test_what_nobody_owns_is_not_taken_by_who_was_not_chosen(
    broker: Broker, ask: Ask, method: str, path: str, is_leaders_choice: bool
) -> None:
    """Once the asked broker knows who is to own it, and once only who can tell that."""
    service = broker.service
    await service.directory.create(TopicName.parse("t"))
    bundle = await release(broker, "new" if "/new" in path else "t")
    path = path.format(bundle=bundle.rpartition("/")[2])

    async def choose(bundle: str) -> Redirect:
        return Redirect(bundle, OTHER, is_leaders_choice)

    service.bundles._choose = choose
    answer = await ask(method, path, json=body_of(path))
    assert answer.status_code == 307, answer.text
    chosen = ("&" if "?" in path else "?") + "authoritative=true" if is_leaders_choice else ""
    assert answer.headers["Location"] == f"http://other:8080{path}{chosen}"
    assert bundle not in service.bundles.owned_bundles


@pytest.mark.parametrize(("method", "path"), NOBODYS)
async def test_who_was_chosen_takes_it_and_asks_nobody(
    broker: Broker, ask: Ask, method: str, path: str
) -> None:
    service = broker.service
    await service.directory.create(TopicName.parse("t"))
    bundle = await release(broker, "new" if "/new" in path else "t")

    async def choose(bundle: str) -> Redirect:
        raise AssertionError("nobody is to be asked")

    service.bundles._choose = choose
    path = path.format(bundle=bundle.rpartition("/")[2])
    path += ("&" if "?" in path else "?") + "authoritative=true"
    answer = await ask(method, path, json=body_of(path))
    assert answer.status_code in (200, 204), answer.text


async def test_one_partition_is_published_to_where_that_one_is_served(
    broker: Broker, ask: Ask
) -> None:
    assert (await ask("PUT", f"{A}/p/partitions", json=4)).status_code == 204
    await give_away(broker, "p-partition-2")
    path = "/topics/persistent/public/default/p/partitions/2"
    answer = await ask("POST", path, json=body_of(path))
    assert answer.status_code == 307
    assert answer.headers["Location"] == f"http://other:8080{path}"


def test_a_partition_of_thousands_of_digits_is_no_number() -> None:
    """Python refuses to make one of more than 4,300: the answer was an error 500."""
    names = {"tenant": "t", "namespace": "n", "topic": "x"}
    assert named_topic(names | {"partition": "9" * 5_000}).partition_index == -1
    assert named_topic(names | {"partition": "3"}).partition_index == 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "authoritative=true"),
        ("authoritative=false", "authoritative=true"),
        ("force=true&authoritative=false&x=%20", "force=true&x=%20&authoritative=true"),
    ],
)
def test_who_is_chosen_is_told_so(before: str, after: str) -> None:
    assert as_authoritative(before) == after
