"""What tells that a file was changed."""

from pathlib import Path
from typing import TypeAlias

FileState: TypeAlias = tuple[int, int, int, int]


def file_state(path: Path) -> FileState | None:
    """Equal ones: the file wasn't changed in between, nor a symbolic link that leads to it;
    None: it isn't there."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
