"""Who may use a bookie of ours by BookKeeper's protocol: plug-ins that read AUTH messages.

``server.py`` carries the messages. SASL is the one plug-in there is.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from magnetar.bookkeeper.bookie_protocol.login import PLUGIN, SERVICE
from magnetar.bookkeeper.errors import UnauthorizedAccessError
from magnetar.metadata.sasl.digest_md5 import DigestMd5Server, SaslError

ALLOWED_IDS: Final = ".*bookkeeper.*"
"""BookKeeper's default of ``saslJaasClientAllowedIds``."""
SECTION: Final = "Bookie"
"""BookKeeper's default of ``saslJaasBookieSectionName``."""
PROVIDER: Final = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
"""Name of it in ``bookieAuthProviderFactoryClass``."""


class ClientLogin(Protocol):
    """Of one connection."""

    @property
    def is_complete(self) -> bool:
        """The client may use the bookie."""
        ...

    def respond(self, payload: bytes) -> bytes:
        """The answer to a message of the client's.

        Raises:
            UnauthorizedAccessError: the client is refused; the text is for the log.
        """
        ...


class LoginPlugin(Protocol):
    """One way to log in."""

    name: str
    """``authPluginName`` of its messages."""

    def begin(self) -> ClientLogin:
        """For a new connection."""
        ...


class SaslLoginPlugin:
    """SASL DIGEST-MD5.

    Args:
        passwords: of users by name; asked for each connection, as they may have changed.
        allowed_ids: regular expression that the whole name of an allowed user fits.
    """

    name = PLUGIN

    def __init__(self, passwords: Callable[[], Mapping[str, str]], allowed_ids: str) -> None:
        self._passwords = passwords
        self._allowed = re.compile(allowed_ids)

    def begin(self) -> ClientLogin:
        return _SaslClientLogin(self._passwords, self._allowed)


class _SaslClientLogin:
    def __init__(
        self, passwords: Callable[[], Mapping[str, str]], allowed: re.Pattern[str]
    ) -> None:
        self._passwords, self._allowed = passwords, allowed
        self._exchange: DigestMd5Server | None = None
        self.is_complete = False

    def respond(self, payload: bytes) -> bytes:
        try:
            if self._exchange is None:
                nonce = secrets.token_urlsafe(24)
                self._exchange = DigestMd5Server(self._passwords(), SERVICE, SERVICE, nonce)
            answer = self._exchange.respond(payload)
        except (SaslError, OSError, ValueError) as error:
            raise UnauthorizedAccessError(str(error)) from error
        username = self._exchange.username
        if username is not None:
            if not self._allowed.fullmatch(username):
                raise UnauthorizedAccessError(
                    f"user {username!r} isn't among saslJaasClientAllowedIds"
                )
            self.is_complete = True
        return answer
