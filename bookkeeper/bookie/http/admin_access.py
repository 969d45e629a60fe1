"""Access to the HTTP port of a bookie or of auto-recovery, where authentication is configured.

As at a broker's port: probes and metrics are open, all else is for the roles that may use
the gRPC port, whether there is such a page or not. Decided by the head of a request alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

from magnetar.bookkeeper.auth.errors import CredentialsError, RoleNotAllowedError
from magnetar.bookkeeper.auth.refusal_log import RefusalLog

if TYPE_CHECKING:
    from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator

LIVE_PATH: Final = "/livez"
READY_PATH: Final = "/readyz"
OPEN_PATHS: Final = frozenset(
    {
        LIVE_PATH,
        READY_PATH,
        "/heartbeat",
        "/metrics",
        "/api/v1/bookie/is_ready",
        "/api/v1/bookie/state",
        "/api/v1/autorecovery/is_ready",
    }
)
"""Liveness, readiness and metrics, to be read; other paths tell nothing without credentials."""
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


class AdminAccess:
    """Asks ``authenticator`` about each request that isn't open."""

    def __init__(self, authenticator: BookieAuthenticator) -> None:
        self._authenticator = authenticator
        self._refusals = RefusalLog(logging.getLogger("magnetar.bookkeeper.audit"))

    def refusal(self, method: str, path: str, headers: Headers, address: str) -> HTTPStatus | None:
        """How the request is refused; None: it isn't.

        Args:
            path: without the query.
            headers: names in lower case.
            address: of the client, for the audit log.
        """
        if method in ("GET", "HEAD") and path in OPEN_PATHS:
            return None
        try:
            self._authenticator.admit(_token_of(headers), None)
        except CredentialsError as error:
            request = f"{method} {path}"
            self._refusals.add(
                address=address, listener="bookie-http", request=request, reason=str(error)
            )
            is_known = isinstance(error, RoleNotAllowedError)
            return HTTPStatus.FORBIDDEN if is_known else HTTPStatus.UNAUTHORIZED
        return None


def _token_of(headers: Headers) -> str | None:
    """What the request shows; None: nothing.

    Raises:
        CredentialsError: more than one thing: a proxy in front may have read the other.
    """
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) > 1:
        raise CredentialsError("two headers authorization")
    if not found:
        return None
    scheme, _, value = found[0].decode("latin-1").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""
