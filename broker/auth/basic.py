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
        # An unknown user costs what a known one does: else the time tells who exists.
        self._nobody = next(iter(users.values()), None)

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
        good = (check or self._nobody or _never)(password)
        if check is None or not good:
            raise AuthenticationError("unknown user or invalid password")
        return Principal(checked_role(name))


def _never(password: bytes) -> bool:
    return False
