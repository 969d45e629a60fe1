"""Client certificates: the role is the common name (AuthenticationProviderTls)."""

from __future__ import annotations

from cryptography import x509
from cryptography.x509.oid import NameOID

from broker.auth.provider import Principal, checked_role
from broker.errors import AuthenticationError

__all__ = ["CertificateProvider", "common_name"]


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
    """First common name of a certificate's subject as RFC 2253 writes it, which is from its end.

    Pulsar takes that text apart at commas; here the values are read as they are, so no character
    in a name can make two of one.

    Raises:
        AuthenticationError: not a certificate.
    """
    try:
        subject = x509.load_der_x509_certificate(certificate).subject
        for part in reversed(subject.rdns):
            for attribute in part:
                if attribute.oid == NameOID.COMMON_NAME and attribute.value:
                    value = attribute.value
                    return value if isinstance(value, str) else value.decode()
    except (ValueError, TypeError):
        raise AuthenticationError("unreadable client certificate") from None
    return None
