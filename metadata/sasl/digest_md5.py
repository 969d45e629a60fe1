"""SASL DIGEST-MD5 (RFC 2831, quality of protection ``auth``), both sides. No I/O, no dice.

Both sides prove that they know the password, which isn't sent. Who reads the exchange can try
passwords, and go on in the connection: use it over TLS.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MECHANISM: Final = "DIGEST-MD5"
_NONCE_COUNT: Final = b"00000001"
# key=value or key="value" with backslashes before what is quoted, and commas between (section 7.1).
_DIRECTIVE: Final = re.compile(
    rb'[ \t\r\n,]*([^ \t\r\n,="]+)[ \t\r\n]*=[ \t\r\n]*("(?:[^"\\]|\\.)*"|[^ \t\r\n,"]*)', re.DOTALL
)
_BETWEEN: Final = re.compile(rb"[ \t\r\n,]*")
_CHALLENGE_BYTES_MAX: Final = 2048
"""The RFC's own limit for what a server sends."""
_RESPONSE_BYTES_MAX: Final = 4096
"""The same for a client."""


class SaslError(Exception):
    """A challenge or response that can't be answered, or a peer that didn't prove that it knows the
    password; the text never has a password."""


@dataclass(frozen=True, slots=True)
class SaslCredentials:
    username: str
    password: str = field(repr=False)


class DigestMd5Client:
    """One exchange: ``respond`` to what the server sends, until ``is_complete``.

    Args:
        service, host: of the server, as it knows them: ``digest-uri`` is ``service/host``.
        client_nonce: text that no other exchange has; printable, without quotes and backslashes.
    """

    def __init__(
        self, credentials: SaslCredentials, service: str, host: str, client_nonce: str
    ) -> None:
        self.is_complete = False
        self._credentials = credentials
        self._uri = f"{service}/{host}"
        self._client_nonce = client_nonce
        self._is_begun = False
        self._proof: bytes | None = None  # what the server has to say at the end

    def respond(self, challenge: bytes) -> bytes:
        """What to send next; empty: nothing, once the exchange is complete.

        The first challenge may be empty: servers of ZooKeeper and BookKeeper want to be asked.

        Raises:
            SaslError: see there.
        """
        if self._proof is not None:
            self._check(challenge)
            return b""
        if challenge:
            return self._answer(challenge)
        if self._is_begun:
            raise SaslError(f"the server has no SASL {MECHANISM}")
        self._is_begun = True
        return b""

    def _answer(self, challenge: bytes) -> bytes:
        found = _directives(challenge)
        nonce = found.get("nonce")
        if not nonce or found.get("algorithm") != b"md5-sess":
            raise SaslError("the server's challenge is none of DIGEST-MD5")
        if b"auth" not in found.get("qop", b"auth").replace(b" ", b"").split(b","):
            raise SaslError("the server wants DIGEST-MD5 with integrity or encryption, not in here")
        is_utf8 = found.get("charset", b"").lower() == b"utf-8"
        realm = found.get("realm", b"")
        client_nonce, uri = self._client_nonce.encode(), self._uri.encode()
        hashed = _Hashed(self._credentials, realm, nonce, client_nonce, uri, is_utf8=is_utf8)
        self._proof = hashed.digest(b"")
        encoding = "utf-8" if is_utf8 else "latin-1"
        fields = {
            "username": _quoted(_encoded(self._credentials.username, encoding)),
            "realm": _quoted(realm),
            "nonce": _quoted(nonce),
            "cnonce": _quoted(client_nonce),
            "nc": _NONCE_COUNT,
            "qop": b"auth",
            "digest-uri": _quoted(uri),
            "response": hashed.digest(b"AUTHENTICATE"),
            **({"charset": b"utf-8"} if is_utf8 else {}),
        }
        return b",".join(key.encode() + b"=" + value for key, value in fields.items())

    def _check(self, challenge: bytes) -> None:
        assert self._proof is not None
        proof = _directives(challenge).get("rspauth", b"")
        if not hmac.compare_digest(proof, self._proof):
            raise SaslError("the server didn't prove that it knows the password")
        self.is_complete = True


class DigestMd5Server:
    """One exchange: ``respond`` to what the client sends, until ``username`` is known.

    Args:
        passwords: of users by name.
        service, host: its own names; ``host`` is the realm, too.
        nonce: text that no other exchange has; printable, without quotes and backslashes.
    """

    def __init__(self, passwords: Mapping[str, str], service: str, host: str, nonce: str) -> None:
        self.username: str | None = None
        self._passwords = passwords
        self._uri, self._realm = f"{service}/{host}".encode(), host.encode()
        self._nonce = nonce.encode()
        self._is_begun = False

    def respond(self, response: bytes) -> bytes:
        """What to send next: the challenge, then the proof that it knows the password.

        Raises:
            SaslError: the client doesn't know the password of one of the users, or sent anything
                else. It isn't told which.
        """
        if self.username is not None:
            raise SaslError("a message behind the last one")
        if not self._is_begun:
            self._is_begun = True
            fields = (b"realm=%s" % _quoted(self._realm), b"nonce=%s" % _quoted(self._nonce))
            return b",".join((*fields, b'qop="auth",charset=utf-8,algorithm=md5-sess'))
        found = _directives(response, _RESPONSE_BYTES_MAX)
        is_utf8 = found.get("charset", b"").lower() == b"utf-8"
        try:
            username = found.get("username", b"").decode("utf-8" if is_utf8 else "latin-1")
        except UnicodeDecodeError:
            raise SaslError("the user's name can't be read") from None
        expected = {
            "realm": self._realm,
            "nonce": self._nonce,
            "nc": _NONCE_COUNT,
            "digest-uri": self._uri,
        }
        if any(found.get(key) != value for key, value in expected.items()):
            raise SaslError(f"user {username!r} answers another challenge")
        if found.get("qop", b"auth") != b"auth":
            raise SaslError(f"user {username!r} wants integrity or encryption")
        authzid = found.get("authzid")
        if authzid is not None and authzid != username.encode():
            raise SaslError(f"user {username!r} wants to be another one")
        hashed = _Hashed(
            # Of a user that isn't there as long as of one that is.
            SaslCredentials(username, self._passwords.get(username, "")),
            *(self._realm, self._nonce, found.get("cnonce", b""), self._uri),
            is_utf8=is_utf8,
            authzid=authzid,
        )
        given = found.get("response", b"")
        is_right = hmac.compare_digest(given, hashed.digest(b"AUTHENTICATE"))
        if not is_right or username not in self._passwords:
            raise SaslError(f"user {username!r} is not known, or the password is wrong")
        self.username = username
        return b"rspauth=" + hashed.digest(b"")


class _Hashed:
    """A1 of section 2.1.2.1, hashed, and what it is used for."""

    def __init__(
        self,
        credentials: SaslCredentials,
        realm: bytes,
        nonce: bytes,
        client_nonce: bytes,
        uri: bytes,
        *,
        is_utf8: bool,
        authzid: bytes | None = None,
    ) -> None:
        texts = (credentials.username, credentials.password)
        # In UTF-8 only where ISO 8859-1 can't: so that a password has one hash with all clients.
        name, password = (_encoded(each, "latin-1", is_utf8=is_utf8) for each in texts)
        inner = hashlib.md5(b":".join((name, realm, password)), usedforsecurity=False).digest()
        rest = (nonce, client_nonce) if authzid is None else (nonce, client_nonce, authzid)
        self._secret = _md5_hex(b":".join((inner, *rest)))
        self._nonces = nonce, _NONCE_COUNT, client_nonce
        self._uri = uri

    def digest(self, method: bytes) -> bytes:
        """``method`` is empty for what the server sends."""
        a2 = _md5_hex(method + b":" + self._uri)
        return _md5_hex(b":".join((self._secret, *self._nonces, b"auth", a2)))


def _directives(challenge: bytes, bytes_max: int = _CHALLENGE_BYTES_MAX) -> Mapping[str, bytes]:
    """
    Raises:
        SaslError: not of this form.
    """
    if len(challenge) > bytes_max:
        raise SaslError(f"a challenge of {len(challenge)} bytes")
    found: dict[str, bytes] = {}
    at = 0
    while match := _DIRECTIVE.match(challenge, at):
        key, value = match[1].decode("latin-1").lower(), match[2]
        if value.startswith(b'"'):
            value = re.sub(rb"\\(.)", rb"\1", value[1:-1], flags=re.DOTALL)
        # There may be several realms: the first one, as Java's client without a choice takes.
        found.setdefault(key, value)
        at = match.end()
    between = _BETWEEN.match(challenge, at)
    if between is None or between.end() != len(challenge):
        raise SaslError("the server's challenge can't be read")
    return found


def _encoded(text: str, encoding: str, *, is_utf8: bool = False) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        if is_utf8:
            return text.encode()
        raise SaslError("user or password has characters that the server can't read") from None


def _quoted(value: bytes) -> bytes:
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", value) + b'"'


def _md5_hex(value: bytes) -> bytes:
    return hashlib.md5(value, usedforsecurity=False).hexdigest().encode()
