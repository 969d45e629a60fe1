"""A bookie's HTTP port: probes, state, metrics, and what it refuses."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.drain import Drain
from magnetar.bookkeeper.bookie.http.admin_pages import AdminPages
from magnetar.bookkeeper.bookie.http.admin_server import AdminServer, HttpResponse
from magnetar.bookkeeper.origin_check import pages_check
from magnetar.bookkeeper.service_info import READ_ONLY_PATH
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.integration.bookie_node import Node
from tests.waiting import eventually


class AdminEndpoint:
    """A server on a free port, and a client that says exactly what it is told to."""

    def __init__(self, pages: AdminPages) -> None:
        self.pages = pages
        paths = pages.by_path()
        paths["/broken"] = self._broken
        self.server = AdminServer(paths)
        self.port = 0

    async def _broken(self) -> HttpResponse:
        raise RuntimeError("as the test wants it")

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body; (0, b"") when the connection was cut."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            answer = await asyncio.wait_for(reader.read(), 30)
        except ConnectionError:
            return 0, b""
        finally:
            await _end(writer)
        if not answer:
            return 0, b""
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), body

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def _metrics(bookie: Bookie) -> bytes:
    return f"entries {bookie.metrics.added_entries}\n".encode()


@pytest.fixture
async def endpoint() -> AsyncIterator[AdminEndpoint]:
    opened = AdminEndpoint(AdminPages(_metrics))
    opened.port = await opened.server.listen("127.0.0.1", 0)
    yield opened
    await opened.server.close()


async def test_probes_tell_how_far_the_start_is(tmp_path: Path, endpoint: AdminEndpoint) -> None:
    assert await endpoint.get("/heartbeat") == (200, b"OK\n")
    assert (await endpoint.get("/api/v1/bookie/is_ready"))[0] == 503
    assert (await endpoint.get("/api/v1/bookie/info"))[0] == 503
    assert (await endpoint.get("/metrics"))[0] == 503
    assert json.loads((await endpoint.get("/api/v1/bookie/state"))[1])["running"] is False
    store = EmbeddedMetadataStore.open(None)
    bookie = await Node(tmp_path, store).start()
    endpoint.pages.bookie = bookie
    assert await endpoint.get("/api/v1/bookie/is_ready") == (200, b"")
    assert json.loads((await endpoint.get("/api/v1/bookie/state"))[1]) == {
        "running": True,
        "readOnly": False,
        "shuttingDown": False,
        "availableForHighPriorityWrites": True,
    }
    info = json.loads((await endpoint.get("/api/v1/bookie/info?x=1"))[1])
    assert 0 < info["freeSpace"] < info["totalSpace"]
    assert await endpoint.get("/metrics") == (200, b"entries 0\n")
    bookie.read_only = True
    assert json.loads((await endpoint.get("/api/v1/bookie/state"))[1])["readOnly"] is True
    bookie.read_only = False
    await bookie.close()
    assert (await endpoint.get("/api/v1/bookie/is_ready"))[0] == 503
    state = json.loads((await endpoint.get("/api/v1/bookie/state"))[1])
    assert (state["running"], state["shuttingDown"]) == (False, True)
    await store.close()


async def test_read_only_by_order_until_the_opposite_is_said(
    tmp_path: Path, endpoint: AdminEndpoint
) -> None:
    """Apache's bookies say the same, but 500 to a body that says neither, and nothing to ``{}``."""
    store = EmbeddedMetadataStore.open(None)
    endpoint.pages.bookie = bookie = await Node(tmp_path, store).start()
    endpoint.pages.drain = drain = Drain(bookie)
    path = "/api/v1/bookie/state/readonly"

    async def put(body: str) -> tuple[int, bytes]:
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        return await endpoint.ask((head + body).encode())

    writable, read_only = (200, b'{"readOnly": false}'), (200, b'{"readOnly": true}')
    assert await endpoint.get(path) == writable
    assert await put('{"readOnly": true}') == await endpoint.get(path) == read_only
    await eventually(lambda: bookie.is_registered)
    assert await store.exists(f"{READ_ONLY_PATH}/{bookie.bookie_id}")
    assert (await endpoint.get("/readyz"))[0] == 200, "it serves readers"
    for body in ("", "x", "[]", "null", "{}", '{"readOnly": "true"}', '{"readOnly": 1}', "\xff"):
        assert (await put(body))[0] == 400, body
    assert (await put(" " * 8193))[0] == 413
    assert await endpoint.get(path) == read_only
    assert (await endpoint.ask(b"PUT /api/v1/bookie/drain HTTP/1.1\r\n\r\n"))[0] == 200
    assert (await endpoint.get("/readyz"))[0] == 503, "now it is about to be stopped"
    assert await put('{"readOnly": false}') == await endpoint.get(path) == writable
    assert not drain.is_under_way
    assert not bookie.read_only
    await drain.close()
    await bookie.close()
    await store.close()


async def test_the_order_stays_while_the_store_is_away(
    tmp_path: Path, endpoint: AdminEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.bookie.http.admin_pages._ORDER_S_MAX", 0.05)
    store = EmbeddedMetadataStore.open(None)
    endpoint.pages.bookie = bookie = await Node(tmp_path, store).start()
    endpoint.pages.drain = drain = Drain(bookie)
    store.lose_session()
    body = b'{"readOnly": true}'
    head = b"PUT /api/v1/bookie/state/readonly HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert (await endpoint.ask(head + body))[0] == 503
    assert not bookie.read_only, "writers would have to write there to go elsewhere"
    store.begin_session()
    await eventually(lambda: bookie.read_only)
    await drain.close()
    await bookie.close()
    await store.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /heartbeat HTTP/1.1\r\n\r\n", 405),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
        (b"garbage\r\n\r\n", 400),
        (b"GET /heartbeat HTTP/2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"HEAD /heartbeat HTTP/1.1\r\n\r\n", 200),
    ],
)
async def test_what_it_answers_to_others(
    endpoint: AdminEndpoint, request_bytes: bytes, status: int
) -> None:
    found, body = await endpoint.ask(request_bytes)
    assert found in (status, 0 if status == 431 else status)  # it doesn't read on after 8 KiB
    if request_bytes.startswith(b"HEAD"):
        assert body == b""
    assert await endpoint.get("/heartbeat") == (200, b"OK\n")


async def _end(writer: asyncio.StreamWriter) -> None:
    """At once, whatever is still to be sent: nothing may be left of it for the next test."""
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_crowd_is_turned_away_and_a_silent_one_cut(
    endpoint: AdminEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.bookie.http.admin_server._HEAD_S_MAX", 0.2)
    silent = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(64)]
    deadline = asyncio.get_running_loop().time() + 30
    while await endpoint.get("/heartbeat") != (200, b"OK\n"):  # once those are cut
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    for reader, writer in silent:
        with contextlib.suppress(ConnectionError):  # a reset is an end, too
            assert await asyncio.wait_for(reader.read(), 30) == b""
        await _end(writer)


async def test_a_crowd_of_one_address_leaves_room_for_others(
    endpoint: AdminEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.bookie.http.admin_server._HEAD_S_MAX", 600)
    here = ("127.0.0.2", 0)
    crowd = [
        await asyncio.open_connection("127.0.0.1", endpoint.port, local_addr=here)
        for _ in range(70)
    ]
    for reader, _ in crowd[32:]:
        with contextlib.suppress(ConnectionError):  # a reset is an end, too
            assert await asyncio.wait_for(reader.read(), 60) == b""
    assert await endpoint.get("/heartbeat") == (200, b"OK\n")
    for _, writer in crowd:
        await _end(writer)
    async with asyncio.timeout(60):
        while endpoint.server._connections:  # noqa: ASYNC110  # of ends nobody tells us
            await asyncio.sleep(0.01)


async def test_nothing_is_kept_of_what_is_said_behind_a_request(endpoint: AdminEndpoint) -> None:
    """It was all kept in memory until the other side had closed, or for a minute."""
    _, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    block, sent = bytes(1 << 20), 0
    writer.write(b"PUT /heartbeat HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            while sent < 256:
                writer.write(block)
                await writer.drain()
                sent += 1
    assert sent < 256, "it listened to all of it"
    await _end(writer)
    assert await endpoint.get("/heartbeat") == (200, b"OK\n")


async def test_pages_of_other_sites_and_names_are_refused(endpoint: AdminEndpoint) -> None:
    sites = pages_check("", bind_address="127.0.0.1", own=("me",), is_authenticated=False)
    server = AdminServer(endpoint.pages.by_path(), sites=sites)
    port, endpoint.port = endpoint.port, await server.listen("127.0.0.1", 0)
    try:
        for headers, status in {
            "Host: localhost": 200,
            "Host:127.0.0.1:8000 ": 200,
            "Host: ME": 200,
            "Host: x": 421,
            "host : evil.example": 421,
            "Host: me\r\nOrigin: http://evil.example": 403,
            "Host: me\r\nsec-fetch-site:cross-site": 403,
            "Host: me\r\nSec-Fetch-Site: same-origin": 200,
            "X: y": 200,
        }.items():
            found, text = await endpoint.ask(
                f"GET /heartbeat HTTP/1.1\r\n{headers}\r\n\r\n".encode()
            )
            assert found == status, (headers, text)
            assert status != 421 or text == b"Unknown host (httpServerAllowedHosts)\n"
        put = b"PUT /gc HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n\r\n"
        assert (await endpoint.ask(put))[0] == 403
    finally:
        endpoint.port = port
        await server.close()
