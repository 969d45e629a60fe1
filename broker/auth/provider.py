"""What all ways to authenticate have in common: credentials in, a principal out.

The short ones are here: tokens (bookkeeper/auth/tokens.py reads them) and client certificates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from magnetar.bookkeeper.auth.certificates import common_name
from magnetar.bookkeeper.auth.errors import CredentialsError
from magnetar.bookkeeper.auth.tokens import (
    Principal,
    TokenRules,
    checked_role,
    principal_of,
)
from magnetar.broker.errors import AuthenticationError

if TYPE_CHECKING:
    from magnetar.bookkeeper.auth.keys import VerificationKey

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


class TokenProvider:
    """Tokens signed with one of the keys of the broker's settings."""

    method = "token"
    is_slow = False

    def __init__(self, key: VerificationKey, rules: TokenRules, *more: VerificationKey) -> None:
        """``more``: keys that are good as well, while one takes the other's place."""
        self._keys = (key, *more)
        self._rules = rules

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        # Loaded here: most of a start's cryptography comes with it.
        from magnetar.bookkeeper.auth.token_signatures import verified_claims

        return principal_of(verified_claims(data.strip(), *self._keys), self._rules, now_s)


class CertificateProvider:
    """The role: common name of the certificate that TLS verified (AuthenticationProviderTls)."""

    method = "tls"
    is_slow = False

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        if certificate is None:
            raise CredentialsError("no client certificate")
        # Not its expiry as the principal's: a live connection could not be given another one, and
        # Pulsar lets it live, too.
        return Principal(checked_role(common_name(certificate)))
