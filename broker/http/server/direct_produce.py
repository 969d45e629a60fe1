"""REST produce past the application: of calls by clients that are known and may do so, which wait
for nothing but the storage.

Such a call costs three quarters of what it costs through the layers. Everything else (another
route, a topic that isn't loaded here, web pages of other sites, what is refused or wrong) is left
to the application, which then begins with an untouched request. So only results of messages are
told here.
"""

from __future__ import annotations

import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, cast

import orjson

from magnetar.broker.auth.authorization import NOBODY, Permission, Resource
from magnetar.broker.http.dependencies import make_topic_name
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging.rest_produce import SCHEMA_FIELDS, parse_messages
from magnetar.broker.http.middleware.origin_settings import site_check
from magnetar.broker.http.middleware.request_context import RequestIds
from magnetar.broker.protocol.messages import HEAVY_BYTES

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import Scope

    from magnetar.broker.config import BrokerConfig
    from magnetar.broker.http.messaging.rest_produce import RestPublishers
    from magnetar.broker.http.middleware.authentication import RequestAuthentication
    from magnetar.broker.http.middleware.rate_limit import AddressLimiter
    from magnetar.broker.http.middleware.request_context import HttpMetrics
    from magnetar.broker.http.server.request_cycle import RequestCycle
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.access_control import AccessControl

_PATH: Final = b"/topics/"
_PRODUCE: Final = Permission.PRODUCE
_OF_PAGES: Final = frozenset({b"origin", b"sec-fetch-site"})
"""Headers of browsers: CORS and what a visitor's credentials are good for is decided by layers."""


class DirectProduce:
    def __init__(self, app: Starlette, config: BrokerConfig) -> None:
        self._state = app.state
        self._metrics: HttpMetrics = app.state.http_figures
        self._limiter: AddressLimiter | None = app.state.request_limiter
        self._authentication: RequestAuthentication | None = app.state.authentication
        self._ids = RequestIds()
        self._sites = site_check(config)
        self._requests_max = config.max_concurrent_http_requests
        self._body_bytes_max = HEAVY_BYTES
        if config.http_max_request_size >= 0:
            self._body_bytes_max = min(HEAVY_BYTES, config.http_max_request_size)

    def awaits(self, cycle: RequestCycle) -> bool:
        """Whether the rest of a request's body may make it one that ``take`` takes: many clients
        write head and body by themselves."""
        if not _may_be_taken(cycle):
            return False
        length = dict(cycle.scope["headers"]).get(b"content-length", b"")
        return length.isdigit() and int(length) <= self._body_bytes_max

    def take(self, cycle: RequestCycle) -> bool:
        """Publish what a request brings, and answer it later; False: it is the application's."""
        if cycle.more_body or not _may_be_taken(cycle) or cycle.flow.write_paused:
            return False
        began_s = time.perf_counter()
        scope, metrics = cast("Scope", cycle.scope), self._metrics
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if (
            headers.get(b"content-type") != b"application/json"
            or scope["query_string"]
            or len(cycle.body) > self._body_bytes_max
            or 0 < self._requests_max <= metrics.active
            or (topic := _topic(scope["raw_path"])) is None
            or not headers.keys().isdisjoint(_OF_PAGES)
            or self._sites.refusal("POST", scope["headers"]) is not None
            or (method := self._authorized_by(scope, topic)) is None
        ):
            return False
        try:
            body = orjson.loads(cycle.body)
            producer_name, messages = parse_messages(body)
        except (orjson.JSONDecodeError, ApiError):
            return False
        publishers: RestPublishers = self._state.rest_publishers
        if (
            body.keys() & SCHEMA_FIELDS
            or (publisher := publishers.borrow(topic, producer_name)) is None
        ):
            return False
        if self._limiter is not None:
            address = (scope["client"] or ("",))[0]
            if self._limiter.take(address, time.monotonic()) > 0:
                publishers.give_back(publisher)
                return False
        now_ms = self._state.service.wall_clock()
        answer = partial(self._answer, cycle, began_s)
        publishers.produce_nowait(publisher, messages, now_ms, answer)
        metrics.active += 1
        if self._authentication is not None:
            self._authentication.authenticator.success(method)
        return True

    def _authorized_by(self, scope: Scope, topic: TopicName) -> str | None:
        """By which method the client has shown that it may publish; None: it may not, or the layers
        have to find out."""
        caller, method = NOBODY, "none"
        if self._authentication is not None:
            if (found := self._authentication.caller_nowait(scope)) is None:
                return None
            method, caller = found
        access: AccessControl | None = self._state.access
        if access is None or access.may_nowait(caller, _PRODUCE, Resource.of_topic(topic)):
            return method
        return None

    def _answer(self, cycle: RequestCycle, began_s: float, text: str) -> None:
        metrics = self._metrics
        metrics.active -= 1
        metrics.answers[2] += 1
        metrics.seconds += time.perf_counter() - began_s
        if cycle.disconnected or cycle.transport.is_closing():
            return
        body, request_id = text.encode(), self._ids.of(cycle.scope["headers"])
        last = "" if cycle.keep_alive else "connection: close\r\n"
        head = (
            f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\ncontent-type: application/json\r\n"
            f"x-request-id: {request_id}\r\n{last}\r\n"
        )
        cycle.write_whole(head.encode() + body)


def _may_be_taken(cycle: RequestCycle) -> bool:
    scope = cycle.scope
    return (
        scope["method"] == "POST"
        and scope["raw_path"].startswith(_PATH)
        and not cycle.waiting_for_100_continue
    )


@lru_cache(1024)
def _topic(path: bytes) -> TopicName | None:
    """What a call publishes to; None: nothing, or a partition by its number."""
    parts = path.decode("latin-1").split("/")
    if len(parts) != 6:
        return None
    try:
        return make_topic_name(*parts[2:])
    except ApiError:
        return None
