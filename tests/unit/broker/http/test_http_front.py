"""The pure parts of the web port: rates, gzip, request ids, the audit line, log lines."""

import asyncio
import gzip
import io
import json
import logging
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.broker.config import BrokerConfig
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.middleware.audit import CHANGES_MAX, AuditLog
from magnetar.broker.http.middleware.compression import GzipMiddleware, accepts_gzip
from magnetar.broker.http.middleware.rate_limit import AddressLimiter, address_group
from magnetar.broker.http.middleware.request_context import HttpMetrics, RequestContextMiddleware
from magnetar.broker.logs import REQUEST_ID, set_up_logging


def test_an_address_gets_its_rate_and_a_second_of_burst() -> None:
    limiter = AddressLimiter(10)
    assert [limiter.take("a", 100.0) for _ in range(10)] == [0.0] * 10
    assert limiter.take("a", 100.0) == pytest.approx(0.1)
    assert limiter.take("b", 100.0) == 0.0, "another address has its own"
    assert limiter.take("a", 100.1) == 0.0
    assert limiter.take("a", 100.1) > 0


@pytest.mark.parametrize("seed", range(20))
def test_no_address_ever_gets_more_than_rate_and_burst(seed: int) -> None:
    rng, now, rate = random.Random(seed), 0.0, 5.0
    limiter, admitted = AddressLimiter(rate), list[float]()
    for _ in range(2000):
        now += rng.choice((0.0, 0.01, 0.1, 1.0)) * rng.random()
        if limiter.take("a", now) == 0.0:
            admitted.append(now)
    for first in range(0, len(admitted), 37):
        for last in range(first, len(admitted), 53):
            seconds = admitted[last] - admitted[first]
            assert last - first + 1 <= rate * (1 + seconds) + 1e-6
    assert len(admitted) >= min(2000, int(now * rate * 0.5))


def test_refused_requests_cost_nothing_and_less_than_one_a_second_works() -> None:
    limiter = AddressLimiter(0.5)
    assert limiter.take("a", 0.0) == 0.0
    assert [limiter.take("a", 1.0) for _ in range(100)] == [pytest.approx(1.0)] * 100
    assert limiter.take("a", 2.0) == 0.0


def test_a_crowd_of_addresses_is_forgotten() -> None:
    limiter = AddressLimiter(1, addresses_max=100)
    for number in range(10_000):
        limiter.take(f"10.0.{number // 256}.{number % 256}", 0.0)
    assert len(limiter._full_at) <= 100
    limiter.take("10.9.9.9", 50.0)
    assert len(limiter._full_at) == 1


def test_a_network_of_ipv6_counts_as_one() -> None:
    assert address_group("2001:db8:1:2:3:4:5:6") == address_group("2001:db8:1:2::1")
    assert address_group("2001:db8:1:2::1") != address_group("2001:db8:1:3::1")
    assert address_group("::ffff:192.0.2.1") == "192.0.2.1"
    assert address_group("fe80::1%eth0") == "fe80::"
    assert (address_group("192.0.2.1"), address_group("odd:thing")) == ("192.0.2.1", "odd:thing")


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (b"gzip", True),
        (b"br, GZIP;q=0.5", True),
        (b"*", True),
        (b"gzip;q=0, br", False),
        (b"gzip; q=0.000", False),
        (b"deflate, br", False),
        (b"", False),
    ],
)
def test_accept_encoding(header: bytes, wanted: bool) -> None:
    assert accepts_gzip(header) is wanted


class _Call:
    """One request through a layer around ``pieces``; what came out."""

    def __init__(self, pieces: list[bytes], kind: bytes = b"application/json") -> None:
        self.pieces, self.kind = pieces, kind
        self.sent: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.context = ""

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.context = REQUEST_ID.get()
        if self.error is not None:
            raise self.error
        size = str(sum(map(len, self.pieces))).encode()
        headers = [(b"content-type", self.kind), (b"content-length", size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, piece in enumerate(self.pieces, 1):
            more = number < len(self.pieces)
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    def run(self, layer: Any, path: str, *headers: tuple[bytes, bytes], method: str = "GET") -> Any:
        async def send(message: Any) -> None:
            self.sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"force=1",
            "headers": list(headers),
            "client": ("192.0.2.7", 4711),
        }
        asyncio.run(layer(scope, receive, send))
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


GZIP = (b"accept-encoding", b"gzip, deflate")


@pytest.mark.parametrize("size", [1024, 40_000, 500_000])
def test_a_whole_answer_is_compressed(size: int) -> None:
    call = _Call([b'{"a": 1}' * (size // 8)])
    headers = call.run(GzipMiddleware(call.app), "/admin/v2/tenants", GZIP)
    assert (headers[b"content-encoding"], headers[b"vary"]) == (b"gzip", b"Accept-Encoding")
    assert int(headers[b"content-length"]) == len(call.body) < size // 4
    assert gzip.decompress(call.body) == call.pieces[0]


@pytest.mark.parametrize(
    ("pieces", "kind", "path", "header"),
    [
        ([b"x" * 1000], b"application/json", "/admin/v2/tenants", b"gzip"),
        ([b"x" * 9000], b"application/json", "/admin/v2/tenants", b"br"),
        ([b"x" * 9000], b"application/octet-stream", "/admin/v2/tenants", b"gzip"),
        ([b"x" * 9000], b"text/event-stream", "/admin/v2/tenants", b"gzip"),
        ([b"x" * 9000, b"y"], b"application/json", "/admin/v2/tenants", b"gzip"),
        ([b"x" * 9000], b"application/json", "/topics/persistent/public/default/t", b"gzip"),
        ([b"x" * 9000], b"application/json", "/metrics", b"gzip"),
        ([b"x" * 9000], b"application/json", "/lookup/v2/topic", b"gzip"),
    ],
)
def test_what_is_not_compressed(pieces: list[bytes], kind: bytes, path: str, header: bytes) -> None:
    call = _Call(pieces, kind)
    layer = GzipMiddleware(call.app, ["/metrics*", "^/lookup/v[0-9]"])
    headers = call.run(layer, path, (b"accept-encoding", header))
    assert b"content-encoding" not in headers
    assert call.body == b"".join(pieces)


def test_pieces_of_a_stream_pass_one_by_one() -> None:
    call = _Call([b"one\n", b"two\n", b""], b"application/x-ndjson")
    call.run(GzipMiddleware(call.app), "/admin/v2/stream", GZIP)
    assert [message.get("body") for message in call.sent] == [None, b"one\n", b"two\n", b""]


def _pre_auth(call: _Call, limiter: AddressLimiter | None = None) -> RequestContextMiddleware:
    return RequestContextMiddleware(call.app, BrokerConfig(), HttpMetrics(), AuditLog(), limiter)


def test_a_request_id_is_taken_over_if_it_is_sane() -> None:
    call = _Call([b"{}"])
    headers = call.run(_pre_auth(call), "/x", (b"x-request-id", b"order-7/a"))
    assert (headers[b"x-request-id"], call.context) == (b"order-7/a", "order-7/a")
    middleware, made = _pre_auth(call), set[bytes]()
    for bad in (b"", b"a b", b"a\nb", b"x" * 129, "é".encode()):
        call.sent.clear()
        made.add(call.run(middleware, "/x", (b"x-request-id", bad))[b"x-request-id"])
    assert len(made) == 5
    assert all(each.replace(b"-", b"").isalnum() for each in made)


def test_a_failure_is_answered_with_the_id_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    call = _Call([])
    call.error = ValueError("a bug")
    with caplog.at_level(logging.ERROR):
        headers = call.run(_pre_auth(call), "/x", (b"x-request-id", b"id-1"))
    assert call.sent[0]["status"] == 500
    assert "id-1" in json.loads(call.body)["reason"]
    assert headers[b"x-request-id"] == b"id-1"
    (record,) = caplog.records
    assert "id-1" in record.getMessage()
    assert record.exc_info is not None


def test_errors_of_routes_keep_their_status() -> None:
    call = _Call([])
    call.error = ApiError(412, "no")
    call.run(_pre_auth(call), "/x")
    assert (call.sent[0]["status"], call.body) == (412, b'{"reason":"no"}')


def test_too_many_requests_are_told_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 5.0, perf_counter=time.perf_counter)
    monkeypatch.setattr("magnetar.broker.http.middleware.request_context.time", clock)
    call = _Call([b"{}"])
    middleware = _pre_auth(call, AddressLimiter(2.0))
    statuses = []
    for _ in range(3):
        call.sent.clear()
        headers = call.run(middleware, "/x")
        statuses.append(call.sent[0]["status"])
    assert statuses == [200, 200, 429]
    assert headers[b"retry-after"] == b"1"


def test_a_change_is_one_audit_line(caplog: pytest.LogCaptureFixture) -> None:
    call = _Call([b"{}"])
    middleware = _pre_auth(call)
    with caplog.at_level(logging.INFO, logger="magnetar.broker.audit"):
        call.run(middleware, "/admin/v2/tenants/t", (b"x-request-id", b"id-1"), method="PUT")
        call.run(middleware, "/admin/v2/tenants/t")
        call.run(middleware, "/topics/persistent/public/default/t", method="POST")
        call.run(middleware, "/admin/v2/a\nb\x7f", (b"x-request-id", b"id-2"), method="DELETE")
    first, forged = (record.getMessage() for record in caplog.records)
    assert first == (
        "role=anonymous method=PUT path=/admin/v2/tenants/t?force=1 status=200 request=id-1"
        " address=192.0.2.7:4711"
    )
    assert r"path=/admin/v2/a\nb\x7f?force=1" in forged


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/admin/v2/x?token=a.b.c&n=1", "/admin/v2/x?token=******&n=1"),
        ("/admin/v2/x?a=1&TOKEN=abc", "/admin/v2/x?a=1&TOKEN=******"),
        (
            "/admin/v2/brokers/configuration/tokenSecretKey/c2VjcmV0",
            "/admin/v2/brokers/configuration/tokenSecretKey/******",
        ),
        ("/admin/v2/brokers/configuration/maxTenants/5", None),
    ],
)
def test_audit_lines_hold_no_secrets(
    path: str, shown: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    raw, _, query = path.partition("?")
    scope = {
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "state": {},
        "method": "POST",
    }
    with caplog.at_level(logging.INFO, logger="magnetar.broker.audit"):
        AuditLog().add(scope, 401, "id")
    assert f" path={shown or path} " in caplog.records[0].getMessage()


def test_the_last_changes_are_kept() -> None:
    now_s = 1.0
    log = AuditLog(lambda: now_s)

    def change(path: str, **state: str) -> None:
        scope = {"path": path, "state": state, "method": "PUT", "client": ("192.0.2.7", 4711)}
        log.add(scope, 204, "id")

    change("/admin/v2/tenants/a", role='x "y"')
    now_s = 2.0
    change("/admin/v2/tenants/b", role="proxy", original_role="joe")
    change("/topics/persistent/public/default/t")
    for role, paths in (("", ["b", "a"]), ("joe", ["b"]), ("x", [])):
        assert [each["path"][-1] for each in log.changes(role, "")] == paths
    assert list(log.changes("", "s/a")) == [
        {
            "at": 1000,
            "role": 'x "y"',
            "method": "PUT",
            "path": "/admin/v2/tenants/a",
            "status": 204,
            "request": "id",
            "address": "192.0.2.7:4711",
        }
    ]
    assert log.since_ms == 1000
    for number in range(CHANGES_MAX):
        now_s = 3.0 + number
        change("/admin/v2/x")
    assert len(list(log.changes("", ""))) == CHANGES_MAX
    assert log.since_ms == 3000  # older ones are gone
    log.clear()
    assert list(log.changes("", "")) == []
    assert log.since_ms == int(now_s * 1000)


@pytest.fixture
def root_logging() -> Any:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.usefixtures("root_logging")
def test_json_lines_are_json_whatever_is_logged() -> None:
    stream = io.StringIO()
    set_up_logging(BrokerConfig(log_format="json"), stream)
    call = _Call([b"{}"])
    call.run(_pre_auth(call), "/admin/v2/x", (b"x-request-id", b"id-1"), method="POST")
    logger = logging.getLogger("test")
    try:
        raise ValueError("broken\nin two lines")
    except ValueError:
        logger.exception("caught %s", "\udcff and a line\nbreak")
    audit_line, error = map(json.loads, stream.getvalue().splitlines())
    assert (audit_line["role"], audit_line["status"]) == ("anonymous", 200)
    assert (audit_line["request"], audit_line["logger"]) == ("id-1", "magnetar.broker.audit")
    assert (error["level"], error["message"]) == ("ERROR", "caught ? and a line\nbreak")
    assert "broken\nin two lines" in error["exception"]
    assert error["time"].endswith("Z")


@pytest.mark.usefixtures("root_logging")
def test_text_lines_carry_the_request() -> None:
    stream = io.StringIO()
    set_up_logging(BrokerConfig(), stream)
    logging.getLogger("test").info("before")
    token = REQUEST_ID.set("id-9")
    logging.getLogger("test").info("during")
    REQUEST_ID.reset(token)
    before, during = stream.getvalue().splitlines()
    assert before.endswith("INFO test before")
    assert during.endswith("INFO test during [id-9]")


@pytest.mark.parametrize(
    "text", ["<T>; the handler is closed", "Cannot call write() after write_eof()"]
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_connection_that_was_reset_while_it_is_answered_is_no_error(
    kind: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """uvloop's transport refuses to write some turns before the protocol hears of the end."""
    start = "http.response.start" if kind == "http" else "websocket.accept"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": start, "status": 200})
        raise AssertionError("it goes on")

    async def send(message: Any) -> None:
        raise RuntimeError(text)

    async def receive() -> Any:
        raise AssertionError("nobody reads")

    scope = {"type": kind, "method": "GET", "path": "/", "headers": [], "client": ("a", 1)}
    middleware = RequestContextMiddleware(app, BrokerConfig(), HttpMetrics(), AuditLog())
    await middleware(scope, receive, send)
    assert not caplog.records
