"""Errors of authentication.

broker.errors.AuthenticationError    credentials that prove nothing; the client isn't told why
├── KeysNeededError                  (provider.py) ask again when the issuer's keys are here
└── TooManyChecksError                                not looked at: too many others wait
bookkeeper.auth.errors.KeyFormatError    a key, a certificate or a password file can't be used; the
                                     start and the settings tell it as a ConfigError
"""

from magnetar.broker.errors import AuthenticationError


class TooManyChecksError(AuthenticationError):
    """The credentials were not checked, as too many others wait. To be tried again."""
