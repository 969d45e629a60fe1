"""The admin REST that pages are made from: routes of this process, or of any cluster by its URL.

Both answer alike, so pages don't know which one they use. In this process a route runs as the
visitor of the page: with his role, so by the same authorization, and nobody serializes a request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

import orjson
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware

from magnetar.broker.cluster.broker_client import BrokerCall, BrokerEndpoint
from magnetar.broker.errors import BrokerError
from magnetar.broker.http.errors import response_of
from magnetar.broker.http.middleware.audit import SAFE_METHODS

if TYPE_CHECKING:
    import httpx
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Scope

    from magnetar.broker.cluster.broker_client import BrokerClient, BrokerEndpoint

logger = logging.getLogger(__name__)

Query = Mapping[str, str | int | bool]
_WAIT_S: Final = 30.0
_SILENT_S: Final = 60.0
"""An answer that goes on has a sign of life every 15 s."""
_REDIRECTS_MAX: Final = 5


class AdminError(Exception):
    """A refusal, or no answer; ``str(error)`` is the reason."""

    def __init__(self, status: int, reason: str, asked: str = "", request_id: str = "") -> None:
        """
        Args:
            asked: method and path of the call.
            request_id: by which the broker's log knows it; empty: the broker gave none.
        """
        super().__init__(reason)
        self.status, self.asked, self.request_id = status, asked, request_id


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

    def stream(
        self, path: str, query: Query | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The answer of a GET that goes on, by pieces as they come.

        Raises:
            AdminError: as ``call``; from the pieces too, when it breaks off.
        """
        raise AdminError(501, "answers that go on are not read here")

    def at(self, broker: str) -> AdminApi:
        """The same access at another broker of the cluster.

        Args:
            broker: ``host:port``, as the cluster names it: credentials go there.
        """
        return self


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
        scope = self._scope(method, path, encoded, bool(content))
        try:
            await AsyncExitStackMiddleware(self._app.router)(scope, answer.receive, answer.send)
        except Exception as error:  # as the layers around the router do it
            response = response_of(error)
            answer.status, answer.headers = response.status_code, dict(response.raw_headers)
            answer.content = bytes(response.body)
        if answer.status == 307:  # the other broker keeps the audit line
            location = answer.headers[b"location"].decode()
            return await self._ask_owner(location, BrokerCall(method, path, encoded, body))
        request_id = scope["state"].get("request_id", "")
        if method not in SAFE_METHODS:
            self._app.state.audit_log.add(scope, answer.status, request_id)
        return _value(answer.status, answer.content, f"{method} {path}", request_id)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        encoded, answer = _encoded(query), _Pieces()
        scope = self._scope("GET", path, encoded, has_body=False)
        task = asyncio.create_task(answer.run(self._app.router, scope))
        try:
            await answer.started.wait()
            if answer.status == 307:
                location = answer.headers[b"location"].decode()
                async with self._stream_of_owner(
                    location, BrokerCall("GET", path, encoded)
                ) as found:
                    yield found
                return
            if answer.status >= 400:
                content = b"".join([piece async for piece in answer.pieces()])
                _value(answer.status, content, f"GET {path}", scope["state"].get("request_id", ""))
            yield answer.pieces()
        finally:
            task.cancel()
            await asyncio.wait((task,))

    @asynccontextmanager
    async def _stream_of_owner(
        self, location: str, call: BrokerCall
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        peers: BrokerClient = self._app.state.service.broker_client
        try:
            owner = await self._owner_at(location)
            async with peers.stream(owner, call, _SILENT_S) as pieces:
                yield pieces
        except BrokerError as error:
            raise AdminError(error.http_status, str(error)) from error

    def at(self, broker: str) -> AdminApi:
        return self if broker == self._app.state.service.broker_id else _PeerApi(self._app, broker)

    def _scope(self, method: str, path: str, query: str, has_body: bool) -> Scope:
        kept = ("app", "client", "server", "scheme", "http_version", "root_path")
        # By this version, answers in pieces don't listen beside their sending.
        asgi = {"version": "3.0", "spec_version": "2.4"}
        scope = {name: self._visitor[name] for name in kept if name in self._visitor}
        headers = [(b"content-type", b"application/json")] if has_body else []
        return scope | {
            "type": "http",
            "asgi": asgi,
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "state": dict(self._visitor.get("state", {})),
        }

    async def _ask_owner(self, location: str, call: BrokerCall) -> Any:
        """Another broker has the topic; it is asked in the visitor's name."""
        peers: BrokerClient = self._app.state.service.broker_client
        try:
            return await peers.ask(await self._owner_at(location), call)
        except BrokerError as error:
            asked = f"{call.method} {location}"
            raise AdminError(error.http_status, str(error), asked) from error

    async def _owner_at(self, location: str) -> BrokerEndpoint:
        """Raises AdminError, ServiceNotReadyError."""
        peers: BrokerClient = self._app.state.service.broker_client
        if (owner := await peers.at(location)) is None:
            raise AdminError(503, "the topic is just changing its broker: ask again")
        return replace(owner, is_chosen="authoritative=true" in urlsplit(location).query)


class _PeerApi(AdminApi):
    """Another broker, asked by this one in the visitor's name."""

    def __init__(self, app: Any, broker: str) -> None:
        self._app, self._broker = app, broker

    async def call(
        self, method: str, path: str, query: Query | None = None, body: Any = None
    ) -> Any:
        service, asked = self._app.state.service, f"{method} {path} at {self._broker}"
        try:
            if (found := await service.cluster_members.find(self._broker)) is None:
                raise AdminError(404, f"there is no broker {self._broker}", asked)
            call = BrokerCall(method, path, _encoded(query), body)
            return await service.broker_client.ask(BrokerEndpoint.of(found), call)
        except BrokerError as error:
            raise AdminError(error.http_status, str(error), asked) from error

    def at(self, broker: str) -> AdminApi:
        return _PeerApi(self._app, broker)


class _Answer:
    """What a route sends, collected."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._is_read = False
        self.status, self.content = 500, b""
        self.headers: dict[bytes, bytes] = {}

    async def receive(self) -> Message:
        """The body; whoever asks on wants to know when the client leaves, which it doesn't."""
        if self._is_read:
            await asyncio.Event().wait()
        self._is_read = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.content += message.get("body", b"")


class _Pieces:
    """What a route sends, piece by piece: the route waits until one was taken."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.status = 500
        self.headers: dict[bytes, bytes] = {}
        self._pieces = asyncio.Queue[bytes | None](maxsize=1)

    async def run(self, router: ASGIApp, scope: Scope) -> None:
        try:
            await AsyncExitStackMiddleware(router)(scope, self._receive, self._send)
        except Exception as error:
            if self.started.is_set():
                logger.warning("an answer of %s broke off: %s", scope["path"], error)
            else:
                await response_of(error)(scope, self._receive, self._send)
        await self._pieces.put(None)

    async def _receive(self) -> Message:
        """Nothing: it doesn't leave before the task is cancelled."""
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            self.started.set()
        elif message.get("body"):
            await self._pieces.put(bytes(message["body"]))

    async def pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece


class RemoteApi:
    """A cluster by the URL of its web service, asked with fixed credentials."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, headers: Callable[[], Mapping[str, str]]
    ) -> None:
        """
        Args:
            url: of the web service, without a slash at its end.
            headers: of the credentials, which may change.
        """
        self._client, self._url, self._headers = client, url, headers

    def at(self, broker: str) -> AdminApi:
        scheme = urlsplit(self._url).scheme
        return RemoteApi(self._client, f"{scheme}://{broker}", self._headers)

    async def call(
        self, method: str, path: str, query: Query | None = None, body: Any = None
    ) -> Any:
        content = None if body is None else orjson.dumps(body)
        return _value_of(await self._answer(method, path, query, content), method)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        answer = await self._answer("GET", path, query, None, is_stream=True)
        try:
            if answer.status_code >= 400:
                await answer.aread()
                _value_of(answer, "GET")
            yield self._pieces(answer)
        finally:
            await answer.aclose()

    async def _pieces(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        import httpx

        try:
            async for piece in answer.aiter_raw():
                yield piece
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise AdminError(503, f"{self._url} has left: {what}") from error

    async def _answer(
        self,
        method: str,
        path: str,
        query: Query | None,
        content: bytes | None,
        *,
        is_stream: bool = False,
    ) -> httpx.Response:
        """From the broker that the call is sent to. Raises AdminError: none."""
        encoded = _encoded(query)
        url = self._url + path + (f"?{encoded}" if encoded else "")
        for _ in range(_REDIRECTS_MAX):
            answer = await self._send(method, url, content, is_stream=is_stream)
            if answer.status_code != 307:
                return answer
            await answer.aclose()
            url = _sent_on(answer.headers.get("location", ""), path, url)
        raise AdminError(503, f"{self._url} sends {path} from broker to broker")

    async def _send(
        self, method: str, url: str, content: bytes | None, *, is_stream: bool
    ) -> httpx.Response:
        import httpx

        kind = {} if content is None else {"Content-Type": "application/json"}
        headers = {"Accept": "application/json", **self._headers(), **kind}
        client, wait_s = self._client, _SILENT_S if is_stream else _WAIT_S
        request = client.build_request(
            method, url, content=content, headers=headers, timeout=wait_s
        )
        try:
            return await client.send(request, stream=is_stream)
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            asked = f"{method} {urlsplit(url).path}"
            raise AdminError(503, f"{self._url} has not answered: {what}", asked) from error


def _value_of(answer: httpx.Response, method: str) -> Any:
    """Raises AdminError: it is a refusal."""
    request_id = answer.headers.get("x-request-id", "")
    return _value(answer.status_code, answer.content, f"{method} {answer.url.path}", request_id)


def _sent_on(location: str, path: str, before: str) -> str:
    """Where credentials may go along to: the same call at another broker, and TLS is never left.

    Raises:
        AdminError: anything else.
    """
    try:
        at = urlsplit(location)
    except ValueError as error:
        raise AdminError(502, f"{before} sends the call to no URL: {error}") from error
    is_ours = at.path == path and at.hostname and "@" not in at.netloc
    if (
        not is_ours
        or at.scheme not in ("http", "https")
        or (before.startswith("https:") and at.scheme != "https")
    ):
        raise AdminError(502, f"{before} sends the call to {location}, which is another one")
    return location


def _encoded(query: Query | None) -> str:
    given = (query or {}).items()
    return urlencode({name: _word(value) for name, value in given})


def _word(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(status: int, content: bytes, asked: str, request_id: str) -> Any:
    """JSON is read whatever its type is called: Pulsar sends some of it as text."""
    try:
        value = orjson.loads(content) if content else None
    except orjson.JSONDecodeError:
        value = content.decode(errors="replace")
    if status < 400:
        return value
    reason = value.get("reason") if isinstance(value, dict) else None
    raise AdminError(status, reason or f"the broker answers {status}", asked, request_id)
