"""uvicorn's HTTP protocol: lenient where widely used clients bend HTTP/1.1, strict about what a
connection may cost (docs/guides/http.md, "Limits").

Time limits cost nothing for requests that arrive whole, as nearly all do: a timer is only armed
when the loop has read everything there is and a head or a body is still incomplete.
"""

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from urllib.parse import unquote

import httptools
import orjson
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from magnetar.broker.http.server.direct_produce import DirectProduce
from magnetar.broker.http.server.rate_limited_log import RateLimitedLog
from magnetar.broker.http.server.request_cycle import RequestCycle
from magnetar.broker.http.websocket.protocol import CorkedWebSocketProtocol
from magnetar.broker.listener.file_limit import AddressQuota, SocketQuota
from magnetar.broker.listener.tls import client_certificate

_OFFER = frozenset((b"upgrade", b"http2-settings"))
"""Headers, and options of the Connection header, of an offer to change the protocol."""
_IDLE, _HEAD, _BODY = range(3)
_BODY_CHECK_S = 5.0
_SLICE_BYTES = 4 * 1024
_TURN_S = 0.001
"""Of the loop, for what one read brought: a chunk of a body takes 6 bytes, a request twenty."""
_LINGER_S = 2.0
_LINGER_BYTES_MAX = 16 * 1024 * 1024
"""How long, and for how many bytes, a refused client is listened to: closing at once while it is
still sending would reset the connection and destroy the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one HTTP connection."""

    head_bytes: int = 8192  # request line and headers
    headers: int = 100
    head_s: float = 10.0  # from the first byte (or the connection) to the end of the head
    body_bytes_per_s: int = 256  # while a body is incomplete and we are reading; 0: any
    stall_s: float = 300.0  # an answer of which the client takes nothing; 0: forever


class _Flow(FlowControl):
    """uvicorn's; reading stays paused while something that was read isn't parsed yet."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class LenientHttpProtocol(HttpToolsProtocol):
    """Answers a good request even when what follows it on the connection is no HTTP, and one that
    offers to speak another protocol.

    Node's ``http`` module sends the body of a DELETE without Content-Length or chunks (the official
    Node client's tests do): the parser takes it for the next request. uvicorn would answer 400 at
    once, before the answer of the request in front of it, which the client then takes for its own.

    Java's ``java.net.http`` offers HTTP/2 with its first request to a server (``Upgrade: h2c``). A
    server may ignore that (RFC 9110, 7.8), but httptools ends such a request after its headers and
    takes the body for something else. So the request is parsed again without the offer.
    """

    quota: SocketQuota
    """Of all HTTP and WebSocket connections of the process; set by ``protocol_with``."""
    addresses: AddressQuota
    """The same by address."""
    lines: RateLimitedLog
    _address = ""
    limits: ConnectionLimits
    _declined = False  # the request being parsed offers another protocol than WebSocket
    _state = _HEAD
    _watched = _IDLE  # the state that _timer is about
    _timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _stalled_bytes = 0
    _head_bytes = 0  # of the head being parsed, as far as the parser has told
    _head_fed = 0  # bytes of whole reads that belong to it
    _head_began = False  # in the read being parsed
    _body_bytes = _body_mark = 0
    _discarded_bytes = 0  # of a body that the answer didn't need, or after a refusal
    _refusal: tuple[int, str] | None = None
    _lingering = False
    flow: _Flow
    direct: DirectProduce | None = None
    """Answers what needs none of the application's layers."""
    _unstarted: RequestCycle | None = None
    """Until its body has come, or what was read is parsed and more of it doesn't matter."""
    _rest = b""  # read, and to be parsed when it is its turn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # uvicorn's own narrowing
        super().connection_made(transport)
        self.flow = _Flow(transport)
        if (certificate := client_certificate(transport)) is not None:
            self.app_state = {**self.app_state, "client_certificate": certificate}
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        admitted = self.addresses.enter(self._address)
        if self.quota.admits(len(self.connections)) and admitted:
            self._watch()
            return
        transport.write(_answer(503, "Too many connections", b"retry-after: 1\r\n"))
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self.addresses.leave(self._address)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        # The end of the connection is told to the new protocol from now on.
        protocol = self.transport.get_protocol()
        if isinstance(protocol, CorkedWebSocketProtocol):
            protocol.on_lost = partial(self.addresses.leave, self._address)
            protocol.on_garbage = partial(self.lines.count, "Not WebSocket, or over its limits")
        # It holds this protocol by its methods; uvicorn lets go of it where a connection ends.
        self.parser = None  # type: ignore[assignment]  # as uvicorn

    # --- what arrives

    def data_received(self, data: bytes) -> None:
        if self._rest or self.pipeline:
            self._hold(self._rest + data)
        elif len(data) <= _SLICE_BYTES:
            self._parse(data)
        else:
            self._parse_some(data)

    def _hold(self, rest: bytes) -> None:
        self._rest = rest
        self.flow.held = True
        self.flow.pause_reading()

    def _parse_some(self, data: bytes) -> None:
        """As much as a turn of the loop has time for; nothing behind a request that waits."""
        end_s = time.perf_counter() + _TURN_S
        for start in range(0, len(data), _SLICE_BYTES):
            if self.pipeline or time.perf_counter() > end_s:
                self._hold(data[start:])
                self.loop.call_soon(self._go_on)  # or once the pipeline is empty
                return
            self._parse(data[start : start + _SLICE_BYTES])
            if self._refusal or self.transport.get_protocol() is not self:
                return  # the client's further bytes are not read

    def _go_on(self) -> None:
        if not self._rest or self.pipeline or self.transport.is_closing():
            return
        rest, self._rest = self._rest, b""
        self.flow.held = False
        self._parse_some(rest)
        waits = self._rest or self.pipeline or self._refusal
        if not waits and (self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT):
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._rest:
            self.loop.call_soon(self._go_on)

    def _parse(self, data: bytes) -> None:
        if self._lingering:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _LINGER_BYTES_MAX:
                self.transport.close()
            return
        self._head_began = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            if self._refusal is None:
                self._refusal = 400, "Invalid HTTP request received."
        except httptools.HttpParserUpgrade as upgrade:
            if self._refusal is None and self._declined:
                self._stay_with_http(data[upgrade.args[0] :])
                return
            if self._refusal is None:
                self._stop_timers()
                self.handle_websocket_upgrade()
                return
        if self._state == _HEAD and not self._head_began:
            self._head_fed += len(data)
            if self._head_fed > self.limits.head_bytes:
                self._refuse_head()
        if (cycle := self._unstarted) is not None and (
            self.direct is None or not self.direct.awaits(cycle)
        ):
            self._start()
        if self._refusal is not None:
            self._refuse(*self._refusal)
        elif self._state != self._watched:
            self._watch()

    def on_message_begin(self) -> None:
        # Here and not at each read: empty lines between requests are no sign of life.
        self._unset_keepalive_if_required()
        self._state, self._head_began = _HEAD, True
        self._head_bytes = self._head_fed = 0
        self._body_bytes = self._body_mark = self._discarded_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._state != _HEAD:  # a trailer behind a chunked body: nobody asks for one
            if self._head_bytes > self.limits.head_bytes:
                self._refuse_head()
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        limits = self.limits
        self._state = _BODY
        if self._head_bytes > limits.head_bytes or len(self.headers) > limits.headers:
            self._refuse_head()
        elif self.parser.get_method() == b"CONNECT":
            # Bytes behind it are a tunnel's, whatever its headers say: it can't be parsed without.
            self._refusal = 501, "This is no proxy"
        elif self.parser.should_upgrade() and self._should_upgrade() and self._brings_body():
            # The WebSocket's parser would neither take nor refuse it, and nobody end the wait.
            self._refusal = 400, "An upgrade to WebSocket has no body"
        if self._refusal is not None:
            return
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = self.parser.get_http_version()
        upgrades = self.parser.should_upgrade()
        self._declined = upgrades and not self._should_upgrade()
        if not upgrades:
            self._begin()

    def _begin(self) -> None:
        """Hand the request to the application, or queue it behind the one in front."""
        scope, url = self.scope, httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = url.path, url.query or b""
        in_front = self.cycle
        self.cycle = RequestCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=scope["http_version"] != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if in_front is None or in_front.response_complete:
            self._unstarted = self.cycle
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _brings_body(self) -> bool:
        return any(
            name == b"transfer-encoding"
            or (name == b"content-length" and value.strip(b"0 ") != b"")
            for name, value in self.headers
        )

    def on_body(self, body: bytes) -> None:
        if self._refusal is not None:
            return
        self._body_bytes += len(body)
        if not self.cycle.response_complete:
            super().on_body(body)
            return
        self._discarded_bytes += len(body)
        if self._discarded_bytes > _LINGER_BYTES_MAX:
            self.transport.close()  # answered without it, and it doesn't end

    def on_message_complete(self) -> None:
        self._state = _IDLE
        if not self._declined and self._refusal is None:
            super().on_message_complete()
            self._start()

    def _start(self) -> None:
        cycle, self._unstarted = self._unstarted, None
        if cycle is not None and (self.direct is None or not self.direct.take(cycle)):
            self._start_asgi_task(cycle, self.app)

    def _stay_with_http(self, rest: bytes) -> None:
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(each for each in options if each.lower() not in _OFFER)
            if name not in _OFFER and (value or name != b"connection"):
                head += (name, b": ", value, b"\r\n")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._parse(b"".join(head) + b"\r\n" + rest)

    # --- what doesn't arrive in time, or isn't taken

    def _watch(self) -> None:
        """Arm the timer of the state that the connection is in now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._watched = self._state
        if self._state == _HEAD:
            self._timer = self.loop.call_later(self.limits.head_s, self._on_slow_head)
        elif self._state == _BODY and self.limits.body_bytes_per_s:
            self._body_mark = self._body_bytes
            self._timer = self.loop.call_later(_BODY_CHECK_S, self._on_body_check)

    def _on_slow_head(self) -> None:
        self._timer = None
        if self._busy:  # reading may be paused until the request in front is answered
            self._watch()
        elif self._head_fed or self._head_bytes or self._head_began:
            self._refuse(408, "The request's headers did not arrive in time")
        else:
            self.transport.close()

    def _on_body_check(self) -> None:
        self._timer = None
        arrived = self._body_bytes - self._body_mark
        if self.flow.read_paused or arrived >= self.limits.body_bytes_per_s * _BODY_CHECK_S:
            self._watch()
            return
        self._give_up(408, "The request's body did not arrive in time")

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.limits.stall_s and self._stall_timer is None:
            self._stalled_bytes = self.transport.get_write_buffer_size()
            self._stall_timer = self.loop.call_later(self.limits.stall_s, self._on_stall)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _on_stall(self) -> None:
        self._stall_timer = None
        unsent = self.transport.get_write_buffer_size()
        if unsent >= self._stalled_bytes:
            self.transport.abort()
        else:
            self._stalled_bytes = unsent
            self._stall_timer = self.loop.call_later(self.limits.stall_s, self._on_stall)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._stall_timer = None
        self._watched = self._state = _IDLE

    # --- refusals

    @property
    def _busy(self) -> bool:
        """A request is being served."""
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse_head(self) -> None:
        limits = self.limits
        if len(self.url) > limits.head_bytes:
            self._refusal = 414, f"The request line is longer than {limits.head_bytes} bytes"
        elif self._head_bytes > limits.head_bytes or self._head_fed > limits.head_bytes:
            self._refusal = 431, f"The headers are larger than {limits.head_bytes} bytes"
        else:
            self._refusal = 431, f"There are more than {limits.headers} headers"

    def _refuse(self, status: int, reason: str) -> None:
        cycle = self.cycle
        if not self._busy:
            self._linger(status, reason)
        elif cycle.more_body:  # the refused one is being served: what it waits for never comes
            self._give_up(status, reason)
        else:
            # Nothing more can be parsed: closed once the request in front is answered.
            cycle.keep_alive = False
            self.flow.pause_reading()

    def _give_up(self, status: int, reason: str) -> None:
        """End the request whose body is still expected; the application must not wait for it."""
        cycle = self.cycle
        cycle.disconnected = True
        cycle.message_event.set()
        if cycle.response_started:
            self.transport.close()
        else:
            self._linger(status, reason)

    def _linger(self, status: int, reason: str) -> None:
        """Answer, and close when the client has read it."""
        self._stop_timers()
        self._lingering, self._discarded_bytes = True, 0
        self.lines.count(reason)
        self.transport.write(_answer(status, reason))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(_LINGER_S, self.transport.close)


def _answer(status: int, reason: str, headers: bytes = b"") -> bytes:
    body = orjson.dumps({"reason": reason})
    return b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n" % (
        status,
        HTTPStatus(status).phrase.encode(),
        headers,
        len(body),
    ) + (b"connection: close\r\n\r\n" + body)


def protocol_with(
    quota: SocketQuota,
    addresses: AddressQuota,
    limits: ConnectionLimits,
    direct: DirectProduce | None = None,
) -> type[LenientHttpProtocol]:
    """The protocol class of one server."""
    shared = {"quota": quota, "addresses": addresses, "limits": limits, "lines": RateLimitedLog()}
    shared["direct"] = direct
    return type("HttpProtocol", (LenientHttpProtocol,), shared)
