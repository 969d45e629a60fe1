"""A ZooKeeper ensemble in a few pages: one leader's log, servers that follow it at their own pace.

What clients rely on is modelled from the documentation of ZooKeeper's guarantees: writes are
ordered by the leader; a server answers a session's requests in order, reads from its own, maybe old
tree; a write is answered when that server has applied it, after its watch event; ``sync`` waits for
what the leader had committed; a session belongs to the connection that resumed it last; a server
refuses a client that has seen more than it has; sessions end some time after the last word of their
client, or when it says so. Everything else is hostile: delays, cuts with a part delivered, servers
that stop or stall.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any

from tests.simulation.simulator import Simulator, VirtualLoop

_INT, _HEADER, _STAT = Struct(">i"), Struct(">iqi"), Struct(">qqqqiiiqiiq")
_CONNECT, _CONNECTED = Struct(">iqiqi16s"), Struct(">iiqi16s?")
_CREATE2, _DELETE, _EXISTS, _GET, _SET, _CHILDREN, _SYNC = 15, 2, 3, 4, 5, 8, 9
_PING, _ADD_WATCH, _CLOSE = 11, 106, -11
_NO_NODE, _BAD_VERSION, _NO_CHILDREN, _EXISTS_ALREADY, _NOT_EMPTY = -101, -103, -108, -110, -111
_SESSION_EXPIRED, _SESSION_MOVED = -112, -118
_ORDER_S = 1e-6  # timers of the same time have no order


@dataclass(frozen=True, slots=True)
class Znode:
    value: bytes = b""
    czxid: int = 0
    mzxid: int = 0
    pzxid: int = 0
    version: int = 0
    cversion: int = 0
    owner: int = 0
    children: int = 0


@dataclass(frozen=True, slots=True)
class Txn:
    """One entry of the leader's log: nodes as they are afterwards, and the answer's code."""

    zxid: int
    code: int = 0
    nodes: tuple[tuple[str, Znode | None], ...] = ()
    events: tuple[tuple[int, str], ...] = ()
    path: str = ""
    value: bytes | None = None  # that a client wrote
    is_delete: bool = False
    session: int = 0


@dataclass
class Session:
    id: int
    timeout_s: float
    heard_at: float
    alive: bool = True
    connection: "Connection | None" = None


class Leader:
    """Orders the writes; nothing here is ever lost."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.tree: dict[str, Znode] = {"/": Znode()}
        self.log: list[Txn] = []
        self.sessions: dict[int, Session] = {}
        self.servers: list[Server] = []
        self.on_expired: Callable[[int], None] = lambda session_id: None
        self.stalled_until = 0.0

    def new_session(self, timeout_s: float) -> Session:
        session = Session(0x1000 + len(self.sessions), timeout_s, self.simulator.loop.now)
        self.sessions[session.id] = session
        self._watch_over(session)
        return session

    def create(self, path: str, value: bytes, flags: int, session: int) -> Txn:
        parent_path = path[: path.rfind("/")] or "/"
        if (parent := self.tree.get(parent_path)) is None:
            return self._commit(Txn(0, _NO_NODE))
        if parent.owner:
            return self._commit(Txn(0, _NO_CHILDREN))
        if flags & 2:
            path = f"{path}{parent.cversion:010d}"
        if path in self.tree:
            return self._commit(Txn(0, _EXISTS_ALREADY))
        zxid = len(self.log) + 1
        node = Znode(value, zxid, zxid, zxid, owner=session if flags & 1 else 0)
        changed = replace(
            parent, pzxid=zxid, cversion=parent.cversion + 1, children=parent.children + 1
        )
        nodes = ((parent_path, changed), (path, node))
        return self._commit(Txn(0, 0, nodes, ((1, path),), path, value, session=session))

    def set(self, path: str, value: bytes, version: int, session: int) -> Txn:
        if (node := self.tree.get(path)) is None:
            return self._commit(Txn(0, _NO_NODE))
        if version not in (-1, node.version):
            return self._commit(Txn(0, _BAD_VERSION))
        zxid = len(self.log) + 1
        changed = replace(node, value=value, mzxid=zxid, version=node.version + 1)
        return self._commit(
            Txn(0, 0, ((path, changed),), ((3, path),), path, value, session=session)
        )

    def delete(self, path: str, version: int, session: int) -> Txn:
        if (node := self.tree.get(path)) is None:
            return self._commit(Txn(0, _NO_NODE))
        if version not in (-1, node.version):
            return self._commit(Txn(0, _BAD_VERSION))
        if node.children:
            return self._commit(Txn(0, _NOT_EMPTY))
        return self._commit(Txn(0, 0, *self._without([path]), path, None, True, session))

    def end(self, session: Session) -> Txn:
        session.alive = False
        owned = sorted(path for path, node in self.tree.items() if node.owner == session.id)
        return self._commit(Txn(0, 0, *self._without(owned), session=session.id))

    def _without(
        self, paths: list[str]
    ) -> tuple[tuple[tuple[str, Znode | None], ...], tuple[tuple[int, str], ...]]:
        zxid = len(self.log) + 1
        nodes: dict[str, Znode | None] = {}
        for path in paths:
            parent_path = path[: path.rfind("/")] or "/"
            parent = nodes.get(parent_path) or self.tree[parent_path]
            nodes[parent_path] = replace(
                parent, pzxid=zxid, cversion=parent.cversion + 1, children=parent.children - 1
            )
            nodes[path] = None
        return tuple(nodes.items()), tuple((2, path) for path in paths)

    def _commit(self, txn: Txn) -> Txn:
        txn = replace(txn, zxid=len(self.log) + 1)
        self.log.append(txn)
        _apply(self.tree, txn)
        for server in self.servers:
            server.catch_up_soon()
        return txn

    def _watch_over(self, session: Session) -> None:
        loop = self.simulator.loop
        if not session.alive:
            return
        if loop.now < session.heard_at + session.timeout_s:
            loop.call_at(session.heard_at + session.timeout_s, self._watch_over, session)
            return
        self.on_expired(session.id)
        self.end(session)
        if session.connection is not None:
            session.connection.close_by_server()


def _apply(tree: dict[str, Znode], txn: Txn) -> None:
    for path, node in txn.nodes:
        if node is None:
            del tree[path]
        else:
            tree[path] = node


class Server:
    """Follows the leader's log; serves connections."""

    def __init__(self, leader: Leader, rng_lag_s: float) -> None:
        self.leader, self.lag_s = leader, rng_lag_s
        self.tree: dict[str, Znode] = {"/": Znode()}
        self.applied = 0
        self.connections: list[Connection] = []
        self.up = True
        self._due = 0.0
        leader.servers.append(self)

    def catch_up_soon(self) -> None:
        simulator = self.leader.simulator
        upto = len(self.leader.log)
        self._due = max(self._due, simulator.loop.now + simulator.rng.uniform(0, self.lag_s))
        simulator.loop.call_at(self._due, self._catch_up, upto)

    def _catch_up(self, upto: int) -> None:
        if not self.up:
            return
        while self.applied < upto:
            txn = self.leader.log[self.applied]
            _apply(self.tree, txn)
            self.applied += 1
            for connection in list(self.connections):
                connection.on_applied(txn)

    def crash(self) -> None:
        self.up = False
        for connection in list(self.connections):
            connection.break_off()

    def restart(self) -> None:
        self.up = True
        self._catch_up(len(self.leader.log))


@dataclass
class _Request:
    xid: int
    type: int
    body: bytes
    txn: Txn | None = None  # of a write, once the leader has ordered it
    sync_upto: int | None = None
    is_forwarded: bool = False


class Transport(asyncio.Transport):
    """The client's end."""

    def __init__(self, connection: "Connection") -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: Any) -> None:
        self._connection.from_client(bytes(data))

    def abort(self) -> None:
        self._connection.aborted_by_client()


class Connection:
    """One TCP connection: two ordered pipes, and the server's work on what comes through."""

    def __init__(self, server: Server, protocol: asyncio.Protocol) -> None:
        self.server, self.protocol = server, protocol
        self.simulator = server.leader.simulator
        self.session: Session | None = None
        self.transport = Transport(self)
        self._client_open = self._server_open = True
        self._to_server_due = self._to_client_due = self._leader_due = 0.0
        self.late_s = 0.0  # each answer
        self._incoming = b""
        self._shaken = False
        self._requests: deque[_Request] = deque()
        self._watched: list[str] = []
        server.connections.append(self)

    # The network

    def from_client(self, data: bytes) -> None:
        if self._client_open:
            self._to_server(self._arrive, data)

    def aborted_by_client(self) -> None:
        """What it had sent may still come through, later than whatever it does next."""
        if self._client_open:
            self._client_open = False
            self._to_server(self._end_server_side)
            self.simulator.loop.call_soon(self.protocol.connection_lost, None)

    def break_off(self) -> None:
        """Cut by the network, or the server died: each side learns it for itself."""
        if self._client_open:
            rng, loop = self.simulator.rng, self.simulator.loop
            loop.call_later(rng.uniform(0, 0.05), self._end_client_side)
            if rng.random() < 0.5:
                self._end_server_side()
            else:
                self._to_server(self._end_server_side)

    def close_by_server(self) -> None:
        self._end_server_side()
        self._to_client(self._end_client_side)

    def _to_server(self, deliver: Callable[..., None], *args: object) -> None:
        loop, rng = self.simulator.loop, self.simulator.rng
        due = self._to_server_due + _ORDER_S
        self._to_server_due = max(due, loop.now + rng.uniform(0.0001, 0.004))
        loop.call_at(self._to_server_due, deliver, *args)

    def _to_client(self, deliver: Callable[..., None], *args: object) -> None:
        loop, rng = self.simulator.loop, self.simulator.rng
        due = self._to_client_due + _ORDER_S
        self._to_client_due = max(due, loop.now + self.late_s + rng.uniform(0.0001, 0.004))
        loop.call_at(self._to_client_due, deliver, *args)

    def stall(self, to_server_s: float, to_client_s: float) -> None:
        """Nothing gets through for a while; then everything does."""
        now = self.simulator.loop.now
        self._to_server_due = max(self._to_server_due, now + to_server_s)
        self._to_client_due = max(self._to_client_due, now + to_client_s)

    def _end_client_side(self) -> None:
        if self._client_open:
            self._client_open = False
            self.protocol.connection_lost(ConnectionResetError("cut"))

    def _end_server_side(self) -> None:
        self._server_open = False
        if self in self.server.connections:
            self.server.connections.remove(self)

    def _send(self, frame: bytes) -> None:
        if self._server_open:
            self._to_client(self._deliver, _INT.pack(len(frame)) + frame)

    def _deliver(self, data: bytes) -> None:
        if self._client_open:
            self.protocol.data_received(data)

    # The server's work

    def _arrive(self, data: bytes) -> None:
        if not self._server_open or not self.server.up:
            return
        self._incoming += data
        if self.session is not None and self.session.connection is self:
            self.session.heard_at = self.simulator.loop.now
        while len(self._incoming) >= 4:
            (length,) = _INT.unpack_from(self._incoming)
            if len(self._incoming) < 4 + length:
                return
            frame = self._incoming[4 : 4 + length]
            self._incoming = self._incoming[4 + length :]
            if not self._shaken:
                self._shaken = True
                self._at_leader(self._shake_hands, frame)
            else:
                xid, type_ = Struct(">ii").unpack_from(frame)
                self._requests.append(_Request(xid, type_, frame[8:]))
                self._work()

    def _at_leader(self, work: Callable[..., None], *args: object) -> None:
        """In the order of the calls, after the way to the leader."""
        loop, rng, leader = self.simulator.loop, self.simulator.rng, self.server.leader
        due = max(self._leader_due + _ORDER_S, leader.stalled_until)
        self._leader_due = max(due, loop.now + rng.uniform(0.0001, 0.003))
        loop.call_at(self._leader_due, work, *args)

    def _shake_hands(self, frame: bytes) -> None:
        _, last_zxid, timeout_ms, session_id, _, _ = _CONNECT.unpack_from(frame)
        leader = self.server.leader
        if not self._server_open or last_zxid > self.server.applied:
            self.close_by_server()
            return
        if not session_id:
            session = leader.new_session(timeout_ms / 1000)
        elif (session := leader.sessions[session_id]).alive:
            old = session.connection
            if old is not None and old.server is self.server:
                old.close_by_server()  # another server learns it with the next request
        else:
            self._send(_CONNECTED.pack(0, 0, 0, 16, bytes(16), False))
            self.close_by_server()
            return
        session.connection, session.heard_at = self, self.simulator.loop.now
        self.session = session
        timeout_ms = round(session.timeout_s * 1000)
        self._send(_CONNECTED.pack(0, timeout_ms, session.id, 16, bytes(16), False))
        self._work()

    def _work(self) -> None:
        """Forwards every write and sync at once; answers from the front."""
        if self.session is None:
            return
        for request in self._requests:
            if not request.is_forwarded and request.type in (
                *(_CREATE2, _SET, _DELETE, _SYNC, _CLOSE),
            ):
                request.is_forwarded = True
                self._at_leader(self._order, request)
        while self._requests and self._answer(self._requests[0]):
            self._requests.popleft()

    def _order(self, request: _Request) -> None:
        """At the leader. What the old connection of a moved session had under way is refused."""
        leader, session = self.server.leader, self.session
        assert session is not None
        if session.connection is not self or not session.alive:
            code = _SESSION_MOVED if session.alive else _SESSION_EXPIRED
            self._send(_HEADER.pack(request.xid, len(leader.log), code))
            self.close_by_server()
            return
        if request.type == _SYNC:
            request.sync_upto = len(leader.log)
            self.simulator.loop.call_soon(self._work)
            return
        if request.type == _CLOSE:
            request.txn = leader.end(session)
            return
        path, rest = _string(request.body)
        if request.type == _DELETE:
            request.txn = leader.delete(path, _INT.unpack_from(rest)[0], session.id)
            return
        value, rest = _buffer(rest)
        if request.type == _SET:
            request.txn = leader.set(path, value, _INT.unpack_from(rest)[0], session.id)
        else:
            request.txn = leader.create(path, value, _INT.unpack(rest[-4:])[0], session.id)

    def on_applied(self, txn: Txn) -> None:
        for type_, path in txn.events:
            if any(path == root or path.startswith(f"{root}/") for root in self._watched):
                name = path.encode()
                self._send(
                    _HEADER.pack(-1, txn.zxid, 0) + Struct(">iii").pack(type_, 3, len(name)) + name
                )
        self._work()

    def _answer(self, request: _Request) -> bool:
        """False: not yet."""
        server = self.server
        if request.type in (_CREATE2, _SET, _DELETE, _CLOSE):
            if (txn := request.txn) is None or server.applied < txn.zxid:
                return False
            body = b""
            if not txn.code and request.type in (_CREATE2, _SET):
                node = dict(txn.nodes)[txn.path]
                assert node is not None
                name = txn.path.encode()
                head = _INT.pack(len(name)) + name if request.type == _CREATE2 else b""
                body = head + _stat(node)
            self._reply(request, txn.code, body, txn.zxid)
            if request.type == _CLOSE:
                self.close_by_server()
            return True
        if request.type == _SYNC:
            if request.sync_upto is None or server.applied < request.sync_upto:
                return False
            self._reply(request, 0, request.body)
            return True
        if request.type == _PING:
            self._reply(request, 0, b"")
            return True
        path, _ = _string(request.body)
        if request.type == _ADD_WATCH:
            self._watched.append(path.rstrip("/"))
            self._reply(request, 0, b"")
            return True
        if (node := server.tree.get(path)) is None:
            self._reply(request, _NO_NODE, b"")
        elif request.type == _GET:
            self._reply(request, 0, _INT.pack(len(node.value)) + node.value + _stat(node))
        elif request.type == _EXISTS:
            self._reply(request, 0, _stat(node))
        else:
            assert request.type == _CHILDREN
            prefix = path.rstrip("/") + "/"
            names = [
                each[len(prefix) :].encode()
                for each in server.tree
                if each.startswith(prefix) and each != "/" and "/" not in each[len(prefix) :]
            ]
            body = b"".join(_INT.pack(len(name)) + name for name in names)
            self._reply(request, 0, _INT.pack(len(names)) + body)
        return True

    def _reply(self, request: _Request, code: int, body: bytes, zxid: int = 0) -> None:
        self._send(_HEADER.pack(request.xid, zxid or self.server.applied, code) + body)


def _stat(node: Znode) -> bytes:
    times = (1_700_000_000_000 + node.czxid, 1_700_000_000_000 + node.mzxid)
    return _STAT.pack(
        *(node.czxid, node.mzxid, *times, node.version, node.cversion, 0),
        *(node.owner, len(node.value), node.children, node.pzxid),
    )


def _buffer(data: bytes) -> tuple[bytes, bytes]:
    (length,) = _INT.unpack_from(data)
    return data[4 : 4 + length], data[4 + length :]


def _string(data: bytes) -> tuple[str, bytes]:
    text, rest = _buffer(data)
    return text.decode(), rest


@dataclass
class Ensemble:
    """The servers by host name; ``serve`` makes a loop connect to them."""

    simulator: Simulator
    leader: Leader
    servers: dict[str, Server] = field(default_factory=dict)
    reached: dict[socket.socket, str] = field(default_factory=dict)  # and not yet talked over

    @classmethod
    def of(cls, simulator: Simulator, count: int, lag_s: float) -> "Ensemble":
        leader = Leader(simulator)
        servers = {f"s{i}": Server(leader, lag_s) for i in range(count)}
        return cls(simulator, leader, servers)

    def serve(self, loop: VirtualLoop) -> None:
        loop.getaddrinfo = self._getaddrinfo  # type: ignore[method-assign, assignment]
        loop.sock_connect = self._sock_connect  # type: ignore[method-assign, assignment]
        loop.create_connection = self._create_connection  # type: ignore[method-assign, assignment]

    async def _getaddrinfo(self, host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def _sock_connect(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """The socket stands for a connection; no bytes go through it."""
        await asyncio.sleep(self.simulator.rng.uniform(0.0001, 0.01))
        host, _ = address
        if not self.servers[host].up:
            raise ConnectionRefusedError(host)
        self.reached[sock] = host

    async def _create_connection(
        self, make: Callable[[], asyncio.Protocol], *, sock: socket.socket, **_: object
    ) -> tuple[Transport, asyncio.Protocol]:
        server = self.servers[self.reached.pop(sock)]
        sock.close()
        if not server.up:
            raise ConnectionResetError
        protocol = make()
        connection = Connection(server, protocol)
        protocol.connection_made(connection.transport)
        return connection.transport, protocol

    def connections(self) -> list[Connection]:
        return [each for server in self.servers.values() for each in server.connections]
