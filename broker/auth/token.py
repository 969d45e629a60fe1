"""JSON Web Tokens: the provider. What a token says is read in bookkeeper/auth/tokens.py."""

from magnetar.bookkeeper.auth.keys import VerificationKey
from magnetar.bookkeeper.auth.tokens import Principal, TokenRules, principal_of, verified_claims


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
        return principal_of(verified_claims(data.strip(), *self._keys), self._rules, now_s)
