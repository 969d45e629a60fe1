"""Requests that may outlast the credentials they came with: WebSockets, streams, long polls.

Each is watched by the authenticator, and ends when its credentials expire (after the time that
clients of the binary port have to renew theirs) or when the key that proved them is taken away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from magnetar.bookkeeper.auth.tokens import Principal
from magnetar.broker.auth.provider import REFUSED
from magnetar.broker.auth.provider_chain import Credentials
from magnetar.broker.http.errors import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from magnetar.broker.auth.authenticator import Authenticator

_TIMER_S_MAX: Final = 3600.0
"""The wall clock may be set meanwhile: a later expiry is looked at anew after this."""
_WEBSOCKET_CLOSE: Final = 4006  # not authorized


class AuthenticatedRequest:
    """One of them (``AuthenticatedSession``); ``end`` may be replaced by whoever serves it."""

    def __init__(
        self,
        authenticator: Authenticator,
        credentials: Credentials,
        principal: Principal,
        grace_s: float,
    ) -> None:
        self.proofs = [(credentials, principal.role)]
        self.end: Callable[[], None] = self._cancel
        """Ends it at once, from outside."""
        self._authenticator = authenticator
        self._until_s = None
        if principal.expires_at_s is not None:
            self._until_s = principal.expires_at_s + grace_s
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._ended = False
        self._started = False

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """The request itself, for as long as its credentials are good."""

        async def tell(message: Message) -> None:
            self._started = True
            await send(message)

        scope["state"]["live_request"] = self
        self._task = asyncio.current_task()
        self._authenticator.sessions.add(self)
        self._arm()
        try:
            await app(scope, receive, tell)
        except asyncio.CancelledError:
            if not self._ended:
                raise
            assert self._task is not None
            self._task.uncancel()
            await self._finish(scope, receive, send)
        finally:
            self._stop()

    def on_key_revoked(self, credentials: Credentials) -> None:
        """They prove nothing any more."""
        self._stop()
        self._ended = True
        self.end()

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()

    def _stop(self) -> None:
        self._authenticator.sessions.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _finish(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An end in order to what was cut."""
        kind = scope["type"]
        if self._started:
            end: Message = {"type": "http.response.body", "body": b"", "more_body": False}
            if kind == "websocket":
                end = {"type": "websocket.close", "code": _WEBSOCKET_CLOSE, "reason": REFUSED}
            with suppress(RuntimeError, OSError):  # cut in the middle of a body of known length
                await send(end)
            return
        response = error_response(401, REFUSED)
        if kind == "http":
            await response(scope, receive, send)
            return
        head = {"status": response.status_code, "headers": response.raw_headers}
        await send({"type": "websocket.http.response.start", **head})
        await send({"type": "websocket.http.response.body", "body": bytes(response.body)})

    def _arm(self) -> None:
        if self._until_s is not None:
            left_s = max(0.0, self._until_s - self._authenticator.now_s())
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(left_s, _TIMER_S_MAX), self._on_timer)

    def _on_timer(self) -> None:
        assert self._until_s is not None
        if self._authenticator.now_s() < self._until_s:
            self._arm()
        else:
            self.on_key_revoked(self.proofs[0][0])
