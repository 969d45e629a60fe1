"""Password files as ``htpasswd`` writes them: ``user:hash`` lines.

Pulsar knows apr1 (MD5) and crypt; bcrypt, SHA-256 and SHA-512 crypt and ``{SHA}`` are ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import bcrypt
from passlib.hash import (
    apr_md5_crypt,
    des_crypt,
    ldap_sha1,
    md5_crypt,
    sha256_crypt,
    sha512_crypt,
)

from broker.auth.errors import KeyFormatError

__all__ = ["PasswordCheck", "parse_htpasswd"]

PasswordCheck: TypeAlias = Callable[[bytes], bool]
"""Whether it is the password; takes as long for a wrong one as for the right one."""

_BCRYPT_BYTES_MAX: Final = 72
"""What bcrypt looks at; htpasswd and Apache cut longer ones there, too."""
_BCRYPT: Final = re.compile(r"\$2[yab]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_HANDLERS: Final = (apr_md5_crypt, sha256_crypt, sha512_crypt, md5_crypt, ldap_sha1, des_crypt)


def parse_htpasswd(content: bytes, what: str) -> dict[str, PasswordCheck]:
    """User names and how their passwords are checked.

    Args:
        content: the file; blank lines and lines that begin with # are skipped.
        what: name of the setting, for errors.
    Raises:
        KeyFormatError: names the line, never its contents.
    """
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise KeyFormatError(f"{what}: not UTF-8") from None
    users: dict[str, PasswordCheck] = {}
    for number, line in enumerate(lines, 1):
        if not (line := line.strip()) or line.startswith("#"):
            continue
        user, separator, digest = line.partition(":")
        if not separator or not user or not user.isprintable():
            raise KeyFormatError(f"{what}: line {number} is not user:hash")
        if user in users:
            raise KeyFormatError(f"{what}: line {number} names a user for the second time")
        # Some write more fields behind the hash
        check = _check_of(digest.split(":", 1)[0].strip())
        if check is None:
            raise KeyFormatError(
                f"{what}: line {number}: an unknown kind of hash; htpasswd -B makes a good one"
            )
        users[user] = check
    return users


def _check_of(digest: str) -> PasswordCheck | None:
    """None: not a hash. Nothing is computed for that: a thousand slow hashes load in no time."""
    if digest.startswith("$2"):
        return _bcrypt_check(digest.encode()) if _BCRYPT.fullmatch(digest) else None
    for handler in _HANDLERS:
        if handler.identify(digest):
            return _handler_check(handler, digest)
    return None


def _bcrypt_check(digest: bytes) -> PasswordCheck:
    def check(password: bytes) -> bool:
        try:
            return bcrypt.checkpw(password[:_BCRYPT_BYTES_MAX], digest)
        except ValueError:
            return False

    return check


def _handler_check(handler: Any, digest: str) -> PasswordCheck | None:
    """``handler``: a hash of passlib."""
    try:
        whole = bool(handler.from_string(digest).checksum)
    except ValueError:  # begins like one, and isn't
        whole = False
    if not whole:
        return None

    def check(password: bytes) -> bool:
        try:
            return bool(handler.verify(password, digest))
        except ValueError:  # a NUL, or far too long: no password at all
            return False

    return check
