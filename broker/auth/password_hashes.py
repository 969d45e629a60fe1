"""Hashes of passwords: which kinds there are, and whether a password is the one.

Imports nothing of the broker: a small process of its own computes them (password_process.py).
"""

import re
from typing import Any, Final

import bcrypt

_BCRYPT_BYTES_MAX: Final = 72
"""What bcrypt looks at; htpasswd and Apache cut longer ones there, too."""
_OTHERS_BYTES_MAX: Final = 256
"""As long as htpasswd and ``openssl passwd`` take them. SHA-crypt of 4 KiB takes seventeen times as
long as that of a word, MD5's a hundred times: unauthenticated clients would choose how long
others wait."""
_BCRYPT: Final = re.compile(r"\$2[yab]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")


def is_whole(digest: str) -> bool:
    """Whether it is a hash of a known kind, whole. Computes nothing."""
    if digest.startswith("$2"):
        return _BCRYPT.fullmatch(digest) is not None
    handler = _handler(digest)
    try:
        return handler is not None and bool(handler.from_string(digest).checksum)
    except ValueError:  # begins like one, and isn't
        return False


def verify(digest: str, password: bytes) -> bool:
    """Whether ``digest`` is the password's; takes as long for a wrong one as for the right one."""
    try:
        if digest.startswith("$2"):
            return bcrypt.checkpw(password[:_BCRYPT_BYTES_MAX], digest.encode())
        if len(password) > _OTHERS_BYTES_MAX:
            return False
        handler = _handler(digest)
        return handler is not None and bool(handler.verify(password, digest))
    except ValueError:  # a NUL, or far too long: no password at all
        return False


def _handler(digest: str) -> Any:
    """The hash of passlib; None: no kind that is known."""
    from passlib import hash as kinds  # large, and bcrypt alone is usual

    handlers = (
        *(kinds.apr_md5_crypt, kinds.sha256_crypt, kinds.sha512_crypt),
        *(kinds.md5_crypt, kinds.ldap_sha1, kinds.des_crypt),
    )
    return next((each for each in handlers if each.identify(digest)), None)
