"""Whom a certificate names, and when it ends: the role is the common name
(AuthenticationProviderTls).
"""

from pathlib import Path

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


def certificate_end_ms(path: str | Path, *, latest: bool = False) -> int:
    """When a PEM file's certificates end, in milliseconds since 1970; the file is read here.

    Args:
        latest: of authorities, the last one to end counts; else the chain ends with its first.
    Raises:
        OSError, ValueError: it can't be read, or has none.
    """
    from cryptography import x509

    chain = x509.load_pem_x509_certificates(Path(path).read_bytes())
    ends = [int(each.not_valid_after_utc.timestamp() * 1000) for each in chain]
    return (max if latest else min)(ends)


def end_s(certificate: bytes) -> float:
    """When a certificate ends, seconds since 1970. REQUIRES: TLS has verified it."""
    from cryptography import x509

    return x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()
