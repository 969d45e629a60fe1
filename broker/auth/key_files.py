"""The files that hold keys and passwords: which they are, and whether they have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from magnetar.bookkeeper.auth.keys import file_of
from magnetar.broker.auth.file_permissions import KeyFile, complaint

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar.broker.config import BrokerConfig

Look: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]
"""What tells a changed file, for each of them; None: it isn't there."""


class KeyFiles:
    """The files among the settings of authentication, as they were when the broker started."""

    def __init__(self, config: BrokerConfig) -> None:
        self.files: list[KeyFile] = []
        for setting, source, is_secret in (
            ("tokenSecretKey", config.token_secret_key, True),
            ("tokenPublicKey", config.token_public_key, False),
            ("tokenPreviousSecretKey", config.token_previous_secret_key, True),
            ("tokenPreviousPublicKey", config.token_previous_public_key, False),
            ("basicAuthConf", config.basic_auth_conf, True),
        ):
            try:
                path = file_of(source) if source else None
            except (OSError, ValueError):  # whoever reads it will say so
                path = None
            if path is not None:
                self.files.append(KeyFile(setting, path, is_secret))

    def look(self) -> Look:
        """Two looks that are equal: nothing was changed in between."""
        return tuple(_status(each.path) for each in self.files)

    def complaints(self) -> list[str]:
        """Files whose permissions are too wide, for the log."""
        found = (complaint(each) for each in self.files)
        return [each for each in found if each is not None]


def _status(path: Path) -> tuple[int, int, int, int] | None:
    """Of the file that a symbolic link now leads to, too."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
