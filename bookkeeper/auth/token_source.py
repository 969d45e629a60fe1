"""A client's own token, which may be renewed in its file while the client works."""

import base64
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.auth.errors import KeyFormatError
from magnetar.bookkeeper.auth.file_state import file_state
from magnetar.bookkeeper.auth.keys import file_of

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_PLUGINS: Final = ("", "token", "org.apache.pulsar.client.impl.auth.AuthenticationToken")
_TOKEN_BYTES_MAX: Final = 8 * 1024
"""gRPC's servers take no longer headers by default; so the mistake is told here."""


class TokenSource:
    """Where a client has its token from: ``file:///path``, ``token:...``, a path, or the token."""

    def __init__(self, source: str, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Raises KeyFormatError: there is no token."""
        self._clock_s = clock_s
        self._path = _path_of(source)
        self._seen: object = None
        self._looked_s = clock_s()
        self.generation = 0
        """Grows when another token is in use."""
        if self._path is None:
            self._token = _checked(source.removeprefix("token:").strip())
        else:
            self._seen = file_state(self._path)
            self._token = self._read(self._path)

    def token(self, *, at_once: bool = False) -> str:
        """The token now; files are looked at once a second, or ``at_once``.

        While its file can't be used, the last good one is.
        """
        if self._path is not None:
            now_s = self._clock_s()
            if at_once or now_s - self._looked_s >= _LOOK_S:
                self._looked_s = now_s
                self._renew(self._path)
        return self._token

    def replace(self, token: str) -> None:
        """Show this one from now on; for tokens that come by another way than a file.

        Raises:
            KeyFormatError: it can't be one; the old one stays.
        """
        assert self._path is None, "its tokens come from a file"
        if (checked := _checked(token.strip())) != self._token:
            self._token = checked
            self.generation += 1

    def expires_at_s(self) -> float | None:
        """When the token says that it ends, seconds since 1970; None: it says nothing."""
        try:
            body = self._token.split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            value = claims.get("exp")
        except (ValueError, IndexError, AttributeError, RecursionError):
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and abs(value) < 1e15 else None

    def _renew(self, path: Path) -> None:
        seen = file_state(path)
        if seen == self._seen or seen is None:
            return
        try:
            token = self._read(path)
        except KeyFormatError as error:
            logger.warning("the token for bookies can't be read, the old one stays: %s", error)
            return
        if file_state(path) != seen:
            return  # it is being written
        self._seen = seen
        if token != self._token:
            self._token = token
            self.generation += 1

    @staticmethod
    def _read(path: Path) -> str:
        try:
            with path.open("rb") as file:
                content = file.read(_TOKEN_BYTES_MAX + 1)
        except OSError as error:
            raise KeyFormatError(f"token for bookies: {path}: {error.strerror}") from None
        return _checked(content.decode(errors="replace").strip())


def _path_of(source: str) -> Path | None:
    if source.startswith("token:"):
        return None
    try:
        return file_of(source)
    except (OSError, ValueError):
        return None


def _checked(token: str) -> str:
    """A token that fits a header.

    Raises:
        KeyFormatError: it isn't one; the text doesn't hold it.
    """
    if not token:
        raise KeyFormatError("token for bookies: it is empty")
    if len(token) > _TOKEN_BYTES_MAX:
        raise KeyFormatError(f"token for bookies: longer than {_TOKEN_BYTES_MAX} bytes")
    if not token.isascii() or not token.isprintable() or " " in token or token.count(".") != 2:
        raise KeyFormatError("token for bookies: neither a JSON Web Token nor a file that exists")
    return token


def token_setting(plugin: str, parameters: str) -> str:
    """Where a token is, out of Pulsar's two settings of a client of bookies; "": there is none.

    Raises:
        ValueError: another plug-in, or one of the two alone.
    """
    if plugin not in _PLUGINS:
        raise ValueError(f"bookkeeperClientAuthenticationPlugin={plugin}: only token is known")
    if bool(plugin) != bool(parameters):
        raise ValueError(
            "bookkeeperClientAuthenticationPlugin=token goes with"
            " bookkeeperClientAuthenticationParameters=file:///path"
        )
    return parameters
