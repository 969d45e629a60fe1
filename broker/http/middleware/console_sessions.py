"""Who has logged in to the console: a cookie with credentials that only brokers can read.

A browser that showed a token with each request would have to store it, where a script could read
it. The cookie is encrypted, not for scripts, not sent by pages of other sites, and good for the
console alone: the admin API doesn't know it. All brokers have the key, so any of them may be the
next that a load balancer picks (docs/decisions/0072).
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.auth.provider_chain import Credentials
from magnetar.broker.http.middleware.raw_path import route_path
from magnetar.metadata.errors import BadVersionError, MetadataError, NotFoundError
from magnetar.metadata.recipes import update
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

if TYPE_CHECKING:
    from starlette.types import Scope


CONSOLE: Final = "/console"
LOGIN: Final = "/console/login"
LOGOUT: Final = "/console/logout"
FRAGMENT: Final = "magnetar-fragment"
"""Header of a request of console.js, which wants the middle of the page only."""
CREDENTIALS_MAX: Final = 8 * 1024
"""Bytes that a cookie can hold, in its pieces."""
_IDLE_S: Final = 8 * 3600
_RENEW_S: Final = 600
"""A cookie that was made so long ago is made anew by the next use."""
_READ_S: Final = 10.0
"""How old what the store told may be: so long a session may outlast its end at another broker."""
_KEY: Final = "/console/key"
_ENDED: Final = "/console/ended-sessions"
"""Names of nodes: when the session would have ended by itself, whose it was, and its id. Instead of
an id, seconds since 1970 and "all": every session that was opened until then."""
_ENDED_MAX: Final = 5_000
"""When so many were ended in eight hours, the next one ends all of the credentials that most of
them were of, in a single node; if no two are of the same, all sessions: a new key is made."""
_ENDED_OF_ONE_MAX: Final = 50
"""With the same credentials. The next one ends all that these have opened, in a single node, so
that nobody can end the sessions of others by logging in and out."""
_ALL: Final = "all"
_HEAD: Final = struct.Struct(">Q8s")
"""Seconds since 1970 of the last use, id."""
_ID: Final = struct.Struct(">L4s")
"""Seconds since 1970 when the session was opened, random bytes."""
_NONCE_BYTES: Final = 12
_PIECE_CHARACTERS: Final = 3500
"""Browsers take 4,096 with the name and the attributes."""
_PIECES_MAX: Final = 4
_SECURE_NAME: Final = "__Host-magnetar"
_NAME: Final = "magnetar-console"
"""Where TLS isn't: browsers take a ``__Host-`` cookie by TLS only."""


@dataclass(frozen=True, slots=True)
class _Session:
    used_s: int
    id: bytes
    credentials: Credentials


class ConsoleSessions:
    """Makes and reads cookies; what brokers share about them is in the metadata store."""

    def __init__(
        self,
        store: Callable[[], MetadataStore],
        wall_clock_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._store, self._clock_s, self._monotonic_s = store, wall_clock_s, monotonic_s
        self._key = b""
        """Empty: not read yet."""
        self._ended: frozenset[str] = frozenset()
        """Hexadecimal ids."""
        self._all_ended_s: dict[str, int] = {}
        """By owner: until when sessions were opened that have all ended."""
        self._read_at_s = float("-inf")

    async def refresh(self) -> None:
        """Reads the key and which sessions were ended, every ten seconds.

        Raises:
            MetadataError: the key is still unknown. Else what was known is good for a while more.
        """
        now_s = self._monotonic_s()
        if self._key and now_s - self._read_at_s < _READ_S:
            return
        self._read_at_s = now_s
        try:
            node = await update(self._store(), _KEY, _new_key)
            names = await self._store().children(_ENDED)
        except MetadataError:
            if not self._key:
                raise
            return
        assert node is not None
        self._key = node.value
        self._ended = frozenset(name.rpartition("-")[2] for name in names)
        self._all_ended_s = {}
        for _, owner, opened_s in (each[:3] for name in names if len(each := name.split("-")) == 4):
            self._all_ended_s[owner] = max(int(opened_s), self._all_ended_s.get(owner, 0))

    def form_key(self) -> bytes:
        """For tokens of forms: a page of one broker may be sent to another. REQUIRES: refreshed."""
        assert self._key
        return hashlib.sha256(b"forms" + self._key).digest()

    def open(self, credentials: Credentials) -> str:
        """The value of a new session's cookie.

        REQUIRES: the credentials are good now, and at most CREDENTIALS_MAX bytes; refreshed.
        """
        now_s = int(self._clock_s())
        return self._sealed(_Session(now_s, _ID.pack(now_s, secrets.token_bytes(4)), credentials))

    async def close(self, scope: Scope) -> None:
        """Ends the session of a request at all brokers. Raises MetadataError: it can't."""
        session = self._session(scope)
        if session is None:
            return
        self._ended |= {session.id.hex()}
        now_s = int(self._clock_s())
        names = await self._store().children(_ENDED)
        past = {name for name in names if int(name.partition("-")[0]) < now_s}
        await self._delete(past)
        left = [name for name in names if name not in past]
        counts = Counter(_owner_of(name) for name in left)
        owner = self._owner(session)
        folded = {owner} if counts[owner] >= _ENDED_OF_ONE_MAX else set()
        if len(left) >= _ENDED_MAX:
            ((largest, count),) = counts.most_common(1)
            if count == 1:
                await self._store().delete_recursive(_KEY)
                await self._store().delete_recursive(_ENDED)
                return
            folded.add(largest)
        for each in folded:
            self._all_ended_s[each] = now_s
            kept = await self._end(each, f"{now_s}-{_ALL}")
            await self._delete(name for name in left if _owner_of(name) == each and name != kept)
        if owner not in folded:
            await self._end(owner, session.id.hex())

    async def _end(self, owner: str, what: str) -> str:
        """The name of the node that it has now."""
        name = f"{int(self._clock_s()) + _IDLE_S}-{owner}-{what}"
        with suppress(BadVersionError):
            await self._store().put(f"{_ENDED}/{name}", b"", CREATE_ONLY)
        return name

    async def _delete(self, ended: Iterable[str]) -> None:
        for name in ended:
            with suppress(NotFoundError):
                await self._store().delete(f"{_ENDED}/{name}")

    def _owner(self, session: _Session) -> str:
        """The same for the same credentials; without the key nobody can try passwords by it."""
        credentials = session.credentials
        content = b"%s\0%s" % (credentials.method.encode(), credentials.data)
        return hashlib.blake2b(content, digest_size=8, key=b"owners" + self._key).hexdigest()

    def credentials(self, scope: Scope) -> Credentials | None:
        """Of the session that a request for the console belongs to; they may have expired.

        A page that fetches its figures is no use of the session: it does so with nobody there.
        After another use ``scope["state"]["console_cookie"]`` may have a new value.
        """
        if scope.get("state", {}).get("is_foreign") or (session := self._session(scope)) is None:
            return None
        now_s = int(self._clock_s())
        if now_s - session.used_s > _RENEW_S and not _is_fetch(scope):
            renewed = _Session(now_s, session.id, session.credentials)
            scope["state"]["console_cookie"] = self._sealed(renewed)
        return session.credentials

    async def has_ended(self, scope: Scope) -> bool:
        """Whether the session that a request for the console came with has ended since, also at
        another broker: who follows messages sends no request meanwhile."""
        with suppress(MetadataError):
            await self.refresh()
        return self._given(scope) is not None and self._session(scope) is None

    def _given(self, scope: Scope) -> _Session | None:
        """That a request's cookie tells of; it may have ended."""
        if not self._key or not is_console(scope) or not (value := _cookie(scope)):
            return None
        return self._opened(value)

    def _session(self, scope: Scope) -> _Session | None:
        """Of a request for the console; None: it has none, or one that has ended."""
        session = self._given(scope)
        if session is None or session.id.hex() in self._ended:
            return None
        if self._all_ended_s:
            opened_s, _ = _ID.unpack(session.id)
            if opened_s <= self._all_ended_s.get(self._owner(session), -1):
                return None
        return None if self._clock_s() - session.used_s > _IDLE_S else session

    def _sealed(self, session: _Session) -> str:
        credentials = session.credentials
        content = b"%s\0%s" % (credentials.method.encode(), credentials.data)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._cipher().encrypt(
            nonce, _HEAD.pack(session.used_s, session.id) + content, b""
        )
        return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def _opened(self, value: str) -> _Session | None:
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
            plain = self._cipher().decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], b"")
        except (ValueError, InvalidTag):  # of another cluster, or of nobody
            return None
        used_s, session_id = _HEAD.unpack_from(plain)
        method, _, data = plain[_HEAD.size :].partition(b"\0")
        return _Session(used_s, session_id, Credentials(method.decode(), data))

    def _cipher(self) -> Any:
        # Loaded by the first login: most brokers have none.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hashlib.sha256(b"sessions" + self._key).digest())


def _owner_of(name: str) -> str:
    """Of a node of an ended session."""
    return name.split("-")[1]


def _new_key(found: bytes | None) -> bytes | None:
    return None if found else secrets.token_bytes(32)


def is_console(scope: Scope) -> bool:
    path = route_path(scope)
    return path == CONSOLE or path.startswith(CONSOLE + "/")


def _is_fetch(scope: Scope) -> bool:
    """Whether a page asks by itself, for its figures."""
    return any(name == FRAGMENT.encode() for name, _ in scope["headers"])


def set_cookie(scope: Scope, value: str) -> list[tuple[bytes, bytes]]:
    """Headers ``Set-Cookie``, one for each piece; an empty value takes the cookie away."""
    name, secure = _name(scope), "; Secure" if scope["scheme"] == "https" else ""
    pieces = [
        value[at : at + _PIECE_CHARACTERS] for at in range(0, len(value), _PIECE_CHARACTERS)
    ] or [""]
    ends = "" if value else "; Max-Age=0"
    # The first one says how many there are: browsers may have more, of a longer one before.
    pieces[0] = f"{len(pieces)}.{pieces[0]}" if value else ""
    return [
        (
            b"set-cookie",
            f"{name}{f'-{number}' if number else ''}={piece}"
            f"; Path=/; HttpOnly; SameSite=Strict{secure}{ends}".encode(),
        )
        for number, piece in enumerate(pieces)
    ]


def _name(scope: Scope) -> str:
    """Browsers send cookies to every port of a host, where another cluster may be."""
    return _SECURE_NAME if scope["scheme"] == "https" else f"{_NAME}-{scope['server'][1]}"


def _cookie(scope: Scope) -> str:
    found = dict(_cookies(scope["headers"]))
    name = _name(scope)
    count, _, first = found.get(name, "").partition(".")
    if not (count.isascii() and count.isdecimal() and 0 < int(count[:2]) <= _PIECES_MAX):
        return ""
    return first + "".join(found.get(f"{name}-{number}", "") for number in range(1, int(count[:2])))


def _cookies(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, str]]:
    for header, text in headers:
        if header == b"cookie":
            for pair in text.decode("latin-1").split(";"):
                name, _, value = pair.strip().partition("=")
                yield name, value
