"""Who sends a request: the layer in front of all routes while authentication is enabled.

Sets ``scope["state"]["role"]``, for a proxy also ``["original_role"]``; ``["login"]`` is the method
with the end of what was shown, in seconds since 1970. Whether that role may do
what it asks is decided later (route_permissions.py). Refusals:
AuthenticationService.authenticateHttpRequest; unlike there, credentials that are wrong are refused
also where showing none would be good enough.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlencode

from starlette.responses import RedirectResponse

from magnetar.broker.auth.authorization import Caller
from magnetar.broker.auth.errors import TooManyChecksError
from magnetar.broker.auth.provider import BUSY, REFUSED
from magnetar.broker.auth.provider_chain import Credentials
from magnetar.broker.cluster.broker_client import CALLER
from magnetar.broker.errors import AuthenticationError, BrokerError
from magnetar.broker.http.errors import error_response, refuse
from magnetar.broker.http.middleware.authenticated_requests import AuthenticatedRequest
from magnetar.broker.http.middleware.console_sessions import (
    CONSOLE,
    LOGIN,
    LOGOUT,
    is_console,
    set_cookie,
)
from magnetar.broker.http.middleware.origin_middleware import may_last
from magnetar.broker.http.middleware.raw_path import route_path
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from magnetar.broker.auth.authenticator import Authenticator
    from magnetar.broker.http.middleware.console_sessions import ConsoleSessions

_REQUIRED: Final = "Authentication required"
_OPEN: Final = frozenset(
    {"/", "/livez", "/readyz", "/status.html", "/ready", "/openapi.json", "/docs", LOGIN}
)
"""For everybody: liveness, the console's login, and what tells nothing of this broker."""
_OPEN_FILES: Final = ("/docs/", f"{CONSOLE}/static/")
_SCHEMES: Final = {"token": "Bearer", "basic": "Basic"}
_AMBIENT: Final = frozenset({"tls", "basic"})
"""Methods whose credentials browsers show by themselves: not for pages of every site
(origin_middleware.py)."""


class RequestAuthentication:
    """Finds out who sends a request, for the layer and for what answers without the layers.

    A credential that was seen in the last minute costs some microseconds.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        metrics_too: bool = False,
        sessions: ConsoleSessions | None = None,
    ) -> None:
        """
        Args:
            metrics_too: /metrics needs credentials as well.
            sessions: of the console; None: it isn't served.
        """
        self.authenticator = authenticator
        self.sessions = sessions
        self._open = _OPEN if metrics_too else _OPEN | {"/metrics"}
        schemes = [_SCHEMES[method] for method in authenticator.chain.methods if method in _SCHEMES]
        self._challenges = [
            (b"www-authenticate", f'{scheme} realm="magnetar"'.encode()) for scheme in schemes
        ]

    def caller_nowait(self, scope: Scope) -> tuple[str, Caller] | None:
        """The method, and who sends an HTTP request; None: that takes longer, or it is refused.
        Nothing is noted or counted."""
        chain = self.authenticator.chain
        try:
            headers = _headers(scope)
            credentials = self.credentials(scope, headers)
            if (principal := self.authenticator.authenticate_nowait(credentials)) is None:
                return None
            named = headers.get(b"x-original-principal")
            original = chain.check_original(principal.role, named, same_is_good=True)
        except BrokerError:
            return None
        return credentials.method, Caller(principal.role, original)

    def refuse_nowait(self, scope: Scope) -> BrokerError | Credentials | None:
        """Why an HTTP request is refused whatever it asks for; noted and counted.

        Credentials: their check takes longer, ``refuse_later`` can tell. None: there is more to ask
        about it, in the usual way.
        """
        if self.is_open(scope) or (self.sessions is not None and is_console(scope)):
            return None
        authenticator, method = self.authenticator, "?"
        host, port = scope["client"]
        try:
            credentials = self.credentials(scope, _headers(scope))
            method = credentials.method
            principal = authenticator.authenticate_or_wait(credentials, host)
        except BrokerError as error:
            authenticator.refusal(f"{host}:{port}", scope["type"], method, error)
            return error
        return credentials if principal is None else None

    async def refuse_later(self, scope: Scope, credentials: Credentials) -> BrokerError | None:
        """The same, however long the check takes. None: they are good, and that is remembered."""
        host, port = scope["client"]
        try:
            await self.authenticator.authenticate(credentials, host)
        except BrokerError as error:
            self.authenticator.refusal(f"{host}:{port}", scope["type"], credentials.method, error)
            return error
        return None

    def is_open(self, scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        path = route_path(scope)
        if scope["method"] not in ("GET", "HEAD"):
            return path in (LOGIN, LOGOUT)
        return path in self._open or path.startswith(_OPEN_FILES)

    def credentials(self, scope: Scope, headers: dict[bytes, str]) -> Credentials:
        """The credentials of the request; of several things the one that its sender names first.

        Raises:
            AuthenticationError: a method that isn't configured, or a header that makes no sense.
        """
        certificate: bytes | None = scope["state"].get("client_certificate")
        methods = self.authenticator.chain.methods
        named = headers.get(b"x-pulsar-auth-method-name")
        if named is not None and named not in methods:
            raise _UnsupportedMethodError(named)
        scheme, _, value = headers.get(b"authorization", "").partition(" ")
        for method in (named,) if named is not None else methods:
            if method == "token" and scheme.lower() == "bearer":
                return Credentials("token", value.strip().encode("latin-1"))
            if method == "basic" and scheme.lower() == "basic":
                return Credentials("basic", _decoded(value))
            if method == "token" and not scheme and scope["type"] == "websocket":
                query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
                if token := query.get("token"):
                    return Credentials("token", token[0].encode("latin-1", "replace"))
            if method == "tls" and certificate is not None:
                return Credentials("tls", certificate=certificate)
        kept = None if scheme or self.sessions is None else self.sessions.credentials(scope)
        if kept is not None:
            return kept
        if scheme or named is not None:
            raise AuthenticationError("an Authorization header of no configured method")
        return Credentials("none")

    def answer(self, error: BrokerError, *, is_websocket: bool = False) -> Response:
        """The answer to a client that was refused for that."""
        if isinstance(error, _CrossSiteError):
            return error_response(403, "Another site's page (corsAllowedOrigins)")
        if isinstance(error, TooManyChecksError):  # nothing is said about the credentials
            response = error_response(503, BUSY)
            response.headers["retry-after"] = "1"
            return response
        reason = REFUSED if is_websocket else _REQUIRED
        if isinstance(error, _UnsupportedMethodError):
            reason = str(error)
        response = error_response(401, reason)
        response.raw_headers.extend(self._challenges)
        return response


class AuthenticationMiddleware:
    """Pure ASGI."""

    def __init__(
        self, app: ASGIApp, authentication: RequestAuthentication, grace_s: float = 0.0
    ) -> None:
        """``grace_s``: how long what goes on may outlast its credentials."""
        self._app = app
        self._authentication = authentication
        self._grace_s = grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._authentication.is_open(scope):
            await self._app(scope, receive, send)
            return
        authentication = self._authentication
        authenticator, sessions = authentication.authenticator, authentication.sessions
        method = "?"
        if sessions is not None and is_console(scope):
            with suppress(MetadataError):  # without the key there are no sessions
                await sessions.refresh()
        try:
            headers = _headers(scope)
            credentials = authentication.credentials(scope, headers)
            method = credentials.method
            if method in _AMBIENT and scope["state"].get("is_foreign"):
                raise _CrossSiteError("another site's page asks with its visitor's credentials")
            principal = authenticator.authenticate_nowait(credentials)
            if principal is None:
                client = scope.get("client")
                address = client[0] if client else ""
                principal = await authenticator.authenticate(credentials, address)
            original = authenticator.chain.check_original(
                principal.role, headers.get(b"x-original-principal"), same_is_good=True
            )
        except BrokerError as error:
            client = scope.get("client")
            address = f"{client[0]}:{client[1]}" if client else "unknown"
            authenticator.refusal(address, scope["type"], method, error)
            await self._refuse(error, scope, receive, send)
            return
        authenticator.success(method)
        state = scope["state"]
        state["role"] = principal.role
        state["login"] = method, principal.expires_at_s
        if original is not None:
            state["original_role"] = original
        CALLER.set(principal.role if original is None else original)
        if (renewed := state.get("console_cookie")) is not None:
            send = _sending(send, set_cookie(scope, renewed))
        if may_last(scope):
            live = AuthenticatedRequest(authenticator, credentials, principal, self._grace_s)
            await live.serve(self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _refuse(self, error: BrokerError, scope: Scope, receive: Receive, send: Send) -> None:
        is_websocket = scope["type"] == "websocket"
        response = self._authentication.answer(error, is_websocket=is_websocket)
        shows_console = self._authentication.sessions is not None and scope["type"] == "http"
        if response.status_code == 401 and shows_console and is_console(scope):
            is_form = scope["method"] == "POST"
            response = error_response(401, _ENDED) if is_form else _to_login(scope)
        await refuse(response, scope, receive, send)


def _sending(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    """Adds headers to the answer."""

    async def added(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return added


def _to_login(scope: Scope) -> Response:
    """To the login, by a relative address, and back from there."""
    path = scope["raw_path"].decode("latin-1").partition("?")[0]
    if path == CONSOLE:
        return RedirectResponse("console/login", 303)
    below = path.removeprefix(f"{CONSOLE}/")
    query = scope.get("query_string", b"").decode("latin-1")
    target = urlencode({"next": below + (f"?{query}" if query else "")})
    return RedirectResponse(f"{'../' * below.count('/')}login?{target}", 303)


_ENDED: Final = (
    "You are not logged in any more, and nothing was done. Log in in another tab, then load this"
    " page again: that sends the form once more."
)
"""Without a challenge, for which a browser would ask for a password itself."""


class _UnsupportedMethodError(AuthenticationError):
    def __init__(self, name: str) -> None:
        super().__init__(f"Unsupported authentication method: [{name[:64]}].")


class _CrossSiteError(AuthenticationError):
    pass


def _headers(scope: Scope) -> dict[bytes, str]:
    """The headers of interest.

    Raises:
        AuthenticationError: one of them comes twice: a proxy may have read the other.
    """
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in _HEADERS:
            if name in found:
                raise AuthenticationError(f"two headers {name.decode()}")
            found[name] = value.decode("latin-1")
    return found


_HEADERS: Final = frozenset(
    {b"authorization", b"x-original-principal", b"x-pulsar-auth-method-name"}
)


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationError("not base64") from None
