"""Unauthenticated clients at the TLS ports and at the WebSocket's upgrade: seeded garbage.

As test_broker_unauthenticated.py, one layer further out: bytes that are no TLS, that only begin
like TLS, and that come through it. None is admitted, no line of the log is a traceback or a secret,
and a client with a good token works on. Bounded in time.
"""

import contextlib
import logging
import random
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pulsar
import pytest

import magnetar
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import FrameReader
from magnetar.embedding import EmbeddedBroker
from tests.certificates import Authority, Pair
from tests.integration.test_broker_unauthenticated import (
    GOOD,
    SECRET,
    SEEDS,
    STATUSES,
    binary_bytes,
    http_bytes,
)
from tests.official_client import open_client

LIMIT_S = 30.0
HOSTILE_S = 10.0
SESSIONS = 80  # of one seed
TOPIC = "persistent://public/default/known"


class Site:
    """A broker with both TLS ports, and certificates that it doesn't trust."""

    def __init__(self, broker: EmbeddedBroker, authority: Authority, foreign: Pair) -> None:
        self.broker, self.authority = broker, authority
        urls = (broker.service_url_tls, broker.web_url_tls)
        self.binary, self.web = (urlsplit(url).port or 0 for url in urls)
        self._foreign = foreign

    def context(self, rng: random.Random) -> ssl.SSLContext:
        """Of a client that knows how to speak TLS, and may show a certificate of its own."""
        context = ssl.create_default_context(cafile=self.authority.certificate)
        if rng.random() < 0.3:
            context.load_cert_chain(self._foreign.certificate, self._foreign.key)
        if rng.random() < 0.3:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        return context


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("strangers_tls")
    (folder / "foreign").mkdir()
    (folder / "secret.key").write_bytes(SECRET)
    authority = Authority(folder)
    server = authority.sign("localhost")
    with magnetar.embedded(
        authenticationEnabled=True,
        authenticationProviders="token,tls",
        tokenSecretKey=f"file://{folder / 'secret.key'}",
        authorizationEnabled=True,
        superUserRoles="alice",
        brokerServicePortTls=0,
        webServicePortTls=0,
        tlsCertificateFilePath=server.certificate,
        tlsKeyFilePath=server.key,
        tlsTrustCertsFilePath=authority.certificate,
    ) as broker:
        yield Site(broker, authority, Authority(folder / "foreign", "foreign").sign("alice"))


@pytest.fixture(autouse=True)
def unharmed(site: Site, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    client = open_client(
        site.broker.service_url_tls,
        authentication=pulsar.AuthenticationToken(GOOD),
        tls_trust_certs_file_path=str(site.authority.certificate),
    )
    producer = client.create_producer(TOPIC)
    producer.send(b"before")
    with caplog.at_level(logging.DEBUG):
        yield
    producer.send(b"after")
    client.close()
    answer = httpx.get(
        f"{site.broker.web_url_tls}/admin/v2/clusters",
        headers={"Authorization": f"Bearer {GOOD}"},
        verify=ssl.create_default_context(cafile=site.authority.certificate),
        timeout=LIMIT_S,
    )
    assert answer.status_code == 200
    bad = [each for each in caplog.records if each.exc_info or each.levelno >= logging.ERROR]
    assert bad == []
    for secret in (GOOD, GOOD.rsplit(".", 1)[1]):
        assert secret not in caplog.text


def _record(kind: int, version: int, body: bytes, length: int | None = None) -> bytes:
    return struct.pack(">BHH", kind, version, len(body) if length is None else length) + body


def _hello(rng: random.Random, context: ssl.SSLContext) -> bytes:
    """A good ClientHello."""
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def _no_tls(rng: random.Random, context: ssl.SSLContext) -> bytes:
    """Not TLS, or not for long."""
    hello = _hello(rng, context)
    match rng.randrange(8):
        case 0:
            return rng.randbytes(rng.choice((1, 5, 500, 20_000)))
        case 1:
            return binary_bytes(rng)
        case 2:
            return http_bytes(rng)
        case 3:
            return hello[: rng.randrange(1, len(hello))]
        case 4:
            broken = bytearray(hello)
            for _ in range(rng.randrange(1, 8)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            return bytes(broken)
        case 5:
            kind = rng.choice((20, 21, 22, 23, 24, 99))
            length = rng.choice((None, 0, 65_535))
            version = rng.choice((0x0300, 0x0301, 0x0303, 0xFFFF))
            return _record(kind, version, rng.randbytes(rng.randrange(1, 300)), length)
        case 6:
            return hello * rng.randrange(2, 6)
    # One hello in many small records, or a huge one that never ends
    if rng.random() < 0.5:
        body = hello[5:]
        return b"".join(_record(22, 0x0301, body[place : place + 1]) for place in range(len(body)))
    return _record(22, 0x0301, b"\1\xff\xff\xff" + bytes(16_000)) * 8


def _talk(client: socket.socket, data: bytes) -> bytes:
    """What comes back until the broker closes, or for a moment."""
    answer = b""
    with contextlib.suppress(OSError):
        client.sendall(data)
        client.settimeout(0.05)
        while part := client.recv(1 << 16):
            answer += part
    return answer


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_no_tls_is_not_answered(site: Site, seed: int) -> None:
    """By more than an alert, that is, or the first words of a handshake."""
    rng, deadline = random.Random(seed), time.monotonic() + HOSTILE_S
    for _ in range(SESSIONS):
        if time.monotonic() > deadline:
            break
        data = _no_tls(rng, site.context(rng))
        port = rng.choice((site.binary, site.web))
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
            answer = _talk(client, data)
        assert answer[:1] in (b"", b"\x15", b"\x16"), (data[:80], answer[:80])


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_gets_in_through_tls(site: Site, seed: int) -> None:
    rng, deadline, count = random.Random(seed), time.monotonic() + HOSTILE_S, 0
    for _ in range(SESSIONS):
        if time.monotonic() > deadline:
            break
        port = rng.choice((site.binary, site.web))
        data = binary_bytes(rng) if port == site.binary else http_bytes(rng)
        with contextlib.suppress(OSError), contextlib.ExitStack() as end:  # refused certificates
            plain = socket.create_connection(("127.0.0.1", port), LIMIT_S)
            end.callback(plain.close)
            context = site.context(rng)
            client = end.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
            answer = _talk(client, data)
            count += 1
            _check(answer, data, is_binary=port == site.binary)
    assert count > 5


def _check(answer: bytes, data: bytes, *, is_binary: bool) -> None:
    if is_binary:
        for command, _ in FrameReader().feed(answer):
            assert command.type in (pb.BaseCommand.ERROR, pb.BaseCommand.PONG), command
    elif answer:
        target = data.split(b" ", 2)[1] if data.count(b" ") > 1 else b""
        path = target.split(b"?")[0].decode("latin-1").rstrip("/")
        is_open = path in ("", "/status.html", "/ready", "/metrics", "/docs", "/openapi.json")
        assert int(answer.split(b" ", 2)[1]) in STATUSES or is_open, (data[:300], answer[:300])


def _upgrade(rng: random.Random) -> bytes:
    """A WebSocket's upgrade with something wrong, and frames that don't wait for the answer."""
    kinds = ("producer", "consumer", "reader")
    path = f"/ws/v2/{rng.choice(kinds)}/persistent/public/default/known/s"
    headers: list[tuple[str, Any]] = [
        ("Host", "x"),
        ("Connection", rng.choice(("Upgrade", "keep-alive, Upgrade", "upgrade, close"))),
        ("Upgrade", rng.choice(("websocket", "WebSocket", "websocket, h2c", "h2c"))),
        ("Sec-WebSocket-Version", rng.choice(("13", "8", "99999999999", "", "13, 8"))),
        ("Sec-WebSocket-Key", rng.choice(("A" * 22 + "==", "", "short", "B" * 4_000))),
    ]
    more: list[tuple[str, Any]] = [
        ("Sec-WebSocket-Protocol", "a" * rng.randrange(1, 3_000)),
        ("Sec-WebSocket-Extensions", "permessage-deflate; server_max_window_bits=99"),
        ("Content-Length", rng.choice((0, 1, 5, 2**40))),
        ("Transfer-Encoding", "chunked"),
        ("Authorization", rng.choice(("Bearer x", "Bearer", "Basic eA=="))),
        ("Origin", "https://evil.test"),
        ("Sec-WebSocket-Key", "C" * 22 + "=="),
    ]
    headers += rng.sample(more, rng.randrange(len(more)))
    rng.shuffle(headers)
    method = rng.choice(("GET", "GET", "GET", "POST", "CONNECT"))
    version = rng.choice(("1.1", "1.1", "1.0"))
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {text}" for name, text in headers)]
    frames = b"".join(
        struct.pack(">BB", rng.randrange(256), 0x80 | rng.randrange(128)) + rng.randbytes(40)
        for _ in range(rng.randrange(4))
    )
    return "\r\n".join([*lines, "", ""]).encode() + frames


@pytest.mark.parametrize("seed", SEEDS)
def test_every_upgrade_is_answered_and_none_is_accepted(site: Site, seed: int) -> None:
    rng, deadline, count = random.Random(seed), time.monotonic() + HOSTILE_S, 0
    port = urlsplit(site.broker.web_url).port or 0
    for _ in range(SESSIONS):
        if time.monotonic() > deadline:
            break
        data = _upgrade(rng)
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
            answer = b""
            # Some are requests of plain HTTP whose body is still awaited: for ten seconds
            if b"chunked" not in data and b"1099511627776" not in data:
                with contextlib.suppress(ConnectionError):
                    while b"\r\n\r\n" not in answer and (part := client.recv(1 << 16)):
                        answer += part
                assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501 ")), data
                count += 1
    assert count > 5
