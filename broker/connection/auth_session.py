"""Authentication of one connection of the binary protocol: CONNECT, and renewal while it lives.

Rules: docs/spec/wire-protocol.md, "Handshake"; ServerCnx.handleConnect and
refreshAuthenticationCredentials.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from magnetar.bookkeeper.auth.tokens import Principal
from magnetar.broker.auth.errors import TooManyChecksError
from magnetar.broker.auth.provider import BUSY, REFUSED
from magnetar.broker.auth.provider_chain import AuthenticatedClient, Credentials
from magnetar.broker.connection.connection import Connection
from magnetar.broker.errors import AuthenticationError, AuthorizationError, BrokerError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import MalformedFrameError

if TYPE_CHECKING:
    from magnetar.broker.auth.authenticator import Authenticator

_REFRESH: Final = b"PulsarAuthRefresh"
_TIMER_S_MAX: Final = 3600.0
_GRACE_S: Final = 5.0
"""How long after their end credentials are asked for anew, at most. OAuth2 plug-ins keep a token as
long as the issuer said, counted from when they got it: asked at its very end, they would answer
with the same token once more, and be cut. Pulsar asks at its next check, a minute later at most."""
"""The wall clock may be set meanwhile: a later expiry is looked at anew after this."""
_INVALID_ROLES: Final = "Invalid roles."


class AuthSession:
    """Made by the first CONNECT while authentication is enabled; lives with its connection."""

    def __init__(
        self,
        connection: Connection,
        authenticator: Authenticator,
        command: pb.CommandConnect,
        server_version: str,
        on_accepted: Callable[[Connection], None],
    ) -> None:
        """``on_accepted`` sends CONNECTED."""
        self._connection = connection
        self._authenticator = authenticator
        self._server_version = server_version
        self._on_accepted = on_accepted
        self._own = Credentials(
            method_of(command), command.auth_data, connection.client_certificate()
        )
        self._original_principal = command.original_principal or None
        self._original: Credentials | None = None  # what a proxy has passed on, to be checked
        if connection.service.config.authenticate_original_auth_data and (
            command.original_auth_data or command.original_principal
        ):
            self._original = Credentials(
                command.original_auth_method or "none", command.original_auth_data.encode()
            )
        self._login: AuthenticatedClient | None = None
        self._challenged = False
        self._renewing = False  # what the client answered is being checked
        self._timer: asyncio.TimerHandle | None = None
        connection.on_closed[self] = self._on_closed

    @property
    def proofs(self) -> list[tuple[Credentials, str]]:
        """What it was let in by (AuthenticatedSession)."""
        login = self._login
        assert login is not None
        found = [(self._own, login.role)]
        if self._original is not None:
            assert login.original_role is not None
            found.append((self._original, login.original_role))
        return found

    def start(self) -> None:
        """Check what CONNECT brought; answers it at once or, after a slow check, later."""
        try:
            if self._original is not None and not self._original.data:
                # Not the anonymous role: the proxy named a client.
                raise AuthenticationError("a proxy that passes no credentials on")
            own = self._authenticator.authenticate_nowait(self._own)
            original = None
            if self._original is not None:
                original = self._authenticator.authenticate_nowait(self._original)
            if own is None or (original is None and self._original is not None):
                self._connection.run(self._start_later())
            else:
                self._accept(own, original)
        except BrokerError as error:
            self._refuse(error)

    async def _start_later(self) -> None:
        authenticator, generation, ip = self._authenticator, -1, self._connection.ip
        try:
            while generation != authenticator.generation:  # keys may change between the two
                generation = authenticator.generation
                own = await authenticator.authenticate(self._own, ip)
                original = None
                if self._original is not None:
                    original = await authenticator.authenticate(self._original, ip)
            if not self._connection.closed:
                self._accept(own, original)
        except BrokerError as error:
            self._refuse(error)

    def on_response(self, command: pb.CommandAuthResponse) -> None:
        """AUTH_RESPONSE, the answer to a challenge.

        Raises:
            MalformedFrameError: no challenge was sent, or it is empty.
        """
        response = command.response
        if not self._challenged or not (response.auth_method_name and response.auth_data):
            raise MalformedFrameError("AUTH_RESPONSE without a challenge, or without its data")
        self._challenged = False
        self._stop_timer()
        renewed = self._original or self._own
        self._renewing = True
        self._connection.run(
            self._renew(Credentials(renewed.method, response.auth_data, renewed.certificate))
        )

    async def _renew(self, credentials: Credentials) -> None:
        try:
            principal = await self._authenticator.authenticate(credentials, self._connection.ip)
        except BrokerError as error:
            self._refuse(error)
            return
        self._renewing = False
        login = self._login
        assert login is not None
        expected = login.role if self._original is None else login.original_role
        if principal.role != expected:
            self._connection.close(
                f"credentials of {principal.role} for a connection of {expected}"
            )
            return
        if self._original is None:
            self._own = credentials
        else:
            self._original = credentials
        self._login = AuthenticatedClient(login.role, login.original_role, principal.expires_at_s)
        self._arm()

    # --- outcomes

    def _accept(self, own: Principal, original: Principal | None) -> None:
        """Raises AuthorizationError: it may not speak for the original principal."""
        named = self._original_principal if original is None else original.role
        speaks_for = self._authenticator.chain.check_original(own.role, named, same_is_good=False)
        expires_at_s = own.expires_at_s if original is None else original.expires_at_s
        self._login = AuthenticatedClient(own.role, speaks_for, expires_at_s)
        self._authenticator.success(self._own.method)
        connection = self._connection
        connection.role, connection.original_role = own.role, speaks_for
        self._on_accepted(connection)
        self._authenticator.sessions.add(self)
        self._arm()

    def _refuse(self, error: BrokerError) -> None:
        connection = self._connection
        if connection.closed:
            return
        self._authenticator.refusal(connection.remote, "binary", self._own.method, error)
        if isinstance(error, AuthorizationError):
            connection.refuse(pb.AuthorizationError, _INVALID_ROLES, level=logging.DEBUG)
        elif isinstance(error, TooManyChecksError):  # clients come back by themselves
            connection.refuse(pb.ServiceNotReady, BUSY, level=logging.DEBUG)
        else:
            assert isinstance(error, AuthenticationError)
            connection.refuse(pb.AuthenticationError, REFUSED, level=logging.DEBUG)

    def _on_closed(self) -> None:
        self._authenticator.sessions.discard(self)
        self._stop_timer()

    # --- credentials that expire, or whose key was taken away

    def on_key_revoked(self, credentials: Credentials) -> None:
        """They prove nothing any more (AuthenticatedSession): others are asked for, as when they
        expire."""
        if credentials is not (self._original or self._own):
            self._connection.close("the key of a proxy's credentials was taken away")
        elif not self._challenged and not self._renewing:
            self._stop_timer()
            self._ask_for_others("are good no more")

    def _arm(self) -> None:
        login = self._login
        if login is None or login.expires_at_s is None or self._connection.closed:
            return
        service = self._connection.service
        left_s = max(0.0, login.expires_at_s + self._grace_s - service.wall_clock() / 1000)
        self._timer = service.loop.call_later(min(left_s, _TIMER_S_MAX), self._on_timer)

    @property
    def _grace_s(self) -> float:
        config = self._connection.service.config
        return min(_GRACE_S, config.authentication_refresh_check_seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        connection, login = self._connection, self._login
        assert login is not None
        if connection.closed:
            return
        if self._challenged:
            connection.close("credentials were not renewed in time")
            return
        assert login.expires_at_s is not None
        if connection.service.wall_clock() / 1000 < login.expires_at_s + self._grace_s:
            self._arm()
        else:
            self._ask_for_others("have expired")

    def _ask_for_others(self, what: str) -> None:
        """Challenge the client, or end the connection. ``what`` became of its credentials."""
        connection, login = self._connection, self._login
        assert login is not None
        service = connection.service
        if not connection.features.supports_auth_refresh:  # whatever its protocol version
            connection.close(f"credentials {what}, and the client can't renew them")
        elif login.original_role is not None and self._original is None:
            connection.close(f"a proxy's credentials {what}, and it passes none on")
        else:
            self._challenge()
            self._timer = service.loop.call_later(
                service.config.authentication_refresh_check_seconds, self._on_timer
            )

    def _challenge(self) -> None:
        self._challenged = True
        self._connection.send(
            pb.CommandAuthChallenge(
                server_version=self._server_version,
                protocol_version=self._connection.protocol_version,
                challenge=pb.AuthData(
                    auth_method_name=(self._original or self._own).method, auth_data=_REFRESH
                ),
            )
        )


def method_of(command: pb.CommandConnect) -> str:
    """The method's name; old clients have a number for it (ServerCnx.getAuthMethod)."""
    if command.auth_method_name:
        return command.auth_method_name
    if command.HasField("auth_method"):
        return pb.AuthMethod.Name(command.auth_method).removeprefix("AuthMethod").lower()
    return "none"
