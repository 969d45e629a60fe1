"""What all ways to authenticate have in common: credentials in, a principal out."""

from typing import Final, Protocol

from magnetar.bookkeeper.auth.tokens import Principal
from magnetar.broker.errors import AuthenticationError

REFUSED: Final = "Failed to authenticate"
"""All that a client is told, whatever was wrong (ServerCnx.authenticationFailed)."""
BUSY: Final = "Too many logins wait for their check, try again"
"""For a client whose credentials were not checked; they may be good."""


class KeysNeededError(AuthenticationError):
    """Can't say before the keys of ``issuer`` were fetched (again); ask anew afterwards."""

    def __init__(self, issuer: str) -> None:
        super().__init__("the issuer's keys are not known yet")
        self.issuer = issuer


class AuthenticationProvider(Protocol):
    """One way to authenticate. Pure: what it needs was loaded when it was made.

    The text of a ``CredentialsError`` is for the broker's log; it never holds what was
    presented, only what was wrong with it.
    """

    @property
    def method(self) -> str:
        """Name on the wire (``auth_method_name``): token, tls or basic."""

    @property
    def is_slow(self) -> bool:
        """Whether a check takes more than a millisecond, and so has to leave the loop."""

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        """Check credentials.

        Args:
            method: as the client named it; one of those that this provider serves.
            data: ``auth_data`` of the binary protocol; what HTTP has in ``Authorization`` behind
                the scheme, decoded to the same form.
            certificate: the client's, DER, verified by TLS; None: it has shown none.
            now_s: seconds since 1970.
        Raises:
            CredentialsError: they don't prove anything.
            KeysNeededError: not known yet.
        """
