"""The outermost layer of every request: its path, its id, its rate, its 500, its audit line.

One pure ASGI layer instead of six: each one wraps ``send`` and reads the headers again, which REST
produce pays for per call.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect

from magnetar.broker.http.errors import error_response, refuse, response_of
from magnetar.broker.http.middleware.audit import AuditLog, is_audited
from magnetar.broker.http.middleware.rate_limit import AddressLimiter
from magnetar.broker.http.middleware.raw_path import route_path
from magnetar.broker.logs import REQUEST_ID

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from magnetar.broker.config import BrokerConfig

logger = logging.getLogger(__name__)

_HEADER: Final = b"x-request-id"
_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_TAKING: Final = "/topics/"
"""Below it a GET takes messages, or never ends: no HEAD there."""
_CLOSED: Final = ("the handler is closed", "Cannot call write() after write_eof()")
"""uvloop's transports say so of connections that are over: reset by the client, or refused while
a request was still served."""
_STARTS: Final = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start"}
)


class HttpMetrics:
    """Counts of the web server: for the metrics page."""

    __slots__ = ("active", "answers", "body_bytes", "seconds")

    def __init__(self) -> None:
        self.active = 0  # requests under way
        self.answers = [0] * 6  # by the first digit of the status; 0: none was sent
        self.body_bytes = 0  # of large bodies of requests under way
        self.seconds = 0.0  # from head to answer, all requests together


class RequestIds:
    """Ids of requests: the client's own, if it is a sane one."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def of(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        for name, value in headers:
            if name == _HEADER and _SANE_ID.fullmatch(value):
                return str(value, "ascii")
        return f"{self._prefix}-{next(self._numbers):x}"


class RequestContextMiddleware:
    """Gives each request an id (``X-Request-ID``: the client's own, if it is a sane one)."""

    def __init__(
        self,
        app: ASGIApp,
        config: BrokerConfig,
        metrics: HttpMetrics,
        audit_log: AuditLog,
        limiter: AddressLimiter | None = None,
    ) -> None:
        self._app = app
        self._audit_log = audit_log
        self._limiter = limiter
        self._requests_max = config.max_concurrent_http_requests
        self._metrics = metrics
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope["path"] = route_path(scope)
        request_id = self._ids.of(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id
        # Not reset: the task is this request's (a WebSocket's) alone.
        REQUEST_ID.set(request_id)
        answer = _Answer(send, request_id.encode())
        if scope["type"] == "websocket":
            if (refusal := self._refusal(scope)) is not None:
                await refuse(refusal, scope, receive, answer.send)
            else:
                with suppress(ClientDisconnect):
                    await self._app(scope, receive, answer.send)
            return
        if scope["method"] == "HEAD" and not scope["path"].startswith(_TAKING):
            # Answered as the GET: the server leaves the body out, by its own copy of the method.
            scope = {**scope, "method": "GET"}
        metrics, began_s = self._metrics, time.perf_counter()
        metrics.active += 1
        try:
            if (refusal := self._refusal(scope)) is not None:
                await refuse(refusal, scope, receive, answer.send)
            else:
                await self._serve(scope, receive, answer)
        finally:
            metrics.active -= 1
            metrics.body_bytes -= scope["state"].get("body_bytes", 0)
            metrics.answers[answer.status // 100] += 1
            metrics.seconds += time.perf_counter() - began_s
            if is_audited(scope):
                self._audit_log.add(scope, answer.status, request_id)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that comes too soon, or while too many are under way."""
        if self._limiter is not None:
            client = scope.get("client")
            wait_s = self._limiter.take(client[0] if client else "", time.monotonic())
            if wait_s > 0:
                response = error_response(429, "Too many requests, httpRequestsMaxPerSecond")
                response.headers["retry-after"] = str(math.ceil(wait_s))
                return response
        if 0 < self._requests_max < self._metrics.active:  # this one is counted
            response = error_response(503, "Too many requests at once, maxConcurrentHttpRequests")
            response.headers["retry-after"] = "1"
            return response
        return None

    async def _serve(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            logger.debug("the client left in the middle of its request")
        except Exception as error:
            if answer.status:
                raise  # half an answer is out: the connection is closed, and uvicorn logs why
            await refuse(response_of(error), scope, receive, answer.send)


class _Answer:
    """``send`` of one request: adds the id, remembers the status."""

    __slots__ = ("_id", "_send", "status")

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send = send
        self._id = request_id
        self.status = 0  # until the answer has begun

    async def send(self, message: Message) -> None:
        if message["type"] in _STARTS:
            self.status = message.get("status", 101)
            headers: list[Any] = [*message.get("headers", ()), (_HEADER, self._id)]
            message["headers"] = headers
        try:
            await self._send(message)
        except RuntimeError as error:
            # The protocol hears of the end some turns later.
            if str(error).endswith(_CLOSED):
                raise ClientDisconnect from None
            raise
