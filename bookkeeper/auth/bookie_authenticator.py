"""Access to a bookie: credentials of a call in, its role and the time until when out.

A call shows a token or the certificate of its connection. What was found is remembered for a
minute, by a keyed digest, so that a call costs a look into a dictionary; after that it is checked
again, with the key files as they are then. Nothing is done for each entry.
"""

import hashlib
import logging
import math
import secrets
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.auth.certificates import common_name
from magnetar.bookkeeper.auth.errors import CredentialsError, KeyFormatError, RoleNotAllowedError
from magnetar.bookkeeper.auth.file_state import file_state
from magnetar.bookkeeper.auth.keys import VerificationKey, file_of, load_key
from magnetar.bookkeeper.auth.token_signatures import verified_claims
from magnetar.bookkeeper.auth.tokens import TokenRules, checked_role, principal_of

logger = logging.getLogger(__name__)

EVERYBODY: Final = "*"
_REMEMBERED_S: Final = 60.0
_REMEMBERED_MAX: Final = 10_000
_AFTER_BAD_KEYS_S: Final = 1.0
"""Unauthenticated clients' calls must neither read files nor write lines as often as they like."""
_PROVIDERS: Final = ("token", "tls")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """What is accepted. Keys are in the forms of Pulsar's settings: files, ``data:``, base64.

    Attributes:
        providers: of ``token`` and ``tls``; a call that shows a token is judged by that alone.
        secret_keys, public_keys: any of them may have signed a token.
        allowed_roles: that may use the bookie; ``*`` in it: every role.
    """

    providers: tuple[str, ...]
    secret_keys: tuple[str, ...] = field(default=(), repr=False)
    public_keys: tuple[str, ...] = ()
    rules: TokenRules = field(default_factory=TokenRules)
    allowed_roles: frozenset[str]

    def check(self) -> None:
        """Raises KeyFormatError, ValueError: no caller could be let in, or every one."""
        unknown = sorted(set(self.providers) - set(_PROVIDERS))
        if unknown or not self.providers:
            raise ValueError(
                f"authenticationProviders: {', '.join(unknown) or 'empty'}; a bookie knows"
                f" {' and '.join(_PROVIDERS)}"
            )
        if not self.allowed_roles:
            raise ValueError(
                "bookieAllowedRoles is empty: the roles of brokers and bookies (* is everybody who"
                " has a good token or certificate)"
            )
        if "token" in self.providers and not (self.secret_keys or self.public_keys):
            raise ValueError("the token provider needs tokenSecretKey or tokenPublicKey")
        if not 0 <= self.rules.clock_skew_s < math.inf:  # NaN neither: nothing would ever expire
            raise ValueError(f"tokenAllowedClockSkewSeconds={self.rules.clock_skew_s}: no time")
        self.load_keys()

    def load_keys(self) -> list[VerificationKey]:
        """Raises KeyFormatError."""
        sources = [("tokenSecretKey", each, True) for each in self.secret_keys]
        sources += [("tokenPublicKey", each, False) for each in self.public_keys]
        return [load_key(source, what, is_secret=is_secret) for what, source, is_secret in sources]

    def look(self) -> tuple[object, ...]:
        """Two looks that are equal: no key file was changed in between."""
        return tuple(_state(source) for source in (*self.secret_keys, *self.public_keys))


@dataclass(frozen=True, slots=True)
class AuthResult:
    """A caller's role, and for how long that holds unchecked."""

    role: str
    until_s: float  # seconds since 1970


class BookieAuthenticator:
    """For all calls of one bookie.

    Attributes:
        accepted, refused: checks by their outcome, for metrics; not calls.
    """

    def __init__(self, settings: AuthSettings, *, clock_s: Callable[[], float] = time.time) -> None:
        """Raises KeyFormatError, ValueError: settings that can't be used."""
        settings.check()
        self.accepted = self.refused = 0
        self._settings = settings
        self._clock_s = clock_s
        self._seen = settings.look()
        self._keys = settings.load_keys()
        self._next_look_s = -math.inf
        self._secret = secrets.token_bytes(32)
        self._remembered: dict[bytes, AuthResult] = {}

    def admit(self, token: str | None, certificate: bytes | None) -> AuthResult:
        """Who shows these.

        Args:
            token: of the call; None: it has none.
            certificate: of its connection, PEM, verified by TLS.
        Raises:
            CredentialsError: they prove no role.
            RoleNotAllowedError: the role may not use this process.
        """
        digest = self._digest(token, certificate)
        now_s = self._clock_s()
        found = self._remembered.get(digest)
        if found is not None and now_s < found.until_s:
            return found
        self._remembered.pop(digest, None)
        try:
            admission = self._check(token, certificate, now_s)
        except CredentialsError:
            self.refused += 1
            raise
        self.accepted += 1
        if len(self._remembered) >= _REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]  # the oldest
        self._remembered[digest] = admission
        return admission

    def left_s(self, token: str | None, certificate: bytes | None) -> float:
        """Seconds until these have to be judged again; raises as ``admit``."""
        return max(0.0, self.admit(token, certificate).until_s - self._clock_s())

    def _check(self, token: str | None, certificate: bytes | None, now_s: float) -> AuthResult:
        settings = self._settings
        until_s = now_s + _REMEMBERED_S
        if token is not None and "token" in settings.providers:
            self._renew_keys(now_s)
            claims = verified_claims(token.encode(errors="replace"), *self._keys)
            principal = principal_of(claims, settings.rules, now_s)
            role = principal.role
            if principal.expires_at_s is not None:
                until_s = min(until_s, principal.expires_at_s)
        elif certificate is not None and "tls" in settings.providers:
            role = checked_role(common_name(_der(certificate)))
        else:
            raise CredentialsError("no credentials of a method that is configured")
        if role not in settings.allowed_roles and EVERYBODY not in settings.allowed_roles:
            raise RoleNotAllowedError(f"role {role} is none of bookieAllowedRoles")
        return AuthResult(role, until_s)

    def _renew_keys(self, now_s: float) -> None:
        """Use key files as they are now; what can't be used changes nothing."""
        if 0 <= self._next_look_s - now_s <= _AFTER_BAD_KEYS_S:  # else the clock was set
            return
        seen = self._settings.look()
        if seen == self._seen:
            return
        try:
            keys = self._settings.load_keys()
        except KeyFormatError as error:
            logger.error("token keys have changed and can't be used, the old ones stay: %s", error)
            self._next_look_s = now_s + _AFTER_BAD_KEYS_S
            return
        if self._settings.look() == seen:  # else it is still being written
            self._seen, self._keys = seen, keys
            self._remembered.clear()
            logger.info("changed token keys are in use now")

    def _digest(self, token: str | None, certificate: bytes | None) -> bytes:
        """Keyed and irreversible: of no use in a dump of the memory."""
        digest = hashlib.blake2b(key=self._secret, digest_size=32)
        for shown in (None if token is None else token.encode(errors="replace"), certificate):
            digest.update((-1 if shown is None else len(shown)).to_bytes(8, "big", signed=True))
            digest.update(shown or b"")
        return digest.digest()


def _der(certificate: bytes) -> bytes:
    try:
        return ssl.PEM_cert_to_DER_cert(certificate.decode())
    except ValueError:
        raise CredentialsError("unreadable client certificate") from None


def _state(source: str) -> object:
    try:
        path = file_of(source)
    except (OSError, ValueError):
        return None
    return None if path is None else file_state(path)
