"""The admin REST that pages are made from: routes of this process, or of any cluster by its URL.

Both answer alike, so pages don't know which one they use. In this process a route runs as the
visitor of the page: with his role, so by the same authorization, and nobody serializes a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

import orjson
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware

from magnetar.broker.cluster.broker_client import BrokerCall, BrokerEndpoint
from magnetar.broker.errors import BrokerError
from magnetar.broker.http.errors import response_of

if TYPE_CHECKING:
    import httpx
    from starlette.requests import Request
    from starlette.types import Message, Scope

Query = Mapping[str, str | int | bool]
_WAIT_S: Final = 30.0


class AdminError(Exception):
    """A refusal, or no answer; ``str(error)`` is the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class AdminApi(Protocol):
    """What pages ask."""

    async def call(
        self, method: str, path: str, query: Query | None = None, body: Any = None
    ) -> Any:
        """The JSON of the answer; its text if it is no JSON; None if it is empty.

        Args:
            path: from the root, percent-encoded.
        Raises:
            AdminError: an answer of 400 and above, or none (503).
        """
        ...


async def get(api: AdminApi, path: str, **query: str | int | bool) -> Any:
    """``api.call`` of a GET below ``/admin/v2``. Raises AdminError."""
    return await api.call("GET", f"/admin/v2/{path}", query)


class LocalApi:
    """Routes of this process, asked as whoever sent a request."""

    def __init__(self, request: Request) -> None:
        self._app = request.scope["app"]
        self._visitor = request.scope

    async def call(
        self, method: str, path: str, query: Query | None = None, body: Any = None
    ) -> Any:
        encoded = _encoded(query)
        content = b"" if body is None else orjson.dumps(body)
        answer = _Answer(content)
        try:
            scope = self._scope(method, path, encoded, bool(content))
            await AsyncExitStackMiddleware(self._app.router)(scope, answer.receive, answer.send)
        except Exception as error:  # as the layers around the router do it
            response = response_of(error)
            answer.status, answer.headers = response.status_code, dict(response.raw_headers)
            answer.content = bytes(response.body)
        if answer.status == 307:
            location = answer.headers[b"location"].decode()
            return await self._ask_owner(location, BrokerCall(method, path, encoded, body))
        return _value(answer.status, answer.content)

    def _scope(self, method: str, path: str, query: str, has_body: bool) -> Scope:
        kept = ("app", "client", "server", "scheme", "http_version", "root_path", "asgi")
        scope = {name: self._visitor[name] for name in kept if name in self._visitor}
        headers = [(b"content-type", b"application/json")] if has_body else []
        return scope | {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "state": dict(self._visitor.get("state", {})),
        }

    async def _ask_owner(self, location: str, call: BrokerCall) -> Any:
        """Another broker has the topic; it is asked in the visitor's name."""
        at = urlsplit(location)
        url = f"{at.scheme}://{at.netloc}"
        is_tls = at.scheme == "https"
        owner = BrokerEndpoint(None if is_tls else url, url if is_tls else None, is_chosen=True)
        try:
            return await self._app.state.service.broker_client.ask(owner, call)
        except BrokerError as error:
            raise AdminError(error.http_status, str(error)) from error


class _Answer:
    """What a route sends, collected."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.status, self.content = 500, b""
        self.headers: dict[bytes, bytes] = {}

    async def receive(self) -> Message:
        body, self._body = self._body, b""
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.content += message.get("body", b"")


class RemoteApi:
    """A cluster by the URL of its web service, asked with fixed credentials."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        """
        Args:
            client: with ``base_url`` and the headers of its credentials.
        """
        self._client = client

    async def call(
        self, method: str, path: str, query: Query | None = None, body: Any = None
    ) -> Any:
        import httpx

        content = None if body is None else orjson.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        encoded = _encoded(query)
        url = path + (f"?{encoded}" if encoded else "")
        try:
            answer = await self._client.request(
                method, url, content=content, headers=headers, timeout=_WAIT_S
            )
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise AdminError(503, f"{self._client.base_url} has not answered: {what}") from error
        return _value(answer.status_code, answer.content)


def _encoded(query: Query | None) -> str:
    given = (query or {}).items()
    return urlencode({name: _word(value) for name, value in given})


def _word(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(status: int, content: bytes) -> Any:
    """JSON is read whatever its type is called: Pulsar sends some of it as text."""
    try:
        value = orjson.loads(content) if content else None
    except orjson.JSONDecodeError:
        value = content.decode(errors="replace")
    if status < 400:
        return value
    reason = value.get("reason") if isinstance(value, dict) else None
    raise AdminError(status, reason or f"the broker answers {status}")
