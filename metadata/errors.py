"""Errors of the metadata store.

    MetadataError
    ├── BadVersionError         the version isn't the expected one; create-only met a node
    ├── NotFoundError           delete of a path that doesn't exist
    ├── NotEmptyError           delete of a node that has children
    ├── EphemeralParentError    a node below an ephemeral node
    ├── ValueTooLargeError      a value above ``VALUE_BYTES_MAX``
    ├── MetadataWriteError      the backend couldn't make the operation durable; it had no effect
    ├── OutcomeUnknownError     the reply was lost: the operation may or may not have happened
    ├── LockBusyError           another session holds the lock
    ├── SessionLostError        this session can't be proven to be alive
    ├── StoreClosedError        the store was closed, or closed itself after a fatal error
    ├── StoreUnreachableError   no server of the store answers
    ├── AccessDeniedError       the server refuses our credentials, or this path to us
    └── DatabaseError           the file of an embedded store can't be opened

Wrong arguments (an invalid path, a negative version) are our own bugs and raise ValueError.
"""

from pathlib import Path


class MetadataError(Exception):
    """Base of all errors that a metadata store reports."""


class BadVersionError(MetadataError):
    """The node's version isn't the expected one; re-read, decide again, retry.

    ``actual`` is None when the node doesn't exist or the backend doesn't tell.
    """

    def __init__(self, path: str, expected: int, actual: int | None = None) -> None:
        found = "no node or an unknown version" if actual is None else f"version {actual}"
        wanted = "no node" if expected == -1 else f"version {expected}"
        super().__init__(f"{path}: expected {wanted}, found {found}")
        self.path, self.expected, self.actual = path, expected, actual


class NotFoundError(MetadataError):
    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: no such node")
        self.path = path


class NotEmptyError(MetadataError):
    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the node has children")
        self.path = path


class EphemeralParentError(MetadataError):
    def __init__(self, path: str, parent: str) -> None:
        super().__init__(f"{path}: {parent} is ephemeral and can't have children")
        self.path, self.parent = path, parent


class ValueTooLargeError(MetadataError):
    def __init__(self, path: str, value_bytes: int, value_bytes_max: int) -> None:
        super().__init__(f"{path}: a value of {value_bytes} bytes; at most {value_bytes_max}")
        self.path, self.value_bytes = path, value_bytes


class MetadataWriteError(MetadataError):
    """The operation isn't durable and had no effect; the same call may be retried."""

    def __init__(self, path: str, cause: BaseException) -> None:
        super().__init__(f"{path}: not written: {cause}")
        self.path, self.cause = path, cause


class OutcomeUnknownError(MetadataError):
    """The reply was lost, or the disk failed in mid-commit: re-read before concluding anything."""

    def __init__(self, path: str, cause: object = "the reply was lost") -> None:
        super().__init__(f"{path}: {cause}; the outcome is unknown")
        self.path, self.cause = path, cause


class LockBusyError(MetadataError):
    """Another session holds the lock; ``holder`` is the value it wrote."""

    def __init__(self, path: str, holder: bytes | None) -> None:
        super().__init__(f"{path}: held by another session")
        self.path, self.holder = path, holder


class SessionLostError(MetadataError):
    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} is lost")
        self.session_id = session_id


class StoreClosedError(MetadataError):
    def __init__(self, reason: str = "the metadata store is closed") -> None:
        super().__init__(reason)


class StoreUnreachableError(MetadataError):
    """No server answers; ``reason`` is what the last attempt met."""

    def __init__(self, store: str, reason: object) -> None:
        super().__init__(f"metadata store {store}: {reason}")
        self.reason = reason


class AccessDeniedError(MetadataError):
    """``what``: a path, or the store whose login failed. Nothing was changed."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what


class DatabaseError(MetadataError):
    """The file can't be opened: in use, corrupt, of another program or of a newer version."""

    def __init__(self, path: Path | None, reason: object) -> None:
        super().__init__(f"metadata database {path or 'in memory'}: {reason}")
