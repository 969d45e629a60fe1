"""JSON Web Tokens: the provider. What a token says is read in bookkeeper/auth/tokens.py."""

from __future__ import annotations

from typing import Any

from magnetar.bookkeeper.auth import tokens
from magnetar.bookkeeper.auth.errors import CredentialsError
from magnetar.bookkeeper.auth.keys import VerificationKey
from magnetar.bookkeeper.auth.tokens import Principal, TokenRules
from magnetar.broker.errors import AuthenticationError


class TokenProvider:
    """Tokens signed with one of the keys of the broker's settings."""

    method = "token"
    is_slow = False

    def __init__(self, key: VerificationKey, rules: TokenRules, *more: VerificationKey) -> None:
        """``more``: keys that are good as well, while one takes the other's place."""
        self._keys = (key, *more)
        self._rules = rules

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        token = data.strip()
        for key in self._keys[:-1]:
            try:
                claims = tokens.verified_claims(token, key)
            except CredentialsError:
                continue
            return principal_of(claims, self._rules, now_s)
        return principal_of(verified_claims(token, self._keys[-1]), self._rules, now_s)


def header_of(token: bytes) -> dict[str, Any]:
    """The header of a token, which is not verified by that. Raises AuthenticationError."""
    try:
        return tokens.header_of(token)
    except CredentialsError as error:
        raise AuthenticationError(str(error)) from None


def verified_claims(token: bytes, key: VerificationKey) -> dict[str, Any]:
    """The claims of a token that was signed with ``key``. Raises AuthenticationError."""
    try:
        return tokens.verified_claims(token, key)
    except CredentialsError as error:
        raise AuthenticationError(str(error)) from None


def principal_of(claims: dict[str, Any], rules: TokenRules, now_s: float) -> Principal:
    """Whom verified claims speak of. Raises AuthenticationError."""
    try:
        return tokens.principal_of(claims, rules, now_s)
    except CredentialsError as error:
        raise AuthenticationError(str(error)) from None
