"""Version 2 of BookKeeper's protocol: requests as bytes, replies out of bytes. No I/O.

``length u32 | version << 24 | opcode << 16 | flags, u32 | ...``; the length doesn't count itself.
Layouts: docs/formats/bookkeeper-protocol.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

from magnetar.bookkeeper.bookie_protocol.digests import CRC32C, Digest, to_stored
from magnetar.bookkeeper.bookie_protocol.frame_pieces import LENGTH, FramePieces
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.packet import Buffer
from magnetar.bookkeeper.transport import ALL_ENTRIES, ReadRequest

VERSION: Final = 2
ADD, READ, AUTH, BATCH_READ = 1, 2, 3, 7
DO_FENCING, RECOVERY_ADD, HIGH_PRIORITY = 1, 2, 4
# Of ours, behind a login with ``MAGNETAR`` (own_login.py): nobody else gives these bits a meaning.
CREATOR, DEFERRED, STRIPE, HEADS, RUN = 1 << 15, 1 << 14, 1 << 13, 1 << 12, 1 << 11
LAST_ENTRY: Final = -1
"""As an entry's id in a read: the one with the highest id that the bookie has."""
KEY_BYTES: Final = 20

_ADD_HEAD: Final = Struct(">II20s")
CREATOR_BYTES: Final = 8
"""Of a ledger's ``creator_token``."""
STRIPE_NUMBERS: Final = Struct(">HHH")
"""Cycle, offset, width."""
HEAD_BYTES: Final = Struct(">I")
_OWN_ADD_HEAD: Final = Struct(">II28s")
"""The same with the creator's token behind the key."""
_OWN_KEY: Final = Struct(">20sQ")
_READ_REQUEST: Final = Struct(">IIqq")
_BATCH_REQUEST: Final = Struct(">IIqqqiq")
_REPLY_HEAD: Final = Struct(">IIi")
ENTRY_REPLY: Final = Struct(">IIiqq")
"""Length, header, code, ledger id, entry id: all of an add's reply."""
BATCH_REPLY: Final = Struct(">IIiqqq")
"""The same with a request's id; entries follow."""
BATCH_REPLY_BYTES: Final = BATCH_REPLY.size
"""Of a batch's reply before its entries."""
RUN_REPLY: Final = Struct(">IIiqqI")
"""The same code for entries in a row: how many is behind the first one's id."""
_ADD_REPLY_BYTES: Final = ENTRY_REPLY.size - LENGTH.size
ADD_BYTES: Final = _ADD_HEAD.size
"""Of an add's frame before its packet."""
_JOIN_MEAN_BYTES: Final = 8192
"""Entries below this mean are cheaper as one copy for three sockets than as pieces at each."""
_RECOVERY: Final = RECOVERY_ADD | HIGH_PRIORITY
_WORD: Final = Struct(">I")
_I32_MAX: Final = (1 << 31) - 1
_U32_MAX: Final = (1 << 32) - 1


def header(opcode: int, flags: int = 0) -> int:
    return VERSION << 24 | opcode << 16 | flags


_ADD_REPLY_HEADER: Final = header(ADD)
_AUTH_WORD: Final = _WORD.pack(header(AUTH))


def encode_adds(
    master_key: bytes,
    heads: Sequence[bytes],
    bodies: Sequence[Buffer],
    *,
    recovery: bool,
    digest: Digest = CRC32C,
    creator: int = 0,
    deferred: bool = False,
) -> list[Buffer]:
    """One frame for each entry, all of them in pieces; large bodies are such themselves.

    Args:
        heads, bodies, creator, deferred: as in ``AddRequest``; only bookies of ours know the last
            two.
    """
    flags = _RECOVERY if recovery else 0
    parts: list[Buffer] = []
    pack = _ADD_HEAD.pack
    fixed = _ADD_HEAD.size - LENGTH.size
    if deferred:
        flags |= DEFERRED
    if creator:
        pack, fixed = _OWN_ADD_HEAD.pack, _OWN_ADD_HEAD.size - LENGTH.size
        word, key = header(ADD, flags | CREATOR), _OWN_KEY.pack(master_key, creator)
        for head, body in zip(heads, bodies, strict=True):
            parts += (pack(fixed + len(head) + len(body), word, key) + head, body)
        return _joined(parts, len(heads))
    word = header(ADD, flags)
    if digest is CRC32C:
        for head, body in zip(heads, bodies, strict=True):
            parts += (pack(fixed + len(head) + len(body), word, master_key) + head, body)
    else:
        for head, body in zip(heads, bodies, strict=True):
            packet = to_stored(digest, head, body)
            parts += (pack(fixed + len(packet), word, master_key), packet)
    return _joined(parts, len(heads))


def _joined(parts: list[Buffer], entries: int) -> list[Buffer]:
    if sum(map(len, parts)) < _JOIN_MEAN_BYTES * entries:
        return [b"".join(parts)]
    return parts


def encode_read(ledger_id: int, entry_id: int, *, flags: int = 0, master_key: bytes = b"") -> bytes:
    """``master_key``: with DO_FENCING, and only then."""
    size = _READ_REQUEST.size - LENGTH.size + len(master_key)
    return _READ_REQUEST.pack(size, header(READ, flags), ledger_id, entry_id) + master_key


def encode_batch_read(
    ledger_id: int,
    first: int,
    request_id: int,
    count_max: int,
    bytes_max: int,
    *,
    flags: int = 0,
    more: bytes = b"",
) -> bytes:
    """Entries in a row from ``first`` on; ``bytes_max`` counts the reply's own bytes, too.

    Args:
        more: what the flags announce: a master key with DO_FENCING.
    """
    size = _BATCH_REQUEST.size - LENGTH.size + len(more)
    word = header(BATCH_READ, flags)
    fixed = _BATCH_REQUEST.pack(size, word, ledger_id, first, request_id, count_max, bytes_max)
    return fixed + more


def encode_own_read(request: ReadRequest, request_id: int) -> bytes:
    """A batch read of a bookie of ours, which gives entries of stripes and heads, too."""
    flags, more = 0, b""
    stripe = request.stripe
    if stripe != ALL_ENTRIES:
        flags |= STRIPE
        more += STRIPE_NUMBERS.pack(stripe.cycle, stripe.offset, stripe.width)
    if request.head_bytes is not None:
        flags |= HEADS
        more += HEAD_BYTES.pack(min(request.head_bytes, _U32_MAX))
    if request.creator:
        flags |= CREATOR
        more += request.creator.to_bytes(CREATOR_BYTES, "big")
    if request.fence:
        flags |= DO_FENCING
        more += request.master_key
    return encode_batch_read(
        *(request.ledger_id, request.first, request_id),
        *(min(request.count_max, _I32_MAX), min(max(0, request.bytes_max), _U32_MAX)),
        flags=flags,
        more=more,
    )


def encode_auth(message: bytes) -> bytes:
    """``message``: an ``AuthMessage``."""
    return b"".join((LENGTH.pack(_WORD.size + len(message)), _WORD.pack(header(AUTH)), message))


@dataclass(slots=True)
class AddReplies:
    """The same code for entries in a row."""

    ledger_id: int
    first: int
    count: int
    code: int
    """Of version 2."""


@dataclass(slots=True)
class ReadReplyV2:
    ledger_id: int
    entry_id: int
    """As asked for."""
    code: int
    packet: memoryview


@dataclass(slots=True)
class BatchReadReplyV2:
    request_id: int
    code: int
    packets: list[memoryview]


@dataclass(slots=True)
class AuthReply:
    message: bytes
    """An ``AuthMessage``."""


Reply: TypeAlias = AddReplies | ReadReplyV2 | BatchReadReplyV2 | AuthReply


class ReplyDecoder:
    """Replies out of what a connection brings, cut anywhere."""

    def __init__(self, frame_bytes_max: int) -> None:
        """``frame_bytes_max``: BookKeeper's ``nettyMaxFrameSizeBytes``."""
        self._buffer = FramePieces(frame_bytes_max)

    def feed(self, data: bytes) -> Iterator[Reply]:
        """
        Raises:
            FrameError: not version 2, or a frame that is too large; the connection is of no use.
        """
        view, at = self._buffer.take(data), 0
        while view is not None:
            replies, at = self._adds(view, at)
            yield from replies
            if at == len(view):
                return
            if (end := self._buffer.end_of_frame(view, at)) is None:
                return
            yield _decode(view[at:end])
            at = end

    def _adds(self, view: memoryview, at: int) -> tuple[list[AddReplies], int]:
        """As many replies to adds as come first; most of them are of entries in a row."""
        whole = (len(view) - at) // ENTRY_REPLY.size * ENTRY_REPLY.size
        runs: list[AddReplies] = []
        run: AddReplies | None = None
        end = -1
        for size, word, code, ledger_id, entry_id in ENTRY_REPLY.iter_unpack(view[at : at + whole]):
            if word != _ADD_REPLY_HEADER or size != _ADD_REPLY_BYTES:
                break
            if run is None or entry_id != end or code != run.code or ledger_id != run.ledger_id:
                run = AddReplies(ledger_id, entry_id, 0, code)
                runs.append(run)
            run.count += 1
            end = entry_id + 1
            at += ENTRY_REPLY.size
        return runs, at


def _decode(frame: memoryview) -> Reply:
    if frame[LENGTH.size : LENGTH.size + _WORD.size] == _AUTH_WORD:
        return AuthReply(bytes(frame[LENGTH.size + _WORD.size :]))
    if len(frame) < ENTRY_REPLY.size:
        raise FrameError(f"a reply of {len(frame)} bytes")
    _, word, code = _REPLY_HEAD.unpack_from(frame)
    version, opcode = word >> 24, word >> 16 & 0xFF
    if version != VERSION or opcode not in (ADD, READ, BATCH_READ):
        raise FrameError(f"a reply of version {version} to operation {opcode}")
    _, _, _, ledger_id, entry_id = ENTRY_REPLY.unpack_from(frame)
    if opcode == ADD:
        if word & RUN and len(frame) == RUN_REPLY.size:
            return AddReplies(ledger_id, entry_id, RUN_REPLY.unpack_from(frame)[5], code)
        return AddReplies(ledger_id, entry_id, 1, code)
    if opcode == READ:
        return ReadReplyV2(ledger_id, entry_id, code, frame[ENTRY_REPLY.size :])
    if len(frame) < BATCH_REPLY.size:
        raise FrameError(f"a reply of {len(frame)} bytes to a batch read")
    request_id = BATCH_REPLY.unpack_from(frame)[5]
    return BatchReadReplyV2(request_id, code, list(_packets(frame, BATCH_REPLY.size)))


def _packets(frame: memoryview, at: int) -> Iterator[memoryview]:
    while at < len(frame):
        if len(frame) - at < LENGTH.size:
            raise FrameError("a batch ends within a length")
        (size,) = LENGTH.unpack_from(frame, at)
        at += LENGTH.size
        if size > len(frame) - at:
            raise FrameError("a batch ends within an entry")
        yield frame[at : at + size]
        at += size
