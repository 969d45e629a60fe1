"""Client certificates: the role is the common name (AuthenticationProviderTls)."""

from __future__ import annotations

from magnetar.bookkeeper.auth import certificates
from magnetar.bookkeeper.auth.errors import CredentialsError
from magnetar.bookkeeper.auth.tokens import Principal
from magnetar.broker.auth.provider import checked_role
from magnetar.broker.errors import AuthenticationError


class CertificateProvider:
    """The certificate was verified by TLS, or there would be none."""

    method = "tls"
    is_slow = False

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        if certificate is None:
            raise AuthenticationError("no client certificate")
        # Not its expiry as the principal's: a live connection could not be given another one, and
        # Pulsar lets it live, too.
        return Principal(checked_role(common_name(certificate)))


def common_name(certificate: bytes) -> str | None:
    """First common name of a certificate (DER). Raises AuthenticationError: not a certificate."""
    try:
        return certificates.common_name(certificate)
    except CredentialsError as error:
        raise AuthenticationError(str(error)) from None
