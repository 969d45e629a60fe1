"""Names and passwords out of a JAAS file, as Java's programs have them
(``java.security.auth.login.config``)::

    BookKeeper {
        org.apache.zookeeper.server.auth.DigestLoginModule required
        username="broker"
        password="secret";
    };
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from magnetar.metadata.sasl.digest_md5 import MECHANISM, SaslCredentials

_DIGEST_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_TOKEN: Final = re.compile(
    r'\s+|//[^\n]*|#[^\n]*|/\*.*?\*/|("(?:[^"\\]|\\.)*"|[{};=]|[^\s{};="]+)', re.DOTALL
)


def read_credentials(path: Path, section: str) -> SaslCredentials:
    """Of a client: the section's first module. The file is read anew by each call.

    Raises:
        OSError: the file can't be read.
        ValueError: no such section, or a login that isn't DIGEST-MD5.
    """
    options, where = _options(path, section)
    if not options.get("username") or "password" not in options:
        raise ValueError(f"{where}: username and password are expected")
    return SaslCredentials(options["username"], options["password"])


def read_passwords(path: Path, section: str) -> dict[str, str]:
    """Of a server's users by name: options ``user_NAME="password"``. As ``read_credentials``."""
    options, where = _options(path, section)
    prefix = "user_"
    found = {k.removeprefix(prefix): v for k, v in options.items() if k.startswith(prefix)}
    if not found:
        raise ValueError(f'{where}: user_NAME="password" is expected')
    return found


def _options(path: Path, section: str) -> tuple[dict[str, str], str]:
    """With what errors begin with."""
    tokens = _tokens(path.read_text("utf-8"), path)
    try:
        for name in tokens:
            words = _section(tokens)
            if _unquoted(name) == section:
                where = f"{path}, section {section}"
                return _options_of(words, where), where
    except StopIteration:
        raise ValueError(f"{path}: it ends within a section") from None
    raise ValueError(f"{path}: there is no section {section}")


def _section(tokens: Iterator[str]) -> list[str]:
    """Words of its first module; the rest is passed over. ``StopIteration``: it has no end."""
    if next(tokens) != "{":
        raise ValueError("{ is expected after the name of a JAAS section")
    words, is_first = list[str](), True
    while (token := next(tokens)) != "}":
        if token == ";":
            is_first = False
        elif is_first:
            words.append(token)
    if next(tokens, ";") != ";":
        raise ValueError("; is expected after a JAAS section")
    return words


def _options_of(words: list[str], where: str) -> dict[str, str]:
    module = words[0] if words else ""
    if module != _DIGEST_MODULE:
        kind = "GSSAPI (Kerberos)" if module.endswith("Krb5LoginModule") else f"module {module!r}"
        raise ValueError(f"{where}: {kind} isn't supported, {MECHANISM} by {_DIGEST_MODULE} is")
    return {
        words[at - 1]: _unquoted(words[at + 1])
        for at in range(1, len(words) - 1)
        if words[at] == "="
    }


def _tokens(text: str, path: Path) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"{path}: a quoted text has no end")
        at = found.end()
        if found[1]:
            yield found[1]


def _unquoted(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1]) if token.startswith('"') else token
