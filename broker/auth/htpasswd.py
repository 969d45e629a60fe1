"""Password files as ``htpasswd`` writes them: ``user:hash`` lines.

Pulsar knows apr1 (MD5) and crypt; bcrypt, SHA-256 and SHA-512 crypt and ``{SHA}`` are ours.
"""

from magnetar.bookkeeper.auth.errors import KeyFormatError
from magnetar.broker.auth.password_hashes import is_whole


def parse_htpasswd(content: bytes, what: str) -> dict[str, str]:
    """User names and the hashes of their passwords. Computes no hash, however many there are.

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
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not (line := line.strip()) or line.startswith("#"):
            continue
        user, separator, digest = line.partition(":")
        if not separator or not user or not user.isprintable():
            raise KeyFormatError(f"{what}: line {number} is not user:hash")
        if user in users:
            raise KeyFormatError(f"{what}: line {number} names a user for the second time")
        # Some write more fields behind the hash
        digest = digest.split(":", 1)[0].strip()
        if not is_whole(digest):
            raise KeyFormatError(
                f"{what}: line {number}: an unknown kind of hash; htpasswd -B makes a good one"
            )
        users[user] = digest
    return users
