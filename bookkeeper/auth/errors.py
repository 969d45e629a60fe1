"""Errors of access, and of the credentials for it.

::

    magnetar.bookkeeper.errors.BookkeeperError
    +-- CredentialsError     they prove nothing; the text never holds what was presented
    |   +-- NotAllowedError  they prove a role, which has nothing to do here
    +-- KeyFormatError       a key, certificate or token file can't be used; also a ValueError
"""

from magnetar.bookkeeper.errors import BookkeeperError


class CredentialsError(BookkeeperError):
    """Credentials that prove nothing."""


class RoleNotAllowedError(CredentialsError):
    """The role is proved, but may not use this process."""


class KeyFormatError(BookkeeperError, ValueError):
    """A key, certificate or token file can't be used. The text never holds its contents."""
