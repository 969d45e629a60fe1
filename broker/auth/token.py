"""JSON Web Tokens: signature, times, audience, role (AuthenticationProviderToken).

The library checks the signature only; what the claims say is checked here, because the time is an
argument (a core looks at no clock).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from jwt.api_jws import PyJWS
from jwt.exceptions import PyJWTError

from broker.auth.keys import VerificationKey
from broker.auth.provider import CREDENTIAL_BYTES_MAX, Principal, checked_role
from broker.errors import AuthenticationError

__all__ = ["TokenProvider", "TokenRules", "header_of", "principal_of", "verified_claims"]

_JWS: Final = PyJWS()


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What the claims of a good token look like."""

    role_claim: str = "sub"
    audience_claim: str = ""  # "": audiences aren't looked at
    audiences: Sequence[str] = ()  # one of them has to be the token's
    clock_skew_s: float = 0.0
    needs_expiry: bool = False


class TokenProvider:
    """Tokens signed with one key of the broker's settings."""

    method = "token"
    is_slow = False

    def __init__(self, key: VerificationKey, rules: TokenRules) -> None:
        self._key = key
        self._rules = rules

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        claims = verified_claims(data.strip(), self._key)
        return principal_of(claims, self._rules, now_s)


def header_of(token: bytes) -> dict[str, Any]:
    """The header of a token, which is not verified by that.

    Raises:
        AuthenticationError: not a token.
    """
    _check_size(token)
    try:
        header = _JWS.get_unverified_header(token)
    except (PyJWTError, ValueError, RecursionError):
        raise AuthenticationError("not a JSON Web Token") from None
    return dict(header)


def verified_claims(token: bytes, key: VerificationKey) -> dict[str, Any]:
    """The claims of a token that was signed with ``key``.

    Raises:
        AuthenticationError: not a token, or another key's, or another algorithm.
    """
    _check_size(token)
    try:
        decoded = _JWS.decode_complete(token, key.key, algorithms=key.algorithms)
        claims = json.loads(decoded["payload"])
    except PyJWTError as error:
        # Only the kind: texts of the library may repeat parts of the token.
        raise AuthenticationError(f"bad token: {type(error).__name__}") from None
    except (ValueError, TypeError, RecursionError):
        raise AuthenticationError("bad token: not JSON") from None
    if not isinstance(claims, dict):
        raise AuthenticationError("bad token: its claims are no object")
    return claims


def _check_size(token: bytes) -> None:
    if not token:
        raise AuthenticationError("no token")
    if len(token) > CREDENTIAL_BYTES_MAX:
        raise AuthenticationError(f"a token of {len(token)} bytes")


def principal_of(claims: dict[str, Any], rules: TokenRules, now_s: float) -> Principal:
    """Whom verified claims speak of.

    Raises:
        AuthenticationError: expired, not yet valid, for another audience, or without a role.
    """
    expires_s = _time(claims, "exp")
    if expires_s is None and rules.needs_expiry:
        raise AuthenticationError("bad token: it never expires")
    if expires_s is not None and now_s >= expires_s + rules.clock_skew_s:
        raise AuthenticationError("the token has expired")
    not_before_s = _time(claims, "nbf")
    if not_before_s is not None and now_s < not_before_s - rules.clock_skew_s:
        raise AuthenticationError("the token is not valid yet")
    if rules.audience_claim:
        _check_audience(claims.get(rules.audience_claim), rules.audiences)
    role = claims.get(rules.role_claim)
    if isinstance(role, list) and role:  # AuthenticationProviderToken.getPrincipal: the first one
        role = role[0]
    return Principal(
        checked_role(role), None if expires_s is None else expires_s + rules.clock_skew_s
    )


def _time(claims: dict[str, Any], claim: str) -> float | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthenticationError(f"bad token: {claim} is no number")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise AuthenticationError(f"bad token: {claim} is no time")
    return seconds


def _check_audience(value: object, audiences: Sequence[str]) -> None:
    named = value if isinstance(value, list) else [value]
    if not any(isinstance(each, str) and each in audiences for each in named):
        raise AuthenticationError("the token is for another audience")
