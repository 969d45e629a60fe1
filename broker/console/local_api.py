"""The admin REST of this process, that pages of a broker's own console are made from.

A route runs as the visitor of the page: with his role, so by the same authorization, and nobody
serializes a request.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Scope

from magnetar.broker.cluster.broker_client import BrokerCall, BrokerClient, BrokerEndpoint
from magnetar.broker.console.admin_api import (
    SILENT_S,
    AdminApi,
    AdminError,
    Query,
    query_text,
    value_of,
)
from magnetar.broker.console.formats import api_path
from magnetar.broker.errors import BrokerError
from magnetar.broker.http.errors import response_of
from magnetar.broker.http.middleware.audit import is_audited
from magnetar.broker.http.streamed_answers import TAKEN
from magnetar.metadata.loop_turns import next_turn

logger = logging.getLogger(__name__)

_READ_S: Final = 8.0
"""A page waits so long for what another broker has: a step of a search in messages takes five."""


def _until_s(call: BrokerCall) -> float | None:
    """Loop time until which a page waits; None: as long as calls do, for what changes something."""
    return asyncio.get_running_loop().time() + _READ_S if call.method == "GET" else None


class LocalApi:
    """Routes of this process, asked as whoever sent a request."""

    def __init__(self, request: Request) -> None:
        self._app = request.scope["app"]
        self._visitor, self._receive = request.scope, request.receive

    async def call(
        self, method: str, path: str, query: Query | None = None, body: Any = None
    ) -> Any:
        await next_turn()  # a page asks for ten things at once
        path, encoded = api_path(path), query_text(query)
        content = b"" if body is None else orjson.dumps(body)
        answer = _Answer(content, self._left)
        scope = self._scope(method, path, encoded, bool(content))
        taken = scope["state"][TAKEN] = list[Any]()
        try:
            await self._app.serve(scope, answer.receive, answer.send)
        except ClientDisconnect:
            raise
        except Exception as error:  # an answer that broke off
            response = response_of(error)
            answer.status, answer.headers = response.status_code, dict(response.raw_headers)
            answer.content = bytes(response.body)
        if answer.status == 307:  # the other broker keeps the audit line
            location = answer.headers[b"location"].decode()
            return await self._ask_owner(location, BrokerCall(method, path, encoded, body))
        request_id = scope["state"].get("request_id", "")
        if is_audited(scope):
            self._app.state.audit_log.add(scope, answer.status, request_id)
        if taken:
            return taken[0]
        return value_of(answer.status, answer.content, f"{method} {path}", request_id)

    async def _left(self) -> Message:
        """Once the visitor's browser is gone."""
        while (message := await self._receive())["type"] != "http.disconnect":
            pass
        return message

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        path, encoded, answer = api_path(path), query_text(query), _Pieces()
        scope = self._scope("GET", path, encoded, has_body=False)
        task = asyncio.create_task(answer.run(self._app.serve, scope))
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
                request_id = scope["state"].get("request_id", "")
                value_of(answer.status, content, f"GET {path}", request_id)
            yield answer.pieces()
        finally:
            task.cancel()
            await asyncio.wait((task,))
            if is_audited(scope):
                request_id = scope["state"].get("request_id", "")
                self._app.state.audit_log.add(scope, answer.status, request_id)

    @asynccontextmanager
    async def _stream_of_owner(
        self, location: str, call: BrokerCall
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        peers: BrokerClient = self._app.state.service.broker_client
        try:
            owner = await self._owner_at(location)
            async with peers.stream(owner, call, SILENT_S) as pieces:
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
            return await peers.ask(await self._owner_at(location), call, until_s=_until_s(call))
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
        path, service = api_path(path), self._app.state.service
        asked = f"{method} {path} at {self._broker}"
        try:
            if (found := await service.cluster_members.find(self._broker)) is None:
                raise AdminError(404, f"there is no broker {self._broker}", asked)
            call = BrokerCall(method, path, query_text(query), body)
            peer = BrokerEndpoint.of(found)
            return await service.broker_client.ask(peer, call, until_s=_until_s(call))
        except BrokerError as error:
            raise AdminError(error.http_status, str(error), asked) from error

    def at(self, broker: str) -> AdminApi:
        return _PeerApi(self._app, broker)


class _Answer:
    """What a route sends, collected."""

    def __init__(self, body: bytes, left: Callable[[], Awaitable[Message]]) -> None:
        self._body, self._left = body, left
        self._is_read = False
        self.status, self.content = 500, b""
        self.headers: dict[bytes, bytes] = {}

    async def receive(self) -> Message:
        """The body; whoever asks on wants to know when the client leaves."""
        if self._is_read:
            return await self._left()
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

    async def run(self, serve: ASGIApp, scope: Scope) -> None:
        try:
            await serve(scope, self._receive, self._send)
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
