"""Garbage of many kinds at every HTTP port: no traceback, no line for each, and they go on."""

import asyncio
import contextlib
import random
import re
import socket
import struct
from collections import Counter

import httpx
import pytest

from magnetar.bookkeeper.bookie.http.admin_pages import AdminPages
from magnetar.bookkeeper.bookie.http.admin_server import AdminServer
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

TOPIC = "persistent/public/default/garbage"
HOST = "Host: localhost\r\n"
_UPGRADE = (
    f"{HOST}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Key: {'A' * 22}==\r\n"
)
SOCKETS = tuple(
    f"GET /ws/v2/{path} HTTP/1.1\r\n{_UPGRADE}\r\n".encode()
    for path in (f"producer/{TOPIC}", f"consumer/{TOPIC}/s", f"reader/{TOPIC}")
)
_JSON = f"{HOST}Content-Type: application/json\r\n"
REQUESTS = [
    text.encode("latin-1")
    for text in (
        *(
            "GET\r\n\r\n",
            "\0\1\2\r\n\r\n",
            "GET / HTTP/9.9\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ),
        f"GET /\xff?%zz=\xff&\xff HTTP/1.1\r\n{HOST}X-Request-ID: \xff\r\n\r\n",
        f"GET //[ HTTP/1.1\r\n{HOST}\r\n",
        f"OPTIONS * HTTP/1.1\r\n{HOST}\r\n",
        "GET /metrics HTTP/1.1\r\nHost: \xff[\r\nContent-Length: x\r\n\r\n",
        f"POST / HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        f"POST /topics/{TOPIC} HTTP/1.1\r\n{_JSON}Content-Length: 9\r\n\r\n{{",
        f"POST /topics/{TOPIC} HTTP/1.1\r\n{_JSON}Content-Length: 4\r\n\r\n\xff\xff\xff\xff",
        f"GET /metrics HTTP/1.1\r\n{HOST}\r\n",
        f"GET /admin/v2/clusters HTTP/1.1\r\n{HOST}\r\n" * 3,
        *(
            f"GET /ws/v2/producer/{path} HTTP/1.1\r\n{upgrade}\r\n"
            for path in (
                TOPIC,
                "persistent/%ff/%00/x",
                "x",
                f"{TOPIC}?a=%ff&\xff",
                TOPIC + "a" * 5000,
            )
            for upgrade in (
                _UPGRADE,
                _UPGRADE.replace("13", "x"),
                _UPGRADE.replace("A" * 22, "short"),
                _UPGRADE + "Sec-WebSocket-Extensions: ;;;=\r\n",
                _UPGRADE + "Sec-WebSocket-Protocol: ,,\xff\r\n",
            )
        ),
    )
]


def frame(opcode: int, data: bytes = b"", *, first: int = 0x80, masked: bool = True) -> bytes:
    size = len(data)
    head = struct.pack(">BB", first | opcode, (0x80 if masked else 0) | min(size, 126))
    return (
        head
        + (struct.pack(">H", size) if size > 125 else b"")
        + (b"\0\0\0\0" if masked else b"")
        + data
    )


FRAMES = [
    *(frame(1, b"{}", masked=False), frame(1, b"{}", first=0xF0), frame(3, b"x"), frame(11)),
    *(frame(1, b"\xff\xfe"), frame(2, b"\0\xff"), frame(9, b"x" * 200), frame(9, b"x", first=0)),
    *(
        frame(0, b"x"),
        frame(8, b"\3"),
        frame(8, b"\3\xe8") * 2,
        frame(8, b"\0\1\xff\xff"),
        frame(10),
    ),
    frame(1, b"\xff", first=0) + frame(0, b"\xfe"),
    frame(1, b"a", first=0) + frame(1, b"b"),
    struct.pack(">BBQ", 0x81, 0xFF, 2**62) + b"\0\0\0\0",
    *(
        frame(1, text)
        for text in (b"", b"nonsense", b"[1]", b"[" * 5000, b'{"payload":5}', b'{"payload":"%"}')
    ),
    *(
        frame(1, text)
        for text in (b'{"messageId":5,"type":7}', b'{"type":"permit","permitMessages":-1}')
    ),
]
FRAME_CASES = [*FRAMES, *(frame(8, b"\3\xe8") + each for each in FRAMES)]


class Peer:
    """One connection, which ends as it is told to."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def head(self) -> bytes:
        """The head of an answer; shorter at the end of the connection."""
        found = b""
        with contextlib.suppress(ConnectionError):
            while b"\r\n\r\n" not in found and (data := self._socket.recv(65536)):
                found += data
        return found

    def hear(self) -> bytes:
        """What comes next; nothing at the end of the connection."""
        with contextlib.suppress(ConnectionError):
            return self._socket.recv(65536)
        return b""

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def check(server: StandaloneProcess, offset: int) -> None:
    """It goes on, and has said next to nothing of all that."""
    answer = httpx.get(f"{server.admin_url}/admin/v2/clusters", timeout=30)
    assert answer.json() == ["standalone"]
    said = server.log[offset:]
    assert not re.search(r"Traceback|ERROR|CRITICAL|never retrieved|never awaited", said), said
    # Calls that are carried out may be lines of the audit.
    others = [line for line in said.splitlines() if " magnetar.broker.audit " not in line]
    told = Counter(
        (line[: len("2026-11-30 17:09:51")], line.rpartition(": ")[2]) for line in others
    )
    assert max(told.values(), default=0) <= 1, others
    assert len({reason for _, reason in told}) <= 5, others


def test_requests_of_all_kinds(server: StandaloneProcess) -> None:
    rng = random.Random(5)
    offset = len(server.log)
    for number in range(1500):
        data = bytearray(
            rng.choice((rng.choice(REQUESTS), rng.choice(SOCKETS) + rng.choice(FRAMES)))
        )
        for _ in range(rng.randrange(4) if number % 2 else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with Peer(server.web_port) as peer:
            cut = rng.randrange(len(data) + 1)
            peer.send(bytes(data[:cut]))
            peer.send(bytes(data[cut:]))
            if rng.random() < 0.5:
                peer.reset()
    check(server, offset)


@pytest.mark.parametrize("upgrade", SOCKETS, ids=["producer", "consumer", "reader"])
def test_frames_of_all_kinds(server: StandaloneProcess, upgrade: bytes) -> None:
    offset = len(server.log)
    for number, data in enumerate(FRAME_CASES * 2):
        with Peer(server.web_port) as peer:
            peer.send(upgrade)
            assert b" 101 " in peer.head()
            peer.send(data)
            if number % 2:
                peer.reset()
    wait_until(
        lambda: httpx.get(f"{server.admin_url}/readyz", timeout=30).status_code == 200,
        "it is ready",
    )
    check(server, offset)


def test_garbage_while_the_upgrade_is_answered(server: StandaloneProcess) -> None:
    offset = len(server.log)
    for number in range(300):
        with Peer(server.web_port) as peer:
            peer.send(SOCKETS[number % 3])
            peer.send(FRAMES[number % len(FRAMES)])
            if number % 2:
                peer.reset()
            else:
                peer.head()
    check(server, offset)


async def test_the_port_of_a_bookie(caplog: pytest.LogCaptureFixture) -> None:
    async def no_metrics(_: object) -> bytes:
        return b""

    server = AdminServer(AdminPages(no_metrics).by_path())
    port = await server.listen("127.0.0.1", 0)

    def throw() -> None:
        for number, data in enumerate(REQUESTS * 2):
            with Peer(port) as peer:
                peer.send(data)
                if number % 2:
                    peer.reset()

    def is_served() -> bool:
        with Peer(port) as peer:
            peer.send(f"GET /livez HTTP/1.1\r\n{HOST}\r\n".encode())
            return b" 200 " in peer.head()

    await asyncio.to_thread(throw)
    async with asyncio.timeout(30):
        # Until the last one is through: more than 32 of an address at once are cut.
        while not await asyncio.to_thread(is_served) or server._connections:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.01)
    await server.close()
    assert not caplog.records
