"""User names and passwords (AuthenticationProviderBasic)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.auth.errors import CredentialsError, KeyFormatError
from magnetar.bookkeeper.auth.tokens import Principal, checked_role
from magnetar.broker.auth.password_hashes import is_whole, verify

_PASSWORD_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class PasswordCheck:
    """Whether ``digest`` is the hash of ``password``; another process computes that."""

    digest: str = field(repr=False)  # "": no hash
    password: bytes = field(repr=False)
    name: str
    is_known: bool

    def answer(self, good: bool) -> Principal:
        """The principal of the password, if it is ``good``.

        Raises:
            CredentialsError: it is wrong, or the user is unknown.
        """
        if not good or not self.is_known:
            raise CredentialsError("unknown user or invalid password")
        return Principal(checked_role(self.name))


class BasicProvider:
    """Authenticates users by password; the role is the user's name.

    Hashes are slow by design, so the authenticator calls ``question`` and computes the answer in
    another process.
    """

    method = "basic"
    is_slow = True

    def __init__(self, users: Mapping[str, str]) -> None:
        """``users``: names and hashes."""
        self._users = users
        # An unknown user costs what a known one does, or the time would tell who exists. Kinds of
        # hashes differ a hundredfold, so each unknown name has a user of its own that it is
        # compared with, always the same: ``hash`` of bytes is keyed anew in each process.
        self._others = list(users.values())

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        """Check a password here; the caller waits as long as the hash takes."""
        question = self.question(data)
        return question.answer(verify(question.digest, question.password))

    def question(self, data: bytes) -> PasswordCheck:
        """Return the check that ``data`` (``user:password``) needs.

        Raises:
            CredentialsError: ``data`` isn't ``user:password``, or the password is too long.
        """
        user, separator, password = data.partition(b":")
        if not separator or len(password) > _PASSWORD_BYTES_MAX:
            raise CredentialsError("not user:password")
        try:
            name = user.decode()
        except UnicodeDecodeError:
            name = ""
        digest = self._users.get(name)
        if digest is None:
            return PasswordCheck(self._stand_in(user), password, name, is_known=False)
        return PasswordCheck(digest, password, name, is_known=True)

    def _stand_in(self, user: bytes) -> str:
        return self._others[hash(user) % len(self._others)] if self._others else ""


def parse_htpasswd(content: bytes, what: str) -> dict[str, str]:
    """User names and the hashes of their passwords, of a file as ``htpasswd`` writes it.

    Pulsar knows apr1 (MD5) and crypt; bcrypt, SHA-256 and SHA-512 crypt and ``{SHA}`` are ours.
    Computes no hash, however many there are.

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
