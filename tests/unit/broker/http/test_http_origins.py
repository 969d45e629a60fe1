"""Pages of other sites, and unknown hosts, reach no route and no WebSocket of a broker."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker

SKIP = "/admin/v2/persistent/public/default/t/subscription/s/skip_all"
STOP = "/admin/v2/brokers/shutdown"
SOCKET = "/ws/v2/producer/persistent/public/default/t"
FOREIGN = [{"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}]


@pytest.fixture
async def app() -> AsyncIterator[Starlette]:
    """As a broker starts by default: on loopback, without authentication."""
    broker = await Broker().start()
    yield create_app(broker.service)
    await broker.close()


async def test_requests(app: Starlette) -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for path in ("/", "/metrics", "/admin/v2/clusters", SKIP, STOP, "/topics/x"):
            for method in ("GET", "POST", "PUT", "DELETE"):
                for headers in FOREIGN:
                    answer = await http.request(method, path, headers=headers)
                    assert answer.status_code == 403, (method, path)
                answer = await http.request(method, path, headers={"Host": "evil.test"})
                assert answer.status_code == 421, (method, path)
        assert (await http.get("/admin/v2/clusters")).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"), [*((x, 403) for x in FOREIGN), ({"Host": "evil.test"}, 421)]
)
async def test_websockets(app: Starlette, headers: dict[str, str], status: int) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    pairs = {"Host": "localhost", **headers}.items()
    scope = {
        "type": "websocket",
        "scheme": "ws",
        "http_version": "1.1",
        "subprotocols": [],
        "path": SOCKET,
        "raw_path": SOCKET.encode(),
        "query_string": b"",
        "state": {},
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
        "extensions": {"websocket.http.response": {}},
        "headers": [(name.lower().encode(), value.encode()) for name, value in pairs],
    }
    await app(scope, receive, send)
    assert [x["type"] for x in sent[:1]] == ["websocket.http.response.start"]
    assert sent[0]["status"] == status
