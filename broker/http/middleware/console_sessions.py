"""Who has logged in to the console: a cookie for credentials that the server keeps.

A browser that showed a token with each request would have to store it, where a script could read
it. The cookie is random, not for scripts, not sent by pages of other sites, and good for the
console alone: the admin API doesn't know it.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from magnetar.broker.http.middleware.raw_path import route_path

if TYPE_CHECKING:
    from starlette.types import Scope

    from magnetar.broker.auth.provider_chain import Credentials

CONSOLE: Final = "/console"
LOGIN: Final = "/console/login"
LOGOUT: Final = "/console/logout"
FRAGMENT: Final = "magnetar-fragment"
"""Header of a request of console.js, which wants the middle of the page only."""
_IDLE_S: Final = 8 * 3600.0
_SESSIONS_MAX: Final = 100
"""Of a role."""
_SECURE_NAME: Final = "__Host-magnetar"
_NAME: Final = "magnetar-console"
"""Where TLS isn't: browsers take a ``__Host-`` cookie by TLS only."""


class ConsoleSessions:
    """Credentials by cookie. In memory: a restart of the broker ends all sessions."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._sessions: dict[str, tuple[Credentials, float]] = {}
        """With the time of the last use."""
        self._of_role: dict[str, deque[str]] = {}

    def open(self, credentials: Credentials, role: str) -> str:
        """The value of a new session's cookie; the oldest one of the role may end for it.

        REQUIRES: the credentials are good now, and prove the role.
        """
        value = secrets.token_urlsafe(32)
        self._sessions[value] = credentials, self._clock_s()
        own = self._of_role.setdefault(role, deque())
        own.append(value)
        if len(own) > _SESSIONS_MAX:
            self._sessions.pop(own.popleft(), None)
        return value

    def knows(self, scope: Scope) -> bool:
        """Whether a request for the console belongs to a session."""
        return _cookie(scope) in self._sessions

    def close(self, scope: Scope) -> None:
        """Ends the session of a request."""
        self._sessions.pop(_cookie(scope), None)

    def credentials(self, scope: Scope) -> Credentials | None:
        """Of the session that a request for the console belongs to; they may have expired.

        A page that fetches its figures is no use of the session: it does so with nobody there.
        """
        is_foreign = scope.get("state", {}).get("is_foreign")
        if not self._sessions or not is_console(scope) or is_foreign:
            return None
        value = _cookie(scope)
        if (found := self._sessions.get(value)) is None:
            return None
        credentials, used_s = found
        now_s = self._clock_s()
        if now_s - used_s > _IDLE_S:
            del self._sessions[value]
            return None
        if not _is_fetch(scope):
            self._sessions[value] = credentials, now_s
        return credentials


def is_console(scope: Scope) -> bool:
    path = route_path(scope)
    return path == CONSOLE or path.startswith(CONSOLE + "/")


def _is_fetch(scope: Scope) -> bool:
    """Whether a page asks by itself, for its figures."""
    return any(name == FRAGMENT.encode() for name, _ in scope["headers"])


def set_cookie(scope: Scope, value: str) -> str:
    """The header ``Set-Cookie``; an empty value takes the cookie away."""
    ends = "" if value else "; Max-Age=0"
    secure = "; Secure" if scope["scheme"] == "https" else ""
    return f"{_name(scope)}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{ends}"


def _name(scope: Scope) -> str:
    """Browsers send cookies to every port of a host, where another broker may be."""
    return _SECURE_NAME if scope["scheme"] == "https" else f"{_NAME}-{scope['server'][1]}"


def _cookie(scope: Scope) -> str:
    wanted = _name(scope)
    for header, text in scope["headers"]:
        if header == b"cookie":
            for pair in text.decode("latin-1").split(";"):
                name, _, value = pair.strip().partition("=")
                if name == wanted:
                    return str(value)
    return ""
