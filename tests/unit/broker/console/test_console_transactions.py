"""Pages of transactions: none, one, many; refused ends; the same of Apache Pulsar."""

import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from magnetar.broker.console.admin_api import AdminApi, AdminError
from magnetar.broker.console.console import ClusterLook, Console
from magnetar.broker.console.pulsar_source import PulsarSource
from magnetar.broker.console.source import OPEN
from magnetar.broker.console.transactions_page import listed_row, transaction_row
from magnetar.broker.errors import PersistenceError
from magnetar.broker.http.server.app import create_app
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.transaction.async_coordinator import AsyncCoordinator
from tests.unit.broker.console.test_console_actions import token_in
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import client_of
from tests.waiting import eventually

TOPIC = "persistent://public/default/t"
LOCAL = "http://localhost"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    yield broker
    await broker.close()


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_app(broker.service), None) as found:
        yield found


async def begin(
    broker: Broker, count: int, *, coordinator: int = 0, topic: str = ""
) -> AsyncCoordinator:
    """So many transactions, a millisecond apart; with a topic that each has sent to."""
    coordinators = broker.service.transactions
    assert coordinators is not None
    await coordinators.connect(coordinator)
    found, answers = coordinators.get(coordinator), list[Any]()
    for _ in range(count):
        sequence = found.core.last_sequence + 1
        found.core.new(answers.append, broker.service.clock(), 3_600_000, "ada")
        broker.cluster.now_ms += 1
        if topic:
            found.core.add_partitions(lambda _: None, sequence, [topic])
        found.run()
    await eventually(lambda: len(answers) == count)
    return found


async def text_of(client: httpx.AsyncClient, path: str, status: int = 200) -> str:
    page = await client.get(f"/console/{path}")
    assert page.status_code == status, page.text
    return unescape(page.text)


def names_in(page: str) -> list[str]:
    return re.findall(r'href="[./]*transactions/\d+/\d+"><b>(\(\d+,\d+\))</b>', page)


async def test_none_is_open(client: httpx.AsyncClient) -> None:
    page = await text_of(client, "transactions")
    assert "No transaction is open." in page
    assert "pulsar://broker.example:6650" in page
    assert "Log of coordinator" not in page
    assert "Last entry" in await text_of(client, "transactions?coordinator=0")


async def test_a_broker_without_transactions_says_so() -> None:
    broker = await Broker().start()
    async with client_of(create_app(broker.service), None) as client:
        page = await text_of(client, "transactions")
        assert "no broker has the setting transactionCoordinatorEnabled=true" in page
        assert 'class="fail"' not in page
    await broker.close()


async def test_pages_name_each_once_the_oldest_first(
    client: httpx.AsyncClient, broker: Broker
) -> None:
    url = "/admin/v3/transactions/transactionCoordinator/replicas"
    assert (await client.post(url, json=2)).is_success
    expected = list[str]()
    for number, count in ((1, 30), (0, 40), (1, 45)):
        coordinator = await begin(broker, count, coordinator=number)
        last = coordinator.core.last_sequence
        expected += [f"({number},{each})" for each in range(last - count + 1, last + 1)]
    seen, path = list[str](), "transactions"
    while path:
        page = await text_of(client, path)
        assert len(names_in(page)) <= OPEN
        seen += names_in(page)
        following = re.findall(r'rel="next" href="([^"]+)"', page)
        path = f"transactions{following[0]}" if following else ""
    assert seen == expected
    of_one = await text_of(client, "transactions?coordinator=0")
    assert names_in(of_one) == [each for each in expected if each.startswith("(0,")]
    rest = await client.get("/admin/v3/transactions/openTransactions?limit=2&after=1:29")
    assert [each["txnId"] for each in rest.json()["transactions"]] == ["(0,0)", "(0,1)"]
    for wrong in ("x", "0:", "0:1,", "0:-1"):
        path = f"/admin/v3/transactions/openTransactions?after={wrong}"
        assert (await client.get(path)).status_code == 400


async def test_an_end_that_is_refused(
    client: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise PersistenceError("no bookie <answers>")

    assert (await client.put("/admin/v2/persistent/public/default/t")).is_success
    monkeypatch.setattr(PersistentTopic, "participant", lambda *_: None)
    monkeypatch.setattr(PersistentTopic, "end_transaction", refuse)
    coordinator = await begin(broker, 1, topic=TOPIC)
    page = await text_of(client, "transactions/0/0")
    assert "Abort…" in page
    assert "no message yet" in page
    coordinator.core.end(lambda _: None, 0, commits=True)
    coordinator.run()
    await eventually(lambda: coordinator.core.metrics.stuck)
    assert ">refused<" in await text_of(client, "transactions")
    page = await text_of(client, "transactions/0/0")
    assert "COMMITTING" in page
    assert "no bookie <answers>" in page
    assert "Abort…" not in page


@pytest.mark.parametrize("tab", ["storage", "subscriptions?open=s"])
async def test_a_topic_with_partitions_has_no_figures_of_its_own(
    client: httpx.AsyncClient, tab: str
) -> None:
    topic = "/admin/v2/persistent/public/default/wide"
    assert (await client.put(f"{topic}/partitions", json=2)).is_success
    assert (await client.put(f"{topic}/subscription/s")).is_success
    page = await text_of(client, f"topic/persistent/public/default/wide/{tab}")
    assert "Aborted, still stored" not in page
    assert "Open transactions that acknowledge here" not in page


async def test_an_abort_is_confirmed_and_done(client: httpx.AsyncClient, broker: Broker) -> None:
    coordinator = await begin(broker, 1, topic=TOPIC)
    path = "/console/transactions/0/0/do/abort"
    page = unescape((await client.get(path)).text)
    assert "comes again: 1 topic. " in page
    assert "magnetar admin transactions abort-transaction -m 0 -l 0" in page
    refused = await client.post(path, data={"token": "another's"})
    assert refused.status_code == 403
    assert len(coordinator.core) == 1
    done = await client.post(path, data={"token": token_in(await client.get(path))})
    assert done.status_code == 303
    assert str(httpx.URL(LOCAL + path).join(done.headers["location"])).endswith("/transactions")
    assert len(coordinator.core) == 0
    assert "never was" in await text_of(client, "transactions/0/0", 404)
    assert "never was" in await text_of(client, "transactions/0/x", 404)


class Pulsar(AdminApi):
    """Four coordinators: not opened, fine, with a topic that is gone, with too many."""

    def __init__(self) -> None:
        self.open = {f"(1,{n})": metadata(f"(1,{n})", 1_000_000 - n) for n in range(120)}

    async def call(self, method: str, path: str, query: Any = None, body: Any = None) -> Any:
        name, number = (
            path.removeprefix("/admin/v3/transactions/"),
            (query or {}).get("coordinatorId"),
        )
        if name == "coordinators":
            return [{"id": each, "brokerServiceUrl": "pulsar://b:6650"} for each in range(4)]
        if number == 0:
            raise AdminError(404, "Transaction coordinator not found! coordinator id : 0")
        if name == "transactionMetadata/1/7":
            return {**self.open["(1,7)"], "status": "COMMITTING"}
        if name == "coordinatorInternalStats/1":
            stats = {"numberOfEntries": 5, "totalSize": 9, "lastConfirmedEntry": "1:4"}
            return {
                "transactionLogStats": {
                    "managedLedgerName": "log",
                    "managedLedgerInternalStats": {**stats, "ledgers": [{}]},
                }
            }
        if name == "coordinatorStats":
            return {"state": "Ready", "ongoingTxnSize": 9_999_999 if number == 3 else 120}
        assert name == "slowTransactions/0"
        if number == 2:
            raise AdminError(500, "\n -- --\n\nMessage: Topic not found t\n\nStacktrace:\nat")
        assert number == 1, "too many to be asked for"
        return self.open


def metadata(name: str, start_ms: int) -> dict[str, Any]:
    return {
        "txnId": name,
        "status": "OPEN",
        "openTimestamp": start_ms,
        "timeoutAt": 5,
        "producedPartitions": {TOPIC: {}},
        "ackedPartitions": {TOPIC: {"s": {}, "r": {}}},
    }


async def test_pulsar_lists_them_without_pages_of_its_own() -> None:
    source, seen, after = PulsarSource(Pulsar()), list[str](), ""
    while True:
        page = await source.open_transactions(after, None)
        assert page.silent == {"2": "Topic not found t"}
        assert page.note.endswith("listed by Pulsar: 3.")
        seen += [each["txnId"] for each in page.rows]
        if not (after := page.next):
            break
    assert seen == [f"(1,{n})" for n in reversed(range(120))], "the oldest first"
    assert (await source.open_transactions("", 0)).rows == []


async def test_pages_in_front_of_pulsar() -> None:
    """It tells less of each: nothing of refused ends."""
    source = PulsarSource(Pulsar())
    console = Console(ClusterLook("c", source.product, "4"), lambda _: source)

    async def page(request: Request) -> Response:
        return await console.respond(request, request.path_params["path"])

    routes = [Route("/console/{path:path}", page)]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(Starlette(routes=routes)), base_url=LOCAL
    ) as client:
        text = await text_of(client, "transactions?coordinator=1")
        assert "it isn't open" in text
        assert "Last entry" in text
        assert len(names_in(text)) == OPEN
        text = await text_of(client, "transactions/1/7")
        assert "COMMITTING" in text
        assert "public/default/t" in text


def test_a_line_of_what_a_transaction_has() -> None:
    row = transaction_row(listed_row(metadata("(1,7)", 40_000)), 100_000)
    assert (row.where, row.path, row.kind) == ("1 topic, 2 subscriptions", "1/7", "w")
    assert transaction_row(listed_row(metadata("(1,7)", 40_001)), 100_000).kind == "o"
