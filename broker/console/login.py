"""Login and logout of the console, for credentials that a person can type."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from starlette.responses import Response

from magnetar.broker.auth.errors import TooManyChecksError
from magnetar.broker.auth.provider_chain import Credentials
from magnetar.broker.console.console import Console, find_page
from magnetar.broker.console.form_fields import form_fields
from magnetar.broker.console.views import View
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.http.middleware.console_sessions import (
    CREDENTIALS_MAX,
    ConsoleSessions,
    set_cookie,
)
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from starlette.requests import Request

    from magnetar.broker.auth.authenticator import Authenticator

_HERE: Final = frozenset({"127.0.0.1", "::1"})


class Login:
    """Answers requests for ``login`` and ``logout``."""

    def __init__(
        self, console: Console, authenticator: Authenticator, sessions: ConsoleSessions
    ) -> None:
        self._console, self._authenticator, self._sessions = console, authenticator, sessions

    async def respond(self, request: Request) -> Response:
        """Raises MetadataError: brokers can't be told of it now."""
        if request.method == "POST" and request.scope["state"].get("is_foreign"):
            return Response("Another site's page", 403)
        if request.url.path.endswith("/logout"):
            await self._sessions.refresh()
            await self._sessions.close(request.scope)
            return _sent_to("login", request, "")
        if request.method == "GET":
            after = _page_after(request.query_params.get("next", ""))
            if await self._is_logged_in(request):  # in another tab
                return Response(status_code=303, headers={"Location": after or "./"})
            return await self._form(request, after)
        return await self._check(request)

    async def _is_logged_in(self, request: Request) -> bool:
        with suppress(MetadataError):
            await self._sessions.refresh()
        credentials = self._sessions.credentials(request.scope)
        if credentials is None:
            return False
        address = request.client.host if request.client else ""
        try:
            await self._authenticator.authenticate(credentials, address)
        except AuthenticationError:
            return False
        return True

    async def _check(self, request: Request) -> Response:
        fields = await form_fields(request)
        after = _page_after(fields.get("next", ""))
        credentials = _credentials(fields)
        if len(credentials.data) > CREDENTIALS_MAX:
            return await self._form(request, "", "This is too long.", 400)
        address = request.client.host if request.client else ""
        try:
            await self._authenticator.authenticate(credentials, address)
        except TooManyChecksError:
            return await self._form(request, after, "Too many logins at once: try again.", 503)
        except AuthenticationError as error:
            self._authenticator.refusal(address, "console", credentials.method, error)
            return await self._form(request, after, "These credentials are not accepted.", 401)
        self._authenticator.success(credentials.method)
        await self._sessions.refresh()
        await self._sessions.close(request.scope)
        return _sent_to(after or "./", request, self._sessions.open(credentials))

    async def _form(
        self, request: Request, after: str, failure: str = "", status: int = 200
    ) -> Response:
        client = request.client
        content = {
            "methods": [m for m in ("token", "basic") if m in self._authenticator.chain.methods],
            "after": after,
            "failure": failure,
            "is_plain": request.url.scheme != "https"
            and (client is None or client.host not in _HERE),
        }
        view = View("login.html", "Log in", "", content, status, live=0)
        return await self._console.page(request, view, "login")


def _credentials(fields: dict[str, str]) -> Credentials:
    if fields.get("user"):
        pair = f"{fields['user']}:{fields.get('password', '')}"
        return Credentials("basic", pair.encode())
    return Credentials("token", fields.get("token", "").strip().encode())


def _page_after(asked: str) -> str:
    """Where to go from the login: a page of ours, quoted; else the overview."""
    path, _, query = asked.partition("?")
    steps = unquote(path).split("/")
    if find_page(path) is None or "" in steps[:-1] or {".", ".."} & set(steps):
        return ""
    safe = "/%:@!$&'()*+,;=~"
    return quote(path, safe=safe) + (f"?{quote(query, safe=safe + '?')}" if query else "")


def _sent_to(place: str, request: Request, cookie: str) -> Response:
    response = Response(status_code=303, headers={"Location": place})
    response.raw_headers += set_cookie(request.scope, cookie)
    return response
