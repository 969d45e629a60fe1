"""Raised by the client's side of credentials; alone, as the command line loads it at its start."""


class ClientAuthError(Exception):
    """The credentials or the certificates can't be used, for a reason that a user understands."""
