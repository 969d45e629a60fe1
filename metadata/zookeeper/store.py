"""``MetadataStore`` on ZooKeeper 3.6 and newer. Guarantees: docs/operate/metadata.md."""

import asyncio
import random
from collections.abc import Callable

from magnetar.metadata.errors import (
    AccessDeniedError,
    BadVersionError,
    MetadataWriteError,
    StoreUnreachableError,
)
from magnetar.metadata.paths import ROOT, check_path, parent_of
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
from magnetar.metadata.watches import PathWatches, SessionWatches, report_to_loop
from magnetar.metadata.zookeeper import wire
from magnetar.metadata.zookeeper.connection import ZooKeeperConnection, new_login
from magnetar.metadata.zookeeper.session import (
    DropConnection,
    NodeEvent,
    SessionCore,
    ZooKeeperCall,
)
from magnetar.metadata.zookeeper.settings import ZooKeeperSettings
from magnetar.metadata.zookeeper.writes import ZooKeeperWrites

_ROUNDS_MAX = 100
_LONG_LISTING_BYTES = 64 * 1024
"""Above this a list of children is decoded in a thread: 100,000 names take 0.1 s."""

_CREATED, _DELETED, _CHANGED = 1, 2, 3  # types of ZooKeeper's events


class ZooKeeperStore(MetadataStore):
    """One session on a ZooKeeper ensemble, followed by another when it is lost. See ``connect``."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        """Use ``connect``."""
        root = settings.chroot or ROOT
        core = SessionCore(
            settings.session_timeout_s,
            settings.operation_timeout_s,
            logins=[wire.digest_login(settings.digest)] if settings.digest else [],
            # One watch on everything, there from the first moment: ``watch`` is a plain call and
            # holds at once, and after a reconnect one request restores them all.
            watches=[wire.watch_everything_below(root)],
        )
        self._settings, self._chroot = settings, settings.chroot
        self._session_watches = SessionWatches()
        self._link = ZooKeeperConnection(
            settings, core, self._on_node_event, self._session_watches.tell
        )
        self._changes = ZooKeeperWrites(
            self._link, settings.chroot, creator_only=settings.creator_only
        )
        self._watches = PathWatches()

    @classmethod
    async def connect(cls, settings: ZooKeeperSettings) -> "ZooKeeperStore":
        """Begins the first session and creates the chroot.

        Raises:
            StoreUnreachableError: no server has answered within the operation timeout.
            AccessDeniedError: the credentials, or the chroot, are refused.
        """
        store = cls(settings)
        await store._link.start()
        try:
            await store._changes.create_chroot()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session_id(self) -> str:
        return self._link.session_name

    @property
    def session_key(self) -> str:
        core = self._link.core
        return f"{self._link.session_name}-{core.password.hex()}"

    async def end_session(self, key: str) -> None:
        self._link.check_open()
        session_id, dash, password = key.partition("-")
        try:
            number, secret = int(session_id, 16), bytes.fromhex(password)
        except ValueError:
            dash = ""
        if not dash or not 0 < number < 1 << 64:
            raise ValueError(f"not a key of a ZooKeeper session: {session_id}-...")
        await end_session(self._settings, number, secret)

    async def get(self, path: str) -> Versioned | None:
        call = await self._read(path, wire.get_data)
        if call is None:
            return None
        value, stat = wire.data(call)
        return self._versioned(path, b"" if path == ROOT else value, stat)

    async def children(self, path: str) -> list[str]:
        call = await self._read(path, wire.get_children)
        if call is None:
            return []
        if len(call.reply) > _LONG_LISTING_BYTES:
            return await asyncio.to_thread(_sorted_names, call)
        return _sorted_names(call)

    async def exists(self, path: str) -> bool:
        return await self._read(path, wire.exists) is not None or path == ROOT

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Versioned:
        self._link.check()
        check_put(path, value, expected_version, sequential)
        if sequential or expected_version == CREATE_ONLY:
            written = await self._changes.create(path, value, ephemeral, sequential)
        elif expected_version is not None:
            found = await self._changes.set(path, value, expected_version)
            if found is None:
                raise BadVersionError(path, expected_version)
            written = found
        else:
            for _ in range(_ROUNDS_MAX):
                if (found := await self._changes.set(path, value, None)) is not None:
                    written = found
                    break
                try:
                    written = await self._changes.create(path, value, ephemeral, False)
                    break
                except BadVersionError:
                    continue  # created by another since
            else:
                raise MetadataWriteError(path, OSError("it is created and deleted all the time"))
        return self._versioned(written.path, value, written.stat)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        self._link.check()
        check_delete(path, expected_version)
        await self._changes.delete(path, expected_version)

    async def delete_recursive(self, path: str) -> None:
        self._link.check()
        check_delete(path, None)
        await self._changes.delete_recursive(path)

    def watch(self, path_prefix: str, on_event: Callable[[MetadataEvent], None]) -> Watch:
        self._link.check_open()
        check_path(path_prefix)
        return self._watches.add(path_prefix, on_event)

    def on_session_event(self, on_event: Callable[[SessionEvent], None]) -> Watch:
        return self._session_watches.add(on_event)

    async def close(self) -> None:
        self._watches.close_all()
        self._session_watches.close_all()
        await self._link.close()

    async def _read(
        self, path: str, request: Callable[[str], ZooKeeperCall]
    ) -> ZooKeeperCall | None:
        """The answered request; None: no such node."""
        self._link.check()
        check_path(path)
        call = await self._link.ask(request(self._changes.full(path)))
        if call.code == wire.OK:
            return call
        if call.code == wire.NO_NODE:
            return None
        if call.code == wire.NO_AUTH:
            raise AccessDeniedError(path, "the server's access list doesn't allow it")
        # Of reads that are throttled, or took the server too long: as little use as no answer.
        raise StoreUnreachableError(str(self._settings), f"{path}: {wire.name_of_code(call.code)}")

    def _versioned(self, path: str, value: bytes, stat: wire.ZnodeStat) -> Versioned:
        owner = stat.ephemeralOwner
        mine = owner != 0 and owner == self._link.core.session_id
        return Versioned(path, value, Stat(stat.version, stat.ctime, stat.mtime, owner != 0, mine))

    def _on_node_event(self, event: NodeEvent) -> None:
        path = event.path.removeprefix(self._chroot)
        if not self._watches or path in ("", ROOT):
            return
        if event.type == _CHANGED:
            events = [MetadataEvent(EventType.MODIFIED, path)]
        elif event.type in (_CREATED, _DELETED):
            what = EventType.CREATED if event.type == _CREATED else EventType.DELETED
            parent = MetadataEvent(EventType.CHILDREN_CHANGED, parent_of(path))
            events = [MetadataEvent(what, path), parent]
        else:
            return
        self._watches.deliver(events, report_to_loop)


def _sorted_names(call: ZooKeeperCall) -> list[str]:
    return sorted(wire.child_names(call))


_READ_BYTES = 4096
_ATTEMPT_MAX_S = 5.0
_ROUNDS, _PAUSE_S = 6, 0.02
"""If another process ends the session now, servers close our connections until that commits."""


async def end_session(settings: ZooKeeperSettings, session_id: int, password: bytes) -> None:
    """Ends the session of another process, over a connection of its own: asks one server after the
    other, more than once, until the session is over.

    ZooKeeper lets a client with a session's id and password resume it on a new connection, and
    close it there. The servers refuse all later requests of the session's first client.

    Raises:
        StoreUnreachableError: none of them has said so.
    """
    if session_id >= 1 << 63:
        session_id -= 1 << 64  # on the wire it has a sign
    core = SessionCore.of_condemned(settings.session_timeout_s, session_id, password)
    failure: object = "no server has answered"
    for number in range(_ROUNDS):
        await asyncio.sleep(number * _PAUSE_S)
        for host, port in random.sample(settings.servers, len(settings.servers)):
            try:
                async with asyncio.timeout(_ATTEMPT_MAX_S):
                    failure = await _attempt(core, settings, host, port)
            except Exception as error:  # whatever it is, the next server may do better
                failure = f"{host}:{port}: {error or 'no answer'}"
                core.connection_lost(asyncio.get_running_loop().time())
            if core.is_expired:
                return
    raise StoreUnreachableError(str(settings), failure)


async def _attempt(core: SessionCore, settings: ZooKeeperSettings, host: str, port: int) -> str:
    """Why the connection ended."""
    loop = asyncio.get_running_loop()
    tls, login = settings.tls, new_login(settings)
    reader, writer = await asyncio.open_connection(
        host,
        port,
        ssl=None if tls is None else tls.context(),
        server_hostname=None if tls is None else host,
    )
    try:
        core.connection_made(loop.time(), _ATTEMPT_MAX_S, login)
        while True:
            writer.writelines(core.take_output(loop.time()))
            if not (data := await reader.read(_READ_BYTES)):
                core.connection_lost(loop.time())
                return f"{host}:{port}: the server closed the connection"
            core.data_received(data, loop.time())
            for effect in core.take_effects():
                if type(effect) is DropConnection:
                    return f"{host}:{port}: {effect.reason}"
    finally:
        writer.close()
