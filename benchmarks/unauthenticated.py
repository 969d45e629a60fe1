"""What strangers at the ports cost a client that is known: `python -m benchmarks.unauthenticated`.

One client publishes message after message, each waiting for its receipt, while strangers come 2,000
times a second, in groups of ten: they say nothing, talk nonsense, show wrong credentials, leave in
the middle of their TLS handshake, or ask over HTTP without being known. For each kind of stranger:

* alone: the client by itself;
* control: beside the same strangers at the door of another process, which ends them at once. What
  the strangers' own work takes from this machine is in it;
* beside: beside the strangers at the broker's door.

Strangers, client and control run on one core, the broker on the other, so two cores are needed.
"""

import argparse
import base64
import contextlib
import multiprocessing
import os
import select
import socket
import ssl
import statistics
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import bcrypt
import jwt

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode
from tests.certificates import Authority
from tests.free_port import free_port
from tests.raw_client import RawClient
from tests.standalone_process import StandaloneProcess

BROKER_CORE, OTHER_CORE = 1, 0
SECRET: Final = os.urandom(32)
TOPIC: Final = "persistent://public/default/flooded"
SPAWN: Final = multiprocessing.get_context("spawn")
KNOWN: Final = [f"ann{number}" for number in range(20)]
USUAL: Final = ("silent", "garbage", "token", "password", "tls", "http", "http-basic")
_GROUP_S: Final = 0.005
_WARM_UP_S: Final = 0.5
_VARIANTS: Final = 1_000
_OPEN_MAX: Final = 4_000
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Kind:
    """One way to be refused."""

    name: str
    port_name: str  # binary, tls or http
    says: tuple[bytes, ...]  # right after connecting, one after the other
    leaves_at_answer: bool = True  # at the first byte of it; else when the broker closes
    stays_s: float = 5.0  # at most


def kinds() -> list[Kind]:
    wrong = [jwt.encode({"sub": f"joe{n}"}, os.urandom(32), "HS256") for n in range(_VARIANTS)]
    passwords = [f"joe:wrong{number}" for number in range(_VARIANTS)]
    get = "GET /admin/v2/clusters HTTP/1.1\r\nHost: x\r\n"

    def asking(authorization: list[str]) -> tuple[bytes, ...]:
        return tuple(f"{get}Authorization: {each}\r\n\r\n".encode() for each in authorization)

    basic = [f"Basic {base64.b64encode(each.encode()).decode()}" for each in passwords]
    return [
        Kind("silent", "binary", (b"",), stays_s=1.0),
        Kind("garbage", "binary", (bytes(range(1, 65)),), False),
        Kind("token", "binary", tuple(connect_frame("token", each) for each in wrong), False),
        Kind(
            "password", "binary", tuple(connect_frame("basic", each) for each in passwords), False
        ),
        Kind("tls", "tls", (client_hello(),)),
        Kind("tls-silent", "tls", (b"",), stays_s=1.0),
        Kind("http", "http", (f"{get}\r\n".encode(),)),
        Kind("http-token", "http", asking([f"Bearer {each}" for each in wrong])),
        Kind("http-basic", "http", asking(basic)),
    ]


def connect_frame(method: str, data: str) -> bytes:
    connect = pb.CommandConnect(client_version="strangers", protocol_version=19)
    connect.auth_method_name, connect.auth_data = method, data.encode()
    return encode(connect)


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


# --- strangers


class UnauthenticatedClients:
    """Non-blocking sockets on one epoll."""

    def __init__(self, kind: Kind, port: int, rate: int) -> None:
        self._kind, self._address, self._rate = kind, ("127.0.0.1", port), rate
        self._epoll = select.epoll()
        self._open: dict[int, tuple[socket.socket, float]] = {}
        self._ends: deque[tuple[float, int, float]] = deque()
        self.came = self.answered = self.failed = 0
        self.waits_s: list[float] = []

    def run(self, seconds: float) -> None:
        began_s, due = time.perf_counter(), 0
        while (now_s := time.perf_counter()) - began_s < seconds:
            groups = int((now_s - began_s) / _GROUP_S)
            due, before = int(groups * _GROUP_S * self._rate), due
            for _ in range(due - before):
                self._come(now_s)
            while self._ends and self._ends[0][0] <= now_s:
                _, number, began = self._ends.popleft()
                if number in self._open and self._open[number][1] == began:
                    self._leave(number)
            wait_s = began_s + (groups + 1) * _GROUP_S - time.perf_counter()
            for number, _ in self._epoll.poll(max(0.0, wait_s)):
                self._on_event(number)
        for number in list(self._open):
            self._leave(number)

    def _come(self, now_s: float) -> None:
        self.came += 1
        if len(self._open) >= _OPEN_MAX:
            self.failed += 1
            return
        sock = socket.socket()
        sock.setblocking(False)
        try:
            # On the loopback the kernel has connected it when this returns
            with contextlib.suppress(BlockingIOError):
                sock.connect(self._address)
            if says := self._kind.says[self.came % len(self._kind.says)]:
                sock.send(says)
        except OSError:
            self.failed += 1
            sock.close()
            return
        number = sock.fileno()
        self._open[number] = sock, now_s
        self._ends.append((now_s + self._kind.stays_s, number, now_s))
        self._epoll.register(number, select.EPOLLIN)

    def _on_event(self, number: int) -> None:
        sock, began_s = self._open[number]
        try:
            data = sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or self._kind.leaves_at_answer:
            self.answered += 1
            self.waits_s.append(time.perf_counter() - began_s)
            self._leave(number)

    def _leave(self, number: int) -> None:
        sock, _ = self._open.pop(number)
        # No TIME_WAIT: the ports of this machine would run out.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.close()


def clients_process(kind: Kind, port: int, rate: int, seconds: float, told: Any) -> None:
    os.sched_setaffinity(0, {OTHER_CORE})
    clients = UnauthenticatedClients(kind, port, rate)
    clients.run(seconds)
    waits = sorted(clients.waits_s) or [0.0]
    told.send(
        {
            "came": clients.came,
            "answered": clients.answered,
            "failed": clients.failed,
            "wait_p50_ms": waits[len(waits) // 2] * 1000,
            "wait_max_ms": waits[-1] * 1000,
            "cpu_s": time.process_time(),
        }
    )


def control_process(told: Any) -> None:
    """Ends everybody who comes, after the first bytes or at once."""
    os.sched_setaffinity(0, {OTHER_CORE})
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    told.send(listener.getsockname()[1])
    while True:
        pending, _ = listener.accept()
        pending.settimeout(0.0002)
        with contextlib.suppress(OSError):
            if pending.recv(4096):
                pending.send(b"no")
        pending.close()


@contextlib.contextmanager
def control_port() -> Iterator[int]:
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=control_process, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def flood(
    kind: Kind, port: int, rate: int, seconds: float, found: dict[str, Any]
) -> Iterator[None]:
    here, there = SPAWN.Pipe()
    length_s = seconds + 2 * _WARM_UP_S
    process = SPAWN.Process(target=clients_process, args=(kind, port, rate, length_s, there))
    process.start()
    there.close()  # if it dies, recv ends
    time.sleep(1.0 + _WARM_UP_S)  # it loads its modules first
    try:
        yield
        found.update(here.recv())
    finally:
        process.join()


# --- the client that is known


def latencies_ms(service_url: str, seconds: float, *, pings: bool = False) -> list[float]:
    """Sorted. ``pings``: of PING and PONG, so that no disk is in it."""
    client = RawClient(service_url, connect=False)
    token = jwt.encode({"sub": "joe"}, SECRET, "HS256")
    client.send_bytes(connect_frame("token", token))
    client.expect(pb.BaseCommand.CONNECTED)
    client.create_producer(TOPIC)
    ping_frame = encode(pb.CommandPing())
    waits_ms: list[float] = []
    end_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < end_s:
        if pings:
            client.send_bytes(ping_frame)
            client.expect(pb.BaseCommand.PONG)
        else:
            client.send_bytes(client.send_frame(len(waits_ms), b"x" * 1024))
            client.expect(pb.BaseCommand.SEND_RECEIPT)
        waits_ms.append((time.perf_counter() - began_s) * 1000)
    client.close()
    waits_ms.sort()
    return waits_ms


# --- the broker


def server_settings(folder: Path) -> dict[str, object]:
    (folder / "key").write_bytes(SECRET)
    (folder / "key").chmod(0o600)
    # 12 ms a check; htpasswd's own default is 5, which is 2 ms
    digest = bcrypt.hashpw(b"right", bcrypt.gensalt(8)).decode()
    users = ["joe", *KNOWN]
    (folder / "passwords").write_text("".join(f"{user}:{digest}\n" for user in users))
    pair = Authority(folder).sign("localhost")
    return {
        "authenticationEnabled": "true",
        "authenticationProviders": "token,basic",
        "tokenSecretKey": f"file://{folder / 'key'}",
        "basicAuthConf": f"file://{folder / 'passwords'}",
        "brokerServicePortTls": free_port(),
        "tlsCertificateFilePath": pair.certificate,
        "tlsKeyFilePath": pair.key,
    }


@dataclass(frozen=True)
class Server:
    process: StandaloneProcess
    ports: dict[str, int]


@contextlib.contextmanager
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="magnetar-strangers-") as name:
        folder = Path(name)
        settings = server_settings(folder)
        options = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
        os.sched_setaffinity(0, {BROKER_CORE})  # the child inherits it
        with StandaloneProcess(folder / "data", *options) as process:
            os.sched_setaffinity(0, {OTHER_CORE})
            tls = int(str(settings["brokerServicePortTls"]))
            ports = {"binary": process.port, "tls": tls, "http": process.web_port}
            yield Server(process, ports)


# --- tables


def p(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def one_row(
    kind: Kind, broker: Server, control: int, options: argparse.Namespace
) -> dict[str, float]:
    url, seconds = broker.process.service_url, options.seconds
    row: dict[str, float] = {}
    told: dict[str, Any] = {}
    phases = {"alone": None, "control": control, "beside": broker.ports[kind.port_name]}
    for phase, port in phases.items():
        with contextlib.ExitStack() as stack:
            if port is not None:
                stack.enter_context(flood(kind, port, options.rate, seconds, told))
            before_s = broker.process.cpu_seconds()
            values = latencies_ms(url, seconds, pings=options.pings)
            row[f"{phase} cpu"] = (broker.process.cpu_seconds() - before_s) / seconds
            row[f"{phase} p50"], row[f"{phase} p99"] = p(values, 0.5), p(values, 0.99)
    wait_until_idle(broker.process)
    row["to alone"] = row["beside p99"] / row["alone p99"]
    row["to control"] = row["beside p99"] / row["control p99"]
    row["refused"] = told["answered"] / told["came"]
    row["wait"] = told["wait_p50_ms"]
    return row


def latency_table(chosen: list[Kind], options: argparse.Namespace) -> None:
    what = "a PING" if options.pings else "a synced message"
    print(f"p50 / p99 ms of {what}; ratios of the p99; medians of {options.repeat} rounds")
    print("| strangers | alone | control | beside | p99 to alone | p99 to control | answered |")
    print("|---|---|---|---|---|---|---|")
    rows: dict[str, list[dict[str, float]]] = {kind.name: [] for kind in chosen}
    with server() as broker, control_port() as control:
        latencies_ms(broker.process.service_url, 1.0)
        for _ in range(options.repeat):
            for kind in chosen:
                rows[kind.name].append(one_row(kind, broker, control, options))
    for name, found in rows.items():
        middle = {key: statistics.median(row[key] for row in found) for key in found[0]}
        phases = [
            f"{middle[f'{phase} p50']:.2f} / {middle[f'{phase} p99']:.2f}"
            for phase in ("alone", "control", "beside")
        ]
        worst = max(row["to control"] for row in found)
        print(
            f"| {name} | {' | '.join(phases)} | {middle['to alone']:.2f} |"
            f" {middle['to control']:.2f} (worst {worst:.2f}) | {middle['refused']:.0%}"
            f" in {middle['wait']:.1f} ms |",
            flush=True,
        )


def cost_table(chosen: list[Kind], options: argparse.Namespace) -> None:
    """The broker's CPU for one stranger, while nobody else is there: steadier than latencies."""
    print("| strangers | came/s | answered | waits p50 / max ms | broker CPU | us for each |")
    print("|---|---|---|---|---|---|")
    with server() as broker:
        for kind in chosen:
            told: dict[str, Any] = {}
            before_s = broker.process.cpu_seconds()
            with flood(kind, broker.ports[kind.port_name], options.rate, options.seconds, told):
                pass
            wait_until_idle(broker.process)  # passwords are still checked
            used_s = broker.process.cpu_seconds() - before_s
            length_s = options.seconds + 2 * _WARM_UP_S
            print(
                f"| {kind.name} | {told['came'] / length_s:.0f} |"
                f" {told['answered'] / told['came']:.0%} | {told['wait_p50_ms']:.1f} /"
                f" {told['wait_max_ms']:.0f} | {used_s / length_s:.0%} |"
                f" {used_s / told['came'] * 1e6:.0f} |",
                flush=True,
            )


def login_table(chosen: list[Kind], options: argparse.Namespace) -> None:
    """How long the right password takes beside the strangers: of users who were never in before."""
    print("| strangers | first logins | p50 / max ms | told to come back |")
    print("|---|---|---|---|")
    for kind in chosen:
        told: dict[str, Any] = {}
        waits_ms: list[float] = []
        refused = 0
        # A fresh broker: one remembers who was in
        with contextlib.ExitStack() as stack:
            broker = stack.enter_context(server())
            port, seconds = broker.ports[kind.port_name], 2 * options.seconds
            stack.enter_context(flood(kind, port, options.rate, seconds, told))
            for name in KNOWN:
                began_s = time.perf_counter()
                while not logs_in(broker.process.service_url, f"{name}:right"):
                    refused += 1
                    time.sleep(0.1)
                waits_ms.append((time.perf_counter() - began_s) * 1000)
        waits_ms.sort()
        print(
            f"| {kind.name} | {len(waits_ms)} | {p(waits_ms, 0.5):.0f} / {waits_ms[-1]:.0f} |"
            f" {refused} times |",
            flush=True,
        )


def logs_in(service_url: str, credentials: str) -> bool:
    """False: too many others wait."""
    client = RawClient(service_url, connect=False)
    try:
        client.send_bytes(connect_frame("basic", credentials))
        command, _ = client.receive()
        if command.type == pb.BaseCommand.CONNECTED:
            return True
        assert command.error.error == pb.ServiceNotReady, command
        return False
    finally:
        client.close()


def wait_until_idle(process: StandaloneProcess) -> None:
    while True:
        before_s = process.cpu_seconds()
        time.sleep(0.5)
        if process.cpu_seconds() - before_s < 0.05:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", help=f"comma list; default: {','.join(USUAL)}")
    parser.add_argument("--rate", type=int, default=2_000, help="strangers a second")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each phase")
    parser.add_argument("--repeat", type=int, default=3, help="rounds, of which the medians")
    parser.add_argument("--pings", action="store_true", help="instead of messages: no disk")
    parser.add_argument("--cost", action="store_true", help="only the broker's CPU for a stranger")
    parser.add_argument("--logins", action="store_true", help="only first logins by password")
    options = parser.parse_args()
    names = options.kinds.split(",") if options.kinds else USUAL
    chosen = [kind for kind in kinds() if kind.name in names]
    table = login_table if options.logins else cost_table if options.cost else latency_table
    table(chosen, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
