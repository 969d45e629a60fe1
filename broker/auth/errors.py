"""Errors of authentication.

broker.errors.AuthenticationError    credentials that prove nothing; the client isn't told why
├── KeysNeededError                  (provider.py) ask again when the issuer's keys are here
└── TooManyChecksError               (authenticator.py) not looked at: too many others wait
broker.config.ConfigError
└── KeyFormatError                   a key, a certificate or a password file can't be used
"""

from __future__ import annotations

from broker.config import ConfigError

__all__ = ["KeyFormatError"]


class KeyFormatError(ConfigError):
    """A key, certificate or password file can't be used. The text never holds its contents."""
