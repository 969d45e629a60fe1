"""Certificates for tests: an authority, and what it signs, as PEM files."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: Path
    key: Path
    der: bytes


class Authority:
    """Signs what it is asked to; ``certificate`` is what its friends trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name([(NameOID.COMMON_NAME, name)])
        builder = _builder(self._subject, self._subject, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        signed = builder.add_extension(usage, critical=True).add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
        )
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(
            signed.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def sign(self, *names: str, file: str = "", hosts: Sequence[str] = HOSTS) -> Pair:
        """A certificate with these common names, in this order; good for these hosts."""
        subject = [(NameOID.COMMON_NAME, name) for name in names]
        return self.sign_subject(subject, file or names[0], hosts)

    def sign_subject(
        self,
        subject: list[tuple[x509.ObjectIdentifier, str]],
        file: str,
        hosts: Sequence[str] = HOSTS,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(subject), self._subject, key.public_key())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = (
            builder.add_extension(
                x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False
            )
            .add_extension(authority, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(
            self._folder / f"{file}.pem",
            self._folder / f"{file}.key",
            signed.public_bytes(serialization.Encoding.DER),
        )
        pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _name(parts: list[tuple[x509.ObjectIdentifier, str]]) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )
