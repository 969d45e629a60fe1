"""Whom a certificate names: the role is the common name (AuthenticationProviderTls)."""

from magnetar.bookkeeper.auth.errors import CredentialsError


def common_name(certificate: bytes) -> str | None:
    """First common name of a certificate's subject as RFC 2253 writes it, which is from its end.

    Pulsar takes that text apart at commas; here the values are read as they are, so no character
    in a name can make two of one.

    Raises:
        CredentialsError: not a certificate.
    """
    # Loaded here: needed with TLS only, and many modules.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        subject = x509.load_der_x509_certificate(certificate).subject
        for part in reversed(subject.rdns):
            for attribute in part:
                if attribute.oid == NameOID.COMMON_NAME and attribute.value:
                    value = attribute.value
                    return value if isinstance(value, str) else value.decode()
    except (ValueError, TypeError):
        raise CredentialsError("unreadable client certificate") from None
    return None


def end_s(certificate: bytes) -> float:
    """When a certificate ends, seconds since 1970. REQUIRES: TLS has verified it."""
    from cryptography import x509

    return x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()
