"""Who else on the machine may touch the files that hold keys and passwords."""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyFile:
    """One file and the setting that names it."""

    setting: str
    path: Path
    is_secret: bool
    """Whoever can read it can be somebody else."""


def warn_of_permissions(files: Iterable[KeyFile]) -> None:
    """Log a warning for each file that isn't safe."""
    for each in files:
        if (text := complaint(each)) is not None:
            logger.warning("%s", text)


def complaint(file: KeyFile) -> str | None:
    """Why a file isn't safe where it is; None: it is, as far as its permissions go.

    Groups are left out: orchestrators mount secrets readable by a group.
    """
    try:
        found = file.path.stat()
    except OSError:
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"{file.setting}: everybody on this machine may change {file.path}: chmod o-rwx it"
    if file.is_secret and found.st_mode & stat.S_IROTH:
        return f"{file.setting}: everybody on this machine may read {file.path}: chmod 600 it"
    return None
