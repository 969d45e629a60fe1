"""The screen of `magnetar top` on a broker: its list, steps, messages, and a lost connection."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from typing import Any

import httpx
import pytest

import magnetar
from magnetar.broker.console.admin_api import AdminApi, Query, RemoteApi
from magnetar.broker.console.kind_of_cluster import connect
from magnetar.embedding import EmbeddedBroker
from tests.official_client import open_client

if "CI" not in os.environ:
    pytest.importorskip("textual")

from textual.pilot import Pilot
from textual.widgets import Button, DataTable, Input, OptionList, Static

from magnetar.broker.cli.top.dialogs import (
    ChoiceScreen,
    MessagesScreen,
    QuestionScreen,
    TextScreen,
)
from magnetar.broker.cli.top.figures import newest_messages
from magnetar.broker.cli.top.screen import TopApp

TOPIC = "persistent://public/default/top-orders"
REST = "/admin/v2/persistent/public/default/top-orders"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with magnetar.embedded() as broker:
        yield broker


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[httpx.Client]:
    """With a topic that has three messages, and two subscriptions: "billing" has read none."""
    with httpx.Client(base_url=broker.web_url) as client:
        assert client.put(REST).is_success
        assert client.put(f"{REST}/subscription/billing").is_success
        with closing(open_client(broker.service_url)) as sender:
            producer = sender.create_producer(TOPIC)
            for number in range(3):
                producer.send(b"order %d" % number)
        assert client.put(f"{REST}/subscription/caught-up").is_success
        yield client
        client.delete(f"{REST}?force=true")


def backlogs(admin: httpx.Client) -> dict[str, int]:
    subscriptions = admin.get(f"{REST}/stats").json()["subscriptions"]
    return {name: each["msgBacklog"] for name, each in subscriptions.items()}


class Page(AdminApi):
    async def call(
        self, method: str, path: str, query: Query | None = None, body: Any = None
    ) -> Any:
        return "<html>Sign in</html>"


class Screen:
    """What a person does and sees."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
        await self.settle()

    async def settle(self) -> None:
        await self.pilot.pause()  # what keys cause begins
        await self.app.workers.wait_for_complete()
        await self.pilot.pause()

    def text(self, name: str) -> str:
        return str(self.app.screen.query_one(name, Static).render())

    @property
    def rows(self) -> list[list[str]]:
        table: DataTable[Any] = self.app.screen.query_one(DataTable)
        return [[str(cell) for cell in table.get_row_at(nth)] for nth in range(table.row_count)]

    async def choose(self, step: str) -> None:
        """Of the row under the cursor, by ``a``."""
        await self.press("a")
        assert isinstance(self.app.screen, ChoiceScreen)
        options = self.app.screen.query_one(OptionList)
        titles = [str(option.prompt) for option in options.options]
        await self.press(*["down"] * titles.index(step), "enter")
        assert isinstance(self.app.screen, QuestionScreen)
        for button in self.app.screen.query(Button):
            button.active_effect_duration = 0  # else it takes no second press meanwhile


@asynccontextmanager
async def screen(
    broker: EmbeddedBroker, text: str = "top-orders", *, read_only: bool = False
) -> AsyncIterator[Screen]:
    async with httpx.AsyncClient(trust_env=False) as client:
        source = await connect(lambda url: RemoteApi(client, url, dict), broker.web_url)
        app = TopApp(source, 3600.0, text, read_only=read_only)
        async with app.run_test(size=(80, 24)) as pilot:
            shown = Screen(app, pilot)
            await shown.settle()
            yield shown


async def test_a_backlog_is_skipped_after_a_question(
    broker: EmbeddedBroker, admin: httpx.Client
) -> None:
    async with screen(broker) as shown:
        assert [row[1] for row in shown.rows] == ["billing", "caught-up"]
        await shown.choose("Skip all")
        assert shown.text("#loses") == "3 messages of billing are skipped."
        assert shown.text("#command") == f"magnetar topics clear-backlog {TOPIC} -s billing"
        await shown.press("enter")  # Cancel has the focus
        assert backlogs(admin)["billing"] == 3

        await shown.choose("Skip all")
        await shown.press("tab", "enter")
        assert backlogs(admin)["billing"] == 0
        assert not isinstance(shown.app.screen, QuestionScreen)


async def test_a_reset_asks_for_a_time_and_says_what_is_none(
    broker: EmbeddedBroker, admin: httpx.Client
) -> None:
    async with screen(broker, "caught-up") as shown:
        await shown.choose("Reset cursor")
        shown.app.screen.query_one("#value", Input).value = "soon"
        await shown.pilot.pause()
        assert "a time is a number and s, m, h or d" in shown.text("#command")
        await shown.press("tab", "tab", "enter")
        assert "a time is a number" in shown.text("#failure")
        shown.app.screen.query_one("#value", Input).value = "1h"
        await shown.press("enter")
        assert backlogs(admin)["caught-up"] == 3


async def test_what_is_gone_for_good_needs_its_name(
    broker: EmbeddedBroker, admin: httpx.Client
) -> None:
    async with screen(broker, "billing") as shown:
        await shown.choose("Delete subscription")
        assert shown.text("#loses") == "billing is gone, with 3 unread messages."
        await shown.press(*"bil", "tab", "tab", "enter")
        assert "type the name to confirm: billing" in shown.text("#failure")
        assert "billing" in backlogs(admin)
        shown.app.screen.query_one("#name", Input).value = "billing"
        shown.app.screen.query_one("#do", Button).focus()
        await shown.press("enter")
        assert "billing" not in backlogs(admin)


async def test_a_refused_step_says_why(broker: EmbeddedBroker, admin: httpx.Client) -> None:
    with closing(open_client(broker.service_url)) as client:
        client.subscribe(TOPIC, "billing")
        async with screen(broker, "billing") as shown:
            await shown.choose("Delete subscription")
            await shown.press(*"billing", "tab", "tab", "enter")
            assert "Subscription billing has connected consumers" in shown.text("#failure")
            await shown.press("escape")
            assert isinstance(shown.app.screen.query_one(DataTable), DataTable)


async def test_a_topic_has_steps_of_its_own(broker: EmbeddedBroker, admin: httpx.Client) -> None:
    async with screen(broker) as shown:
        await shown.press("2")
        assert [row[0] for row in shown.rows] == ["public/default/top-orders"]
        await shown.choose("Truncate")
        assert "2 subscriptions with at most 3 unread" in shown.text("#loses")
        await shown.press("escape")
        assert backlogs(admin)["billing"] == 3


async def test_read_only_has_no_steps(broker: EmbeddedBroker, admin: httpx.Client) -> None:
    async with screen(broker, read_only=True) as shown:
        await shown.press("a")
        assert not isinstance(shown.app.screen, ChoiceScreen)
        await shown.press("question_mark")
        assert "skip" not in shown.text("#text")


async def test_messages_of_a_subscription_and_of_a_topic(
    broker: EmbeddedBroker, admin: httpx.Client
) -> None:
    async with screen(broker, "billing") as shown:
        await shown.press("m")
        assert isinstance(shown.app.screen, MessagesScreen)
        assert [row[3] for row in shown.rows] == ["order 0", "order 1", "order 2"]
        await shown.press("down", "enter")
        assert isinstance(shown.app.screen, TextScreen)
        assert shown.text("#text").startswith("order 1")
        await shown.press("escape", "escape", "2")
        await shown.press("slash", *["backspace"] * 7, "enter", "m")
        assert "order 2" in [row[3] for row in shown.rows]
    assert backlogs(admin)["billing"] == 3  # nothing was acknowledged


async def test_messages_of_all_partitions(broker: EmbeddedBroker) -> None:
    path = f"{broker.web_url}/admin/v2/persistent/public/default/top-wide"
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.put(f"{path}/partitions", json=3)).is_success
        with closing(open_client(broker.service_url)) as sender:
            for number in (2, 0, 1):
                name = f"persistent://public/default/top-wide-partition-{number}"
                sender.create_producer(name).send(b"in %d" % number)
        source = await connect(lambda url: RemoteApi(client, url, dict), broker.web_url)
        row = {"topic": "persistent://public/default/top-wide"}
        title, rows = await newest_messages(source, row)
        await client.delete(f"{path}/partitions?force=true")
    assert title.endswith("(3 partitions)")
    assert [each.value for each in rows] == ["in 2", "in 0", "in 1"]  # as they were published
    assert [each.id[-3:] for each in rows] == [" p2", " p0", " p1"]


async def test_a_filter_by_figures(broker: EmbeddedBroker, admin: httpx.Client) -> None:
    async with screen(broker, "top-orders backlog>0") as shown:
        assert [row[1] for row in shown.rows] == ["billing"]
        await shown.press("slash", *" size<3", "enter")
        assert "one of backlog>0" in shown.text("#bar")
        assert len(shown.rows) == 1  # what was seen stays


async def test_a_lost_connection_is_shown_and_ends() -> None:
    with ExitStack() as running:
        broker = running.enter_context(magnetar.embedded())
        async with httpx.AsyncClient(base_url=broker.web_url) as client:
            assert (await client.put(f"{REST}/subscription/billing")).is_success
        async with screen(broker, "billing") as shown:
            assert "◆" not in shown.text("#bar")
            running.close()
            await shown.press("s")
            assert "◆ " in shown.text("#bar")
            assert len(shown.rows) == 1  # what was seen stays
            await shown.press("m")
            assert isinstance(shown.app.screen, TextScreen)
            await shown.press("escape", "a", "enter")
            assert isinstance(shown.app.screen, TextScreen)


async def test_what_is_no_broker_is_said(broker: EmbeddedBroker, admin: httpx.Client) -> None:
    """As a proxy that answers every address with a page."""
    async with screen(broker) as shown:
        shown.app._source.api = Page()
        await shown.press("s", "m")
        assert "an answer that nobody understands" in shown.text("#text")
        await shown.press("escape")
        assert "an answer that nobody understands" in shown.text("#bar")
