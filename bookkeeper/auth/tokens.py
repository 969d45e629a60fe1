"""JSON Web Tokens: times, audience, role (AuthenticationProviderToken).

A library checks the signature only (`token_signatures.py`); what the claims say is checked here,
because the time is an argument (a core looks at no clock).
"""

import binascii
import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.bookkeeper.auth.errors import CredentialsError

CREDENTIAL_BYTES_MAX: Final = 64 * 1024
ROLE_LENGTH_MAX: Final = 1024
_HEAD_BYTES_MAX: Final = 16 * 1024
"""Of a token's header, in base64: it is read before the signature, and nothing in it is needed but
the algorithm and the key's id."""
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")


@dataclass(frozen=True, slots=True)
class Principal:
    """The role that a token proves."""

    role: str
    expires_at_s: float | None = None  # seconds since 1970, from then on not proved any more


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What the claims of a good token look like."""

    role_claim: str = "sub"
    audience_claim: str = ""  # "": audiences aren't looked at
    audiences: Sequence[str] = ()  # one of them has to be the token's
    clock_skew_s: float = 0.0
    needs_expiry: bool = False


def checked_role(role: object) -> str:
    """A role fit for comparisons, log lines and headers.

    Raises:
        CredentialsError: no text, or text that could be mistaken for something else.
    """
    if not isinstance(role, str) or not role.strip():
        raise CredentialsError("no role")
    if len(role) > ROLE_LENGTH_MAX or not role.isprintable():
        raise CredentialsError("a role of unprintable characters, or too long")
    return role


def header_of(token: bytes) -> dict[str, Any]:
    """The header of a token, which is not verified by that.

    Raises:
        CredentialsError: not a token.
    """
    check_size(token)
    head = token.partition(b".")[0]
    if token.count(b".") != 2 or (header := _header(head)) is None:
        raise CredentialsError("not a JSON Web Token")
    return header


@functools.lru_cache(maxsize=64)
def algorithm_of(head: bytes) -> str | None:
    """Which one a token's first part names, "": none; None: it isn't one.

    Remembered, because nearly all tokens begin alike.
    """
    if (header := _header(head)) is None:
        return None
    name = header.get("alg")
    return name if isinstance(name, str) else ""


def _header(head: bytes) -> dict[str, Any] | None:
    """What a token's first part says; None: it isn't one."""
    if len(head) > _HEAD_BYTES_MAX:
        return None
    try:
        header = json.loads(decoded(head))
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None


def decoded(part: bytes) -> bytes:
    """Raises ValueError: not base64."""
    return binascii.a2b_base64(part.translate(_URL_SAFE) + b"==")


def check_size(token: bytes) -> None:
    if not token:
        raise CredentialsError("no token")
    if len(token) > CREDENTIAL_BYTES_MAX:
        raise CredentialsError(f"a token of {len(token)} bytes")


def principal_of(claims: dict[str, Any], rules: TokenRules, now_s: float) -> Principal:
    """Whom verified claims speak of.

    Raises:
        CredentialsError: expired, not yet valid, for another audience, or without a role.
    """
    expires_s = _time(claims, "exp")
    if expires_s is None and rules.needs_expiry:
        raise CredentialsError("bad token: it never expires")
    if expires_s is not None and now_s >= expires_s + rules.clock_skew_s:
        raise CredentialsError("the token has expired")
    not_before_s = _time(claims, "nbf")
    if not_before_s is not None and now_s < not_before_s - rules.clock_skew_s:
        raise CredentialsError("the token is not valid yet")
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
        raise CredentialsError(f"bad token: {claim} is no number")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise CredentialsError(f"bad token: {claim} is no time")
    return seconds


def _check_audience(value: object, audiences: Sequence[str]) -> None:
    named = value if isinstance(value, list) else [value]
    if not any(isinstance(each, str) and each in audiences for each in named):
        raise CredentialsError("the token is for another audience")
