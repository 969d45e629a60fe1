"""A WebSocket for callers that wait, against the library's own server."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TypeAlias

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response

from magnetar.broker.cli import web_socket
from magnetar.broker.cli.loop_thread import LoopThread
from magnetar.broker.cli.main import main
from magnetar.broker.cli.web_socket import open_web_socket
from tests.certificates import Authority

WAIT_S = 60.0
FRAMES = 500
LARGE = 32 * 1024 * 1024
"""Characters: more than a connection's buffers of both sides take."""
INTERRUPTS = 400

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
    if request.path == "/closed":
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


@pytest.fixture(params=["ws", "wss"])
def context(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ssl.SSLContext | None, ...]:
    """The server's and the client's."""
    if request.param == "ws":
        return None, None
    authority = Authority(tmp_path)
    return server_context(authority), ssl.create_default_context(cafile=authority.certificate)


def server_context(authority: Authority) -> ssl.SSLContext:
    pair = authority.sign("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.certificate, pair.key)
    return server


def test_frames_in_order(context: tuple[ssl.SSLContext | None, ...]) -> None:
    """More of them than the library keeps."""
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


class Late:
    """A server that reads nothing until ``begin``, then everything."""

    def __init__(self) -> None:
        self.begin, self.ended = Event(), Event()
        self.received: list[int] = []  # sizes of frames

    async def take(self, connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        await asyncio.to_thread(self.begin.wait, WAIT_S)
        connection.transport.resume_reading()
        self.received.extend([len(frame) async for frame in connection])
        self.ended.set()


def test_all_is_sent_before_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server reads nothing before: one frame is larger than all buffers, another is behind it.

    Uncompressed, as commands send them.
    """
    monkeypatch.setattr(web_socket, "_UNSENT_MAX", 2 * LARGE)
    late = Late()
    with served(late.take) as url:
        with open_web_socket(url, compression=None) as socket:
            socket.send("x" * LARGE)
            socket.send("last")
            late.begin.set()
        assert late.ended.wait(WAIT_S)
    assert late.received == [LARGE, 4]


def test_who_sends_too_much_waits_until_the_server_reads() -> None:
    frames, late = 40, Late()
    with served(late.take) as url:
        with open_web_socket(url, compression=None) as socket:
            sender = Thread(target=lambda: list(map(socket.send, ["x" * 2**20] * frames)))
            sender.start()
            while not socket._is_waiting:
                assert sender.is_alive(), "it would keep all of them in memory"
                sender.join(0.01)
            late.begin.set()
            sender.join(WAIT_S)
            assert not sender.is_alive()
        assert late.ended.wait(WAIT_S)
    assert late.received == [2**20] * frames


def test_frames_that_nobody_takes_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, also when no more of them are read."""
    monkeypatch.setattr(web_socket, "_UNREAD_MAX", 10_000)
    closed: list[int | None] = []
    ended = Event()

    async def many(connection: ServerConnection) -> None:
        for _ in range(FRAMES):
            await connection.send("x" * 1000)
        await connection.wait_closed()
        closed.append(connection.close_code)
        ended.set()

    with served(many) as url:
        with open_web_socket(url, close_timeout=2 * WAIT_S) as socket:
            assert socket.recv(WAIT_S) == "x" * 1000
            while not socket._is_full:
                ended.wait(0.01)
        assert ended.wait(WAIT_S)
    assert closed == [1000]


def test_a_failure_does_not_wait_for_a_server_that_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither for what is unsent, nor for the library, which would wait without a limit."""
    monkeypatch.setattr(web_socket, "_CLOSE_S", 2 * WAIT_S)
    go_on = Event()
    released: list[bool] = []

    async def deaf(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        released.append(await asyncio.to_thread(go_on.wait, WAIT_S))
        connection.transport.abort()

    def send_and_fail(url: str) -> None:
        options = {"compression": None, "ping_interval": None, "close_timeout": 0.1}
        with open_web_socket(url, **options) as socket:
            socket.send("x" * LARGE)
            raise ValueError("a failure")

    with served(deaf) as url:
        try:
            with pytest.raises(ValueError, match="a failure"):
                send_and_fail(url)
        finally:
            go_on.set()
    assert released == [True]


def test_ctrl_c_at_any_moment_is_an_end() -> None:
    """Of a caller that sends and receives without a pause."""

    class InterruptError(Exception):
        pass

    late: list[None] = []  # interrupts of an end that has begun

    def interrupt(*_: object) -> None:
        late.append(None)
        raise InterruptError

    def exchange(url: str, seconds: float) -> None:
        with open_web_socket(url) as socket:
            try:
                # Once more: an interrupt of a destructor is nobody's.
                signal.setitimer(signal.ITIMER_REAL, seconds, WAIT_S)
                while True:
                    socket.send("x")
                    socket.recv(WAIT_S)
            finally:
                # Of an end that hangs: again and again, as more than one wait would have to end.
                signal.setitimer(signal.ITIMER_REAL, WAIT_S, 1)
                late.clear()

    chance = random.Random(7)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with served(echo) as url:
            for _ in range(INTERRUPTS):
                with pytest.raises(InterruptError):
                    exchange(url, chance.uniform(0.0005, 0.01))
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert not late, "the end did not come by itself"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not _threads()


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "web-socket"]


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
    assert not _threads()


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
