"""Reads of what messages hold: each is a line of the audit log, none goes on for nobody."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from magnetar.broker.http.messaging.message_search import MessageSearch
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker

TOPIC = "persistent/public/default/orders"
PATH = f"/admin/v2/{TOPIC}/messages"


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        body = {"producerName": "p", "messages": [{"payload": each} for each in "abc"]}
        assert (await found.post(f"/topics/{TOPIC}", json=body)).is_success
        yield found


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "magnetar.broker.audit"]


async def test_a_read_is_a_line(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [each["messageId"] for each in (await client.get(PATH)).json()["messages"]]
    caplog.clear()
    with caplog.at_level(logging.INFO, "magnetar.broker.audit"):
        await client.get(PATH, params={"limit": 2})
        await client.get(PATH, params={"payload": "none"})  # no contents
        await client.get(PATH, params={"filter": "key = nobody"})  # no messages
        await client.get(f"/admin/v2/{TOPIC}/stats")
    (line,) = lines(caplog)
    assert f"role=anonymous method=GET path={PATH}?limit=2 status=200" in line
    assert line.endswith(f" messages=2 first={ids[0]} last={ids[1]}")
    changes = (await client.get("/admin/v2/audit")).json()["changes"]
    assert all(each["method"] != "GET" for each in changes)


async def test_so_is_a_page_of_the_console(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "magnetar.broker.audit"):
        for tab in ("messages", "policies"):
            assert (await client.get(f"/console/topic/{TOPIC}/{tab}")).status_code == 200
    (line,) = lines(caplog)
    assert f"path={PATH}?" in line
    assert " messages=3 " in line


class Browser:
    """Asks for an address and leaves when it is told to."""

    def __init__(self, app: Any, path: str) -> None:
        self._app, self._path = app, path
        self.leaves = asyncio.Event()
        self._asked = False
        self.sent: list[Any] = []

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": "GET",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
            "root_path": "",
            "client": ("127.0.0.1", 5),
            "server": ("localhost", 80),
        }
        await self._app(scope, self.receive, self.send)


@pytest.mark.parametrize("path", [PATH, f"/console/topic/{TOPIC}/messages"])
async def test_nobody_searches_for_a_browser_that_has_gone(
    broker: Broker, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def search(*_: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(MessageSearch, "run", search)
    monkeypatch.setattr(MessageSearch, "last", search)
    browser = Browser(create_app(broker.service), path)
    asked = asyncio.create_task(browser.run())
    await began.wait()
    assert not ended.is_set()
    browser.leaves.set()
    await ended.wait()
    await asked
    assert not browser.sent
