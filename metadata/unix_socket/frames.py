"""Frames between a metadata server and its clients on the same machine. Pure.

A frame is its length (u32), the number of the request that it belongs to (u32), a code (u8), and
what the code needs. Little-endian. Both ends are of one installation: a client of another version
is refused when it connects.

A request gets exactly one reply, with its number. Events, of all changes from the session's begin
on, have the number 0.
"""

import json
from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final

from magnetar.metadata.errors import (
    BadVersionError,
    EphemeralParentError,
    MetadataError,
    MetadataWriteError,
    NotEmptyError,
    NotFoundError,
    OutcomeUnknownError,
    SessionLostError,
    StoreClosedError,
)
from magnetar.metadata.store import VALUE_BYTES_MAX, EventType, MetadataEvent, Stat, Versioned

VERSION: Final = 1
REQUEST_BYTES_MAX: Final = VALUE_BYTES_MAX + 64 * 1024
"""A value and its path."""
REPLY_BYTES_MAX: Final = 512 * 1024 * 1024
"""The children of a node come in one frame; above this the stream must be garbage."""
UNNUMBERED: Final = 0

_LENGTH: Final = Struct("<I")
_HEAD: Final = Struct("<IIB")
_CONNECT: Final = Struct("<HI")  # version, timeout in ms; the key of the session to end follows
_PUT: Final = Struct("<iBH")  # expected version, flags, bytes of the path; path and value follow
_DELETE: Final = Struct("<i")  # expected version; the path follows
_NODE: Final = Struct("<iqqBH")  # version, times, flags, bytes of the path; path and value follow
_ANY_VERSION: Final = -2
_EPHEMERAL: Final = 1
_SEQUENTIAL: Final = 2
_CREATED_BY_SELF: Final = 2


class Operation(IntEnum):
    """What a client asks for."""

    CONNECT = 1
    GET = 2
    CHILDREN = 3
    EXISTS = 4
    PUT = 5
    DELETE = 6
    DELETE_RECURSIVE = 7
    END_SESSION = 8
    PING = 9
    CLOSE = 10


CHANGES: Final = frozenset({Operation.PUT, Operation.DELETE, Operation.DELETE_RECURSIVE})
"""May have happened although no reply came."""

OK: Final = 0
NOTHING: Final = 1
"""There is no such node, or nothing to say."""
_FIRST_ERROR: Final = 2

_EVENTS: Final = tuple(EventType)
_ARGUMENTS: Final[dict[type[Exception], Callable[..., tuple[object, ...]]]] = {
    BadVersionError: lambda e: (e.path, e.expected, e.actual),
    NotFoundError: lambda e: (e.path,),
    NotEmptyError: lambda e: (e.path,),
    EphemeralParentError: lambda e: (e.path, e.parent),
    MetadataWriteError: lambda e: (e.path, str(e.cause)),
    OutcomeUnknownError: lambda e: (e.path, str(e.cause)),
    SessionLostError: lambda e: (e.session_id,),
    StoreClosedError: lambda e: (str(e),),
    ValueError: lambda e: (str(e),),
}
_ERRORS: Final = tuple(_ARGUMENTS)


class SocketFrameError(MetadataError):
    """These aren't frames, or frames of another version."""


class SocketFrameReader:
    """Cuts a stream into frames."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Number, code and the rest of each whole frame. Raises SocketFrameError."""
        self._buffer += data
        start, end = 0, len(self._buffer)
        while end - start >= _HEAD.size:
            length, number, code = _HEAD.unpack_from(self._buffer, start)
            if not _HEAD.size - _LENGTH.size <= length <= self._bytes_max:
                raise SocketFrameError(f"a frame of {length} bytes")
            following = start + _LENGTH.size + length
            if following > end:
                break
            yield number, code, bytes(self._buffer[start + _HEAD.size : following])
            start = following
        del self._buffer[:start]


def frame(number: int, code: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(_HEAD.size - _LENGTH.size + len(body), number, code) + body


def connect_body(timeout_ms: int, old_key: str) -> bytes:
    """``old_key``: of the session that this connection's session follows; "": of none."""
    return _CONNECT.pack(VERSION, timeout_ms) + old_key.encode()


def read_connect(body: bytes) -> tuple[int, str]:
    """The client's timeout in ms, and the key. Raises SocketFrameError."""
    if len(body) < _CONNECT.size:
        raise SocketFrameError("a short CONNECT")
    version, timeout_ms = _CONNECT.unpack_from(body)
    if version != VERSION:
        raise SocketFrameError(f"version {version} of the protocol; this process speaks {VERSION}")
    return timeout_ms, body[_CONNECT.size :].decode()


def put_body(
    path: str, value: bytes, expected_version: int | None, *, ephemeral: bool, sequential: bool
) -> bytes:
    name, expected = path.encode(), _version_out(expected_version)
    flags = ephemeral * _EPHEMERAL + sequential * _SEQUENTIAL
    return _PUT.pack(expected, flags, len(name)) + name + value


def read_put(body: bytes) -> tuple[str, bytes, int | None, bool, bool]:
    """Path, value, expected version, ephemeral, sequential."""
    expected, flags, length = _PUT.unpack_from(body)
    split = _PUT.size + length
    path, value = body[_PUT.size : split].decode(), body[split:]
    return path, value, _version_in(expected), bool(flags & _EPHEMERAL), bool(flags & _SEQUENTIAL)


def delete_body(path: str, expected_version: int | None) -> bytes:
    return _DELETE.pack(_version_out(expected_version)) + path.encode()


def read_delete(body: bytes) -> tuple[str, int | None]:
    (expected,) = _DELETE.unpack_from(body)
    return body[_DELETE.size :].decode(), _version_in(expected)


def node_body(node: Versioned) -> bytes:
    name, stat = node.path.encode(), node.stat
    flags = stat.ephemeral * _EPHEMERAL + stat.created_by_self * _CREATED_BY_SELF
    head = _NODE.pack(stat.version, stat.created_ms, stat.modified_ms, flags, len(name))
    return head + name + node.value


def read_node(body: bytes) -> Versioned:
    version, created_ms, modified_ms, flags, length = _NODE.unpack_from(body)
    split = _NODE.size + length
    ephemeral, own = bool(flags & _EPHEMERAL), bool(flags & _CREATED_BY_SELF)
    stat = Stat(version, created_ms, modified_ms, ephemeral, own)
    return Versioned(body[_NODE.size : split].decode(), body[split:], stat)


def names_body(names: list[str]) -> bytes:
    return "/".join(names).encode()  # the one character that no name has


def read_names(body: bytes) -> list[str]:
    return body.decode().split("/") if body else []


def event_frame(event: MetadataEvent) -> bytes:
    return frame(UNNUMBERED, _EVENTS.index(event.type), event.path.encode())


def read_event(code: int, body: bytes) -> MetadataEvent:
    return MetadataEvent(_EVENTS[code], body.decode())


def error_frame(number: int, error: Exception) -> bytes:
    """The same error is raised at the other end; ValueError stands for wrong arguments."""
    for code, kind in enumerate(_ERRORS, _FIRST_ERROR):
        if isinstance(error, kind):
            return frame(number, code, json.dumps(_ARGUMENTS[kind](error)).encode())
    raise error


def read_error(code: int, body: bytes) -> Exception:
    """REQUIRES: not OK or NOTHING."""
    kind = _ERRORS[code - _FIRST_ERROR]
    return kind(*json.loads(body))


def _version_out(expected: int | None) -> int:
    return _ANY_VERSION if expected is None else expected


def _version_in(expected: int) -> int | None:
    return None if expected == _ANY_VERSION else expected
