"""The commands for ws:// URLs, against the library's own server."""

import asyncio
import re
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TypeAlias

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from magnetar.broker.cli import websocket_commands
from magnetar.broker.cli.loop_thread import LoopThread
from magnetar.broker.cli.main import main
from tests.certificates import Authority

WAIT_S = 60.0

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
    return await serve(
        handler,
        "127.0.0.1",
        0,
        ssl=context,
        process_request=_refuse,
        max_size=None,
        ping_interval=None,
    )


async def _refuse(connection: ServerConnection, request: Request) -> Response | None:
    if request.path.startswith("/closed/"):
        return connection.respond(403, "no")
    if request.path.startswith("/secured/"):  # on that port, over TLS
        answer = connection.respond(301, "")
        answer.headers["Location"] = f"wss://127.0.0.1:{request.path.split('/')[2]}"
        return answer
    return None


async def _stop(server: Server) -> None:
    server.close()
    await server.wait_closed()


async def echo(connection: ServerConnection) -> None:
    async for frame in connection:
        await connection.send(frame)


def server_context(authority: Authority) -> ssl.SSLContext:
    pair = authority.sign("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.certificate, pair.key)
    return server


def test_a_refusal_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with served(echo) as url:
        assert main(("produce", "--url", f"{url}/closed", "t", "-m", "a")) == 1
    assert capsys.readouterr().err.startswith("magnetar: HTTP 403\nReason: no\n")
    assert main(("produce", "--url", url, "t", "-m", "a")) == 1
    assert f"{url} can't be reached" in capsys.readouterr().err


def test_an_end_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    async def end(connection: ServerConnection) -> None:
        await connection.close(4001, "enough")

    with served(end) as url:
        assert main(("consume", "--url", url, "t", "-s", "s")) == 1
    assert re.search(r"connection closed: .*4001.*enough", capsys.readouterr().err)


def test_a_failure_does_not_wait_for_a_server_that_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library would, and without a limit."""
    monkeypatch.setattr(websocket_commands, "ANSWER_S_MAX", 0.05)
    go_on = Event()
    released: list[bool] = []

    async def deaf(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        released.append(await asyncio.to_thread(go_on.wait, WAIT_S))
        connection.transport.abort()

    with served(deaf) as url:
        try:
            assert main(("produce", "--url", url, "t", "-m", "a")) == 1
        finally:
            go_on.set()
    assert released == [True]
    assert "no receipt within" in capsys.readouterr().err


@pytest.fixture
def heeds_sigint() -> Iterator[None]:
    """Shells have what they run in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_sigint")
def test_ctrl_c_is_an_end() -> None:
    async def interrupt(connection: ServerConnection) -> None:
        # To the thread that waits: another one wouldn't wake it.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await connection.wait_closed()

    with served(interrupt) as url:
        assert main(("consume", "--url", url, "t", "-s", "s", "--timeout", str(WAIT_S))) == 130


def test_a_redirect_to_tls_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To somebody who isn't trusted: a message, no traceback."""
    with served(echo) as url, served(echo, server_context(Authority(tmp_path))) as secured:
        port = secured.rpartition(":")[2]
        assert main(("produce", "--url", f"{url}/secured/{port}", "t", "-m", "a")) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"magnetar: {url}/secured/{port} can't be reached: ")
    assert "certificate verify failed" in said


def test_an_end_without_words_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a handshake of TLS with somebody who speaks none."""
    with served(echo) as url:
        port = url.rpartition(":")[2]
        assert main(("produce", "--url", f"{url}/secured/{port}", "t", "-m", "a")) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"magnetar: {url}/secured/{port} can't be reached: ")
    assert re.search(r"reached: \w", said), said
