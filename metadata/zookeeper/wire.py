"""Requests and answers of ZooKeeper as bytes.

kazoo's codecs do most of it; what its release lacks (persistent watches came with ZooKeeper 3.6) is
here. A request's body is its type and record, without the length and xid that ``session.py`` puts
in front. Paths are full ones, with the chroot.
"""

from struct import Struct
from typing import Any, Final, Protocol

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    Auth,
    Create2,
    Delete,
    Exists,
    GetChildren,
    GetData,
    SetData,
    Sync,
    write_string,
)
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from magnetar.metadata.zookeeper.session import CallKind, ZooKeeperCall

OK: Final = 0
NO_NODE: Final = -101
NO_AUTH: Final = -102
BAD_VERSION: Final = -103
NO_CHILDREN_FOR_EPHEMERALS: Final = -108
NODE_EXISTS: Final = -110
NOT_EMPTY: Final = -111

#: Largest request that a server takes with its default jute.maxbuffer.
REQUEST_BYTES_MAX: Final = 0xFFFFF

ANY_VERSION: Final = -1
_EPHEMERAL, _SEQUENTIAL = 1, 2
_ADD_WATCH, _PERSISTENT_RECURSIVE = 106, 1
_INT = Struct(">i")


class ZnodeStat(Protocol):
    """kazoo's ZnodeStat, as far as it is used here."""

    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int
    ephemeralOwner: int


def _body(request: Any) -> bytes:
    return _INT.pack(request.type) + bytes(request.serialize())


def create(
    path: str, value: bytes, *, ephemeral: bool, sequential: bool, creator_only: bool
) -> ZooKeeperCall:
    flags = (_EPHEMERAL if ephemeral else 0) | (_SEQUENTIAL if sequential else 0)
    acl = CREATOR_ALL_ACL if creator_only else OPEN_ACL_UNSAFE
    return ZooKeeperCall(CallKind.CHANGE, _body(Create2(path, value, acl, flags)))


def set_data(path: str, value: bytes, version: int) -> ZooKeeperCall:
    return ZooKeeperCall(CallKind.CHANGE, _body(SetData(path, value, version)))


def delete(path: str, version: int) -> ZooKeeperCall:
    return ZooKeeperCall(CallKind.CHANGE, _body(Delete(path, version)))


def get_data(path: str) -> ZooKeeperCall:
    return ZooKeeperCall(CallKind.READ, _body(GetData(path, None)))


def exists(path: str) -> ZooKeeperCall:
    return ZooKeeperCall(CallKind.READ, _body(Exists(path, None)))


def get_children(path: str) -> ZooKeeperCall:
    return ZooKeeperCall(CallKind.READ, _body(GetChildren(path, None)))


def sync(path: str) -> ZooKeeperCall:
    """Builds a sync: later reads see all that the leader committed before it takes the sync."""
    return ZooKeeperCall(CallKind.READ, _body(Sync(path)))


def watch_everything_below(path: str) -> bytes:
    """Body of a request for a persistent recursive watch."""
    return b"".join((_INT.pack(_ADD_WATCH), write_string(path), _INT.pack(_PERSISTENT_RECURSIVE)))


def digest_login(credentials: str) -> bytes:
    """Body of a login with "user:password"."""
    return _body(Auth(0, "digest", credentials))


# Answers: REQUIRES ``call.code == OK``.


def created(call: ZooKeeperCall) -> tuple[str, ZnodeStat]:
    path, stat = Create2.deserialize(call.reply, call.offset)
    return path, stat


def stat_after_set(call: ZooKeeperCall) -> ZnodeStat:
    stat: ZnodeStat = SetData.deserialize(call.reply, call.offset)
    return stat


def data(call: ZooKeeperCall) -> tuple[bytes, ZnodeStat]:
    value, stat = GetData.deserialize(call.reply, call.offset)
    return value or b"", stat


def stat(call: ZooKeeperCall) -> ZnodeStat:
    found: ZnodeStat = Exists.deserialize(call.reply, call.offset)
    return found


def child_names(call: ZooKeeperCall) -> list[str]:
    names: list[str] = GetChildren.deserialize(call.reply, call.offset)
    return names


def name_of_code(code: int) -> str:
    """Name of a code of the server, for messages."""
    return EXCEPTIONS[code].__name__ if code in EXCEPTIONS else f"code {code}"
