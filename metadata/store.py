"""The metadata store: a small tree of versioned values, with sessions and watches.

Every backend passes ``tests/unit/metadata/conformance.py``; nothing outside this package may know
which one is in use. All methods are called on the event loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from magnetar.metadata.errors import ValueTooLargeError
from magnetar.metadata.paths import ROOT, check_path

#: Largest value: what fits in one ZooKeeper request (jute.maxbuffer, 1 MiB) beside its path.
VALUE_BYTES_MAX = 1_000_000

#: ``expected_version`` of a put that must create the node.
CREATE_ONLY = -1


@dataclass(frozen=True, slots=True)
class Stat:
    """Facts about a node that its value doesn't tell.

    A version counts the changes of this incarnation of the node: 0 when created, and again 0 when
    re-created after a delete. So equal versions don't prove that nothing happened in between.
    """

    version: int
    created_ms: int
    modified_ms: int
    ephemeral: bool
    created_by_self: bool  # ephemeral, and its session is the session of the store that was asked


@dataclass(frozen=True, slots=True)
class Versioned:
    path: str
    value: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class CommitMark:
    """How far a store had come: ``commit`` grows with all that is stored; the id has 16 bytes."""

    store_id: bytes
    commit: int


class EventType(Enum):
    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    CHILDREN_CHANGED = "children_changed"  # a direct child was created or deleted


class SessionEvent(Enum):
    """CONNECTION_LOST -> RECONNECTED, or -> SESSION_LOST -> RECONNECTED, SESSION_REESTABLISHED.

    Watch events are lost while disconnected: after RECONNECTED whatever was cached is in doubt.
    After SESSION_REESTABLISHED ``session_id`` is new; the old ephemeral nodes are gone or will go.
    """

    CONNECTION_LOST = "connection_lost"
    RECONNECTED = "reconnected"
    SESSION_LOST = "session_lost"
    SESSION_REESTABLISHED = "session_reestablished"


@dataclass(frozen=True, slots=True)
class MetadataEvent:
    type: EventType
    path: str


class Watch(ABC):
    """A registered callback."""

    @abstractmethod
    def close(self) -> None:
        """After this the callback isn't called any more. Closing twice is harmless."""


class MetadataStore(ABC):
    """One session on a metadata store.

    Any operation may raise SessionLostError or StoreClosedError, and a mutation MetadataWriteError
    (no effect) or OutcomeUnknownError (re-read to know). The root "/" exists always, has an empty
    value and can't be changed.
    """

    @abstractmethod
    async def get(self, path: str) -> Versioned | None:
        """The node, or None; may trail other sessions' writes, never this session's own."""

    @abstractmethod
    async def children(self, path: str) -> list[str]:
        """Sorted names of the direct children; empty if there are none or no such path."""

    @abstractmethod
    async def exists(self, path: str) -> bool: ...

    @abstractmethod
    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Versioned:
        """Creates or changes a node; it is durable when this returns.

        Missing parents are created as persistent nodes with empty values. Changing a node never
        changes its kind: an existing persistent node stays persistent, and an ephemeral node stays
        its creator's, also if another session writes it. To own a node, use CREATE_ONLY.

        Args:
            expected_version: None creates or changes, -1 only creates, n changes version n.
            ephemeral: the node to be created vanishes with this session.
            sequential: always creates; ten digits are appended to ``path``, growing with each
                sequential node of the parent and never given twice; ``expected_version`` is then
                None or -1.
        Returns:
            The node as written, with its final path and version.
        Raises:
            BadVersionError: the node has another version, exists already or doesn't exist.
            EphemeralParentError: a parent is an ephemeral node.
            ValueTooLargeError: the value has more than VALUE_BYTES_MAX bytes.
        """

    @abstractmethod
    async def delete(self, path: str, expected_version: int | None = None) -> None:
        """Deletes a node without children.

        Raises:
            NotFoundError, BadVersionError, NotEmptyError: tested in this order.
        """

    @abstractmethod
    async def delete_recursive(self, path: str) -> None:
        """Deletes a node and all below it; a missing node is success. Needn't be atomic."""

    @abstractmethod
    def watch(self, path_prefix: str, on_event: Callable[[MetadataEvent], None]) -> Watch:
        """Reports changes, by any session, of ``path_prefix`` and of everything below it.

        The prefix ends at a name: "/a" covers "/a" and "/a/b", not "/ab". Events come in the order
        of the commits, after them, on the loop. The loop's exception handler gets a callback's
        errors; other callbacks run all the same.
        """

    @abstractmethod
    def on_session_event(self, on_event: Callable[[SessionEvent], None]) -> Watch:
        """Reports changes of this store's session; the same rules as for ``watch``."""

    @property
    def commit_mark(self) -> CommitMark | None:
        """All that this session has seen is in this state of the store, durably.

        None: the store lives elsewhere, or in memory only.
        """
        return None

    @property
    def place(self) -> str:
        """Of a store with a ``commit_mark``: its file."""
        return "in memory"

    @property
    @abstractmethod
    def session_id(self) -> str: ...

    @property
    @abstractmethod
    def session_key(self) -> str:
        """Lets its holder end this session by ``end_session``; new with each ``session_id``."""

    @abstractmethod
    async def end_session(self, key: str) -> None:
        """Ends any process's session, as its own ``close`` would: for one that is known to be dead.

        Its ephemeral nodes are gone when this returns. A holder that lives can change nothing any
        more, hears SESSION_LOST soon, not at once, and begins another session. One that has ended
        before: success.

        Raises:
            ValueError: not a key of this kind of store.
            StoreUnreachableError: it may have ended; ask again.
        """

    @abstractmethod
    async def close(self) -> None:
        """Ends the session: its ephemeral nodes are deleted. Closing twice is harmless."""


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
