"""Holds the settings, directories and totals of offloading. Pure."""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """When closed ledgers are copied where, and how long bookies keep them then."""

    driver: str = ""
    """Of new copies; empty: none are made. Copies that exist are read whatever it says."""
    location: tuple[tuple[str, str], ...] = ()
    """Settings of the driver; stored with each copy."""
    threshold_bytes: int = -1
    """Closed ledgers are copied, oldest first, while more than this isn't; -1: not by size."""
    threshold_s: int = -1
    """Ledgers are copied so long after their close; -1: not by time."""
    deletion_lag_ms: int = 14_400_000
    """Bookies keep a copied ledger so long; negative: for ever."""
    bookies_first: bool = False
    """Where to read what is in both places."""
    block_bytes: int = 64 << 20

    @property
    def is_automatic(self) -> bool:
        return bool(self.driver) and (self.threshold_bytes >= 0 or self.threshold_s >= 0)


NO_OFFLOAD = OffloadConfig()


@dataclass(slots=True)
class OffloadMetrics:
    """Totals since the start."""

    copies: int = 0
    copied_bytes: int = 0
    copy_errors: int = 0
    reads: int = 0
    read_bytes: int = 0
    read_errors: int = 0
    deleted: int = 0
    """Copies, complete or not."""

    def copied(self, size: int) -> None:
        self.copies += 1
        self.copied_bytes += size
