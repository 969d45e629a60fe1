"""``magnetar tokens``: keys and tokens, in the files and forms of Pulsar's ``pulsar tokens``.

Secret keys are raw bytes, private keys PKCS #8 and public keys X.509, both in DER.
"""

import argparse
import base64
import json
import os
import re
import secrets
import sys
import time
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from magnetar.bookkeeper.auth.errors import CredentialsError, KeyFormatError
from magnetar.bookkeeper.auth.keys import (
    PrivateKey,
    SigningKey,
    VerificationKey,
    load_key,
    load_private_key,
    load_secret_key,
    read_source,
)
from magnetar.bookkeeper.auth.token_signatures import verified_claims
from magnetar.bookkeeper.auth.tokens import TokenRules, header_of, principal_of
from magnetar.broker.cli.errors import CliError
from magnetar.broker.config import ConfigError

_SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
_CURVES: Final[dict[str, ec.EllipticCurve]] = {
    "ES256": ec.SECP256R1(),
    "ES384": ec.SECP384R1(),
    "ES512": ec.SECP521R1(),
}
_RSA_BITS: Final = {"256": 2048, "384": 3072, "512": 4096}
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}


def run_tokens(options: argparse.Namespace) -> int:
    """Raises CliError: a key, a file or the token can't be used."""
    try:
        match options.action:
            case "create-secret-key":
                _create_secret_key(options)
            case "create-key-pair":
                _create_key_pair(options)
            case "create":
                print(_create(options))
            case "validate":
                print(json.dumps(_validate(options)))
            case "show":
                _show(options)
    except (ConfigError, KeyFormatError, CredentialsError) as error:
        raise CliError(str(error)) from error
    return 0


def _create_secret_key(options: argparse.Namespace) -> None:
    size = _SECRET_BYTES.get(options.signature_algorithm)
    if size is None:
        raise CliError(f"-a {options.signature_algorithm}: {', '.join(_SECRET_BYTES)} are possible")
    key = secrets.token_bytes(size)
    content = base64.b64encode(key) if options.base64 else key
    if options.output:
        _write(Path(options.output), content, 0o600)
    else:
        sys.stdout.buffer.write(content + (b"\n" if options.base64 else b""))
        sys.stdout.buffer.flush()


def _create_key_pair(options: argparse.Namespace) -> None:
    key = _new_private_key(options.signature_algorithm)
    private = key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    private_path, public_path = Path(options.output_private_key), Path(options.output_public_key)
    if os.path.lexists(public_path):  # before half of the pair is there
        raise _exists_error(public_path)
    _write(private_path, private, 0o600)
    _write(public_path, public, 0o644)


def _new_private_key(algorithm: str) -> PrivateKey:
    family, bits = algorithm[:2], algorithm[2:]
    if family in ("RS", "PS") and bits in _RSA_BITS:
        return rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS[bits])
    if (curve := _CURVES.get(algorithm)) is not None:
        return ec.generate_private_key(curve)
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    raise CliError(f"-a {algorithm}: RS256, PS256, ES256 (or 384, 512) and EdDSA are possible")


def _write(path: Path, content: bytes, mode: int) -> None:
    """A new file, with this mode whatever the umask; never over one that may be in use."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o600)
        with os.fdopen(descriptor, "wb") as file:
            try:
                file.write(content)
                file.flush()
                os.fchmod(descriptor, mode)
            except OSError:
                path.unlink()  # half a key is worse than none
                raise
    except FileExistsError:
        raise _exists_error(path) from None
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error


def _exists_error(path: Path) -> CliError:
    return CliError(f"{path} exists already, and may be in use: remove it first")


def _create(options: argparse.Namespace) -> str:
    key = _signing_key(options)
    algorithm = _algorithms(options, key)[0]
    claims: dict[str, Any] = {"sub": options.subject}
    if options.expiry_time:
        claims["exp"] = int(time.time() + _seconds(options.expiry_time))
    headers = dict(_pair(text) for text in options.headers)
    return jwt.encode(claims, key.key, algorithm, headers=headers or None)


def _algorithms(options: argparse.Namespace, key: SigningKey | VerificationKey) -> tuple[str, ...]:
    """Those of the key, or the one that ``-a`` names. Raises CliError: it isn't among them."""
    if not (name := options.signature_algorithm):
        return key.algorithms
    if name not in key.algorithms:
        raise CliError(f"-a {name}: the key is for {', '.join(key.algorithms)}")
    return (name,)


def _signing_key(options: argparse.Namespace) -> SigningKey:
    if bool(options.secret_key) == bool(options.private_key):
        raise CliError("--secret-key or --private-key is needed, and not both")
    if options.private_key:
        content = read_source(options.private_key, "--private-key")
        return load_private_key(content, "--private-key")
    key = load_secret_key(read_source(options.secret_key, "--secret-key"), "--secret-key")
    assert isinstance(key.key, bytes)
    # As Pulsar's: the strongest that the key's length is good for
    return SigningKey(key.key, tuple(reversed(key.algorithms)))


def _validate(options: argparse.Namespace) -> dict[str, Any]:
    if bool(options.secret_key) == bool(options.public_key):
        raise CliError("--secret-key or --public-key is needed, and not both")
    if options.public_key:
        key = load_key(options.public_key, "--public-key", is_secret=False)
    else:
        key = load_key(options.secret_key, "--secret-key", is_secret=True)
    key = VerificationKey(key.key, _algorithms(options, key))
    claims = verified_claims(_token(options), key)
    principal_of(claims, TokenRules(), time.time())
    return claims


def _show(options: argparse.Namespace) -> None:
    token = _token(options)
    header = header_of(token)
    body = token.split(b".")[1]
    claims = base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4))
    print(json.dumps(header))
    print("---")
    print(claims.decode(errors="replace"))


def _token(options: argparse.Namespace) -> bytes:
    given = [bool(options.token), options.stdin, bool(options.token_file)]
    text = os.environ.get("TOKEN", "") if not any(given) else options.token
    if sum(given) > 1 or not (any(given) or text):
        raise CliError("one of TOKEN, --stdin and --token-file is needed, or the variable TOKEN")
    if options.stdin:
        text = sys.stdin.read()
    elif options.token_file:
        try:
            text = Path(options.token_file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(f"{options.token_file}: {error}") from error
    return str(text).strip().encode()


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([smhdwy]?)", text.strip().lower())
    if match is None:
        raise CliError(f"--expiry-time {text}: 90s, 10m, 1h, 3d, 2w or 10y is expected")
    return int(match[1]) * _UNITS_S[match[2]]


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise CliError(f"--headers {text}: KEY=VALUE is expected")
    return name, value
