"""Rows of a list stay where a visitor first saw them, while their figures change."""

import re
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.console import console, pages
from magnetar.broker.console.kept_order import KeptOrder, Name, name_of, only_those
from magnetar.broker.console.snapshot import page_of
from magnetar.broker.console.source import IndexQuery
from magnetar.broker.console.views import row_id
from magnetar.broker.http.server.app import create_app
from magnetar.broker.index import broker_index
from tests.unit.broker.doubles import Broker

NAME = st.lists(st.text(st.characters(codec="utf-8"), max_size=20), min_size=1, max_size=2)
NAMES = st.lists(NAME.map(tuple), max_size=60, unique=True)
PATH = "persistent/public/default/"


@given(NAMES, st.sets(st.integers(0, 59)))
def test_an_order_is_read_back(names: list[Name], gone: set[int]) -> None:
    kept = KeptOrder.of(names)
    assert len(kept.text) <= 2_000
    assert kept.text.isascii()
    again = KeptOrder.parse(kept.text)
    assert again is not None
    assert again.ids == [row_id(*each) for each in names]
    there = {row_id(*each): each for at, each in enumerate(names) if at not in gone}
    assert again.arranged(there) == list(there.values())
    asked = [only_those(some) for some in again.missing(there)]
    assert all(len(some) <= 10 for some in asked)
    missing = {*names} - {*there.values()} if again.names else set[Name]()
    assert frozenset[Name]().union(*asked) == missing


def test_names_that_are_too_long_keep_their_places_alone() -> None:
    names = [
        ("".join(chr(33 + (at * at * number) % 90) for at in range(250)),) for number in range(50)
    ]
    kept = KeptOrder.of(names)
    again = KeptOrder.parse(kept.text)
    assert again is not None
    assert (again.names, again.ids) == ((), kept.ids)
    assert list(again.missing(())) == []


@pytest.mark.parametrize("text", ["", "1", "n", "n!", "nAAAA", "x1234", "n\u00e9", "i\u00e9"])
def test_what_is_no_order_sorts_afresh(text: str) -> None:
    assert KeptOrder.parse(text) is None


def test_a_page_of_a_snapshot_has_only_the_rows_that_are_asked_for() -> None:
    rows = [
        {"topic": "persistent://a/b/t", "subscription": name, "msgBacklog": 1, "consumerCount": 0}
        for name in "xyz"
    ]
    asked = KeptOrder.of([name_of(rows[2]), name_of(rows[0])])
    (only,) = asked.missing({row_id(*name_of(rows[0]))})
    found = page_of(rows, IndexQuery(sort="msgBacklog", only=only), "")
    assert [each["subscription"] for each in found.rows] == ["z"]


class OpenList:
    """A browser that shows a list and fetches it again."""

    def __init__(self, client: httpx.AsyncClient, path: str, row: str) -> None:
        self._client, self._path, self._row = client, f"/console/{path}", row
        self.page = ""

    async def open(self) -> list[tuple[str, str]]:
        return await self._fetch({})

    async def follow(self) -> list[tuple[str, str]]:
        (order,) = re.findall(r'data-order="([^"]+)"', self.page)
        return await self._fetch({"Magnetar-Fragment": order})

    async def _fetch(self, headers: dict[str, str]) -> list[tuple[str, str]]:
        answer = await self._client.get(self._path, headers=headers)
        assert answer.status_code == 200
        self.page = answer.text
        assert 'class="fail"' not in self.page
        return re.findall(self._row, self.page)

    def is_sorted(self) -> bool:
        (link,) = re.findall(r'<a href="([^"]*)">sort again</a>', self.page) or [None]
        assert link is None or self._path.endswith(unescape(link).removesuffix("?"))
        return link is None


@pytest.fixture
async def client(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setattr(console, "_SHARED_S", 0.0)  # middles of pages are those of now
    monkeypatch.setattr(broker_index, "_QUICK_SHARE", 0)  # and so are figures
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found


async def make(client: httpx.AsyncClient, topic: str, messages: int) -> None:
    url = f"/admin/v2/{PATH}{topic}"
    if (await client.get(f"{url}/stats")).status_code == 404:
        assert (await client.put(url)).is_success
        assert (await client.put(f"{url}/subscription/s-{topic}")).is_success
    body = {"producerName": "p", "messages": [{"payload": "x"}] * messages}
    assert (await client.post(f"/topics/{PATH}{topic}", json=body)).is_success


TOPIC_ROW = r'<b>(\w+)</b></a>.*?<td class="r">([\d–]+)</td>'
SUBSCRIPTION_ROW = r'<b>s-(\w+)</b></a>.*?<td class="r">([\d–]+)</td>'


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("topics?sort=msgBacklog", TOPIC_ROW),
        ("topics?view=backlog&sort=msgBacklog&order=desc", TOPIC_ROW),
        ("subscriptions", SUBSCRIPTION_ROW),
        ("subscriptions?q=default", SUBSCRIPTION_ROW),
    ],
)
async def test_figures_change_in_place(client: httpx.AsyncClient, path: str, row: str) -> None:
    for topic, messages in (("a", 3), ("b", 2), ("c", 1)):
        await make(client, topic, messages)
    shown = OpenList(client, path, row)
    assert await shown.open() == [("a", "3"), ("b", "2"), ("c", "1")]
    assert shown.is_sorted()
    await make(client, "b", 2)
    await make(client, "new", 1)
    assert await shown.follow() == [("a", "3"), ("b", "4"), ("c", "1")]
    assert not shown.is_sorted()
    assert (await client.delete(f"/admin/v2/{PATH}a?force=true")).is_success
    assert await shown.follow() == [("b", "4"), ("c", "1")]
    assert (await client.post(f"/admin/v2/{PATH}b/subscription/s-b/skip_all")).is_success
    assert await shown.follow() == [("b", "0"), ("c", "1")]  # also where it left the view
    assert not shown.is_sorted()
    assert (await shown.open())[:2] == [("c", "1"), ("new", "1")]
    assert shown.is_sorted()


@pytest.mark.parametrize(
    ("path", "row"), [("topics?sort=msgBacklog", TOPIC_ROW), ("subscriptions", SUBSCRIPTION_ROW)]
)
async def test_rows_that_would_be_on_another_page_now_stay(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, row: str
) -> None:
    monkeypatch.setattr(pages, "ROWS", 2)
    for topic, messages in (("a", 3), ("b", 2), ("c", 1)):
        await make(client, topic, messages)
    shown = OpenList(client, path, row)
    assert await shown.open() == [("a", "3"), ("b", "2")]
    await make(client, "c", 9)
    assert await shown.follow() == [("a", "3"), ("b", "2")]
    await make(client, "b", 3)
    assert await shown.follow() == [("a", "3"), ("b", "5")]
    assert not shown.is_sorted()
    assert await shown.open() == [("c", "10"), ("b", "5")]


async def test_names_need_no_order_that_is_kept(client: httpx.AsyncClient) -> None:
    await make(client, "b", 1)
    shown = OpenList(client, "topics", TOPIC_ROW)
    await shown.open()
    assert "data-order" not in shown.page
