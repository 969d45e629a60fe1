"""What every backend checks before it does anything."""

from magnetar.metadata.errors import ValueTooLargeError
from magnetar.metadata.paths import ROOT, check_path
from magnetar.metadata.store import CREATE_ONLY, VALUE_BYTES_MAX


def check_put(path: str, value: bytes, expected_version: int | None, sequential: bool) -> None:
    """
    Raises:
        ValueError, TypeError: our own bugs.
        ValueTooLargeError
    """
    _check_change(path, expected_version, CREATE_ONLY)
    if type(value) is not bytes:
        raise TypeError(f"{path}: a value is bytes, not {type(value).__name__}")
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLargeError(path, len(value), VALUE_BYTES_MAX)
    if sequential and expected_version not in (None, CREATE_ONLY):
        raise ValueError(f"{path}: a sequential node is always new")


def check_delete(path: str, expected_version: int | None) -> None:
    """Raises ValueError."""
    _check_change(path, expected_version, 0)


def _check_change(path: str, expected_version: int | None, least: int) -> None:
    check_path(path)
    if path == ROOT:
        raise ValueError("the root can't be changed")
    if expected_version is not None and expected_version < least:
        raise ValueError(f"{path}: expected version {expected_version}")
