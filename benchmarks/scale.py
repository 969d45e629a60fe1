"""How much one broker bears: topics, connections, subscriptions, unacknowledged messages.

    python -m benchmarks.scale topics|connections|subscriptions|unacknowledged|silent-consumers
        |websocket-producers|websocket-consumers|websocket-readers
        [--count N] [--json FILE] [--url URL --web-url URL --pid PID]
        [--namespace TENANT/NAMESPACE]

Light clients of the binary protocol connect and close, in this process. Told are
memory and CPU of the server for each thing, and p99 of one quiet client before, beside and after:
a process of its own, which sends, receives and acknowledges a message every 10 ms. Then the
server, a fresh ``magnetar standalone``, is killed and started, stopped and started: seconds until
it is ready, and until they are back. ``--url``, ``--web-url`` and ``--pid``: a server that
runs, Apache Pulsar too; it isn't restarted, and of a Java process the used heap is told as well,
after a full collection: its resident size says how much it has ever used.
The machine's load is in every figure: compare what was measured in turns. The last line is a row
of a table with the main figures.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import re
import resource
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.managed_ledgers import Report
from magnetar.broker.client.async_client_connection import AsyncClientConnection
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.client_connection import CONSUMER, PRODUCER, encode_send
from magnetar.broker.protocol.framing import encode_body
from tests.raw_client import RawClient
from tests.standalone_process import StandaloneProcess

COUNTS: Final = {
    "topics": 100_000,
    "connections": 15_000,
    "subscriptions": 10_000,
    "unacknowledged": 10_000_000,
    "silent-consumers": 500,
    **{f"websocket-{kind}s": 2_000 for kind in ("producer", "consumer", "reader")},
}
CONNECTIONS: Final = 50
"""That share the topics or subscriptions."""
AT_ONCE: Final = 20
"""Things of one connection that are made at a time; and connections that are opened at a time."""
PAUSE_S: Final = 0.01
CONNECTED_S: Final = 5.0
SETTINGS: Final = {
    "maxUnackedMessagesPerConsumer": 0,
    "maxUnackedMessagesPerSubscription": 0,
    "brokerDeleteInactiveTopicsEnabled": "false",
    "maxHttpServerConnections": 2_048,  # as Pulsar: more descriptors for connections
}
_USED: Final = re.compile(r"used (\d+)([KMG])")  # the heap's line is the first one
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
WINDOW: Final = 5_000
"""Messages under way at a producer."""
ROW: Final = {
    "MiB more": "memory more than before",
    "bytes each": "memory for each",
    "used heap each": "used heap for each",
    "CPU us each": "CPU of the server for each",
    "CPU % beside": "CPU of the server while they are connected",
    "p99 ms alone": "p99 of the quiet client, alone",
    "while they connect": "p99 of the quiet client, while they connect",
    "while they are sent messages": "p99 of the quiet client, while they are sent messages",
    "while sockets are filled": "p99 of the quiet client, while their sockets are filled",
    "beside": "p99 of the quiet client, while they are connected",
    "s to ready after kill": "killed: until it is ready",
    "s to all back": "killed: until all are back",
}
"""Columns of the table, and the figures in them."""


class Server:
    """The process that is measured."""

    def __init__(self, url: str, web_url: str, pid: int, own: StandaloneProcess | None) -> None:
        self.url, self.web_url, self._pid, self.own = url, web_url, pid, own

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._pid if self.own is None else self.own.pid)

    def bytes(self) -> int:
        return int(self.process.memory_info().rss)

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


def java_heap(process: psutil.Process) -> int | None:
    """Bytes in use after a full collection; None: not a Java process, or no jcmd here."""
    if process.name() != "java" or (jcmd := shutil.which("jcmd")) is None:
        return None
    subprocess.run([jcmd, str(process.pid), "GC.run"], check=True, capture_output=True)
    told = subprocess.run(
        [jcmd, str(process.pid), "GC.heap_info"], check=True, capture_output=True, text=True
    ).stdout
    found = _USED.search(told)
    return int(found[1]) * _UNITS[found[2]] if found else None


def quiet_client(url: str, topic: str, pipe: Connection) -> None:
    """Until told to end: a message there and back, every so often; answers with latencies in ms."""
    with RawClient(url, timeout_s=300) as client:
        client.look_up(topic)
        client.subscribe(topic, "quiet")
        client.create_producer(topic, 2)
        client.flow(1_000_000)
        found: list[float] = []
        for sequence in itertools.count():
            if pipe.poll(PAUSE_S):
                if not pipe.recv():
                    return
                pipe.send(found)
                found = []
            began = time.perf_counter()
            client.send_bytes(RawClient.send_frame(sequence, bytes(100), 2))
            position, _ = client.receive_message()
            found.append((time.perf_counter() - began) * 1e3)
            client.ack([position])


class Quiet:
    """The process of the quiet client."""

    def __init__(self, url: str, topic: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=quiet_client, args=(url, topic, theirs))
        self._process.start()
        theirs.close()

    def p99_ms(self) -> float:
        """Of what was sent since this was asked last; 0.0: nothing came back meanwhile."""
        self._pipe.send(True)
        found = sorted(self._pipe.recv())
        return float(found[len(found) * 99 // 100]) if found else 0.0

    def close(self) -> None:
        self._pipe.send(False)
        self._process.join()


class LightClient:
    """What one connection gets and sends; a listener of all its producers and consumers."""

    def __init__(self, connection: AsyncClientConnection, acknowledged_of: int) -> None:
        self.connection = connection
        self.consumers = self.messages = self.receipts = 0
        self._acknowledged_of = acknowledged_of
        self.changed = asyncio.Event()

    def on_command(self, command: Any, body: bytes) -> None:
        if isinstance(command, pb.CommandSendReceipt):
            self.receipts += 1
        elif isinstance(command, pb.CommandMessage):
            self.messages += 1
            if self._acknowledged_of and self.messages % self._acknowledged_of == 0:
                ack = pb.CommandAck(
                    consumer_id=command.consumer_id,
                    ack_type=pb.CommandAck.Individual,
                    message_id=[command.message_id],
                )
                self.connection.tell(ack)
        self.changed.set()

    def on_connection_lost(self, error: ServiceNotReadyError) -> None:
        self.changed.set()

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.changed.clear()
            await self.changed.wait()

    async def look_up(self, topic: str) -> None:
        """A broker of Apache Pulsar takes a namespace bundle when it is asked who has it."""
        answer = await self.connection.begin(pb.CommandLookupTopic(topic=topic))
        if answer.response == pb.CommandLookupTopicResponse.Failed:
            raise SystemExit(f"lookup of {topic}: {answer.message}")

    async def produce_to(self, topic: str) -> int:
        id_ = self.connection.next_id()
        self.connection.users[PRODUCER, id_] = self
        await self.connection.begin(pb.CommandProducer(topic=topic, producer_id=id_))
        return id_

    async def consume(self, topic: str, subscription: str, permits: int) -> int:
        id_ = self.connection.next_id()
        self.connection.users[CONSUMER, id_] = self
        self.consumers += 1
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=pb.CommandSubscribe.Shared,
            consumer_id=id_,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        await self.connection.begin(command)
        self.connection.tell(pb.CommandFlow(consumer_id=id_, messagePermits=permits))
        return id_

    async def publish(self, producer_id: int, count: int, size: int = 100) -> None:
        head = pb.MessageMetadata(producer_name="others", sequence_id=0, publish_time=1)
        frame = encode_send(producer_id, head, encode_body(head, bytes(size)), head.sequence_id)
        start = self.receipts
        for sent in range(0, count, WINDOW // 2):
            self.connection.send(frame * min(WINDOW // 2, count - sent))
            await self._receipts_until(start + sent - WINDOW // 2)
        await self._receipts_until(start + count)

    async def _receipts_until(self, count: int) -> None:
        await self.until(lambda: self.receipts >= count)


async def connected(url: str, acknowledged_of: int = 1) -> LightClient:
    """A connection.

    Args:
        acknowledged_of: one of so many messages is acknowledged; 0: none.
    """

    async def login() -> tuple[tuple[str, bytes], str | None]:
        return ("", b""), None

    host, port = url.removeprefix("pulsar://").split(":")
    connection = AsyncClientConnection(url, login)
    await connection.connect(host, int(port), "Magnetar-Scale")
    return LightClient(connection, acknowledged_of)


async def in_turns(work: Callable[[int], Awaitable[None]], numbers: Iterable[int]) -> None:
    left = iter(numbers)

    async def go_on() -> None:
        for number in left:
            await work(number)

    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))


class LightClients:
    """All that one part of the benchmark connects, and how."""

    def __init__(self, server: Server, prefix: str, count: int) -> None:
        self._url, self._web_url = server.url, server.web_url
        self._prefix, self._count = prefix, count
        self.clients: list[LightClient] = []
        self._sockets: list[ClientConnection] = []

    def topic(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def close(self) -> None:
        for client in self.clients:
            client.connection.close()
        for socket in self._sockets:
            socket.transport.close()
        self.clients.clear()
        self._sockets.clear()

    async def _connect_all(self, count: int) -> None:
        async def one(_: int) -> None:
            self.clients.append(await connected(self._url))

        await in_turns(one, range(count))

    async def open_topics(self) -> None:
        """A topic each, with a producer and a consumer."""
        await self._connect_all(CONNECTIONS)

        async def fill(first: int) -> None:
            client = self.clients[first]

            async def one(number: int) -> None:
                await client.look_up(self.topic(number))
                await client.produce_to(self.topic(number))
                await client.consume(self.topic(number), "others", 10)

            await in_turns(one, range(first, self._count, CONNECTIONS))

        await asyncio.gather(*map(fill, range(CONNECTIONS)))

    async def open_connections(self) -> None:
        """A connection each, with a producer of one of ten topics."""

        async def one(number: int) -> None:
            client = await connected(self._url)
            self.clients.append(client)
            await client.look_up(self.topic(number % 10))
            await client.produce_to(self.topic(number % 10))

        await in_turns(one, range(self._count))

    async def open_websockets(self, kind: str) -> None:
        """A WebSocket each, which does nothing, at one of ten topics."""
        tail = "/s?subscriptionType=Shared" if kind == "consumer" else ""

        async def one(number: int) -> None:
            topic = self.topic(number % 10).replace("://", "/")
            path = f"{self._web_url.replace('http', 'ws', 1)}/ws/v2/{kind}/{topic}{tail}"
            self._sockets.append(await connect(path, compression=None, ping_interval=None))

        await in_turns(one, range(self._count))

    async def open_subscriptions(self) -> None:
        """A subscription each of one topic, with a consumer."""
        await self._connect_all(CONNECTIONS)
        await self.clients[0].look_up(self.topic(0))

        async def fill(first: int) -> None:
            client = self.clients[first]

            async def one(number: int) -> None:
                await client.consume(self.topic(0), f"others-{number}", 1_000)

            await in_turns(one, range(first, self._count, CONNECTIONS))

        await asyncio.gather(*map(fill, range(CONNECTIONS)))

    async def subscribe_without_reading(self) -> None:
        """A connection and a subscription each of one topic; from then on it reads nothing."""

        async def one(number: int) -> None:
            client = await connected(self._url, 0)
            self.clients.append(client)
            await client.look_up(self.topic(0))
            await client.consume(self.topic(0), f"others-{number}", 1_000_000)
            client.connection.pause()

        await in_turns(one, range(self._count))

    async def publish_to_all(self, messages: int) -> float:
        """Seconds until each of the others has each message of one topic."""
        publisher = await connected(self._url)
        producer = await publisher.produce_to(self.topic(0))
        began = time.perf_counter()

        async def got(client: LightClient) -> None:
            due = client.messages + client.consumers * messages
            await client.until(lambda: client.messages >= due)

        waits = [asyncio.create_task(got(client)) for client in self.clients]
        await asyncio.sleep(0)  # they have begun to count
        await publisher.publish(producer, messages)
        await asyncio.gather(*waits)
        publisher.connection.close()
        return time.perf_counter() - began


class Run:
    """One part: figures of a server, and how they are told."""

    def __init__(self, server: Server, part: str, count: int, told: Report, namespace: str) -> None:
        self._server, self._part, self._count, self._report = server, part, count, told
        self._figures: dict[str, float] = {}
        self._prefix = f"persistent://{namespace}/scale-{secrets.token_hex(3)}"

    def _told(self, what: str, value: float, unit: str) -> None:
        self._figures[what] = value
        self._report(what, value, unit)

    def row(self) -> str:
        """The head of a table, and the row of this part; "-": it has no such figure."""
        cells = (
            f"{self._figures[each]:,.1f}" if each in self._figures else "-" for each in ROW.values()
        )
        lines = (
            ("part", "count", *ROW),
            ("---",) * (len(ROW) + 2),
            (self._part, f"{self._count:,}", *cells),
        )
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _light_clients(self) -> LightClients:
        return LightClients(self._server, self._prefix, self._count)

    async def _open(self, others: LightClients) -> None:
        match self._part:
            case "topics":
                await others.open_topics()
            case "connections":
                await others.open_connections()
            case "subscriptions":
                await others.open_subscriptions()
            case "silent-consumers":
                await others.subscribe_without_reading()
            case "websocket-producers" | "websocket-consumers" | "websocket-readers":
                kind = self._part.removeprefix("websocket-").removesuffix("s")
                await others.open_websockets(kind)
            case _:
                await self._owe(others)

    async def measure(self) -> None:
        quiet = Quiet(self._server.url, f"{self._prefix}-quiet")
        others = self._light_clients()
        await self._p99(quiet, "p99 of the quiet client, alone")
        if self._part == "silent-consumers":
            # Caches that as many messages fill without them, too.
            before = self._server.bytes()
            await self._publish_unread(others.topic(1))
            self._tell_p99(quiet, "p99 of the quiet client, while as much is sent to nobody")
            grown = self._server.bytes() - before
            self._told("memory of the messages, without them", grown / (1 << 20), "MiB")
        heap, before, cpu_s = java_heap(self._server.process), *self._now()
        began = time.perf_counter()
        await self._open(others)
        self._told("until all are connected", time.perf_counter() - began, "s")
        used_s = self._server.cpu_s() - cpu_s
        self._told("CPU of the server for each", used_s / self._count * 1e6, "us")
        self._tell_p99(quiet, "p99 of the quiet client, while they connect")
        if self._part == "silent-consumers":
            await self._publish_unread(others.topic(0))
            self._tell_p99(quiet, "p99 of the quiet client, while they are sent messages")
            # The sockets take what they can; afterwards nothing moves.
            await self._p99(quiet, "p99 of the quiet client, while their sockets are filled")
        cpu_s = self._server.cpu_s()
        await self._p99(quiet, "p99 of the quiet client, while they are connected")
        idle = (self._server.cpu_s() - cpu_s) / CONNECTED_S
        self._told("CPU of the server while they are connected", idle * 100, "%")
        grown = self._server.bytes() - before
        self._told("memory more than before", grown / (1 << 20), "MiB")
        self._told("memory for each", grown / self._count, "bytes")
        if heap is not None and (now := java_heap(self._server.process)) is not None:
            self._told("used heap for each", (now - heap) / self._count, "bytes")
        if self._part == "subscriptions":
            cpu_s = self._server.cpu_s()
            took = await others.publish_to_all(100)
            self._told("100 messages to all of them", took, "s")
            used_s = self._server.cpu_s() - cpu_s
            self._told("CPU for each delivery", used_s / (100 * self._count) * 1e6, "us")
            self._tell_p99(quiet, "p99 of the quiet client, meanwhile")
        others.close()
        await self._p99(quiet, "p99 of the quiet client, while they close")
        self._told("memory when they are closed", self._server.bytes() / (1 << 20), "MiB")
        quiet.close()
        if (own := self._server.own) is not None:
            await self._restart(own, "killed", own.kill)
            await self._restart(own, "stopped", lambda: own.stop(600))

    def _now(self) -> tuple[int, float]:
        return self._server.bytes(), self._server.cpu_s()

    async def _p99(self, quiet: Quiet, what: str) -> None:
        quiet.p99_ms()
        await asyncio.sleep(CONNECTED_S)
        self._tell_p99(quiet, what)

    def _tell_p99(self, quiet: Quiet, what: str) -> None:
        self._told(what, quiet.p99_ms(), "ms")

    async def _owe(self, others: LightClients) -> None:
        """A Shared consumer gets twice as many messages, and acknowledges every second one."""
        topic = others.topic(0)
        publisher = await connected(self._server.url)
        consumer = await connected(self._server.url, 2)
        others.clients += [publisher, consumer]
        await publisher.look_up(topic)
        await consumer.consume(topic, "others", 2 * self._count)
        producer = await publisher.produce_to(topic)
        await publisher.publish(producer, 2 * self._count)
        await consumer.until(lambda: consumer.messages >= 2 * self._count)

    async def _publish_unread(self, topic: str) -> None:
        publisher = await connected(self._server.url)
        producer = await publisher.produce_to(topic)
        await publisher.publish(producer, 10_000, 1024)
        publisher.connection.close()

    async def _restart(self, own: StandaloneProcess, how: str, end: Callable[[], object]) -> None:
        end()
        began = time.perf_counter()
        own.start(same_ports=True)
        self._told(f"{how}: until it is ready", time.perf_counter() - began, "s")
        if self._part == "unacknowledged":
            self._told(f"{how}: memory when it is ready", self._server.bytes() / (1 << 20), "MiB")
            return
        began, others = time.perf_counter(), self._light_clients()
        await self._open(others)
        self._told(f"{how}: until all are back", time.perf_counter() - began, "s")
        others.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("part", choices=tuple(COUNTS))
    parser.add_argument("--count", type=int, help="how many, instead of the issue's figures")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--url", help="pulsar://host:port of a running server")
    parser.add_argument("--web-url", default="http://127.0.0.1:8080", help="of its HTTP port")
    parser.add_argument("--pid", type=int, help="its process")
    parser.add_argument("--namespace", default="public/default", help="of all topics; it exists")
    options = parser.parse_args()
    if (options.url is None) != (options.pid is None):
        parser.error("--url and --pid belong together")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count, told = options.count or COUNTS[options.part], Report(options.json, options.part)
    with ExitStack() as stack:
        if options.url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-scale-"))
            settings = [f"--set={key}={value}" for key, value in SETTINGS.items()]
            own = StandaloneProcess(Path(folder) / "data", *settings, files_max=most)
            stack.enter_context(own)
            server = Server(own.service_url, own.admin_url, own.pid, own)
        else:
            server = Server(options.url, options.web_url, options.pid, None)
        run = Run(server, options.part, count, told, options.namespace)
        asyncio.run(run.measure())
        print(run.row())


if __name__ == "__main__":
    main()
