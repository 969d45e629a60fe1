"""The admin REST that pages and `magnetar top` are made from: of any cluster, by its URL.

`local_api.py` asks the routes of this process. Both answer alike, so pages don't know which one
they use. `magnetar top` loads this module at each start: nothing of the server is imported here.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

import orjson

from magnetar.broker.console.formats import api_path

if TYPE_CHECKING:
    import httpx

Query = Mapping[str, str | int | bool]
_WAIT_S: Final = 30.0
SILENT_S: Final = 60.0
"""An answer that goes on has a sign of life every 15 s."""
_REDIRECTS_MAX: Final = 5
_JAVA_TRACE: Final = re.compile(r"\s*--- [^\n]* ---\s+Message: (.*?)\s+Stacktrace:\s", re.DOTALL)
"""What Pulsar's RestException makes of an exception that nobody has foreseen."""


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
        return _value_of(await self._answer(method, api_path(path), query, content), method)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        answer = await self._answer("GET", api_path(path), query, None, is_stream=True)
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
        encoded = query_text(query)
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
        client, wait_s = self._client, SILENT_S if is_stream else _WAIT_S
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
    return value_of(answer.status_code, answer.content, f"{method} {answer.url.path}", request_id)


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


def query_text(query: Query | None) -> str:
    given = (query or {}).items()
    return urlencode({name: _word(value) for name, value in given})


def _word(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def value_of(status: int, content: bytes, asked: str, request_id: str) -> Any:
    """JSON is read whatever its type is called: Pulsar sends some of it as text."""
    try:
        value = orjson.loads(content) if content else None
    except orjson.JSONDecodeError:
        value = content.decode(errors="replace")
    if status < 400:
        return value
    reason = (value.get("reason") if isinstance(value, dict) else None) or ""
    if (traced := _JAVA_TRACE.match(reason)) is not None:
        reason = traced[1]
    raise AdminError(status, reason or f"the broker answers {status}", asked, request_id)
