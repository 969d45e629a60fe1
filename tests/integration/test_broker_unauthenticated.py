"""Unauthenticated clients at both ports of a broker with authentication: seeded garbage.

None is admitted, each answer is a refusal, no traceback or secret is in the log, no connection of
theirs is left, and an authenticated client works all the while. Bounded in time.
"""

import base64
import contextlib
import os
import random
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jwt
import pulsar
import pytest
from websockets.sync.client import connect

import magnetar
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import FrameReader
from tests.official_client import open_client
from tests.raw_client import encode_command
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

FIRST_SEED = int(os.environ.get("MAGNETAR_LOGIN_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MAGNETAR_LOGIN_SEEDS", "2")))
"""``make fuzz-login`` takes many more."""
LIMIT_S = 30.0
SESSIONS = 150  # of one seed and port
HOSTILE_S = 12.0
SECRET = bytes(range(7, 39))
GOOD = jwt.encode({"sub": "alice"}, SECRET, "HS256")
# Refused whatever is asked for, and what nobody needs a name for
STATUSES = {400, 401, 404, 405, 408, 411, 413, 414, 426, 431, 501}
OPEN_PATHS = ("/", "/status.html", "/ready", "/metrics", "/docs", "/openapi.json")
PATHS = (
    "/admin/v2/clusters",
    "/admin/v2/tenants/public",
    "/admin/v2/brokers/configuration/runtime",
    "/topics/persistent/public/default/t",
    "/topics/persistent/public/default/t/subscription/s/stream",
    "/ws/v2/producer/persistent/public/default/t",
    "/ws/v2/consumer/persistent/public/default/t/s",
    "/lookup/v2/topic/persistent/public/default/t",
    "/nowhere",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "secret.key").write_bytes(SECRET)
    (folder / "passwords").write_text("alice:{SHA}" + base64.b64encode(bytes(20)).decode() + "\n")
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token,basic",
        "tokenSecretKey": f"file://{folder / 'secret.key'}",
        "basicAuthConf": f"file://{folder / 'passwords'}",
        "authorizationEnabled": "true",
        "superUserRoles": "alice",
        "proxyRoles": "proxy",
        "maxUnauthenticatedConnections": "50",
    }
    options = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
    with StandaloneProcess(folder / "data", *options) as process:
        yield process


@pytest.fixture(autouse=True)
def unharmed(server: StandaloneProcess) -> Iterator[None]:
    before = len(server.log)
    client = open_client(server.service_url, authentication=pulsar.AuthenticationToken(GOOD))
    producer = client.create_producer(f"persistent://public/default/known-{time.monotonic_ns()}")
    stop, sent = threading.Event(), [0]

    def send() -> None:
        while not stop.wait(0.005):
            producer.send(b"x")
            sent[0] += 1

    witness = threading.Thread(target=send)
    witness.start()
    try:
        yield
    finally:
        stop.set()
        witness.join(LIMIT_S)
    assert sent[0] > 0
    producer.send(b"last")
    client.close()
    deadline = time.monotonic() + LIMIT_S
    while (left := _open_sockets(server)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == 0, "connections of clients that are gone"
    said = server.log[before:]
    found = re.search(r"Traceback|internal error|never awaited|never retrieved|CRITICAL", said)
    assert found is None, said[max(0, found.start() - 2_000) : found.start() + 4_000]
    for secret in (GOOD, GOOD.rsplit(".", 1)[1], SECRET.hex(), "password-of-"):
        assert secret not in said


def _open_sockets(server: StandaloneProcess) -> int:
    ours = (f":{server.port:04X}", f":{server.web_port:04X}")
    lines = Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(ours) and line.split()[3] == "01" for line in lines)


def bad_token(rng: random.Random) -> str:
    """Like a good one, and not good."""
    head, body, signature = GOOD.split(".")
    match rng.randrange(6):
        case 0:
            return f"{head}.{body}."
        case 1:
            none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
            return f"{none}.{body}."
        case 2:
            return jwt.encode({"sub": "alice"}, rng.randbytes(32), "HS256")
        case 3:
            return jwt.encode({"sub": "alice", "exp": 1}, SECRET, "HS256")
        case 4:
            place = rng.randrange(len(signature) - 1)  # bits of the last character may be unused
            other = "A" if signature[place] != "A" else "B"
            return f"{head}.{body}.{signature[:place]}{other}{signature[place + 1 :]}"
    return "x" * rng.choice((0, 1, 5_000, 100_000))


def _connect_frame(rng: random.Random) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    connect = command.connect
    connect.client_version = rng.choice(("x", "", "y" * 3_000))
    connect.protocol_version = rng.choice((-1, 0, 5, 19, 21, 2**31 - 1))
    method = rng.choice(("token", "token", "basic", "none", "tls", "", "sasl", "\0"))
    connect.auth_method_name = method
    connect.auth_data = rng.choice(
        (
            bad_token(rng).encode(),
            b"alice:password-of-alice",
            b"",
            rng.randbytes(rng.choice((1, 60, 20_000))),
        )
    )
    if rng.random() < 0.3:
        connect.original_principal = rng.choice(("alice", "proxy", ""))
        connect.original_auth_data = bad_token(rng)
        connect.original_auth_method = "token"
    if rng.random() < 0.2:
        connect.proxy_version = "1"
    return encode_command(command)


def _other_frame(rng: random.Random) -> bytes:
    """Any other command, too early."""
    fields = [field for field in pb.BaseCommand.DESCRIPTOR.fields if field.number > 1]
    field = rng.choice(fields)
    command = pb.BaseCommand(type=pb.BaseCommand.Type.ValueType(field.number))
    getattr(command, field.name).SetInParent()
    data = command.SerializePartialToString()
    return (len(data) + 4).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


def binary_bytes(rng: random.Random) -> bytes:
    match rng.randrange(7):
        case 0:
            return rng.randbytes(rng.choice((1, 4, 8, 100, 70_000)))
        case 1:
            return b"".join(_other_frame(rng) for _ in range(rng.randrange(1, 5)))
        case 2:
            broken = bytearray(_connect_frame(rng))
            broken[rng.randrange(8)] = rng.randrange(256)  # its lengths
            return bytes(broken)
        case 3:
            frame = _connect_frame(rng)
            return frame[: rng.randrange(1, len(frame))]
        case 4:
            size = rng.choice((0, 3, 4, 191 * 1024, 193 * 1024, 2**31, 2**32 - 1))
            return size.to_bytes(4, "big") + rng.randbytes(rng.choice((0, 4, 50_000)))
        case 5:
            return _connect_frame(rng) * rng.randrange(2, 4)
    return _connect_frame(rng) + _other_frame(rng)


def exchange(port: int, data: bytes, rng: random.Random) -> bytes:
    """Send it, perhaps in pieces; what came back until the broker closed, or for a moment."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
        with contextlib.suppress(OSError):
            cut = rng.randrange(len(data) + 1)
            client.sendall(data[:cut])
            client.sendall(data[cut:])
            client.settimeout(0.05)
            while part := client.recv(1 << 16):
                answer += part
        if rng.random() < 0.3:  # RST instead of FIN
            linger = (1).to_bytes(4, "little") + bytes(4)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    return answer


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_gets_in_by_the_binary_port(server: StandaloneProcess, seed: int) -> None:
    rng, deadline, count = random.Random(seed), time.monotonic() + HOSTILE_S, 0
    while count < SESSIONS and time.monotonic() < deadline:
        count += 1
        answer = exchange(server.port, binary_bytes(rng), rng)
        for command, _ in FrameReader().feed(answer):
            assert command.type in (pb.BaseCommand.ERROR, pb.BaseCommand.PONG), command
            if command.type == pb.BaseCommand.ERROR:
                assert command.error.error in (pb.AuthenticationError, pb.AuthorizationError)
                assert command.error.message in ("Failed to authenticate", "Invalid roles.")
    assert count > 10


def http_bytes(rng: random.Random, paths: Sequence[str] = PATHS) -> bytes:
    path = rng.choice(paths) + rng.choice(("", "/", "?token=" + bad_token(rng)[:300], "%00", "//"))
    method = rng.choice(
        ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "FOO")
    )
    basic = base64.b64encode(b"alice:password-of-alice").decode()
    authorization = rng.choice(
        (
            f"Bearer {bad_token(rng)[:6000]}",
            f"Basic {basic}",
            "Basic %%%",
            "Bearer",
            f"Digest {basic}",
            "",
        )
    )
    lines = [f"{method} {path} HTTP/1.1", "Host: x"]
    if authorization or rng.random() < 0.5:
        lines.append(f"Authorization: {authorization}")
    if rng.random() < 0.3:
        lines.append(f"X-Original-Principal: {rng.choice(('alice', 'proxy'))}")
    if rng.random() < 0.3:
        name = rng.choice(("token", "basic", "tls", "none", "\x7f"))
        lines.append(f"X-Pulsar-Auth-Method-Name: {name}")
    if rng.random() < 0.3:
        key = base64.b64encode(rng.randbytes(16)).decode()
        lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        lines.append(f"Sec-WebSocket-Key: {key}")
    body = b""
    if method in ("PUT", "POST", "PATCH"):
        body = rng.randbytes(rng.choice((0, 10, 100_000)))
        lines.append(f"Content-Length: {len(body)}")
    data = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body
    match rng.randrange(6):
        case 0:
            return rng.randbytes(rng.choice((1, 50, 20_000)))
        case 1:
            broken = bytearray(data)
            for _ in range(rng.randrange(1, 6)):
                broken[rng.randrange(min(len(broken), 400))] = rng.randrange(256)
            return bytes(broken)
        case 2:
            return data[: rng.randrange(1, len(data))]
    return data


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_gets_in_by_the_web_port(server: StandaloneProcess, seed: int) -> None:
    rng, deadline, count = random.Random(seed), time.monotonic() + HOSTILE_S, 0
    while count < SESSIONS and time.monotonic() < deadline:
        count += 1
        data = http_bytes(rng)
        answer = exchange(server.web_port, data, rng)
        if answer:
            status = int(answer.split(b" ", 2)[1])
            target = data.split(b" ", 2)[1] if data.count(b" ") > 1 else b""
            is_open = target.split(b"?")[0].decode("latin-1").rstrip("/") in ("", *OPEN_PATHS)
            assert status in STATUSES or is_open, (data[:300], answer[:300])
    assert count > 10


def test_those_who_only_hold_connections_open_push_out_each_other(
    server: StandaloneProcess,
) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port), LIMIT_S) for _ in range(200)]
    for each in held[::2]:
        with contextlib.suppress(OSError):
            each.sendall(b"\0\0")
    client = pulsar.Client(server.service_url, authentication=pulsar.AuthenticationToken(GOOD))
    client.create_producer("persistent://public/default/beside").send(b"x")
    client.close()
    cut = 0
    for each in held:
        each.settimeout(0.01)
        with contextlib.suppress(TimeoutError):
            with contextlib.suppress(ConnectionError):
                assert each.recv(1) == b""
            cut += 1
        each.close()
    assert cut >= 150


def _http_status(client: socket.socket, path: str = "/ready") -> int:
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = client.recv(1 << 16)
    return int(answer.split(b" ", 2)[1])


def test_http_connections_of_one_address_are_bounded() -> None:
    """WebSockets count as long as they last."""
    with (
        magnetar.embedded(maxHttpServerConnectionsPerIp=3) as broker,
        contextlib.ExitStack() as end,
    ):
        address = ("127.0.0.1", int(broker.web_url.rsplit(":", 1)[1]))
        url = broker.web_url.replace("http", "ws", 1) + "/ws/v2/reader/persistent/public/default/t"
        websocket = end.enter_context(connect(url))

        def opened() -> socket.socket:
            return end.enter_context(socket.create_connection(address, LIMIT_S))

        def admitted() -> bool:
            with socket.create_connection(address, LIMIT_S) as client:
                return _http_status(client) == 200

        held = [opened(), opened()]
        assert [_http_status(each) for each in held] == [200, 200]
        assert _http_status(opened()) == 503
        held[0].close()
        wait_until(admitted)
        held.append(opened())
        assert not admitted()
        websocket.close()
        wait_until(admitted)
