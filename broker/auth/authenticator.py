"""The shell around the providers: slow checks elsewhere, a short memory, a log of refusals.

Admitted clients are asked again when keys change.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, Protocol

from magnetar.bookkeeper.auth.errors import CredentialsError
from magnetar.bookkeeper.auth.refusal_log import RefusalLog
from magnetar.bookkeeper.auth.tokens import Principal
from magnetar.broker.auth.basic import BasicProvider
from magnetar.broker.auth.errors import TooManyChecksError
from magnetar.broker.auth.file_renewal import FileRenewal
from magnetar.broker.auth.issuer_keys import IssuerKeys
from magnetar.broker.auth.password_checks import PasswordChecks
from magnetar.broker.auth.provider import AuthenticationProvider, KeysNeededError
from magnetar.broker.auth.provider_chain import Credentials, ProviderChain
from magnetar.broker.auth.provider_factory import build, key_files
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import AuthenticationError, BrokerError

logger = logging.getLogger("magnetar.broker.audit")

_REMEMBERED_S: Final = 60.0
_REMEMBERED_MAX: Final = 10_000
_WAITING_MAX: Final = 256
"""Clients that wait for an issuer's keys, and those that wait for a check under way; more are
refused. One address gets half of the places."""
_ASKED_PER_TURN: Final = 50
_NAME_BYTES: Final = 128
_SIZES: Final = Struct(">II")
_AFTER_TOO_MANY_S: Final = 1.0


class AuthenticatedSession(Protocol):
    """A client that was admitted and is still there: a connection, a WebSocket, a stream."""

    @property
    def proofs(self) -> Sequence[tuple[Credentials, str]]:
        """The credentials shown, and the role that each has proved."""

    def on_key_revoked(self, credentials: Credentials) -> None:
        """These prove nothing any more: ask for others, or end."""


class Authenticator:
    """Finds the roles of clients, for all ports of a broker, while authentication is enabled."""

    def __init__(
        self,
        chain: ProviderChain,
        issuers: IssuerKeys | None = None,
        *,
        passwords: PasswordChecks | None = None,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self.chain = chain
        self.issuers = issuers
        self.renewal: FileRenewal[ProviderChain] | None = None
        self.generation = 0
        """Grows with each change of keys: what was checked before may not hold any more."""
        self.now_s = clock_s
        """Wall clock, seconds since 1970."""
        self.sessions: set[AuthenticatedSession] = set()
        """Clients that the chain in use now has admitted; asked again when keys change."""
        self._asking: asyncio.Task[None] | None = None
        self.passwords = PasswordChecks() if passwords is None else passwords
        self._keyed = _keyed()
        # Digest of credentials -> whom they prove, and until when that may be believed unchecked;
        # after that they are still likely to be good, so their next check goes before others'.
        self._remembered: dict[bytes, tuple[Principal, float]] = {}
        self._checking: dict[bytes, asyncio.Future[Principal]] = {}
        self._fetching_for: Counter[str] = Counter()  # by address, those that need no password
        self._joined_by: Counter[str] = Counter()  # by address, waiting for a check
        self._refusals = RefusalLog(logger)
        self.accepted: Counter[str] = Counter()  # by method, for the metrics page
        self.refused: Counter[str] = Counter()

    @classmethod
    def of_config(cls, config: BrokerConfig) -> "Authenticator | None":
        """None: authentication is off. Raises ConfigError."""

        def read() -> ProviderChain:
            parts = build(config, authenticator.issuers)
            assert parts is not None
            return parts.chain

        renewal = FileRenewal(
            "keys",
            key_files(config),
            config.tls_cert_refresh_check_duration_sec,
            read=read,
            use=lambda chain: authenticator.use(chain),
        )
        if (parts := build(config)) is None:
            return None
        authenticator = cls(parts.chain, parts.issuers)
        authenticator.renewal = renewal
        return authenticator

    def start(self) -> None:
        """Notice changed keys from now on. REQUIRES: a running loop."""
        if self.renewal is not None:
            self.renewal.start()

    def close(self) -> None:
        if self.renewal is not None:
            self.renewal.close()
        self.passwords.close()
        if self.issuers is not None:
            self.issuers.close()
        if self._asking is not None:
            self._asking.cancel()

    # --- keys that change

    def use(self, chain: ProviderChain) -> None:
        """Go on with other keys; every admitted client is asked again."""
        self.chain = chain
        self.generation += 1
        # What was remembered, and what is being checked now, was good for the old keys.
        self._keyed = _keyed()
        self._remembered.clear()
        if self._asking is None and self.sessions:
            self._asking = asyncio.get_running_loop().create_task(self._ask_all())

    async def _ask_all(self) -> None:
        try:
            generation = -1
            while generation != self.generation:
                generation = self.generation
                for number, login in enumerate(list(self.sessions)):
                    if number % _ASKED_PER_TURN == 0:
                        await asyncio.sleep(0)
                    if login in self.sessions:
                        await self._ask_again(login)
        finally:
            self._asking = None

    async def _ask_again(self, login: AuthenticatedSession) -> None:
        for credentials, role in login.proofs:
            try:
                if (await self._patiently(credentials)).role == role:
                    continue
            except KeysNeededError:
                continue  # an issuer that doesn't answer now has taken nothing back
            except AuthenticationError:
                pass
            if login in self.sessions:
                try:
                    login.on_key_revoked(credentials)
                except Exception:  # the others must be asked all the same
                    logger.exception("ending a login failed")
            return

    async def _patiently(self, credentials: Credentials) -> Principal:
        """Raises AuthenticationError, but not for want of a place in the queue."""
        while True:
            try:
                return await self.authenticate(credentials)
            except TooManyChecksError:
                await asyncio.sleep(_AFTER_TOO_MANY_S)

    def authenticate_nowait(self, credentials: Credentials) -> Principal | None:
        """The principal that they prove; None: that takes longer, ``authenticate`` can tell.

        Raises:
            AuthenticationError: they prove no role.
        """
        if not (providers := self.chain.providers(credentials.method)):
            return Principal(self.chain.anonymous_role)
        return self._ask_nowait(providers, credentials, self._digest(credentials))

    def authenticate_or_wait(self, credentials: Credentials, address: str) -> Principal | None:
        """As ``authenticate_nowait``, for a listener: None only where ``authenticate`` would check
        them, or wait for the check that is under way.

        Raises:
            AuthenticationError: they prove no role.
            TooManyChecksError: they were not checked.
        """
        if not (providers := self.chain.providers(credentials.method)):
            return Principal(self.chain.anonymous_role)
        digest = self._digest(credentials)
        principal = self._ask_nowait(providers, credentials, digest)
        if principal is None and not self._has_room_for(credentials, digest, address):
            raise TooManyChecksError("too many checks at once")
        return principal

    def _ask_nowait(
        self, providers: Sequence[AuthenticationProvider], credentials: Credentials, digest: bytes
    ) -> Principal | None:
        now_s = self.now_s()
        if (known := self._remembered.get(digest)) is not None and now_s < known[1]:
            return known[0]
        error: AuthenticationError | None = None
        for provider in providers:
            if provider.is_slow:
                return None
            try:
                principal = _ask(provider, credentials, now_s)
            except KeysNeededError:
                return None
            except AuthenticationError as refusal:
                error = error or refusal
            else:
                self._remember(digest, principal, now_s)
                return principal
        assert error is not None
        raise error

    async def authenticate(self, credentials: Credentials, address: str = "") -> Principal:
        """Check credentials, however long it takes.

        Args:
            address: its guesses may fill no more than half of the queue; "": no address.
        Raises:
            AuthenticationError: they prove nothing.
            TooManyChecksError: they were not checked.
        """
        while True:
            generation = self.generation
            try:
                principal = await self._authenticate(credentials, address)
            except AuthenticationError:
                if generation == self.generation:
                    raise
            else:
                if generation == self.generation:
                    return principal
            # What was found holds for keys that have been replaced meanwhile.

    async def _authenticate(self, credentials: Credentials, address: str) -> Principal:
        if (principal := self.authenticate_nowait(credentials)) is not None:
            return principal
        # The same credentials at the same time, from a client's many connections, are one check.
        digest = self._digest(credentials)
        if (future := self._checking.get(digest)) is not None:
            return await self._join(future, digest, address)
        is_password = self._has_password(credentials)
        if not is_password:  # those have a queue of their own
            if _is_full(self._fetching_for, address):
                raise TooManyChecksError("too many checks at once")
            self._fetching_for[address] += 1
        future = asyncio.ensure_future(self._check(credentials, digest, address))
        self._checking[digest] = future
        future.add_done_callback(lambda done: self._checked(digest, address, is_password, done))
        return await asyncio.shield(future)

    async def _join(
        self, future: asyncio.Future[Principal], digest: bytes, address: str
    ) -> Principal:
        """Wait for a check that is under way. A guess that is shown again takes no place in a
        queue, so without a bound there could be any number of these connections."""
        if not self._may_join(digest, address):
            raise TooManyChecksError("too many wait for the same check")
        self._joined_by[address] += 1
        try:
            return await asyncio.shield(future)
        finally:
            _count_down(self._joined_by, address)

    def _may_join(self, digest: bytes, address: str) -> bool:
        return digest in self._remembered or not _is_full(self._joined_by, address)

    def _has_room_for(self, credentials: Credentials, digest: bytes, address: str) -> bool:
        if digest in self._checking:
            return self._may_join(digest, address)
        if not self._has_password(credentials):
            return not _is_full(self._fetching_for, address)
        name = _name_shown(credentials)
        return self.passwords.has_room(address, name, is_trusted=digest in self._remembered)

    def _has_password(self, credentials: Credentials) -> bool:
        return any(provider.is_slow for provider in self.chain.providers(credentials.method))

    def success(self, method: str) -> None:
        """Count a login."""
        self.accepted[self._known(method)] += 1

    def _known(self, method: str) -> str:
        """For metrics: what a client calls its method is its own choice, not a series for each."""
        return method if method in self.chain.methods else "other"

    def refusal(self, address: str, listener: str, method: str, error: BrokerError) -> None:
        """Count a refusal and log it, unless there are very many."""
        self.refused[self._known(method)] += 1
        self._refusals.add(
            address=address, listener=listener, method=method[:64], reason=str(error)
        )

    def _checked(
        self, digest: bytes, address: str, is_password: bool, future: asyncio.Future[Principal]
    ) -> None:
        del self._checking[digest]
        if not is_password:
            _count_down(self._fetching_for, address)
        if not future.cancelled():
            future.exception()  # read, since the callers may be gone

    async def _check(self, credentials: Credentials, digest: bytes, address: str) -> Principal:
        error: AuthenticationError | None = None
        generation = self.generation
        for provider in self.chain.providers(credentials.method):
            try:
                principal = await self._ask(provider, credentials, digest, address)
            except AuthenticationError as refusal:
                error = error or refusal
            else:
                if generation == self.generation:
                    self._remember(digest, principal, self.now_s())
                return principal
        raise error or AuthenticationError("no provider")

    async def _ask(
        self,
        provider: AuthenticationProvider,
        credentials: Credentials,
        digest: bytes,
        address: str,
    ) -> Principal:
        try:
            if isinstance(provider, BasicProvider):
                question = provider.question(credentials.data)
                good = await self.passwords.check(
                    *(question.digest, question.password),
                    address=address,
                    name=_name_shown(credentials),
                    is_trusted=digest in self._remembered,
                )
                if not good:
                    self._remembered.pop(digest, None)
                return question.answer(good)
            return _ask(provider, credentials, self.now_s())
        except CredentialsError as error:
            raise AuthenticationError(str(error)) from None
        except KeysNeededError as needed:
            if self.issuers is None or not await self.issuers.fetch(needed.issuer):
                raise
            return _ask(provider, credentials, self.now_s())

    def _remember(self, digest: bytes, principal: Principal, now_s: float) -> None:
        until_s = now_s + _REMEMBERED_S
        if principal.expires_at_s is not None:
            until_s = min(until_s, principal.expires_at_s)
        remembered = self._remembered
        remembered.pop(digest, None)  # the youngest again
        if len(remembered) >= _REMEMBERED_MAX:
            del remembered[next(iter(remembered))]  # the oldest
        remembered[digest] = (principal, until_s)

    def _digest(self, credentials: Credentials) -> bytes:
        """Keyed and irreversible: a reader of the memory can't use what is remembered."""
        method, certificate = credentials.method.encode(), credentials.certificate or b""
        sizes = _SIZES.pack(len(method), len(certificate))
        digest = self._keyed.copy()
        digest.update(b"".join((sizes, method, certificate, credentials.data)))
        return digest.digest()


def _keyed() -> hashlib.blake2b:
    """A hash with a new key of its own."""
    return hashlib.blake2b(key=secrets.token_bytes(32), digest_size=32)


def _ask(provider: AuthenticationProvider, credentials: Credentials, now_s: float) -> Principal:
    try:
        return provider.authenticate(
            credentials.method, credentials.data, credentials.certificate, now_s
        )
    except CredentialsError as error:
        raise AuthenticationError(str(error)) from None


def _is_full(waiting: Counter[str], address: str) -> bool:
    """Whether no client of ``address`` may wait beside these, which are counted by address."""
    if waiting.total() >= _WAITING_MAX:
        return True
    return bool(address) and waiting[address] >= _WAITING_MAX // 2


def _count_down(waiting: Counter[str], address: str) -> None:
    waiting[address] -= 1
    if not waiting[address]:
        del waiting[address]


def _name_shown(credentials: Credentials) -> str:
    """Of the user, whether there is such a one or not."""
    return credentials.data[:_NAME_BYTES].partition(b":")[0].decode(errors="replace")
