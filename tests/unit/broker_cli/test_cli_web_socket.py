"""A WebSocket for callers that wait, against the library's own server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TypeAlias

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response

from broker.cli.loop_thread import LoopThread
from broker.cli.web_socket import open_web_socket
from tests.certificates import Authority

WAIT_S = 60.0
FRAMES = 500

Handler: TypeAlias = Callable[[ServerConnection], Awaitable[None]]


@contextmanager
def served(handler: Handler, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of a server for one block."""
    thread = LoopThread("server")
    try:
        server = thread.call(_start(handler, context))
        host, port = next(iter(server.sockets)).getsockname()[:2]
        try:
            yield f"{'ws' if context is None else 'wss'}://{host}:{port}"
        finally:
            thread.call(_stop(server))
    finally:
        thread.close()


async def _start(handler: Handler, context: ssl.SSLContext | None) -> Server:
    return await serve(handler, "127.0.0.1", 0, ssl=context, process_request=_refuse)


async def _refuse(connection: ServerConnection, request: Request) -> Response | None:
    return connection.respond(403, "no") if request.path == "/closed" else None


async def _stop(server: Server) -> None:
    server.close()
    await server.wait_closed()


async def echo(connection: ServerConnection) -> None:
    async for frame in connection:
        await connection.send(frame)


@pytest.fixture(params=["ws", "wss"])
def context(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ssl.SSLContext | None, ...]:
    """The server's and the client's."""
    if request.param == "ws":
        return None, None
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.certificate, pair.key)
    return server, ssl.create_default_context(cafile=authority.certificate)


def test_frames_in_order(context: tuple[ssl.SSLContext | None, ...]) -> None:
    """More of them than wait anywhere, so that both sides have to stop and go on."""
    frames = [f"{number} {'x' * 5000}" for number in range(FRAMES)]
    with served(echo, context[0]) as url, open_web_socket(url, ssl=context[1]) as socket:
        for frame in frames[: FRAMES // 2]:
            socket.send(frame)
        received = [socket.recv(WAIT_S) for _ in range(FRAMES // 2)]
        for frame in frames[FRAMES // 2 :]:
            socket.send(frame)
            received.append(socket.recv(WAIT_S))
    assert received == frames


def test_what_did_not_come_in_time_comes_later() -> None:
    go_on = Event()

    async def late(connection: ServerConnection) -> None:
        await asyncio.to_thread(go_on.wait, WAIT_S)
        await connection.send("late")

    with served(late) as url, open_web_socket(url) as socket:
        with pytest.raises(TimeoutError):
            socket.recv(0.01)
        go_on.set()
        assert socket.recv(WAIT_S) == "late"


def test_pings_are_answered_while_the_caller_is_busy() -> None:
    alive = Event()

    async def ping(connection: ServerConnection) -> None:
        await (await connection.ping())
        alive.set()

    with served(ping) as url, open_web_socket(url):
        assert alive.wait(WAIT_S)


def test_an_end_comes_behind_the_last_frame() -> None:
    async def few(connection: ServerConnection) -> None:
        for number in range(FRAMES):
            await connection.send(str(number))
        await connection.close(4001, "enough")

    with served(few) as url, open_web_socket(url) as socket:
        assert [socket.recv(WAIT_S) for _ in range(FRAMES)] == [str(n) for n in range(FRAMES)]
        for _ in range(2):
            with pytest.raises(ConnectionClosed, match=r"4001.*enough"):
                socket.recv(WAIT_S)
        with pytest.raises(ConnectionClosed):
            socket.send("more")


def test_all_is_sent_before_the_block_ends() -> None:
    received: list[str | bytes] = []
    ended = Event()

    async def take(connection: ServerConnection) -> None:
        received.extend([frame async for frame in connection])
        ended.set()

    with served(take) as url:
        with open_web_socket(url) as socket:
            for number in range(FRAMES):
                socket.send(str(number))
        assert ended.wait(WAIT_S)
    assert received == [str(number) for number in range(FRAMES)]


def test_frames_that_nobody_takes_are_left() -> None:
    closed: list[int | None] = []
    ended = Event()

    async def many(connection: ServerConnection) -> None:
        for _ in range(FRAMES):
            await connection.send("x" * 1000)
        await connection.wait_closed()
        closed.append(connection.close_code)
        ended.set()

    with served(many) as url:
        with open_web_socket(url) as socket:
            assert socket.recv(WAIT_S) == "x" * 1000
        assert ended.wait(WAIT_S)
    assert closed == [1000]


def test_a_failure_does_not_wait_for_a_server_that_takes_nothing() -> None:
    """What it raises comes out; 64 MiB stay unsent."""
    go_on = Event()

    async def deaf(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        await asyncio.to_thread(go_on.wait, WAIT_S)
        connection.transport.abort()

    def send_and_fail(url: str) -> None:
        with open_web_socket(url, close_timeout=0.1) as socket:
            socket.send("x" * 64 * 1024 * 1024)
            raise ValueError("a failure")

    with served(deaf) as url:
        try:
            with pytest.raises(ValueError, match="a failure"):
                send_and_fail(url)
        finally:
            go_on.set()


def test_refusals_are_told() -> None:
    with (
        served(echo) as url,
        pytest.raises(InvalidStatus) as refused,
        open_web_socket(f"{url}/closed"),
    ):
        pass
    assert refused.value.response.status_code == 403
    with pytest.raises(OSError), open_web_socket(url):  # noqa: PT011 # whatever the system says
        pass
