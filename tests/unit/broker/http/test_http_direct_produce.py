"""REST produce past the application answers as the application does, and leaves it all else."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from magnetar.bookkeeper.auth.tokens import Principal
from magnetar.broker.auth.authenticator import Authenticator
from magnetar.broker.auth.provider_chain import ProviderChain
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.http.middleware.rate_limit import AddressLimiter
from magnetar.broker.http.server.app import create_app
from magnetar.broker.http.server.direct_produce import DirectProduce
from magnetar.broker.http.server.request_protocol import (
    ConnectionLimits,
    LenientHttpProtocol,
    protocol_with,
)
from magnetar.broker.listener.file_limit import AddressQuota, SocketQuota
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic.persistent_topic import PersistentTopic
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker
from tests.unit.managed_ledger.cluster import eventually

TOPIC = TopicName.parse("public/default/t")
PATH = "/topics/persistent/public/default/t"
PARTITIONED = "/topics/persistent/public/default/parts"
HOLDER = json.dumps({"messages": [{"payload": "held"}]}).encode()
_ID = re.compile(rb"x-request-id: [0-9a-f]+-[0-9a-f]+")
_ENTRY = re.compile(rb'"messageId":"\d+:\d+')


class Transport:
    """A connection's side of a client that is the test."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False
        self.protocol: object = None

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("10.0.0.1", 5000) if name in ("peername", "sockname") else default

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_protocol(self) -> object:
        return self.protocol


class Server:
    """The web port of a broker, without a port."""

    def __init__(self, broker: Broker) -> None:
        self.app = create_app(broker.service)
        self.direct = DirectProduce(self.app, broker.service.config)
        self.started = 0  # requests that the application was given
        server = self

        class Protocol(
            protocol_with(  # type: ignore[misc] # a class made by a function
                SocketQuota("HTTP", 100), AddressQuota(0), ConnectionLimits(), self.direct
            )
        ):
            def _start_asgi_task(self, cycle: Any, app: Any) -> None:
                server.started += 1
                super()._start_asgi_task(cycle, app)

        self._make: Callable[..., LenientHttpProtocol] = Protocol
        self._config = uvicorn.Config(self.app, loop="none", lifespan="off", log_config=None)
        self._config.load()
        self._state = ServerState()

    def connect(self) -> tuple[LenientHttpProtocol, Transport]:
        transport = Transport()
        protocol = self._make(config=self._config, server_state=self._state, app_state={})
        transport.protocol = protocol
        protocol.connection_made(transport)  # type: ignore[arg-type] # a double
        return protocol, transport

    async def ask(self, *parts: bytes) -> bytes:
        """The answer to a request that comes in these reads."""
        protocol, transport = self.connect()
        for part in parts:
            protocol.data_received(part)
        await eventually(lambda: bool(transport.written))
        protocol.connection_lost(None)
        return transport.written


def request(body: bytes, path: str = PATH, *headers: str, kind: str = "application/json") -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", *headers)
    return "\r\n".join((*lines, f"Content-Length: {len(body)}", "\r\n")).encode() + body


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(max_message_size=1000).start()
    await broker.service.loader.load(TOPIC, create=True)
    await broker.service.directory.create_partitioned(TopicName.parse("public/default/parts"), 2)
    yield broker
    await broker.close()


class Held:
    """Calls that the storage doesn't answer, so that the topics have their publishers."""

    def __init__(
        self, broker: Broker, server: Server, paths: Sequence[str] = (PATH, PARTITIONED)
    ) -> None:
        self._broker, self._server, self._paths = broker, server, paths
        self.release: Callable[[], None] = lambda: None
        self._open = server.app.state.rest_publishers._open

    async def begin(self, *headers: str) -> None:
        for path in self._paths:  # topics are loaded, and have a schema
            await self._server.ask(request(HOLDER, path, *headers))
        await eventually(lambda: not self._open)
        self.release = self._broker.hold_storage()
        for path in self._paths:
            self._server.connect()[0].data_received(request(HOLDER, path, *headers))
        count = len(self._paths)
        await eventually(
            lambda: (
                len(self._open) == count
                and all(each.publisher.done() for each in self._open.values())
            )
        )
        self._server.started = 0


@pytest.fixture
async def server(broker: Broker) -> AsyncIterator[Server]:
    """Its topics have a publisher as long as the storage doesn't answer the first call."""
    server = Server(broker)
    held = Held(broker, server)
    await held.begin()
    server.release = held.release  # type: ignore[attr-defined] # for the tests
    yield server
    held.release()


def plain(answer: bytes) -> bytes:
    """Without what differs between two calls."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = b"content-length: %d" % len(body)
    assert length in head
    answer = answer.replace(length, b"content-length: 0")
    return _ENTRY.sub(b'"messageId":"0:0', _ID.sub(b"x-request-id: 0", answer))


def messages(*items: Any, **fields: Any) -> bytes:
    return json.dumps({"messages": [*items], **fields}).encode()


SAME = {
    "one": messages({"payload": "x"}),
    "keys and properties": messages({"payload": "x", "key": "k", "properties": {"a": "1"}}),
    "many": messages(*({"payload": str(number)} for number in range(50))),
    "too large a payload": messages({"payload": "x" * 2000}, {"payload": "y"}),
    "all too large": messages({"payload": "x" * 2000}),
    "delayed": messages({"payload": "x", "deliverAfterMs": 1000}),
    "base64": messages({"payload": "eA==", "encoding": "base64"}),
}
LEFT = {
    "no JSON": b"{",
    "nothing": b"",
    "no messages": messages(),
    "no payload": messages({}),
    "a schema": messages({"payload": "1"}, valueSchema='{"type": "INT32", "schema": ""}'),
    "a list": b"[]",
}


@pytest.mark.parametrize("body", SAME.values(), ids=SAME.keys())
@pytest.mark.parametrize("path", [PATH, PARTITIONED])
async def test_both_ways_answer_alike(server: Server, path: str, body: bytes) -> None:
    calls = [asyncio.create_task(server.ask(request(body, path)))]
    await asyncio.sleep(0)
    assert server.started == 0
    calls.append(asyncio.create_task(server.ask(request(body, f"{path}?x=1"))))
    await asyncio.sleep(0)
    assert server.started == 1
    for _ in range(20):
        await asyncio.sleep(0)
    server.release()  # type: ignore[attr-defined] # of the fixture
    direct, through = [plain(each) for each in await asyncio.gather(*calls)]
    assert direct.startswith(b"HTTP/1.1 200 OK\r\n")
    if path == PATH:
        assert direct == through
    else:  # its partitions take turns
        assert re.sub(rb':[01]"', b':0"', direct) == re.sub(rb':[01]"', b':0"', through)
    await eventually(lambda: server.app.state.http_figures.active == 0)


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT.keys())
async def test_what_is_wrong_is_left_to_the_application(server: Server, body: bytes) -> None:
    call = asyncio.create_task(server.ask(request(body)))
    await asyncio.sleep(0)
    assert server.started == 1
    server.release()  # type: ignore[attr-defined] # of the fixture
    assert (await call).startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(HOLDER, kind="text/plain"), 415),
        (request(HOLDER, PATH, "Origin: http://evil.example"), 403),
        (request(HOLDER, PATH + "/more"), 404),
        (request(HOLDER, "/topics/other/public/default/t"), 404),
        (request(HOLDER, "/topics/persistent/public/de*fault/t"), 412),
        (request(b"x" * 70_000), 400),
        (request(HOLDER, PATH, "Expect: 100-continue"), 100),
    ],
)
async def test_refusals_are_the_applications(server: Server, sent: bytes, status: int) -> None:
    answer = await server.ask(sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert server.started == 1


async def test_a_head_and_its_body_may_come_one_after_the_other(server: Server) -> None:
    sent = request(HOLDER)
    at = sent.index(HOLDER)
    call = asyncio.create_task(
        server.ask(sent[:30], sent[30:at], sent[at : at + 5], sent[at + 5 :])
    )
    await asyncio.sleep(0)
    assert server.started == 0
    server.release()  # type: ignore[attr-defined] # of the fixture
    assert b'"errorCode":0' in await call
    # One whose body is too large, or has no length, isn't waited for.
    protocol, _ = server.connect()
    protocol.data_received(request(b"x" * 70_000)[:200])
    assert server.started == 1
    protocol, _ = server.connect()
    protocol.data_received(b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % PATH.encode())
    protocol.data_received(b"Transfer-Encoding: chunked\r\n\r\n")
    assert server.started == 2


async def test_requests_in_one_read_are_answered_in_their_order(server: Server) -> None:
    protocol, transport = server.connect()
    protocol.data_received(request(HOLDER) + request(b"{") + request(HOLDER))
    server.release()  # type: ignore[attr-defined] # of the fixture
    await eventually(lambda: transport.written.count(b"HTTP/1.1 ") == 3)
    assert re.findall(rb"HTTP/1.1 (\d+)", transport.written) == [b"200", b"400", b"200"]
    assert not protocol.pipeline


async def test_a_client_may_leave_before_its_answer(broker: Broker, server: Server) -> None:
    protocol, transport = server.connect()
    protocol.data_received(request(HOLDER))
    transport.close()
    protocol.connection_lost(None)
    server.release()  # type: ignore[attr-defined] # of the fixture
    topic = broker.service.topics[str(TOPIC)]
    await eventually(lambda: not server.app.state.rest_publishers._open)
    assert (transport.written, server.app.state.http_figures.active) == (b"", 0)
    assert not topic.producers


async def test_a_call_that_fails_keeps_no_publisher(
    broker: Broker, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that is never closed would keep its topic from being deleted."""

    calls = []

    def fail(*call: object) -> None:
        calls.append(call)
        raise MemoryError

    publishers = server.app.state.rest_publishers
    with monkeypatch.context() as patched:
        patched.setattr(publishers, "_entries", fail)
        server.connect()[0].data_received(request(HOLDER))
    assert len(calls) == 1
    assert server.app.state.http_figures.active == 2  # the held ones
    server.release()  # type: ignore[attr-defined] # of the fixture
    await eventually(lambda: not publishers._open)
    assert not broker.service.topics[str(TOPIC)].producers


async def test_the_last_answer_of_a_connection_says_so(server: Server) -> None:
    protocol, transport = server.connect()
    protocol.data_received(request(HOLDER, PATH, "Connection: close"))
    server.release()  # type: ignore[attr-defined] # of the fixture
    await eventually(lambda: transport.is_closed)
    assert b"\r\nconnection: close\r\n\r\n{" in transport.written
    assert server.started == 0


async def test_what_the_storage_does_not_answer_ends(server: Server) -> None:
    call = asyncio.create_task(server.ask(request(HOLDER)))
    await asyncio.sleep(0)
    assert server.started == 0
    publishers = server.app.state.rest_publishers
    publishers._waiting = dict.fromkeys(publishers._waiting, 0.0)  # all are too late
    publishers._end_late()
    assert b"in time" in await call
    await eventually(lambda: server.app.state.http_figures.active == 0)


async def test_a_topic_without_a_publisher_gets_one_for_the_call(broker: Broker) -> None:
    server = Server(broker)
    assert b'"errorCode":0' in await server.ask(request(HOLDER))  # its schema is known from here on
    server.started = 0
    for name in ("", "alice"):
        answer = await server.ask(request(messages({"payload": "x"}, producerName=name)))
        assert b'"errorCode":0' in answer
    assert server.started == 0
    assert not server.app.state.rest_publishers._open
    assert not broker.service.topics[str(TOPIC)].producers


async def test_a_publisher_that_has_to_wait_is_the_applications(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, directory = Server(broker), broker.service.directory
    await server.ask(request(HOLDER))
    server.started, partitions = 0, directory.partitions_for_client

    async def later(name: TopicName, *, create: bool) -> int:
        await asyncio.sleep(0)
        return await partitions(name, create=create)

    monkeypatch.setattr(directory, "partitions_for_client", later)
    assert b'"errorCode":0' in await server.ask(request(HOLDER))
    assert server.started == 1
    assert not server.app.state.rest_publishers._open
    assert not broker.service.topics[str(TOPIC)].producers


async def test_a_topic_that_takes_no_publisher_is_the_applications(broker: Broker) -> None:
    server, topic = Server(broker), broker.service.topics[str(TOPIC)]
    await server.ask(request(HOLDER))
    server.started = 0
    assert isinstance(topic, PersistentTopic)
    await topic.terminate()
    assert b"is terminated" in await server.ask(request(HOLDER))
    assert server.started == 1
    assert not server.app.state.rest_publishers._open


@asynccontextmanager
async def serving(**settings: object) -> AsyncIterator[tuple[Server, Held]]:
    """A server with these settings, whose topic has a publisher."""
    broker = await Broker(**settings).start()
    server = Server(broker)
    held = Held(broker, server, [PATH])
    await held.begin()
    yield server, held
    held.release()
    await broker.close()


async def test_too_many_at_once_are_the_applications() -> None:
    async with serving(max_concurrent_http_requests=2) as (server, _):
        server.connect()[0].data_received(request(HOLDER))
        assert (server.started, server.app.state.http_figures.active) == (0, 2)
        assert (await server.ask(request(HOLDER))).startswith(b"HTTP/1.1 503 ")
        assert server.started == 1


async def test_the_rate_of_requests_is_one_for_both_ways() -> None:
    limit = {"http_requests_limit_enabled": True, "http_requests_max_per_second": 1e6}
    async with serving(**limit) as (server, held):
        assert server.direct._limiter is server.app.state.request_limiter
        assert server.direct._limiter is not None
        server.direct._limiter = AddressLimiter(0.001)
        calls = []
        for started in (0, 1):
            calls.append(asyncio.create_task(server.ask(request(HOLDER))))
            await asyncio.sleep(0)
            assert server.started == started
        held.release()
        await asyncio.gather(*calls)


async def test_a_call_above_the_rate_keeps_no_publisher(broker: Broker) -> None:
    server = Server(broker)
    await server.ask(request(HOLDER))
    server.direct._limiter = AddressLimiter(0.001)
    await server.ask(request(HOLDER))
    server.started = 0
    server.connect()[0].data_received(request(HOLDER))
    assert server.started == 1
    assert not server.app.state.rest_publishers._open
    assert not broker.service.topics[str(TOPIC)].producers


async def test_pages_of_allowed_sites_are_answered_by_the_application() -> None:
    async with serving(cors_allowed_origins="http://shop.example") as (server, held):
        calls = []
        for header in ("Accept: */*", "Origin: http://shop.example"):
            calls.append(asyncio.create_task(server.ask(request(HOLDER, PATH, header))))
            await asyncio.sleep(0)
        assert server.started == 1
        held.release()
        told = [b"access-control-allow-origin" in each for each in await asyncio.gather(*calls)]
        assert told == [False, True]


class ByName:
    """Tokens that are the names of their roles."""

    method, is_slow = "token", False

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        if data == b"wrong":
            raise AuthenticationError("no")
        return Principal(data.decode())


OF_PROXY = ("Authorization: Bearer proxy", "X-Original-Principal: prod")


@pytest.mark.parametrize(
    ("headers", "status", "started"),
    [
        (["Authorization: Bearer prod"], 200, 0),
        (["Authorization: Bearer admin"], 200, 0),
        (OF_PROXY, 200, 0),
        ([OF_PROXY[0], "X-Original-Principal: cons"], 401, 1),
        (OF_PROXY[:1], 401, 1),
        (["Authorization: Bearer prod", OF_PROXY[1].replace("prod", "admin")], 401, 1),
        (["Authorization: Bearer cons"], 401, 1),
        (["Authorization: Bearer wrong"], 401, 1),
        (["Authorization: Bearer prod", "Authorization: Bearer prod"], 401, 1),
        (["Authorization: Basic cHJvZA=="], 401, 1),
        ([], 401, 1),
    ],
)
async def test_only_who_may_publish_passes_by_the_application(
    headers: Sequence[str], status: int, started: int
) -> None:
    async with authorized_broker(proxy_roles="proxy") as broker:
        grants = {"prod": ["produce"], "proxy": ["produce"], "cons": ["consume"]}
        policies = {"auth_policies": {"namespace_auth": grants}}
        await broker.service.resources.create_namespace("t1/of-proxy", ["c"], 4, policies)
        config, chain = broker.service.config, ProviderChain([ByName()], "", frozenset(["proxy"]))
        broker.service.config = replace(config, authentication_enabled=True)
        broker.service.authenticator = authenticator = Authenticator(chain)
        server = Server(broker)
        path = "/topics/persistent/t1/of-proxy/t"
        held = Held(broker, server, [path])
        await held.begin("Authorization: Bearer prod")
        authenticator.accepted.clear()
        call = asyncio.create_task(server.ask(request(HOLDER, path, *headers)))
        await asyncio.sleep(0)
        assert server.started == started
        held.release()
        assert (await call).startswith(b"HTTP/1.1 %d " % status)
        assert authenticator.accepted["token"] == (status == 200 or "cons" in "".join(headers))


async def test_a_right_that_is_taken_away_is_gone_at_once() -> None:
    async with authorized_broker() as broker:
        config, chain = broker.service.config, ProviderChain([ByName()], "", frozenset())
        broker.service.config = replace(config, authentication_enabled=True)
        broker.service.authenticator = Authenticator(chain)
        server = Server(broker)
        path, header = "/topics/persistent/t1/ns/t", "Authorization: Bearer prod"
        held = Held(broker, server, [path])
        await held.begin(header)
        await broker.service.resources.update_policies(
            "t1/ns", lambda document: {**document, "auth_policies": {}}
        )
        answer = await server.ask(request(HOLDER, path, header))
        assert (answer[:13], server.started) == (b"HTTP/1.1 401 ", 1)
        held.release()
