"""Metadata in this process: a tree in memory, made durable by SQLite.

Reads never wait: they are answered from the tree, which holds only what is durable. Several
sessions can share one store, as several brokers share a ZooKeeper: ``new_session``.
"""

import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from magnetar.metadata.database import Database
from magnetar.metadata.errors import SessionLostError, StoreClosedError
from magnetar.metadata.group_commit import GroupCommitter
from magnetar.metadata.node_tree import CommitBatch, Node
from magnetar.metadata.paths import ROOT, check_path
from magnetar.metadata.store import (
    CommitMark,
    MetadataEvent,
    MetadataStore,
    SessionEvent,
    Stat,
    Versioned,
    Watch,
    check_delete,
    check_put,
)
from magnetar.metadata.watches import PathWatches, SessionWatches, report_to_loop


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class _Shared:
    """Holds the parts that all sessions of a store share: the committer and the live sessions."""

    def __init__(self, database: Database, now_ms: Callable[[], int]) -> None:
        self.committer = GroupCommitter(database, now_ms, self._deliver, self._on_fatal)
        self.stores: list[EmbeddedMetadataStore] = []
        self.live_sessions: set[str] = set()  # whose ephemeral nodes may exist
        # Random, so that no session of an earlier process has the id of a new one.
        self._instance, self._sessions = secrets.token_hex(8), 0

    def next_session_id(self) -> str:
        self._sessions += 1
        session_id = f"{self._instance}-{self._sessions}"
        self.live_sessions.add(session_id)
        return session_id

    def _deliver(self, events: list[MetadataEvent]) -> None:
        if events:
            for store in list(self.stores):
                store._deliver(events)

    def _on_fatal(self) -> None:
        for store in list(self.stores):
            store._session_watches.tell(SessionEvent.SESSION_LOST)


class EmbeddedMetadataStore(MetadataStore):
    """One session on an embedded store. Made by ``open`` and by ``new_session``."""

    def __init__(self, shared: _Shared, owner: bool) -> None:
        self._shared, self._owner = shared, owner
        self._tree = shared.committer.tree
        self._session_id = shared.next_session_id()
        self._lost = self._closed = False
        self._watches = PathWatches()
        self._session_watches = SessionWatches()
        shared.stores.append(self)

    @classmethod
    def open(
        cls, path: Path | None, *, now_ms: Callable[[], int] = _wall_clock_ms
    ) -> "EmbeddedMetadataStore":
        """Opens or creates the store in a file, or an empty one in memory; reads all of it.

        The returned store owns the file: closing it ends every other session too.

        Args:
            path: the SQLite file; its directories are created. None: in memory.
            now_ms: wall clock for the times in ``Stat``, milliseconds.
        Raises:
            DatabaseError: the file is in use, corrupt or not ours.
        """
        return cls(_Shared(Database(path), now_ms), owner=True)

    def new_session(self) -> "EmbeddedMetadataStore":
        """Another session on the same tree; closing it deletes only its ephemeral nodes."""
        self._check()
        return EmbeddedMetadataStore(self._shared, owner=False)

    @property
    def commit_mark(self) -> CommitMark | None:
        return self._shared.committer.mark

    @property
    def place(self) -> str:
        return self._shared.committer.place

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def session_key(self) -> str:
        return self._session_id

    async def end_session(self, key: str) -> None:
        self._check()
        if not re.fullmatch("[0-9a-f]+-[0-9]+", key):
            raise ValueError(f"not a key of an embedded session: {key!r}")
        await self.expire_session(key)
        for store in list(self._shared.stores):
            if store._session_id == key:
                store.lose_session()
                store.begin_session()

    async def get(self, path: str) -> Versioned | None:
        self._check(path)
        node = self._tree.nodes.get(path)
        return None if node is None else self._versioned(path, node)

    async def children(self, path: str) -> list[str]:
        self._check(path)
        return list(self._tree.children(path))

    async def exists(self, path: str) -> bool:
        self._check(path)
        return path in self._tree.nodes

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Versioned:
        self._check()
        check_put(path, value, expected_version, sequential)
        session = self._session_id
        owner = session if ephemeral else None
        # A copy of the exact size: encoders hand out bytes that keep a larger buffer alive
        # (orjson: 4 KiB each), and this value stays in the tree.
        kept = memoryview(value).tobytes()

        def run(group: CommitBatch) -> tuple[str, Node]:
            self._check_alive(session)
            return group.put(path, kept, expected_version, owner, sequential)

        final, node = await self._shared.committer.submit(path, run)
        return self._versioned(final, node)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        self._check()
        check_delete(path, expected_version)
        session = self._session_id

        def run(group: CommitBatch) -> None:
            self._check_alive(session)
            group.delete(path, expected_version)

        await self._shared.committer.submit(path, run)

    async def delete_recursive(self, path: str) -> None:
        self._check()
        check_delete(path, None)
        session = self._session_id

        def run(group: CommitBatch) -> None:
            self._check_alive(session)
            group.delete_recursive(path)

        await self._shared.committer.submit(path, run)

    def watch(self, path_prefix: str, on_event: Callable[[MetadataEvent], None]) -> Watch:
        self._check(path_prefix)
        return self._watches.add(path_prefix, on_event)

    def on_session_event(self, on_event: Callable[[SessionEvent], None]) -> Watch:
        return self._session_watches.add(on_event)

    async def close(self) -> None:
        if self._owner:
            for store in list(self._shared.stores):
                store._end()
            await self._shared.committer.close()
        elif not self._closed:
            self._end()
            if self._shared.committer.closed_reason is None:
                await self.expire_session(self._session_id)

    # Faults, for simulations of several brokers in one process: an embedded session never loses
    # its connection by itself.

    def lose_session(self) -> None:
        """As when the connection breaks for good: operations fail, events are lost.

        The ephemeral nodes stay until ``expire_session``.
        """
        if not self._lost:
            self._session_watches.tell(SessionEvent.CONNECTION_LOST)
            self._lost = True
            self._session_watches.tell(SessionEvent.SESSION_LOST)

    def begin_session(self) -> None:
        """After ``lose_session``: connected again, under a new session id."""
        if self._lost:
            self._session_id, self._lost = self._shared.next_session_id(), False
            self._session_watches.tell(SessionEvent.RECONNECTED)
            self._session_watches.tell(SessionEvent.SESSION_REESTABLISHED)

    async def expire_session(self, session_id: str) -> None:
        """As the server does some time after a session was lost: deletes its ephemeral nodes."""
        self._shared.live_sessions.discard(session_id)
        await self._shared.committer.submit(ROOT, lambda group: group.end_session(session_id))

    def _deliver(self, events: list[MetadataEvent]) -> None:
        if not self._lost:
            self._watches.deliver(events, report_to_loop)

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._shared.stores.remove(self)
            self._watches.close_all()
            self._session_watches.close_all()

    def _versioned(self, path: str, node: Node) -> Versioned:
        owner = node.owner
        mine = owner is not None and owner == self._session_id
        stat = Stat(node.version, node.created_ms, node.modified_ms, owner is not None, mine)
        return Versioned(path, node.value, stat)

    def _check(self, path: str = ROOT) -> None:
        if self._closed:
            raise StoreClosedError
        if (reason := self._shared.committer.closed_reason) is not None:
            raise StoreClosedError(reason)
        if self._lost:
            raise SessionLostError(self._session_id)
        check_path(path)

    def _check_alive(self, session_id: str) -> None:
        # Evaluated with the group: a session that ended while its operation was queued must not
        # leave an ephemeral node that outlives its session.
        if session_id not in self._shared.live_sessions:
            raise SessionLostError(session_id)
