"""Tokens of OpenID Connect issuers (AuthenticationProviderOpenID), and what issuers publish.

Pure: the issuers' keys come from a mapping that a shell (issuer_keys.py) fills; a key that isn't in
it is asked for by ``KeysNeededError``.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from magnetar.bookkeeper.auth.errors import CredentialsError, KeyFormatError
from magnetar.bookkeeper.auth.keys import PublicKey, VerificationKey, algorithms_of
from magnetar.bookkeeper.auth.token_signatures import verified_claims
from magnetar.bookkeeper.auth.tokens import (
    Principal,
    TokenRules,
    header_of,
    principal_of,
)
from magnetar.broker.auth.provider import KeysNeededError

KeySet: TypeAlias = Mapping[str, VerificationKey]
"""Keys of one issuer by key id; "" is the key of an issuer that has one and names none."""

_KEYS_MAX: Final = 100
_KINDS: Final[dict[str, Any]] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}


@dataclass(frozen=True)
class OpenIdProvider:
    """Accepts tokens of the issuers that the settings name, and of no other."""

    method: ClassVar[str] = "token"
    is_slow: ClassVar[bool] = False

    issuers: frozenset[str]
    rules: TokenRules
    keys: Mapping[str, KeySet]
    """By issuer, as they are known now; changes while the provider is in use."""

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        token = data.strip()
        header = header_of(token)
        issuer = unverified_issuer(token)
        if issuer not in self.issuers:
            raise CredentialsError("the token is of an issuer that isn't allowed")
        key_id = header.get("kid", "")
        known = self.keys.get(issuer)
        key = known.get(key_id) if known is not None and isinstance(key_id, str) else None
        if key is None:
            raise KeysNeededError(issuer)
        # Verified now: the issuer it names is the one whose key has signed it.
        return principal_of(verified_claims(token, key), self.rules, now_s)


def unverified_issuer(token: bytes) -> str:
    """Whom a token claims to be from.

    Raises:
        CredentialsError: it doesn't say, or isn't a token.
    """
    try:
        _, body, _ = token.split(b".")
        claims = json.loads(base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
        issuer = claims["iss"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise CredentialsError("the token names no issuer") from None
    if not isinstance(issuer, str):
        raise CredentialsError("the token names no issuer")
    return issuer


def discovery_url(issuer: str) -> str:
    """Where an issuer describes itself (OpenID Connect Discovery 4)."""
    return issuer.rstrip("/") + "/.well-known/openid-configuration"


def parse_discovery(content: bytes, issuer: str) -> str:
    """Where the issuer's keys are.

    Raises:
        KeyFormatError: not a discovery document of this issuer.
    """
    document = _object(content, f"discovery document of {issuer}")
    if document.get("issuer") != issuer:
        raise KeyFormatError(f"discovery document of {issuer}: it names another issuer")
    url = document.get("jwks_uri")
    if not isinstance(url, str):
        raise KeyFormatError(f"discovery document of {issuer}: no jwks_uri")
    return url


def parse_key_set(content: bytes, issuer: str) -> KeySet:
    """An issuer's keys that can check signatures; others in the set are left out.

    Raises:
        KeyFormatError: no key set, or none of its keys is of use.
    """
    what = f"keys of {issuer}"
    listed = _object(content, what).get("keys")
    if not isinstance(listed, list):
        raise KeyFormatError(f"{what}: no list of keys")
    found: dict[str, VerificationKey] = {}
    for each in listed[:_KEYS_MAX]:
        key_id = each.get("kid", "") if isinstance(each, dict) else None
        if isinstance(key_id, str) and (key := _key_of(each, what)) is not None:
            found.setdefault(key_id, key)
    if not found:
        raise KeyFormatError(f"{what}: none that can be used")
    return found


def _key_of(entry: dict[str, Any], what: str) -> VerificationKey | None:
    kind = _KINDS.get(str(entry.get("kty")))
    if kind is None or entry.get("use", "sig") != "sig":
        return None
    try:
        key = kind.from_jwk(entry)
        if not isinstance(key, PublicKey):
            return None
        algorithms = algorithms_of(key, what)
    except (PyJWTError, KeyFormatError, ValueError, TypeError):
        return None
    if (named := entry.get("alg")) is not None:
        algorithms = tuple(name for name in algorithms if name == named)
    return VerificationKey(key, algorithms) if algorithms else None


def _object(content: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise KeyFormatError(f"{what}: not JSON") from None
    if not isinstance(value, dict):
        raise KeyFormatError(f"{what}: not an object")
    return value
