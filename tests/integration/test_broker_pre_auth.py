"""Pending sockets: bytes that trickle, silent peers, thousands of both; TLS below."""

import asyncio
import contextlib
import resource
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import jwt
import pytest

import magnetar
from magnetar.broker.config import BrokerConfig
from magnetar.broker.listener import pre_auth_acceptor as acceptor_module
from magnetar.broker.listener.pre_auth_acceptor import PendingSocket, PreAuthAcceptor
from magnetar.broker.listener.tls import TlsListener, listening_socket
from magnetar.broker.listener.unauthenticated_limiter import UnauthenticatedLimiter
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.embedding import EmbeddedBroker
from tests.certificates import Authority
from tests.free_port import free_port
from tests.raw_client import RawClient, encode_command
from tests.standalone_process import StandaloneProcess
from tests.waiting import eventually

LIMIT_S = 30.0
SECRET = bytes(range(32))
GOOD, WRONG = (jwt.encode({"sub": "joe"}, key, "HS256") for key in (SECRET, bytes(32)))


# --- the acceptor alone


class Counting(PreAuthAcceptor):
    """Waits for ten bytes, and remembers."""

    def __init__(self, limiter: UnauthenticatedLimiter, **more: Any) -> None:
        super().__init__(limiter, what="test", **more)
        self.looks = 0
        self.departed: list[PendingSocket] = []
        self.taken: list[tuple[bytes, socket.socket]] = []

    def look(self, pending: PendingSocket) -> None:
        self.looks += 1
        if len(pending.received) < 10:
            pending.wait()
        else:
            self.taken.append((bytes(pending.received), pending.take()))

    def gone(self, pending: PendingSocket) -> None:
        self.departed.append(pending)

    def has_looked(self, times: int) -> bool:
        return self.looks >= times


class Standing:
    """An acceptor with its handler, on a free port."""

    def __init__(self, limiter: UnauthenticatedLimiter | None = None, **more: Any) -> None:
        self.limiter = UnauthenticatedLimiter(100) if limiter is None else limiter
        more.setdefault("deadline_s", lambda: LIMIT_S)
        self.acceptor = self.handler = Counting(self.limiter, **more)
        self.port = self.acceptor.listen(listening_socket("127.0.0.1", 0, "test"), 128)

    async def come(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        if data:
            writer.write(data)
        return reader, writer

    def come_and_speak(self, data: bytes) -> socket.socket:
        """All of it before the acceptor reads it."""
        remote = socket.create_connection(("127.0.0.1", self.port), LIMIT_S)
        remote.sendall(data)
        return remote

    def close(self) -> None:
        self.acceptor.close()
        for _, taken in self.handler.taken:
            taken.close()


async def _ended(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), LIMIT_S)
    return b""


async def test_words_that_trickle_are_put_together() -> None:
    standing = Standing()
    _, writer = await standing.come()
    for index in range(1, 11):
        writer.write(bytes([index]))
        await eventually(partial(standing.handler.has_looked, index))
    assert [words for words, _ in standing.handler.taken] == [bytes(range(1, 11))]
    assert (len(standing.limiter), len(standing.acceptor), standing.acceptor.held_bytes) == (
        0,
        0,
        0,
    )
    assert not standing.handler.departed
    writer.close()
    standing.close()


async def test_who_leaves_is_forgotten() -> None:
    standing = Standing()
    _, silent = await standing.come()
    _, began = await standing.come(b"1234")
    await eventually(lambda: len(standing.acceptor) == 2 and standing.acceptor.held_bytes == 4)
    silent.close()
    began.transport.abort()
    await eventually(lambda: len(standing.handler.departed) == 2)
    assert (len(standing.limiter), len(standing.acceptor), standing.acceptor.held_bytes) == (
        0,
        0,
        0,
    )
    standing.close()


async def test_there_is_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "_SWEEP_S", 0.01)
    standing = Standing(deadline_s=lambda: 0.05)
    pending_sockets = [await standing.come(data) for data in (b"", b"1234")]
    assert [await _ended(reader) for reader, _ in pending_sockets] == [b"", b""]
    assert len(standing.acceptor) == 0
    for _, writer in pending_sockets:
        writer.close()
    standing.close()


async def test_all_of_them_together_may_keep_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "_HELD_BYTES_MAX", 20)
    standing = Standing()
    pending_sockets = [await standing.come(bytes(9)) for _ in range(5)]
    await eventually(lambda: len(standing.handler.departed) == 3)
    assert standing.acceptor.held_bytes == 18
    for reader, _ in pending_sockets[:3]:  # the oldest make room
        assert await _ended(reader) == b""
    for _, writer in pending_sockets:
        writer.close()
    standing.close()


async def test_files_that_others_need_are_left_to_them() -> None:
    standing = Standing(admits=lambda pending_sockets: pending_sockets <= 2)
    pending_sockets = [await standing.come(bytes(9)) for _ in range(5)]
    await eventually(lambda: len(standing.handler.departed) == 3)
    assert (len(standing.acceptor), standing.limiter.cut) == (2, 3)
    for _, writer in pending_sockets:
        writer.close()
    standing.close()
    nobody = Standing(admits=lambda pending_sockets: False)
    reader, writer = await nobody.come(bytes(9))
    assert await _ended(reader) == b""
    writer.close()
    nobody.close()


async def test_who_is_turned_away_at_once_takes_nobodys_place() -> None:
    standing = Standing(limiter=UnauthenticatedLimiter(2))
    waiting = [await standing.come(bytes(9)) for _ in range(2)]
    await eventually(lambda: standing.acceptor.held_bytes == 18)
    standing.handler.look = lambda pending: pending.end(b"no")  # type: ignore[method-assign] # of this one
    remotes = [standing.come_and_speak(b"words") for _ in range(5)]
    await eventually(lambda: len(standing.handler.departed) == 5)
    assert (len(standing.acceptor), standing.acceptor.held_bytes, standing.limiter.cut) == (
        2,
        18,
        0,
    )
    for remote in remotes:
        remote.settimeout(LIMIT_S)
        assert (remote.recv(10), remote.recv(10)) == (b"no", b"")
        remote.close()
    for _, writer in waiting:
        writer.close()
    standing.close()


@pytest.mark.parametrize("how", ["send", "end"])
async def test_who_reads_nothing_keeps_nobody_waiting(how: str) -> None:
    """Sockets of guests are in blocking mode."""
    standing = Standing()
    remote = standing.come_and_speak(b"12345")
    await eventually(lambda: standing.handler.looks == 1)
    (pending,) = standing.acceptor._pending_sockets
    remote.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    rescue = threading.Timer(2 * LIMIT_S, remote.close)  # a reset, which ends any wait
    rescue.start()
    if how == "end":
        pending.end(bytes(64 << 20))
    else:
        while not pending.ended:
            pending.send(bytes(1 << 20))
    assert rescue.is_alive()
    rescue.cancel()
    assert standing.handler.departed == [pending]
    remote.close()
    standing.close()


async def test_a_handler_that_peeks_leaves_the_bytes_in_the_socket() -> None:
    standing = Standing(peek_bytes=4)
    standing.handler.look = lambda it: standing.handler.taken.append((it.received, it.take()))  # type: ignore[method-assign,arg-type,assignment] # of this one
    _, writer = await standing.come(b"hello")
    await eventually(lambda: len(standing.handler.taken) == 1)
    words, taken = standing.handler.taken[0]
    assert words == b"hell"
    assert taken.recv(100) == b"hello"
    assert not taken.getblocking()
    assert standing.acceptor.held_bytes == 0
    writer.close()
    standing.close()


# --- the binary port


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    key = tmp_path_factory.mktemp("pre_auth") / "key"
    key.write_bytes(SECRET)
    key.chmod(0o600)
    with magnetar.embedded(
        authenticationEnabled=True,
        authenticationProviders="token",
        tokenSecretKey=f"file://{key}",
        authenticateMetricsEndpoint=False,
    ) as running:
        yield running


def _connect(token: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version, command.connect.protocol_version = "test", 21
    command.connect.auth_method_name, command.connect.auth_data = "token", token.encode()
    return encode_command(command)


def _ping() -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.PING)
    command.ping.SetInParent()
    return encode_command(command)


def _lookup() -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = "persistent://public/default/t", 7
    return encode_command(command)


@pytest.mark.parametrize("pieces", [1, 2, 50])
def test_what_comes_with_and_behind_the_login_is_not_lost(
    broker: EmbeddedBroker, pieces: int
) -> None:
    words = _ping() + _connect(GOOD) + _lookup() + _ping()
    step = -(-len(words) // pieces)
    with RawClient(broker.service_url, connect=False) as client:
        for start in range(0, len(words), step):
            client.send_bytes(words[start : start + step])
        client.expect(pb.BaseCommand.PONG)
        client.expect(pb.BaseCommand.CONNECTED)
        answers = {client.receive()[0].type for _ in range(2)}
        assert answers == {pb.BaseCommand.LOOKUP_RESPONSE, pb.BaseCommand.PONG}


@pytest.mark.parametrize("words", [b"\0\0\0\0", b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n", _lookup()])
def test_nonsense_is_ended_without_a_word(broker: EmbeddedBroker, words: bytes) -> None:
    with RawClient(broker.service_url, connect=False) as client:
        client.send_bytes(_ping() + words)
        assert [each.type for each in client.expect_closed()] == [pb.BaseCommand.PONG]


def test_every_refusal_is_counted_and_few_are_logged(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> float:
        page = magnetar_metrics(broker)
        name = "pulsar_authentication_failures_total"
        lines = [line for line in page.splitlines() if line.startswith(name) and "token" in line]
        return float(lines[0].rsplit(" ", 1)[1])

    before = refused()
    for _ in range(300):
        with RawClient(broker.service_url, connect=False) as client:
            client.send_bytes(_connect(WRONG))
            (said,) = client.expect_closed()
            assert said.error.error == pb.AuthenticationError
            assert said.error.message == "Failed to authenticate"
    assert refused() == before + 300
    assert WRONG not in caplog.text


def magnetar_metrics(broker: EmbeddedBroker) -> str:
    host, port = broker.web_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        parts = []
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


# --- thousands


@pytest.fixture
def many_files() -> Iterator[int]:
    """How many sockets this process may open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8_192 if hard == resource.RLIM_INFINITY else min(8_192, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield max(soft, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_thousands_who_say_half_a_word_cost_little(tmp_path: Path, many_files: int) -> None:
    """Three doors, and at each of them: silence, half of a login, the most that is kept of one."""
    (tmp_path / "key").write_bytes(SECRET)
    (tmp_path / "key").chmod(0o600)
    pair = Authority(tmp_path).sign("localhost")
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{tmp_path / 'key'}",
        "brokerServicePortTls": free_port(),
        "tlsCertificateFilePath": pair.certificate,
        "tlsKeyFilePath": pair.key,
    }
    options = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
    count = min(2_000, many_files // 4)
    hello = _client_hello()
    large = (190 * 1024).to_bytes(4, "big") + (100_000).to_bytes(4, "big") + bytes(180 * 1024)
    with (
        StandaloneProcess(tmp_path / "data", *options) as process,
        contextlib.ExitStack() as everybody,
        RawClient(process.service_url, connect=False) as known,
    ):
        known.send_bytes(_connect(GOOD))
        known.expect(pb.BaseCommand.CONNECTED)
        before = process.resident_bytes()
        tls = int(str(settings["brokerServicePortTls"]))
        for port, half in (
            (process.port, _connect(GOOD)[:20]),
            (tls, hello[:-1]),
            (process.web_port, b"GET / HTTP/1.1\r\n"),
        ):
            for number in range(count):
                pending = everybody.enter_context(socket.create_connection(("127.0.0.1", port)))
                pending.settimeout(LIMIT_S)
                with contextlib.suppress(OSError):
                    pending.sendall(half if number % 2 else b"")
        for _ in range(200):  # as large as a first word may be: 37 MB, if all of it were kept
            pending = everybody.enter_context(socket.create_connection(("127.0.0.1", process.port)))
            pending.settimeout(LIMIT_S)
            with contextlib.suppress(OSError):
                pending.sendall(large)
        known.send_bytes(_ping())
        known.expect(pb.BaseCommand.PONG)
        with RawClient(process.service_url, connect=False) as late:
            late.send_bytes(_connect(GOOD))
            late.expect(pb.BaseCommand.CONNECTED)
        grown = process.resident_bytes() - before
        # 16 KiB of buffers for each HTTP connection that has begun to speak, far less for others
        assert grown < 110 << 20, f"{grown >> 20} MB for {3 * count} clients"
    assert "Traceback" not in process.log


# --- TLS beneath a protocol


class Protocol(asyncio.Protocol):
    """Echoes; notes its end."""

    def __init__(self, made: list[Any]) -> None:
        made.append(self)
        self.lost = asyncio.Event()
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class Buffered(asyncio.BufferedProtocol):
    """The same with a small buffer of its own; pauses after each, for a turn."""

    def __init__(self, made: list[Any]) -> None:
        made.append(self)
        self.lost = asyncio.Event()
        self.received = 0
        self._buffer = memoryview(bytearray(10_007))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self.transport.is_reading()
        self.received += nbytes
        self.transport.writelines([bytes(self._buffer[:nbytes])])
        self.transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class Secure:
    """A TLS port that makes one kind of protocol."""

    def __init__(self, authority: Authority, port: int, made: list[Any]) -> None:
        self.port, self.made = port, made
        self._context = ssl.create_default_context(cafile=authority.certificate)

    def context(self) -> ssl.SSLContext:
        return self._context

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self._context, server_hostname="localhost"
        )


@pytest.fixture(params=[Protocol, Buffered])
async def secure(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Secure]:
    authority, made = Authority(tmp_path), list[Any]()
    pair = authority.sign("localhost")
    keys = {
        "tlsCertificateFilePath": str(pair.certificate),
        "tlsKeyFilePath": str(pair.key),
    }
    config = BrokerConfig().with_keys(keys)
    listener = TlsListener(config, lambda: request.param(made), backlog=16)
    port = await listener.start("127.0.0.1", 0, "test")
    yield Secure(authority, port, made)
    listener.close()


async def test_everything_arrives_in_order(secure: Secure) -> None:
    reader, writer = await secure.connect()
    sent = b"".join(number.to_bytes(4, "big") for number in range(700_000))

    async def send() -> None:
        for start in range(0, len(sent), 99_999):
            writer.write(sent[start : start + 99_999])
            await writer.drain()

    sending = asyncio.ensure_future(send())
    received = await asyncio.wait_for(reader.readexactly(len(sent)), LIMIT_S)
    await sending
    assert received == sent
    (protocol,) = secure.made
    assert protocol.received == len(sent)
    for name in ("ssl_object", "sslcontext", "cipher", "peername", "socket"):
        assert protocol.transport.get_extra_info(name), name
    writer.close()
    await asyncio.wait_for(protocol.lost.wait(), LIMIT_S)


async def test_an_end_is_told_by_tls(secure: Secure) -> None:
    """The client would take an end without it for an attack."""
    port, context = secure.port, secure.context()

    def talk() -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port), LIMIT_S) as plain,
            context.wrap_socket(
                plain, server_hostname="localhost", suppress_ragged_eofs=False
            ) as client,
        ):
            client.sendall(b"x")
            assert client.recv(10) == b"x"
            loop.call_soon_threadsafe(lambda: secure.made[0].transport.close())
            return client.recv(10)

    loop = asyncio.get_running_loop()
    assert await asyncio.to_thread(talk) == b""
    await asyncio.wait_for(secure.made[0].lost.wait(), LIMIT_S)


@pytest.mark.parametrize("how", ["fin", "reset", "garbage"])
async def test_a_rough_end_is_an_end(secure: Secure, how: str) -> None:
    port, context = secure.port, secure.context()

    def talk() -> None:
        plain = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        with context.wrap_socket(plain, server_hostname="localhost") as client:
            client.sendall(b"x")
            assert client.recv(10) == b"x"
            raw = socket.socket(fileno=client.detach())
        if how == "garbage":
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            raw.settimeout(LIMIT_S)
            with contextlib.suppress(ConnectionError):
                while raw.recv(4096):
                    pass
        elif how == "reset":
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        raw.close()

    await asyncio.to_thread(talk)
    (protocol,) = secure.made
    await asyncio.wait_for(protocol.lost.wait(), LIMIT_S)
    assert protocol.transport.is_closing()
    protocol.transport.write(b"too late")
    protocol.transport.close()


async def test_many_handshakes_at_once(secure: Secure) -> None:
    began_s = time.monotonic()
    pending_sockets = await asyncio.gather(*[secure.connect() for _ in range(40)])
    for index, (_, writer) in enumerate(pending_sockets):
        writer.write(bytes([index]))
    answers = await asyncio.gather(*[reader.readexactly(1) for reader, _ in pending_sockets])
    assert answers == [bytes([index]) for index in range(40)]
    for _, writer in pending_sockets:
        writer.close()
    assert time.monotonic() - began_s < LIMIT_S
