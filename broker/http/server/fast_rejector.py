"""Answers to unauthenticated clients' requests without a connection of uvicorn's, a task and the
layers.

Only for requests of the plainest form, and only with the answer that the layers would give: what is
anything else than a whole GET that is refused at once is left to them.
"""

from __future__ import annotations

import itertools
import re
import secrets
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from magnetar.broker.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.applications import Starlette
    from starlette.responses import Response

    from magnetar.broker.auth.provider_chain import Credentials
    from magnetar.broker.config import BrokerConfig
    from magnetar.broker.http.middleware.authentication import RequestAuthentication
    from magnetar.broker.http.middleware.request_context import HttpMetrics

HEAD_BYTES_MAX: Final = 4096
_HEADERS_MAX: Final = 50
"""Half of what is too many for the layers."""
_REQUEST: Final = re.compile(
    rb"GET (/[!\"$-~]*) HTTP/1\.1\r\n((?:[!#-'*+.0-9A-Z^-z|~-]+:[ -~]*\r\n)*)\r\n"
)
_PLAIN: Final = frozenset(
    {
        *(b"host", b"accept", b"accept-encoding", b"accept-language", b"user-agent"),
        *(b"authorization", b"connection", b"cache-control", b"pragma"),
    }
)
"""Other headers may change what is to be done: bodies, upgrades, other origins, proxies."""
_CONNECTION: Final = frozenset({b"keep-alive", b"close", b""})


PendingAuth: TypeAlias = "Callable[[], Awaitable[bytes | None]]"
"""Answers a request whose credentials take a while to be checked, as ``FastRejector.answer``."""


class FastRejector:
    def __init__(self, authentication: RequestAuthentication, metrics: HttpMetrics) -> None:
        """
        Args:
            authentication: decides, as it does for all other requests.
            metrics: of the web server; refusals here count, too.
        """
        self._authentication = authentication
        self._metrics = metrics
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        # By the kind of refusal: status, and the answer around the number of the request
        self._known: dict[type[BrokerError], tuple[int, bytes, bytes]] = {}

    def answer(self, words: bytes, ip: str, port: int) -> bytes | PendingAuth | None:
        """The whole answer to ``words``; None: the layers have to look at them."""
        if len(words) > HEAD_BYTES_MAX or (match := _REQUEST.fullmatch(words)) is None:
            return None
        headers: list[tuple[bytes, bytes]] = []
        lines = match[2].split(b"\r\n")[:-1]
        if len(lines) > _HEADERS_MAX:
            return None
        for line in lines:
            name, _, value = line.partition(b":")
            name, value = name.lower(), value.strip(b" ")
            if name not in _PLAIN or (name == b"connection" and value.lower() not in _CONNECTION):
                return None
            headers.append((name, value))
        path, _, query = match[1].partition(b"?")
        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": path.decode(),
            "raw_path": path,
            "query_string": query,
            "headers": headers,
            "client": (ip, port),
            "state": {},
        }
        found = self._authentication.refuse_nowait(scope)
        if found is None:
            return None
        if isinstance(found, BrokerError):
            return self._encode(found)
        return partial(self._resolve, scope, found)

    async def _resolve(self, scope: dict[str, Any], credentials: Credentials) -> bytes | None:
        error = await self._authentication.refuse_later(scope, credentials)
        return None if error is None else self._encode(error)

    def _encode(self, error: BrokerError) -> bytes:
        if (known := self._known.get(type(error))) is None:
            # Plain requests name no method, the one thing that an answer could repeat.
            known = self._known[type(error)] = self._parts(self._authentication.answer(error))
        status, before, behind = known
        self._metrics.answers[status // 100] += 1
        return b"%s%x%s" % (before, next(self._numbers), behind)

    def _parts(self, response: Response) -> tuple[int, bytes, bytes]:
        status = HTTPStatus(response.status_code)
        lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
        lines += [b"%s: %s" % header for header in response.raw_headers]
        lines.append(b"x-request-id: %s-" % self._prefix.encode())
        rest = [b"", b"connection: close", b"", bytes(response.body)]
        return response.status_code, b"\r\n".join(lines), b"\r\n".join(rest)


def fast_rejector(app: Starlette, config: BrokerConfig) -> FastRejector | None:
    """None: other layers have to see every request."""
    authentication = app.state.authentication
    is_counted = config.http_requests_limit_enabled or config.max_concurrent_http_requests > 0
    if authentication is None or is_counted or config.cors_allowed_origins:
        return None
    return FastRejector(authentication, app.state.http_figures)
