"""Where the driver ``filesystem`` keeps copies, as settings say it. Pure."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

FILESYSTEM = "filesystem"
"""Name of the driver, as in Pulsar."""
URI = "fileSystemURI"
"""The key of a copy's location: the directory."""


def path_of_uri(uri: str) -> Path:
    """The directory of ``file:///...`` or of a plain absolute path.

    Raises:
        ValueError: of another machine, or relative.
    """
    parts = urlsplit(uri)
    path = Path(unquote(parts.path) if parts.scheme == "file" else uri)
    if parts.scheme not in ("", "file") or parts.netloc or not path.is_absolute():
        raise ValueError(f"{uri!r} is not a directory of this machine: file:///...")
    if ".." in path.parts or "\0" in str(path):
        raise ValueError(f"{uri!r} goes upwards, or has a NUL in it")
    return path
