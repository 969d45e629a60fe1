"""User names and passwords (AuthenticationProviderBasic)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.auth.htpasswd import PasswordCheck
from broker.auth.provider import Principal, checked_role
from broker.errors import AuthenticationError

__all__ = ["BasicProvider"]

_PASSWORD_BYTES_MAX: Final = 4096


class BasicProvider:
    """The role is the user's name. Slow by design, so checks run in threads and are remembered."""

    method = "basic"
    is_slow = True

    def __init__(self, users: Mapping[str, PasswordCheck]) -> None:
        self._users = users
        # An unknown user costs what a known one does, or the time would tell who exists. Kinds of
        # hashes differ a hundredfold, so each unknown name has a user of its own that it is
        # compared with, always the same: ``hash`` of bytes is keyed anew in each process.
        self._others = list(users.values())

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        """``data`` is ``user:password``."""
        user, separator, password = data.partition(b":")
        if not separator or len(password) > _PASSWORD_BYTES_MAX:
            raise AuthenticationError("not user:password")
        try:
            name = user.decode()
        except UnicodeDecodeError:
            name = ""
        check = self._users.get(name)
        good = (check or self._stand_in(user))(password)
        if check is None or not good:
            raise AuthenticationError("unknown user or invalid password")
        return Principal(checked_role(name))

    def _stand_in(self, user: bytes) -> PasswordCheck:
        return self._others[hash(user) % len(self._others)] if self._others else _never


def _never(password: bytes) -> bool:
    return False
