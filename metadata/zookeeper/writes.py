"""Changes of nodes: what is sent, what an error means, and what became of a lost answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.metadata.errors import (
    AccessDeniedError,
    BadVersionError,
    EphemeralParentError,
    MetadataError,
    MetadataWriteError,
    NotEmptyError,
    NotFoundError,
    OutcomeUnknownError,
    ValueTooLargeError,
)
from magnetar.metadata.paths import ROOT, join, name_of, parent_of
from magnetar.metadata.store import CREATE_ONLY, VALUE_BYTES_MAX
from magnetar.metadata.zookeeper import wire
from magnetar.metadata.zookeeper.connection import ZooKeeperConnection
from magnetar.metadata.zookeeper.session import LOST, CallKind, ZooKeeperCall
from magnetar.metadata.zookeeper.unknown_outcome import (
    ChangeKind,
    NodeState,
    UnansweredChange,
    WriteOutcome,
    is_own_creation,
    resolve_outcome,
)

# A round fails only when another session changed the same thing at the same time.
_ROUNDS_MAX = 100
_SENDS_MAX = 5
_WINDOW = 500
"""Requests that one call of ours has under way; a server stops reading at 1,000 of all clients."""
_CANDIDATES_MAX = 1000


@dataclass(frozen=True, slots=True)
class WriteResult:
    path: str  # of the store, without the chroot
    stat: wire.ZnodeStat


class _Creation:
    """An ephemeral create under way; ``alone``: no other one of the same path was, meanwhile."""

    __slots__ = ("alone",)

    def __init__(self) -> None:
        self.alone = True


class ZooKeeperWrites:
    """The changing half of a store. Paths are the store's own; all were checked."""

    def __init__(self, link: ZooKeeperConnection, chroot: str, creator_only: bool) -> None:
        self._link, self._chroot, self._creator_only = link, chroot, creator_only
        self._creations: dict[str, list[_Creation]] = {}

    def full(self, path: str) -> str:
        """The path that the server knows it by."""
        return (self._chroot + path).rstrip("/") or ROOT

    async def create(
        self, path: str, value: bytes, ephemeral: bool, sequential: bool
    ) -> WriteResult:
        """
        Raises:
            BadVersionError: it exists.
            EphemeralParentError, and those of ``MetadataStore``
        """
        if not ephemeral:
            return await self._create(path, value, False, sequential, _Creation())
        mine, peers = _Creation(), self._creations.setdefault(path, [])
        for peer in peers:
            peer.alone = mine.alone = False
        peers.append(mine)
        try:
            return await self._create(path, value, True, sequential, mine)
        finally:
            peers.remove(mine)
            if not peers and self._creations.get(path) is peers:
                del self._creations[path]

    async def set(self, path: str, value: bytes, version: int | None) -> WriteResult | None:
        """None: there is no such node.

        Raises:
            BadVersionError, and those of ``MetadataStore``
        """
        wanted = wire.ANY_VERSION if version is None else version
        body = wire.set_data(self.full(path), value, wanted).body
        _check_size(path, body, value)
        change = UnansweredChange(ChangeKind.SET, value, version)
        call, stat = await self._run(path, body, change, _Creation())
        if call.code == wire.OK:
            return WriteResult(path, stat or wire.stat_after_set(call))
        if call.code == wire.NO_NODE:
            return None
        if call.code == wire.BAD_VERSION and version is not None:
            raise BadVersionError(path, version)
        raise _error(path, call.code)

    async def delete(self, path: str, version: int | None) -> None:
        """
        Raises:
            NotFoundError, BadVersionError, NotEmptyError, and those of ``MetadataStore``
        """
        wanted = wire.ANY_VERSION if version is None else version
        body = wire.delete(self.full(path), wanted).body
        call, _ = await self._run(path, body, UnansweredChange(ChangeKind.DELETE), _Creation())
        if call.code == wire.OK:
            return
        if call.code == wire.NO_NODE:
            raise NotFoundError(path)
        if call.code == wire.BAD_VERSION and version is not None:
            raise BadVersionError(path, version)
        if call.code == wire.NOT_EMPTY:
            raise NotEmptyError(path)
        raise _error(path, call.code)

    async def delete_recursive(self, path: str) -> None:
        """Children before parents; again when children came meanwhile or an answer was lost."""
        code = wire.OK
        for _ in range(_ROUNDS_MAX):
            found = await self._walk(path)
            if not found:
                return
            calls = [wire.delete(self.full(each), wire.ANY_VERSION) for each in reversed(found)]
            for window in _windows(calls):
                await self._link.ask_all(window)
            codes = {call.code for call in calls}
            if wire.NO_AUTH in codes:
                raise _error(path, wire.NO_AUTH)
            code = calls[-1].code
            if code in (wire.OK, wire.NO_NODE):
                return
        raise MetadataWriteError(path, _error(path, code))

    async def create_chroot(self) -> None:
        if self._chroot:
            names = self._chroot.split("/")[1:]
            await self._create_nodes(["/" + "/".join(names[: i + 1]) for i in range(len(names))])

    async def _create(
        self, path: str, value: bytes, ephemeral: bool, sequential: bool, mine: _Creation
    ) -> WriteResult:
        full = self.full(path)
        kind = {"ephemeral": ephemeral, "sequential": sequential}
        body = wire.create(full, value, **kind, creator_only=self._creator_only).body
        _check_size(path, body, value)
        change = UnansweredChange(ChangeKind.CREATE, value, ephemeral=ephemeral)
        code = wire.NO_NODE
        for _ in range(_ROUNDS_MAX):
            if sequential:
                call, found = await self._run_sequential(path, body, change, mine)
            else:
                call, stat = await self._run(path, body, change, mine)
                found = None if stat is None else WriteResult(path, stat)
            code = call.code
            if code == wire.OK:
                if found is not None:
                    return found
                final, stat = wire.created(call)
                return WriteResult(final.removeprefix(self._chroot), stat)
            if code == wire.NODE_EXISTS:
                raise BadVersionError(path, CREATE_ONLY)
            if code == wire.NO_CHILDREN_FOR_EPHEMERALS:
                raise EphemeralParentError(path, parent_of(path))
            if code != wire.NO_NODE:
                raise _error(path, code)
            await self._create_parents(path)
        raise MetadataWriteError(path, _error(path, code))

    async def _create_parents(self, path: str) -> None:
        full = self.full(path)
        parents = list[str]()
        while (full := parent_of(full)) != ROOT:
            parents.append(full)
        parents.reverse()
        looks = [wire.exists(each) for each in parents]
        await self._link.ask_all(looks)
        missing = list[str]()
        for parent, look in zip(parents, looks, strict=True):
            if look.code == wire.NO_NODE:
                missing.append(parent)
            elif look.code != wire.OK:
                raise _error(path, look.code)
            elif wire.stat(look).ephemeralOwner:
                raise EphemeralParentError(path, parent.removeprefix(self._chroot))
        await self._create_nodes(missing)

    async def _create_nodes(self, full_paths: Sequence[str]) -> None:
        # Lost answers and nodes that vanish again don't matter: the caller's write tries again.
        calls = [
            wire.create(
                each, b"", ephemeral=False, sequential=False, creator_only=self._creator_only
            )
            for each in full_paths
        ]
        await self._link.ask_all(calls)
        for call, full in zip(calls, full_paths, strict=True):
            if call.code not in (wire.OK, wire.NODE_EXISTS, wire.NO_NODE, LOST):
                raise _error(full.removeprefix(self._chroot), call.code)

    async def _walk(self, path: str) -> list[str]:
        """The node and all below it, parents before their children; empty if there is none."""
        found, new = list[str](), [path]
        while new:
            calls = [wire.get_children(self.full(each)) for each in new]
            for window in _windows(calls):
                await self._link.ask_all(window)
            level, new = new, []
            for parent, call in zip(level, calls, strict=True):
                if call.code == wire.OK:
                    found.append(parent)
                    new += [join(parent, name) for name in sorted(wire.child_names(call))]
                elif call.code != wire.NO_NODE:
                    raise _error(parent, call.code)
        return found

    # Doubt

    async def _run(
        self, path: str, body: bytes, change: UnansweredChange, mine: _Creation
    ) -> tuple[ZooKeeperCall, wire.ZnodeStat | None]:
        """Sends until there is an answer. With a stat: the node was looked at, and it happened."""
        for _ in range(_SENDS_MAX):
            call = await self._link.ask(ZooKeeperCall(CallKind.CHANGE, body))
            if call.code != LOST:
                return call, None
            node, stat, children_zxid = await self._look(path, call)
            verdict = resolve_outcome(
                change, call.sent_zxid, call.session_id, node, children_zxid, mine.alone
            )
            if verdict is WriteOutcome.APPLIED:
                call.code = wire.OK
                return call, stat
            if verdict is WriteOutcome.UNKNOWN:
                raise OutcomeUnknownError(path)
        raise MetadataWriteError(path, OSError("the connection broke each time it was sent"))

    async def _run_sequential(
        self, path: str, body: bytes, change: UnansweredChange, mine: _Creation
    ) -> tuple[ZooKeeperCall, WriteResult | None]:
        for _ in range(_SENDS_MAX):
            call = await self._link.ask(ZooKeeperCall(CallKind.CHANGE, body))
            if call.code != LOST:
                return call, None
            # There is no node of this very path, so this asks about its parent only.
            _, _, children_zxid = await self._look(path, call)
            if children_zxid is None or children_zxid > call.sent_zxid:
                found = None
                if change.ephemeral and mine.alone:
                    found = await self._find_own_sequential(path, change, call)
                if found is None:
                    raise OutcomeUnknownError(path)
                call.code = wire.OK
                return call, found
        raise MetadataWriteError(path, OSError("the connection broke each time it was sent"))

    async def _find_own_sequential(
        self, path: str, change: UnansweredChange, lost: ZooKeeperCall
    ) -> WriteResult | None:
        """The one child that only the lost create can have made."""
        parent, prefix = parent_of(path), name_of(path)
        listing = await self._ask_about(path, lost, wire.get_children(self.full(parent)))
        if listing.code != wire.OK:
            return None
        names = [name for name in wire.child_names(listing) if _is_numbered(name, prefix)]
        # The newest have the highest numbers; all look alike, so their text sorts by number.
        newest = sorted(names, reverse=True)[:_CANDIDATES_MAX]
        looks = [wire.get_data(self.full(join(parent, name))) for name in newest]
        await self._ask_about(path, lost, *looks)
        own = list[WriteResult]()
        for name, look in zip(newest, looks, strict=True):
            if look.code == wire.OK:
                value, stat = wire.data(look)
                if is_own_creation(change, lost.sent_zxid, lost.session_id, _state(value, stat)):
                    own.append(WriteResult(join(parent, name), stat))
        return own[0] if len(own) == 1 else None

    async def _look(
        self, path: str, lost: ZooKeeperCall
    ) -> tuple[NodeState | None, wire.ZnodeStat | None, int | None]:
        """The node, then when its parent's children last changed, both after what was lost.

        The order matters: what the parent says holds for the time of the first look as well.
        """
        full = self.full(path)
        node, parent = wire.get_data(full), wire.exists(parent_of(full))
        await self._ask_about(path, lost, wire.sync(full), node, parent)
        if not {node.code, parent.code} <= {wire.OK, wire.NO_NODE}:
            raise OutcomeUnknownError(path)
        children_zxid = wire.stat(parent).pzxid if parent.code == wire.OK else None
        if node.code == wire.NO_NODE:
            return None, None, children_zxid
        value, stat = wire.data(node)
        return _state(value, stat), stat, children_zxid

    async def _ask_about(
        self, path: str, lost: ZooKeeperCall, *calls: ZooKeeperCall
    ) -> ZooKeeperCall:
        """Asks in the session in which the answer was lost; the first call.

        Raises:
            OutcomeUnknownError: that session is over.
        """
        if not self._is_session_of(lost):
            raise OutcomeUnknownError(path, "the session ended before the answer came")
        try:
            await self._link.ask_all(calls)
        except MetadataError as error:
            raise OutcomeUnknownError(path, error) from error
        if not self._is_session_of(lost):
            raise OutcomeUnknownError(path, "the session ended before the answer came")
        return calls[0] if calls else lost

    def _is_session_of(self, lost: ZooKeeperCall) -> bool:
        core = self._link.core
        return not core.lost and core.session_id == lost.session_id


def _state(value: bytes, stat: wire.ZnodeStat) -> NodeState:
    return NodeState(value, stat.czxid, stat.mzxid, stat.version, stat.ephemeralOwner)


def _is_numbered(name: str, prefix: str) -> bool:
    number = name.removeprefix(prefix)
    return name.startswith(prefix) and len(number) == 10 and number.isdigit()


def _windows(calls: Sequence[ZooKeeperCall]) -> list[Sequence[ZooKeeperCall]]:
    return [calls[start : start + _WINDOW] for start in range(0, len(calls), _WINDOW)]


def _check_size(path: str, body: bytes, value: bytes) -> None:
    # A server closes the connection at a larger request, and all requests behind it fail.
    if len(body) + 4 > wire.REQUEST_BYTES_MAX:
        room = wire.REQUEST_BYTES_MAX - 4 - (len(body) - len(value))
        raise ValueTooLargeError(path, len(value), min(room, VALUE_BYTES_MAX))


def _error(path: str, code: int) -> MetadataError:
    """Of a code that the operation doesn't expect. The server has done nothing."""
    if code == wire.NO_AUTH:
        return AccessDeniedError(path, "the server's access list doesn't allow it")
    return MetadataWriteError(path, OSError(wire.name_of_code(code)))
