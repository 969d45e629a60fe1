"""Keys for end-to-end encryption."""

from pathlib import Path

import pulsar
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def encryption_keys(folder: Path) -> pulsar.CryptoKeyReader:
    """A new pair of keys, which are written to the folder."""
    key = rsa.generate_private_key(65_537, 2048)
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    private.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    return pulsar.CryptoKeyReader(str(public), str(private))
