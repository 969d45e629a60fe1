"""Unauthenticated clients at the ports of a bookie and of auto-recovery: seeded garbage.

As test_broker_unauthenticated.py: none is admitted, each answer is a refusal, no traceback or
secret is in the log, no connection of theirs is left, and a client with a good token writes and
reads all the while. Bounded in time.
"""

import asyncio
import base64
import contextlib
import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import jwt
import pytest

from magnetar.bookkeeper.bookie.http.admin_access import OPEN_PATHS
from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.own_login import MAGNETAR
from magnetar.bookkeeper.bookie_protocol.result_codes import EBADREQ, EOK, EUA
from magnetar.bookkeeper.layout.find_layout import open_layout
from magnetar.bookkeeper.layout.service_info_format import decode_registration
from magnetar.bookkeeper.ledgers import connect_ledgers
from magnetar.bookkeeper.packet import encode_head
from magnetar.bookkeeper.proto import bookie_pb2 as pb
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as protocol_pb
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.bookkeeper.transport_grpc.config import BOOKIE_ID_HEADER, SERVICE, TransportConfig
from magnetar.metadata.factory import connect_store
from tests.autorecovery_process import AutoRecoveryProcess
from tests.bookie_process import BookieProcess
from tests.child_process import ChildProcess
from tests.integration.test_broker_unauthenticated import (
    GOOD,
    SECRET,
    SEEDS,
    bad_token,
    exchange,
    http_bytes,
)
from tests.zookeeper_process import ZooKeeperProcess

LIMIT_S = 60.0
HOSTILE_S = 12.0
SESSIONS = 60  # of one seed and port
ROLE = "alice"  # of GOOD: the only one that may use the bookie
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME = struct.Struct(">BHBBI")  # length, in two parts; kind, flags, stream
DATA = 0
CALLS = (
    "NoSuchCall",
    *(method.name for method in pb.DESCRIPTOR.services_by_name["Bookie"].methods),
)
PATHS = (
    *("/api/v1/bookie/gc", "/api/v1/bookie/data/scrub", "/api/v1/bookie/data/integrity"),
    *("/api/v1/bookie/info", "/api/v1/bookie/data", "/api/v1/autorecovery/status"),
    *("/nowhere", "/metrics", "/heartbeat", "/heartbeat/../api/v1/bookie/data", "/"),
)
REFUSED = {400, 401, 403, 431}


@dataclass(frozen=True)
class Site:
    url: str
    bookie: BookieProcess
    recovery: AutoRecoveryProcess
    web_ports: tuple[int, int]
    entries_port: int

    @property
    def processes(self) -> tuple[ChildProcess, ...]:
        return self.bookie, self.recovery

    def open_sockets(self) -> int:
        """Accepted connections of all ports."""
        ports = self.bookie.port, self.entries_port, *self.web_ports
        ours = tuple(f":{port:04X}" for port in ports)
        lines = [
            line
            for name in ("tcp", "tcp6")
            for line in Path(f"/proc/{self.bookie.pid}/net/{name}").read_text().splitlines()[1:]
        ]
        return sum(line.split()[1].endswith(ours) and line.split()[3] == "01" for line in lines)


@pytest.fixture(scope="module")
def site(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url, folder = zookeeper.url("/strangers"), tmp_path_factory.mktemp("strangers")
    (folder / "secret.key").write_bytes(SECRET)
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{folder / 'secret.key'}",
        "bookieAllowedRoles": ROLE,
        "bookkeeperClientAuthenticationPlugin": "token",
        "bookkeeperClientAuthenticationParameters": f"token:{GOOD}",
        "metadataStoreSessionTimeoutMillis": "10000",
        "httpServerEnabled": "true",
        "httpServerPort": "0",
    }
    options = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
    with (
        BookieProcess(folder / "bookie", url, "--id", "b0", *options) as bookie,
        AutoRecoveryProcess(folder, "recovery", url, *options) as recovery,
    ):
        web = re.search(r"^magnetar bookie: (http://\S+) ", bookie.log, re.MULTILINE)
        assert web is not None, bookie.log
        ports = [urlsplit(url).port or 0 for url in (web[1], recovery.web_url)]
        entries_port = asyncio.run(registered_port(url))
        yield Site(url, bookie, recovery, (ports[0], ports[1]), entries_port)


async def registered_port(url: str) -> int:
    """Where the bookie answers BookKeeper's protocol."""
    store = await connect_store(url)
    try:
        path = (await open_layout(store)).bookie_path("b0", read_only=False)
        found = await store.get(path)
        assert found is not None
        address = decode_registration("b0", found.value).rpc_address
        assert address is not None
        return address[1]
    finally:
        await store.close()


class Witness:
    """Writes entry after entry to a ledger, in a thread; reads them all at the end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._first = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Witness":
        self._thread.start()
        assert self._first.wait(LIMIT_S), self._error
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        assert self._error is None, repr(self._error)

    def _run(self) -> None:
        try:
            asyncio.run(self._write())
        except BaseException as error:  # told by the test's own thread
            self._error = error
            self._first.set()

    async def _write(self) -> None:
        transport = TransportConfig(token=f"token:{GOOD}")
        async with connect_ledgers(self._url, transport=transport) as ledgers:
            ledger, count = await ledgers.create(1, 1, 1), 0
            while not self._stop.is_set():
                await ledger.append_all([b"%d" % count])
                count += 1
                self._first.set()
                await asyncio.sleep(0.005)
            await ledger.close()
            view = await ledgers.open(ledger.ledger_id)
            found = [bytes(entry) async for _, entry in view.entries()]
        assert found == [b"%d" % number for number in range(count)]


@pytest.fixture(autouse=True)
def unharmed(site: Site) -> Iterator[None]:
    before = [len(process.log) for process in site.processes]
    with Witness(site.url):
        yield
    deadline = time.monotonic() + LIMIT_S
    while (left := site.open_sockets()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == 0, "connections of clients that are gone"
    for process, offset in zip(site.processes, before, strict=True):
        said = process.log[offset:]
        # Nor a line of gRPC's, which would be one for each bad header
        bad = r"Traceback|never awaited|never retrieved|CRITICAL|Exception|cygrpc|hpack|\.cc:"
        found = re.search(bad, said)
        assert found is None, said[max(0, found.start() - 2_000) : found.start() + 4_000]
        for secret in (GOOD, GOOD.rsplit(".", 1)[1], SECRET.hex(), "password-of-"):
            assert secret not in said


# --- gRPC


def other_role() -> str:
    return jwt.encode({"sub": "orders"}, SECRET, "HS256")


def authorization(rng: random.Random) -> str | None:
    return rng.choice(
        (
            *(
                None,
                "",
                "Bearer",
                "Basic eDp5",
                f"Digest {GOOD}",
                f"bearer  {bad_token(rng)[:3000]}",
            ),
            *(f"Bearer {bad_token(rng)[:3000]}", f"Bearer {other_role()}"),
        )
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_no_call_is_answered(site: Site, seed: int) -> None:
    """Calls in good form, of all names, with all kinds of credentials but the good one."""
    rng, count, deadline = random.Random(seed), 0, time.monotonic() + HOSTILE_S
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    with grpc.insecure_channel(f"127.0.0.1:{site.bookie.port}") as channel:
        while count < SESSIONS and time.monotonic() < deadline:
            count += 1
            shown = [authorization(rng) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
            metadata: list[tuple[str, str | bytes]] = [
                ("authorization", each) for each in shown if each is not None
            ]
            if rng.random() < 0.8:
                metadata.append((BOOKIE_ID_HEADER, rng.choice((b"b0", b"b1", rng.randbytes(50)))))
            if rng.random() < 0.2:
                metadata.append(("instance-id", rng.choice(("x", ""))))
            rng.shuffle(metadata)
            service = rng.choice((SERVICE, SERVICE, SERVICE, "grpc.health.v1.Health"))
            call = channel.stream_stream(f"/{service}/{rng.choice(CALLS)}")
            messages = [
                rng.randbytes(rng.choice((0, 10, 60, 100_000))) for _ in range(rng.randrange(4))
            ]
            answer = call(iter(messages), metadata=metadata, timeout=LIMIT_S)
            with pytest.raises(grpc.RpcError):
                raise AssertionError(f"answered with {next(answer)!r}")
            assert answer.code() in refused, (metadata, answer.code())
            assert answer.details() in ("Failed to authenticate", "This role may not use bookies")
    assert count > 5


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    size = len(body)
    return FRAME.pack(size >> 16 & 255, size & 65_535, kind, flags, stream) + body


def header(name: bytes, value: bytes) -> bytes:
    """HPACK, literal, not indexed."""
    return b"\0" + _integer(len(name)) + name + _integer(len(value)) + value


def _integer(value: int) -> bytes:
    if value < 127:
        return bytes([value])
    value, found = value - 127, bytearray([127])
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def head(rng: random.Random) -> bytes:
    path = f"/{SERVICE}/{rng.choice(CALLS)}".encode()
    fields = [
        (b":method", rng.choice((b"POST", b"POST", b"GET", b"CONNECT"))),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", rng.choice((b"application/grpc", b"application/grpc", b"text/html"))),
        (BOOKIE_ID_HEADER.encode(), base64.b64encode(b"b0")),
    ]
    if (shown := authorization(rng)) is not None:
        fields.append((b"authorization", shown.encode("latin-1", "replace")))
    if rng.random() < 0.2:
        fields.append((rng.randbytes(5), rng.randbytes(rng.choice((0, 10, 20_000)))))
    if rng.random() < 0.2:
        rng.shuffle(fields)
    return b"".join(header(name, value) for name, value in fields)


def grpc_bytes(rng: random.Random) -> bytes:
    """HTTP/2 that is almost good, or isn't."""
    settings = frame(4, 0, 0, b"")
    match rng.randrange(8):
        case 0:
            return rng.randbytes(rng.choice((1, 24, 500, 50_000)))
        case 1:
            return http_bytes(rng, PATHS)
        case 2:
            return (PREFACE + settings)[: rng.randrange(1, 33)]
        case 3:  # any frames
            body = [rng.randbytes(rng.choice((0, 4, 5, 8, 100))) for _ in range(20)]
            frames = [
                frame(rng.randrange(12), rng.randrange(256), rng.randrange(5), b) for b in body
            ]
            return PREFACE + settings + b"".join(frames)
        case 4:  # heads that are begun, and never end
            begun = frame(1, 0, 1, head(rng))
            more = b"".join(frame(9, 0, 1, header(b"a%d" % n, bytes(200))) for n in range(200))
            return PREFACE + settings + begun + more
        case 5:  # calls that are taken back at once
            calls = [
                frame(1, 4, 2 * n + 1, head(rng)) + frame(3, 0, 2 * n + 1, bytes(4))
                for n in range(300)
            ]
            return PREFACE + settings + b"".join(calls)
        case 6:  # what has to be answered
            asked = frame(6, 0, 0, bytes(8)) * 500 + settings * 500
            return PREFACE + settings + asked
    calls = []
    for number in range(rng.randrange(1, 20)):
        stream = 2 * number + 1
        message = rng.randbytes(rng.choice((0, 10, 3_000)))
        calls.append(frame(1, 4, stream, head(rng)))
        calls.append(
            frame(DATA, rng.choice((0, 1)), stream, b"\0" + struct.pack(">I", len(message)))
        )
        calls.append(frame(DATA, 1, stream, message))
    return PREFACE + settings + b"".join(calls)


def kinds_of(answer: bytes) -> Iterator[int]:
    """Of the whole frames in it."""
    place = 0
    while place + FRAME.size <= len(answer):
        high, low, kind, _, _ = FRAME.unpack_from(answer, place)
        place += FRAME.size + (high << 16) + low
        yield kind


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_gets_in_by_the_grpc_port(site: Site, seed: int) -> None:
    """An answer's message would be in DATA; a refusal is a head alone."""
    rng, count, deadline = random.Random(seed), 0, time.monotonic() + HOSTILE_S
    while count < SESSIONS and time.monotonic() < deadline:
        count += 1
        data = grpc_bytes(rng)
        answer = exchange(site.bookie.port, data, rng)
        if not answer.startswith(b"HTTP/1"):
            assert DATA not in kinds_of(answer), (data[:300], answer[:300])
    assert count > 5


# --- BookKeeper's protocol


def login_bytes(rng: random.Random) -> bytes:
    fields: dict[str, object] = {"bookieId": rng.choice(("b0", "b1")), "instanceId": ""}
    shown = rng.choice((None, bad_token(rng)[:3000], other_role(), "", 7, GOOD[:-1]))
    if shown is not None:
        fields["token"] = shown
    payload = rng.choice((json.dumps(fields).encode(), rng.randbytes(50), b""))
    name = rng.choice((MAGNETAR, MAGNETAR, "sasl", "x"))
    message = protocol_pb.AuthMessage(authPluginName=name, payload=payload)
    if rng.random() < 0.8:
        return v2.encode_auth(message.SerializeToString())
    request = protocol_pb.Request(authRequest=message)
    request.header.version, request.header.operation = 3, protocol_pb.AUTH
    request.header.txnId = 1
    body = request.SerializeToString()
    return struct.pack(">I", len(body)) + body


def request_bytes(rng: random.Random) -> bytes:
    key, packet = bytes(20), encode_head(0, rng.randrange(9), -1, 9, b"", b"evil") + b"evil"
    read = ReadRequest(0, 0, 9, fence=rng.random() < 0.5, master_key=key, creator=rng.randrange(2))
    match rng.randrange(4):
        case 0:
            frames = v2.encode_adds(key, [packet], [b""], recovery=True, creator=rng.randrange(2))
            return b"".join(frames)
        case 1:
            return v2.encode_read(0, -1, flags=v2.DO_FENCING, master_key=key)
        case 2:
            return v2.encode_own_read(read, 1)
        case _:
            return rng.randbytes(rng.choice((1, 40, 5000)))


def answers_in(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Operation of version 2 (0: another version) and the body of each whole frame."""
    place = 0
    while place + 8 <= len(data):
        size, word = struct.unpack_from(">II", data, place)
        body = data[place + 4 : place + 4 + size]
        yield (word >> 16 & 0xFF if word >> 24 == v2.VERSION else 0), body
        place += 4 + size


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_gets_in_by_the_port_of_bookkeepers_protocol(site: Site, seed: int) -> None:
    """Each add and each read is refused, whatever login came before."""
    rng, count, deadline = random.Random(seed), 0, time.monotonic() + HOSTILE_S
    while count < SESSIONS and time.monotonic() < deadline:
        count += 1
        asked = [rng.choice((login_bytes, request_bytes))(rng) for _ in range(rng.randrange(1, 6))]
        for operation, body in answers_in(exchange(site.entries_port, b"".join(asked), rng)):
            if operation == v2.AUTH:
                answer = protocol_pb.AuthMessage.FromString(body[4:])
                assert answer.authPluginName == MAGNETAR
                assert answer.payload != b"", asked
            elif operation:
                assert struct.unpack_from(">i", body, 4)[0] in (EUA.v2, EBADREQ.v2), asked
            else:
                assert protocol_pb.Response.FromString(body).status != EOK.v3, asked
    assert count > 5


# --- HTTP


@pytest.mark.parametrize("which", [0, 1], ids=["bookie", "autorecovery"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_gets_in_by_the_http_ports(site: Site, seed: int, which: int) -> None:
    rng, count, deadline = random.Random(seed), 0, time.monotonic() + HOSTILE_S
    while count < SESSIONS and time.monotonic() < deadline:
        count += 1
        data = http_bytes(rng, PATHS)
        if rng.random() < 0.2:
            shown = f"Authorization: Bearer {other_role()}\r\n".encode()
            data = data.replace(b"Connection: close\r\n", shown, 1)
        answer = exchange(site.web_ports[which], data, rng)
        if answer:
            status = int(answer.split(b" ", 2)[1])
            words = data.split(b"\r\n", 1)[0].split(b" ")
            target = words[1].split(b"?")[0].decode("latin-1") if len(words) == 3 else ""
            is_open = words[0] in (b"GET", b"HEAD") and target in OPEN_PATHS
            assert status in REFUSED or is_open, (data[:300], answer[:300])
    assert count > 5


def test_those_who_only_hold_connections_open_stop_nobody(site: Site) -> None:
    """At the gRPC port there is room for others; the small HTTP ports are free again afterwards."""
    with contextlib.ExitStack() as end:
        for _ in range(100):
            for port in (site.bookie.port, *site.web_ports):
                client = socket.create_connection(("127.0.0.1", port), LIMIT_S)
                end.callback(client.close)
                with contextlib.suppress(OSError):
                    client.sendall(b"GE")
        with Witness(site.url):
            pass
    deadline = time.monotonic() + LIMIT_S
    request = b"GET /heartbeat HTTP/1.1\r\n\r\n"
    for port in site.web_ports:
        while not exchange(port, request, random.Random(0)).startswith(b"HTTP/1.1 200 "):
            assert time.monotonic() < deadline
            time.sleep(0.02)
