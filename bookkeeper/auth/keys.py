"""Keys of tokens, in the forms that Pulsar's settings and key files have.

A key fixes the algorithms that are accepted with it: the token's own header only chooses among
them. So ``none`` is never possible, nor a token "signed" by HMAC with a public key's bytes.
"""

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote_to_bytes, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from magnetar.bookkeeper.auth.errors import KeyFormatError

PublicKey: TypeAlias = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
PrivateKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA_BITS_MIN: Final = 2048
_SECRET_BYTES_MIN: Final = 32
_FILE_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """What tokens are checked with."""

    key: bytes | PublicKey
    algorithms: tuple[str, ...]  # those that fit the key, never empty


@dataclass(frozen=True, slots=True)
class SigningKey:
    """What tokens are made with."""

    key: bytes | PrivateKey
    algorithms: tuple[str, ...]  # the first one is the usual one


def read_source(source: str, what: str) -> bytes:
    """The bytes a setting stands for: ``file:`` or ``data:`` URL, path of a file, or base64.

    Args:
        source: the setting's value; may be the secret itself, so it is in no error's text.
        what: the setting's name, for errors.
    Raises:
        KeyFormatError: nothing can be read there.
    """
    if source.startswith("data:"):
        return _data_url(source, what)
    try:
        if (path := file_of(source)) is not None:
            with path.open("rb") as file:
                content = file.read(_FILE_BYTES_MAX + 1)
            if not 0 < len(content) <= _FILE_BYTES_MAX:
                raise KeyFormatError(f"{what}: {path} is empty or too large")
            return content
        if _is_meant_as_path(source):
            raise KeyFormatError(f"{what}: there is no such file; a key would be data:;base64,...")
    except OSError as error:
        # Without the path when it could be a mistyped secret
        where = f" {path}" if source.startswith("file:") else ""
        raise KeyFormatError(f"{what}: the file{where} can't be read: {error.strerror}") from None
    except ValueError as error:  # a NUL in it
        if isinstance(error, KeyFormatError):
            raise
        raise KeyFormatError(f"{what}: not a path") from None
    return _base64(source, what, "neither a file that exists nor base64")


def file_of(source: str) -> Path | None:
    """The file that a setting names; None: it holds the bytes themselves.

    Raises:
        OSError, ValueError: it can't be told.
    """
    if source.startswith("data:"):
        return None
    path = Path(_file_path(source))
    return path if source.startswith("file:") or path.is_file() else None


def _is_meant_as_path(text: str) -> bool:
    """Whether base64 may be the path of a file that isn't there.

    Slashes and letters are base64, too: where a secret was not mounted, its path, which anybody can
    guess, would be the key. Keys of 32 and of 64 bytes end with =, and paths don't.
    """
    if text.endswith("="):
        return False
    first, separator, _ = text.partition("/")
    return bool(separator) and (not first or Path(first).is_dir())


def _file_path(source: str) -> str:
    if not source.startswith("file:"):
        return source
    parts = urlsplit(source)
    return unquote_to_bytes(parts.netloc + parts.path).decode(errors="surrogateescape")


def _data_url(source: str, what: str) -> bytes:
    head, separator, body = source.removeprefix("data:").partition(",")
    if not separator:
        raise KeyFormatError(f"{what}: a data: URL without a comma")
    if head.endswith(";base64"):
        return _base64(body, what, "a data: URL that isn't base64")
    return unquote_to_bytes(body)


def _base64(text: str, what: str, complaint: str) -> bytes:
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise KeyFormatError(f"{what}: {complaint}") from None
    if not content:
        raise KeyFormatError(f"{what}: it is empty")
    return content


def load_key(source: str, what: str, *, is_secret: bool) -> VerificationKey:
    """The key that a setting stands for (``read_source``).

    Raises:
        KeyFormatError: there is none, or it can't be used.
    """
    load = load_secret_key if is_secret else load_public_key
    return load(read_source(source, what), what)


def load_secret_key(content: bytes, what: str) -> VerificationKey:
    """A key of HMAC, from its raw bytes (what ``create-secret-key`` writes).

    Raises:
        KeyFormatError: too short to be safe, or a public key by mistake.
    """
    size = len(content)
    if size < _SECRET_BYTES_MIN:
        raise KeyFormatError(f"{what}: {size} bytes, at least {_SECRET_BYTES_MIN} are needed")
    if content.lstrip().startswith(b"-----BEGIN"):
        raise KeyFormatError(f"{what}: this is a PEM file, not a secret key")
    names = [name for name, least in (("HS256", 32), ("HS384", 48), ("HS512", 64)) if size >= least]
    return VerificationKey(content, tuple(names))


def load_public_key(content: bytes, what: str) -> VerificationKey:
    """RSA, EC or Ed25519, DER (X.509 SubjectPublicKeyInfo, as Pulsar's) or PEM.

    Raises:
        KeyFormatError: it is none, or one that isn't safe.
    """
    is_pem = content.lstrip().startswith(b"-----BEGIN")
    try:
        load = serialization.load_pem_public_key if is_pem else serialization.load_der_public_key
        key = load(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFormatError(f"{what}: not a public key in DER or PEM") from None
    if not isinstance(key, PublicKey):
        raise KeyFormatError(f"{what}: neither an RSA nor an EC nor an Ed25519 key")
    return VerificationKey(key, algorithms_of(key, what))


def load_private_key(content: bytes, what: str) -> SigningKey:
    """As ``load_public_key``; PKCS #8 in DER, as Pulsar's, or PEM without a password."""
    is_pem = content.lstrip().startswith(b"-----BEGIN")
    try:
        load = serialization.load_pem_private_key if is_pem else serialization.load_der_private_key
        key = load(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFormatError(f"{what}: not a private key in DER or PEM (PKCS #8)") from None
    if not isinstance(key, PrivateKey):
        raise KeyFormatError(f"{what}: neither an RSA nor an EC nor an Ed25519 key")
    return SigningKey(key, algorithms_of(key.public_key(), what))


def algorithms_of(key: PublicKey, what: str) -> tuple[str, ...]:
    """The signatures that a key can check, the usual one first.

    Raises:
        KeyFormatError: a weak key, or a curve without an algorithm.
    """
    match key:
        case rsa.RSAPublicKey():
            if key.key_size < _RSA_BITS_MIN:
                raise KeyFormatError(
                    f"{what}: RSA of {key.key_size} bits, at least {_RSA_BITS_MIN} are needed"
                )
            return _RSA
        case ec.EllipticCurvePublicKey():
            if (name := _CURVES.get(key.curve.name)) is None:
                raise KeyFormatError(f"{what}: the curve {key.curve.name} has no JWT algorithm")
            return (name,)
        case _:
            return ("EdDSA",)
