"""A metadata store with sessions, as its clients see it over a bad network.

One linearizable tree at the server. Each client has a session: its requests and answers take time,
answers get lost, the connection breaks, the session expires; reads may trail other sessions' writes
(a follower's view), never the session's own. Contract: ``metadata/store.py``.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from magnetar.metadata.errors import (
    BadVersionError,
    EphemeralParentError,
    MetadataError,
    NotEmptyError,
    NotFoundError,
    OutcomeUnknownError,
    SessionLostError,
    StoreClosedError,
)
from magnetar.metadata.paths import ROOT, check_path, name_of, parent_of, sequential_path
from magnetar.metadata.store import (
    CREATE_ONLY,
    EventType,
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
from tests.simulation.cluster.nodes import ClusterLoop, Process
from tests.simulation.simulator import Recorder

T = TypeVar("T")
EXPIRY_MS_MAX = 1500.0  # a session that its client gave up ends this much later at most
LATE_MS_MAX = 50.0  # a write whose answer was lost may still happen this much later


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One state of a node; ``owner``: session of an ephemeral one."""

    value: bytes
    version: int
    owner: str | None
    created_ms: int
    modified_ms: int


@dataclass(slots=True)
class MetadataFaults:
    """All off by default.

    Attributes:
        delay_ms_max: of a request, and of its answer.
        unknown: share of writes whose answer is lost.
        lag_ms_max: reads show a state up to this old.
    """

    delay_ms_max: float = 3.0
    unknown: float = 0.0
    lag_ms_max: float = 0.0


OnChange = Callable[[str, str, TreeNode | None, TreeNode | None], None]


class MetadataServer:
    """The tree, its past, and the sessions.

    Attributes:
        on_change: told (writer, path, before, after) of every change, in order.
        up: False: nobody can reach it.
    """

    def __init__(self, loop: ClusterLoop, rng: random.Random, recorder: Recorder) -> None:
        self.loop = loop
        self.rng = rng
        self.recorder = recorder
        self.faults = MetadataFaults()
        self.on_change: OnChange = lambda *_: None
        self.up = True
        self.zxid = 0
        self.nodes: dict[str, TreeNode] = {}
        self.sessions: set[str] = set()
        self.stores: list[ClusterStore] = []
        self._past: dict[str, list[tuple[int, TreeNode | None]]] = {}
        self._names: dict[str, dict[str, None]] = {}  # parent -> every name it ever had
        self._times: list[tuple[float, int]] = []  # (ms, zxid reached then)
        self._counters: dict[str, int] = {}
        self._session_count = 0

    # Sessions

    def new_session(self) -> str:
        self._session_count += 1
        session = f"s{self._session_count}"
        self.sessions.add(session)
        return session

    def end_session(self, session: str) -> None:
        """Expired or closed: its ephemeral nodes vanish."""
        if session not in self.sessions:
            return
        self.sessions.discard(session)
        for path in sorted(p for p, node in self.nodes.items() if node.owner == session):
            self._set("server", path, None)

    # Reading

    def view_zxid(self) -> int:
        """What a follower that lags may show now."""
        lag_ms = self.faults.lag_ms_max
        if not lag_ms:
            return self.zxid
        at = self.loop.now * 1000 - self.rng.uniform(0, lag_ms)
        zxid = 0
        for when, reached in reversed(self._times):
            if when <= at:
                zxid = reached
                break
        if zxid < self.zxid:
            self.recorder.count("fault: stale read of metadata")
        return zxid

    def get(self, path: str, zxid: int) -> TreeNode | None:
        if zxid >= self.zxid:
            return self.nodes.get(path)
        for when, node in reversed(self._past.get(path, ())):
            if when <= zxid:
                return node
        return None

    def children(self, path: str, zxid: int) -> list[str]:
        prefix = "/" if path == ROOT else path + "/"
        names = self._names.get(path, ())
        return sorted(name for name in names if self.get(prefix + name, zxid) is not None)

    # Writing

    def put(
        self,
        writer: str,
        session: str,
        path: str,
        value: bytes,
        expected: int | None,
        ephemeral: bool,
        sequential: bool,
    ) -> tuple[str, TreeNode]:
        now_ms = int(self.loop.now * 1000)
        if sequential:
            parent = parent_of(path)
            number = self._counters.get(parent, 0)
            self._counters[parent] = number + 1
            path, expected = sequential_path(path, number), CREATE_ONLY
        old = self.nodes.get(path)
        if old is None:
            if expected not in (None, CREATE_ONLY):
                raise BadVersionError(path, expected or 0)
            self._create_parents(writer, path, now_ms)
            owner = session if ephemeral else None
            node = TreeNode(value, 0, owner, now_ms, now_ms)
        else:
            if expected is not None and expected != old.version:
                raise BadVersionError(path, expected, old.version)
            node = replace(old, value=value, version=old.version + 1, modified_ms=now_ms)
        self._set(writer, path, node)
        return path, node

    def delete(self, writer: str, path: str, expected: int | None) -> None:
        old = self.nodes.get(path)
        if old is None:
            raise NotFoundError(path)
        if expected is not None and expected != old.version:
            raise BadVersionError(path, expected, old.version)
        if self.children(path, self.zxid):
            raise NotEmptyError(path)
        self._set(writer, path, None)

    def delete_recursive(self, writer: str, path: str) -> None:
        for name in self.children(path, self.zxid):
            self.delete_recursive(writer, f"{path}/{name}")
        if path in self.nodes:
            self._set(writer, path, None)

    def _create_parents(self, writer: str, path: str, now_ms: int) -> None:
        missing = []
        parent = parent_of(path)
        while parent != ROOT and (node := self.nodes.get(parent)) is None:
            missing.append(parent)
            parent = parent_of(parent)
        if parent != ROOT and (node := self.nodes.get(parent)) is not None and node.owner:
            raise EphemeralParentError(path, parent)
        for each in reversed(missing):
            self._set(writer, each, TreeNode(b"", 0, None, now_ms, now_ms))

    def _set(self, writer: str, path: str, node: TreeNode | None) -> None:
        old = self.nodes.get(path)
        self.zxid += 1
        now_ms = self.loop.now * 1000
        self._times.append((now_ms, self.zxid))
        self._past.setdefault(path, []).append((self.zxid, node))
        parent = parent_of(path)
        self._names.setdefault(parent, {})[name_of(path)] = None
        if node is None:
            self.nodes.pop(path, None)
        else:
            self.nodes[path] = node
        version = "gone" if node is None else f"v{node.version}"
        self.recorder.event("metadata", writer, path, version)
        self.on_change(writer, path, old, node)
        if old is None:
            self._tell(EventType.CREATED, path)
            self._tell(EventType.CHILDREN_CHANGED, parent)
        elif node is None:
            self._tell(EventType.DELETED, path)
            self._tell(EventType.CHILDREN_CHANGED, parent)
        else:
            self._tell(EventType.MODIFIED, path)

    def _tell(self, kind: EventType, path: str) -> None:
        event = MetadataEvent(kind, path)
        for store in self.stores:
            store.hear(event, self.zxid)


class ClusterStore(MetadataStore):
    """One process's session, and those that follow it when it is lost."""

    def __init__(self, server: MetadataServer, process: Process) -> None:
        self._server = server
        self.process = process
        self._loop = server.loop
        self._session = server.new_session()
        self._state = "connected" if server.up else "disconnected"  # or "lost", "closed"
        self._epoch = 0  # of the connection
        self._seen = server.zxid  # reads never show less
        self._arrives_ms = 0.0  # requests and answers of a session keep their order
        self._answers_ms = 0.0
        self._changed = asyncio.Event()
        self._under_way: dict[asyncio.Future[Any], None] = {}
        self._watches = PathWatches()
        self._prefixes: dict[str, None] = {}  # whatever was watched
        self._session_watches: list[CallbackWatch[SessionEvent]] = []
        server.stores.append(self)

    @property
    def is_connected(self) -> bool:
        return self._state == "connected"

    # What may befall it

    def disconnect(self) -> None:
        """The connection breaks; what is under way has an unknown outcome."""
        if self._state == "connected":
            self._state = "disconnected"
            self._epoch += 1
            self._tell(SessionEvent.CONNECTION_LOST)
            self._break_calls()
            self._wake()

    def lose(self) -> None:
        """The client gives its session up; the server does so a little later."""
        self.disconnect()
        if self._state == "disconnected":
            self._state = "lost"
            self._tell(SessionEvent.SESSION_LOST)
            self._wake()

    def connect(self) -> None:
        """The connection is back: with the same session, or with a new one if it was lost."""
        if self._state in ("connected", "closed"):
            return
        is_new = self._state == "lost" or self._session not in self._server.sessions
        if is_new:
            if self._state != "lost":
                self._tell(SessionEvent.SESSION_LOST)
            old, self._session = self._session, self._server.new_session()
            late_ms = self._server.rng.uniform(0, EXPIRY_MS_MAX)
            self._loop.after_ms(late_ms, self._server.end_session, old, process=None)
        self._state = "connected"
        self._epoch += 1
        self._tell(SessionEvent.RECONNECTED)
        if is_new:
            self._tell(SessionEvent.SESSION_REESTABLISHED)
        self._wake()

    # MetadataStore

    @property
    def session_id(self) -> str:
        return self._session

    @property
    def session_key(self) -> str:
        return self._session

    async def end_session(self, key: str) -> None:
        raise AssertionError("bookies and their clients end nobody's session")

    async def get(self, path: str) -> Versioned | None:
        check_path(path)
        return await self._read(lambda zxid: self._get(path, zxid))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._read(lambda zxid: self._server.children(path, zxid))

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

        def apply() -> Versioned:
            if session not in self._server.sessions:
                raise SessionLostError(session)
            final, node = self._server.put(
                *(self.process.name, session, path, bytes(value)),
                *(expected_version, ephemeral, sequential),
            )
            return self._versioned(final, node)

        # A new version of a node may even come late, when its writer has read again; what belongs
        # to a session comes in its order: then reading again tells (``OutcomeUnknownError``).
        is_safe = not ephemeral and expected_version not in (None, CREATE_ONLY)
        return await self._write(path, apply, may_be_late=is_safe)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        check_delete(path, expected_version)
        server, writer = self._server, self.process.name
        await self._write(path, lambda: server.delete(writer, path, expected_version))

    async def delete_recursive(self, path: str) -> None:
        check_path(path)
        server, writer = self._server, self.process.name
        await self._write(path, lambda: server.delete_recursive(writer, path))

    def watch(self, path_prefix: str, on_event: Callable[[MetadataEvent], None]) -> Watch:
        self._prefixes[path_prefix] = None
        return self._watches.add(path_prefix, on_event)

    def on_session_event(self, on_event: Callable[[SessionEvent], None]) -> Watch:
        watch = CallbackWatch(on_event, self._session_watches.remove)
        self._session_watches.append(watch)
        return watch

    async def close(self) -> None:
        if self._state != "closed":
            self._state = "closed"
            self._epoch += 1
            self._server.stores.remove(self)
            self._watches.close_all()
            self._break_calls()
            self._wake()
            self._server.end_session(self._session)

    # Travelling

    def hear(self, event: MetadataEvent, zxid: int) -> None:
        """A watch event leaves the server; it is lost with the connection."""
        if self._state != "connected" or not self.process.alive:
            return
        if not any(event.path.startswith(prefix) for prefix in self._prefixes):
            return  # it would travel, and nobody would look at it
        epoch = self._epoch

        def deliver() -> None:
            if epoch != self._epoch or not self.process.alive:
                return
            self._seen = max(self._seen, zxid)
            self._watches.deliver([event], _report)

        self._answer(deliver)

    def _get(self, path: str, zxid: int) -> Versioned | None:
        node = self._server.get(path, zxid)
        return None if node is None else self._versioned(path, node)

    async def _read(self, look: Callable[[int], T]) -> T:
        while True:
            found = await self._call(lambda: look(self._view()))
            if found is not None:
                return found[0]

    def _view(self) -> int:
        self._seen = max(self._seen, self._server.view_zxid())
        return self._seen

    async def _write(self, path: str, apply: Callable[[], T], *, may_be_late: bool = False) -> T:
        def at_server() -> T:
            result = apply()
            self._seen = self._server.zxid
            return result

        server, rng = self._server, self._server.rng
        await self._connected()
        if server.faults.unknown and rng.random() < server.faults.unknown:
            server.recorder.count("fault: metadata answer lost")
            happens = rng.random() < 0.7
            if happens and may_be_late:
                late_ms = rng.uniform(0, LATE_MS_MAX)
                self._loop.after_ms(late_ms, _quietly, at_server, process=None)
            elif happens:
                await self._call(lambda: _quietly(at_server))
            else:
                await self._call(lambda: None)
            raise OutcomeUnknownError(path)
        found = await self._call(at_server)
        if found is None:
            server.recorder.count("fault: metadata write cut off")
            raise OutcomeUnknownError(path)
        return found[0]

    async def _call(self, handle: Callable[[], T]) -> tuple[T] | None:
        """The answer, or None: the connection broke meanwhile."""
        await self._connected()
        process, epoch = self.process, self._epoch
        future: asyncio.Future[Any] = self._loop.create_future()

        def answer(result: tuple[T] | MetadataError) -> None:
            if epoch != self._epoch or future.done():
                return
            self._under_way.pop(future, None)
            if isinstance(result, tuple):
                future.set_result(result)
            else:
                future.set_exception(result)

        def arrive() -> None:
            if epoch != self._epoch or not self._server.up:
                return
            try:
                result: tuple[T] | MetadataError = (handle(),)
            except MetadataError as error:
                result = error
            self._answer(lambda: answer(result))

        self._under_way[future] = None
        if process.step():  # a dead process waits for ever
            self._arrives_ms = self._in_order(self._arrives_ms)
            self._loop.call_at(self._arrives_ms / 1000, arrive)
        found: tuple[T] | None = await future
        return found

    def _answer(self, deliver: Callable[[], None]) -> None:
        self._answers_ms = self._in_order(self._answers_ms)
        self._loop.call_at(
            self._answers_ms / 1000, self._deliver, deliver, context=self.process.context
        )

    def _deliver(self, deliver: Callable[[], None]) -> None:
        process = self.process
        if process.paused_until > self._loop.now:
            self._loop.call_at(process.paused_until, self._deliver, deliver)
        elif process.step():
            deliver()

    def _in_order(self, after_ms: float) -> float:
        delay_ms = self._server.rng.uniform(0.05, self._server.faults.delay_ms_max)
        return max(after_ms + 0.001, self._loop.now * 1000 + delay_ms)

    async def _connected(self) -> None:
        while self._state != "connected":
            if self._state == "lost":
                raise SessionLostError(self._session)
            if self._state == "closed":
                raise StoreClosedError
            await self._changed.wait()

    def _break_calls(self) -> None:
        under_way, self._under_way = self._under_way, {}
        for future in under_way:
            if not future.done():
                future.set_result(None)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _tell(self, event: SessionEvent) -> None:
        if self.process.alive:
            for watch in list(self._session_watches):
                self.process.context.run(watch.call, event, _report)

    def _versioned(self, path: str, node: TreeNode) -> Versioned:
        mine = node.owner is not None and node.owner == self._session
        stat = Stat(node.version, node.created_ms, node.modified_ms, node.owner is not None, mine)
        return Versioned(path, node.value, stat)


def _quietly(apply: Callable[[], Any]) -> None:
    try:
        apply()
    except MetadataError:
        return


def _report(message: str, error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
