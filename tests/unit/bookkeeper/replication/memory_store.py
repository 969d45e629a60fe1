"""A metadata store in memory, without threads: for tests under virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.metadata.errors import OutcomeUnknownError, SessionLostError
from magnetar.metadata.node_tree import CommitBatch, Node, NodeTree
from magnetar.metadata.store import (
    MetadataEvent,
    MetadataStore,
    SessionEvent,
    Stat,
    Versioned,
    Watch,
    check_delete,
    check_put,
)
from magnetar.metadata.watches import CallbackWatch, PathWatches

Hook = Callable[[str, str, Node | None, Node | None], None]
"""(session, path, before, after): called at each change."""


class Server:
    """The tree and its sessions.

    Attributes:
        on_change: the judge of a test.
        before: awaited before a write takes effect, with ("put" or "delete", path): a test lets
            others act there.
        lose_answer: (session, "put" or "delete", path): did the answer to this write get lost?
    """

    def __init__(self) -> None:
        self.tree = NodeTree()
        self.live: set[str] = set()
        self.stores: list[MemoryMetadataStore] = []
        self.on_change: Hook = lambda *_: None
        self.before: Callable[[str, str], Awaitable[None]] | None = None
        self.lose_answer: Callable[[str, str, str], bool] = lambda *_: False
        self._count = 0

    def new_store(self) -> "MemoryMetadataStore":
        return MemoryMetadataStore(self)

    def begin_session(self) -> str:
        self._count += 1
        session = f"session-{self._count}"
        self.live.add(session)
        return session

    def expire(self, session: str) -> None:
        """As the server does some time after it lost a session."""
        self.live.discard(session)
        self.apply(session, lambda group: group.end_session(session))

    def apply(self, session: str, operation: Callable[[CommitBatch], object]) -> object:
        group = CommitBatch(self.tree, int(asyncio.get_running_loop().time() * 1000))
        result = operation(group)
        before = {path: self.tree.nodes.get(path) for path in group.changed}
        self.tree.apply(group)
        for path, node in group.changed.items():
            self.on_change(session, path, before[path], node)
        for store in list(self.stores):
            store.hear(group.events)
        return result


class MemoryMetadataStore(MetadataStore):
    """One session; every call takes a turn of the loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session = server.begin_session()
        self._lost = False
        self._watches = PathWatches()
        self._session_watches: list[CallbackWatch[SessionEvent]] = []
        server.stores.append(self)

    def lose(self) -> None:
        """The session is lost on this side; the server's ``expire`` comes later."""
        self._lost = True
        self._tell(SessionEvent.CONNECTION_LOST)
        self._tell(SessionEvent.SESSION_LOST)

    def begin_again(self) -> None:
        self._session, self._lost = self._server.begin_session(), False
        self._tell(SessionEvent.RECONNECTED)
        self._tell(SessionEvent.SESSION_REESTABLISHED)

    async def get(self, path: str) -> Versioned | None:
        await self._turn()
        node = self._server.tree.nodes.get(path)
        return None if node is None else self._versioned(path, node)

    async def children(self, path: str) -> list[str]:
        await self._turn()
        return list(self._server.tree.children(path))

    async def exists(self, path: str) -> bool:
        return await self.get(path) is not None

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Versioned:
        check_put(path, value, expected_version, sequential)
        session = self._session
        owner = session if ephemeral else None
        written = await self._write(
            "put", path, lambda g: g.put(path, bytes(value), expected_version, owner, sequential)
        )
        assert isinstance(written, tuple)
        return self._versioned(*written)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        check_delete(path, expected_version)
        await self._write("delete", path, lambda g: g.delete(path, expected_version))

    async def delete_recursive(self, path: str) -> None:
        await self._write("delete", path, lambda g: g.delete_recursive(path))

    def watch(self, path_prefix: str, on_event: Callable[[MetadataEvent], None]) -> Watch:
        return self._watches.add(path_prefix, on_event)

    def on_session_event(self, on_event: Callable[[SessionEvent], None]) -> Watch:
        watch = CallbackWatch(on_event, self._session_watches.remove)
        self._session_watches.append(watch)
        return watch

    @property
    def session_id(self) -> str:
        return self._session

    @property
    def session_key(self) -> str:
        return self._session

    async def end_session(self, key: str) -> None:
        raise AssertionError("auto-recovery ends nobody's session")

    async def close(self) -> None:
        if self in self._server.stores:
            self._server.stores.remove(self)
            self._server.expire(self._session)
            self._lost = True

    def hear(self, events: list[MetadataEvent]) -> None:
        if not self._lost:
            self._watches.deliver(events, _report)

    async def _write(
        self, kind: str, path: str, operation: Callable[[CommitBatch], object]
    ) -> object:
        session, server = self._session, self._server
        await self._turn()
        if server.before is not None:
            await server.before(kind, path)
        if session not in server.live:
            raise SessionLostError(session)
        result = server.apply(session, operation)
        await self._turn()
        if server.lose_answer(session, kind, path):
            raise OutcomeUnknownError(path)
        return result

    async def _turn(self) -> None:
        if self._lost:
            raise SessionLostError(self._session)
        await asyncio.sleep(0)

    def _tell(self, event: SessionEvent) -> None:
        for watch in list(self._session_watches):
            watch.call(event, _report)

    def _versioned(self, path: str, node: Node) -> Versioned:
        mine = node.owner is not None and node.owner == self._session
        stat = Stat(node.version, node.created_ms, node.modified_ms, node.owner is not None, mine)
        return Versioned(path, node.value, stat)


def _report(message: str, error: BaseException) -> None:
    raise AssertionError(message) from error
