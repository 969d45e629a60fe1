"""Version 2 of BookKeeper's protocol at the bookie's end: requests out of bytes, replies as bytes.
No I/O.

One connection may carry version 3 first and version 2 from some frame on, never the reverse.
Layouts: docs/formats/bookkeeper-protocol.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Final, TypeAlias, cast

from crc32c import crc32c

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol.frame_pieces import LENGTH, FramePieces
from magnetar.bookkeeper.bookie_protocol.frames_v2 import (
    ADD,
    AUTH,
    BATCH_READ,
    BATCH_REPLY,
    CREATOR,
    CREATOR_BYTES,
    DEFERRED,
    DO_FENCING,
    ENTRY_REPLY,
    HEAD_BYTES,
    HEADS,
    KEY_BYTES,
    READ,
    RECOVERY_ADD,
    RUN,
    RUN_REPLY,
    STRIPE,
    STRIPE_NUMBERS,
    VERSION,
)
from magnetar.bookkeeper.bookie_protocol.result_codes import EBADREQ, EBADVERSION
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, Buffer
from magnetar.bookkeeper.transport import ReadRequest, Stripe
from magnetar.bookkeeper.wrapped_packet import DIGESTED_BYTES, wrap_packet

_WORD: Final = Struct(">I")
_IDS: Final = Struct(">qq")
_BATCH: Final = Struct(">qqqiq")
_ADD_START: Final = Struct(">II20sqqqQI")
"""Length, header, master key, then the packet's header as one with CRC32C has it."""
_OWN_ADD_START: Final = Struct(">II28sqqqQI")
"""The same with the creator's token behind the key."""
_NEXT_ADD: Final = Struct(">I32sqqQI")
_NEXT_OWN_ADD: Final = Struct(">I40sqqQI")
"""The same, with what neighbours have in common as one field: header, key, ledger id."""
_ID: Final = Struct(">q")
_READ_BYTES: Final = LENGTH.size + _WORD.size + _IDS.size
_BATCH_BYTES: Final = LENGTH.size + _WORD.size + _BATCH.size
_PACKET_AT: Final = LENGTH.size + _WORD.size + KEY_BYTES
_FLAGS: Final = 0xFFFF
_VERSION_3_TAG: Final = 0x0A
"""First byte of a ``Request``; as a version of version 2's header it would be ten."""
_RUN_BYTES_MAX: Final = 1024 * 1024
_RUN_COUNT_MAX: Final = 1024
#: Smaller packets are copied: a copy costs no more than a view, and frees what was received.
_COPY_BYTES_MAX: Final = 4096


@dataclass(slots=True, eq=False)
class AddsV2:
    """Entries of one ledger under one key, ids in a row.

    Attributes:
        word: header of the replies.
        heads, bodies: of packets as ``AddRequest`` takes them: with CRC32C, or wrapped in one.
    """

    word: int
    flags: int
    key: bytes
    """Master key, and the creator's token if the client is ours and told it."""
    ledger_id: int
    first: int
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0

    @property
    def is_recovery(self) -> bool:
        return bool(self.flags & RECOVERY_ADD)

    @property
    def is_deferred(self) -> bool:
        """Asked by a client of ours."""
        return bool(self.flags & DEFERRED)

    @property
    def master_key(self) -> bytes:
        return self.key[:KEY_BYTES]

    @property
    def creator(self) -> int:
        return int.from_bytes(self.key[KEY_BYTES:], "big")


@dataclass(slots=True, eq=False)
class _ReadV2:
    word: int
    flags: int
    ledger_id: int
    first: int

    @property
    def fences(self) -> bool:
        return bool(self.flags & DO_FENCING)


@dataclass(slots=True, eq=False)
class ReadsV2(_ReadV2):
    """Single reads of entries in a row; ``first`` -1: one, of the entry with the highest id."""

    count: int
    master_key: bytes


@dataclass(slots=True, eq=False)
class BatchReadV2(_ReadV2):
    """``count_max`` 0 or less: as many as the bytes allow."""

    request_id: int
    count_max: int
    bytes_max: int
    master_key: bytes


@dataclass(slots=True, eq=False)
class AuthV2:
    word: int
    message: bytes
    """An ``AuthMessage``."""


@dataclass(slots=True, eq=False)
class RefusedV2:
    """One request that is answered without the bookie's doing."""

    reply: bytes
    fault: str = ""
    """Of the client, for the log."""


@dataclass(slots=True, eq=False)
class OwnReadV2:
    """A batch read of a client of ours."""

    word: int
    request_id: int
    request: ReadRequest


@dataclass(slots=True, eq=False)
class BodyV3:
    """A ``Request`` of version 3."""

    body: bytes


ClientRequest: TypeAlias = AddsV2 | ReadsV2 | BatchReadV2 | OwnReadV2 | AuthV2 | RefusedV2 | BodyV3


class RequestDecoder:
    """Requests out of what a client's connection brings, cut anywhere.

    Neighbours that can be answered in one go come as one: that is what makes a pipeline of single
    entries as cheap as batches.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        """``frame_bytes_max``: BookKeeper's ``nettyMaxFrameSizeBytes``."""
        self._buffer = FramePieces(frame_bytes_max)
        self._is_v2 = self._is_own = False

    def allow_frames(self, frame_bytes_max: int) -> None:
        """Of this size, from the next one on."""
        self._buffer.frame_bytes_max = frame_bytes_max

    def take_own(self) -> None:
        """From the next frame on they are of a client of ours."""
        self._is_own = True

    def feed(self, data: bytes) -> Iterator[ClientRequest]:
        """
        Raises:
            FrameError: what no bookie answers; the connection must end.
        """
        view, at = self._buffer.take(data), 0
        waiting: AddsV2 | ReadsV2 | None = None  # may have a neighbour
        while view is not None:
            if (end := self._buffer.end_of_frame(view, at)) is None:
                break
            request = self._decode(view, at, end, waiting)
            at = end
            if isinstance(request, AddsV2):
                at = self._continue(request, view, at)
            if request is waiting:
                continue
            if waiting is not None:
                yield waiting
                waiting = None
            if isinstance(request, AddsV2 | ReadsV2):
                waiting = request
            else:
                yield request
        if waiting is not None:
            yield waiting

    def _continue(self, adds: AddsV2, view: memoryview, at: int) -> int:
        """Add the small entries to it that follow, as far as they are sound; the end of the last.

        What isn't taken here is taken by ``_decode``, in the same way but in twice the time.
        """
        same = b"".join((_WORD.pack(adds.word | adds.flags), adds.key, _ID.pack(adds.ledger_id)))
        start = _NEXT_ADD if len(adds.key) == KEY_BYTES else _NEXT_OWN_ADD
        limit, unpack, start_bytes = len(view), start.unpack_from, start.size
        packet_offset = start_bytes - PACKET_HEADER_BYTES
        data = cast("bytes", view.obj)  # in half the time of a copy of a view
        heads, nothing, total = adds.heads, b"", adds.size
        next_id = adds.first + len(heads)
        size_max = min(_COPY_BYTES_MAX, self._buffer.frame_bytes_max - packet_offset)
        while at + start_bytes <= limit and len(heads) < _RUN_COUNT_MAX:
            size, found, entry_id, _, length, digest = unpack(view, at)
            end = at + LENGTH.size + size
            packet_at = at + packet_offset
            packet_bytes = end - packet_at
            if (
                end > limit
                or entry_id != next_id
                or found != same
                or length >> 63
                or not PACKET_HEADER_BYTES <= packet_bytes <= size_max
                or total + packet_bytes > _RUN_BYTES_MAX
            ):
                break
            packet = data[packet_at:end]
            if digest != crc32c(packet[PACKET_HEADER_BYTES:], crc32c(packet[:DIGESTED_BYTES])):
                break
            heads.append(packet)
            total += packet_bytes
            next_id += 1
            at = end
        adds.bodies += [nothing] * (len(heads) - len(adds.bodies))
        adds.size = total
        return at

    def _decode(
        self, view: memoryview, at: int, end: int, waiting: AddsV2 | ReadsV2 | None
    ) -> ClientRequest:
        """The request in a frame; ``waiting`` if it was added to that."""
        body_at = at + LENGTH.size
        if end - body_at < _WORD.size:
            raise FrameError(f"a request of {end - body_at} bytes")
        if view[body_at] == _VERSION_3_TAG:
            if self._is_v2:
                raise FrameError("a request of version 3 behind one of version 2")
            return BodyV3(bytes(view[body_at:end]))
        self._is_v2 = True
        (word,) = _WORD.unpack_from(view, body_at)
        version, opcode, flags = word >> 24, word >> 16 & 0xFF, word & _FLAGS
        reply_word = word & ~_FLAGS
        if version == 0:  # the header was the operation's number alone
            opcode, flags, reply_word = word, 0, word
        if self._is_own and opcode in (ADD, BATCH_READ):
            if version != VERSION:
                raise FrameError(f"version {version}")
            if opcode == ADD:
                return _decode_own_add(view, at, end, reply_word, flags, waiting)
            return _decode_own_read(view, at, end, reply_word, flags)
        if opcode == ADD:
            if version > VERSION:
                return _refused_add(view, at, end, reply_word, EBADVERSION.v2)
            return _decode_add(view, at, end, reply_word, flags, waiting)
        if opcode == READ:
            return _decode_read(view, at, end, version, reply_word, flags, waiting)
        if opcode == BATCH_READ:
            return _decode_batch_read(view, at, end, version, reply_word, flags)
        if opcode == AUTH:
            return AuthV2(reply_word, bytes(view[body_at + _WORD.size : end]))
        raise FrameError(f"operation {opcode} of version {version}")


def _decode_add(
    view: memoryview, at: int, end: int, word: int, flags: int, waiting: AddsV2 | ReadsV2 | None
) -> ClientRequest:
    packet_at = at + _PACKET_AT
    size = end - packet_at
    if size < PACKET_HEADER_BYTES:
        if size < DIGESTED_BYTES:
            return _refused_add(view, at, end, word, EBADREQ.v2)
        digest = None
        _, _, master_key, ledger_id, entry_id, _, length, _ = _ADD_START.unpack(
            bytes(view[at:end]) + bytes(PACKET_HEADER_BYTES - size)
        )
    else:
        _, _, master_key, ledger_id, entry_id, _, length, digest = _ADD_START.unpack_from(view, at)
    if length >> 63 or ledger_id < 0 or entry_id < 0:
        return RefusedV2(encode_entry_reply(word, EBADREQ.v2, ledger_id, entry_id))
    rest = view[packet_at + PACKET_HEADER_BYTES : end]
    body: bytes | memoryview = b""
    if digest is None or digest != crc32c(
        rest, crc32c(view[packet_at : packet_at + DIGESTED_BYTES])
    ):
        head = wrap_packet(view[packet_at:end])
        size = len(head)
    elif size <= _COPY_BYTES_MAX:
        head = bytes(view[packet_at:end])
    else:
        head, body = bytes(view[packet_at : packet_at + PACKET_HEADER_BYTES]), rest
    return _append(AddsV2(word, flags, master_key, ledger_id, entry_id), head, body, waiting)


def _append(
    adds: AddsV2, head: bytes, body: bytes | memoryview, waiting: AddsV2 | ReadsV2 | None
) -> AddsV2:
    """The entry behind those of ``waiting`` if it fits there, else as the first of ``adds``."""
    size = len(head) + len(body)
    if (
        isinstance(waiting, AddsV2)
        and adds.ledger_id == waiting.ledger_id
        and adds.first == waiting.first + len(waiting.heads)
        and adds.word == waiting.word
        and adds.flags == waiting.flags
        and adds.key == waiting.key
        and waiting.size + size <= _RUN_BYTES_MAX
        and len(waiting.heads) < _RUN_COUNT_MAX
    ):
        adds = waiting
    adds.heads.append(head)
    adds.bodies.append(body)
    adds.size += size
    return adds


def _decode_own_add(
    view: memoryview, at: int, end: int, word: int, flags: int, waiting: AddsV2 | ReadsV2 | None
) -> AddsV2 | RefusedV2:
    """An add of a client of ours: with CRC32C, which is checked here."""
    start = _OWN_ADD_START if flags & CREATOR else _ADD_START
    if end - at < start.size:
        raise FrameError(f"an add of {end - at} bytes")
    _, _, key, ledger_id, entry_id, _, _, digest = start.unpack_from(view, at)
    if ledger_id < 0 or entry_id < 0:
        raise FrameError(f"an add of ledger {ledger_id}, entry {entry_id}")
    packet_at = at + start.size - PACKET_HEADER_BYTES
    rest = view[packet_at + PACKET_HEADER_BYTES : end]
    if digest != crc32c(rest, crc32c(view[packet_at : packet_at + DIGESTED_BYTES])):
        reply = encode_entry_reply(word, codes.IO_ERROR, ledger_id, entry_id)
        return RefusedV2(reply, f"corrupt entry {entry_id} of ledger {ledger_id}")
    head, body = view[packet_at:end], cast("bytes | memoryview", b"")
    if end - packet_at > _COPY_BYTES_MAX:
        head, body = head[:PACKET_HEADER_BYTES], rest
    return _append(AddsV2(word, flags, key, ledger_id, entry_id), bytes(head), body, waiting)


def _refused_add(view: memoryview, at: int, end: int, word: int, code: int) -> RefusedV2:
    ids_at = at + _PACKET_AT
    if end - ids_at < _IDS.size:
        raise FrameError(f"an add of {end - at} bytes")
    ledger_id, entry_id = _IDS.unpack_from(view, ids_at)
    return RefusedV2(encode_entry_reply(word, code, ledger_id, entry_id))


def _decode_read(
    view: memoryview,
    at: int,
    end: int,
    version: int,
    word: int,
    flags: int,
    waiting: AddsV2 | ReadsV2 | None,
) -> ClientRequest:
    wanted = _READ_BYTES + (KEY_BYTES if flags & DO_FENCING else 0)
    if end - at < wanted:
        raise FrameError(f"a read of {end - at} bytes")
    ledger_id, entry_id = _IDS.unpack_from(view, at + LENGTH.size + _WORD.size)
    if version > VERSION:
        return RefusedV2(encode_entry_reply(word, EBADVERSION.v2, ledger_id, entry_id))
    if (
        isinstance(waiting, ReadsV2)
        and not flags & DO_FENCING
        and flags == waiting.flags
        and ledger_id == waiting.ledger_id
        and entry_id == waiting.first + waiting.count
        and waiting.first >= 0
        and word == waiting.word
        and waiting.count < _RUN_COUNT_MAX
    ):
        waiting.count += 1
        return waiting
    key = bytes(view[at + _READ_BYTES : at + wanted])
    return ReadsV2(word, flags, ledger_id, entry_id, 1, key)


def _decode_batch_read(
    view: memoryview, at: int, end: int, version: int, word: int, flags: int
) -> ClientRequest:
    wanted = _BATCH_BYTES + (KEY_BYTES if flags & DO_FENCING else 0)
    if end - at < wanted:
        raise FrameError(f"a batch read of {end - at} bytes")
    ledger_id, first, request_id, count_max, bytes_max = _BATCH.unpack_from(
        view, at + LENGTH.size + _WORD.size
    )
    if version > VERSION:
        code = EBADVERSION.v2
        return RefusedV2(encode_batch_reply(word, code, ledger_id, first, request_id, ()))
    key = bytes(view[at + _BATCH_BYTES : at + wanted])
    return BatchReadV2(word, flags, ledger_id, first, request_id, count_max, bytes_max, key)


def _decode_own_read(view: memoryview, at: int, end: int, word: int, flags: int) -> OwnReadV2:
    """A batch read with what its flags announce; the master key fills the rest."""
    more_at = at + _BATCH_BYTES
    if end < more_at:
        raise FrameError(f"a batch read of {end - at} bytes")
    ledger_id, first, request_id, count_max, bytes_max = _BATCH.unpack_from(
        view, at + LENGTH.size + _WORD.size
    )
    request = ReadRequest(ledger_id, first, count_max, bytes_max)
    more = bytes(view[more_at:end])
    try:
        if flags & STRIPE:
            request.stripe = Stripe(*STRIPE_NUMBERS.unpack_from(more))
            more = more[STRIPE_NUMBERS.size :]
        if flags & HEADS:
            (request.head_bytes,) = HEAD_BYTES.unpack_from(more)
            more = more[HEAD_BYTES.size :]
    except StructError as error:
        raise FrameError(f"a batch read of {end - at} bytes, flags {flags:#x}") from error
    if flags & CREATOR:
        request.creator = int.from_bytes(more[:CREATOR_BYTES], "big")
        more = more[CREATOR_BYTES:]
    request.fence, request.master_key = bool(flags & DO_FENCING), more
    if ledger_id < 0 or not request.is_legal:
        raise FrameError(f"a batch read of ledger {ledger_id} from entry {first} on")
    return OwnReadV2(word, request_id, request)


def encode_run_reply(word: int, code: int, ledger_id: int, first: int, count: int) -> bytes:
    """``code`` for entries in a row, to a client of ours."""
    return RUN_REPLY.pack(RUN_REPLY.size - LENGTH.size, word | RUN, code, ledger_id, first, count)


def encode_add_replies(word: int, code: int, ledger_id: int, ids: Sequence[int]) -> bytes:
    """The same code for several entries."""
    pack, size = ENTRY_REPLY.pack, ENTRY_REPLY.size - LENGTH.size
    return b"".join([pack(size, word, code, ledger_id, entry_id) for entry_id in ids])


def encode_entry_reply(
    word: int, code: int, ledger_id: int, entry_id: int, packet: Buffer = b""
) -> bytes:
    """Of an add, or of a read with its packet; ``entry_id`` as asked for."""
    size = ENTRY_REPLY.size - LENGTH.size + len(packet)
    return b"".join((ENTRY_REPLY.pack(size, word, code, ledger_id, entry_id), packet))


def encode_batch_reply(
    word: int, code: int, ledger_id: int, first: int, request_id: int, packets: Sequence[Buffer]
) -> bytes:
    """Packets of entries in a row from ``first`` on; none unless the code is EOK."""
    size = BATCH_REPLY.size - LENGTH.size + sum(map(len, packets)) + LENGTH.size * len(packets)
    parts: list[Buffer] = [BATCH_REPLY.pack(size, word, code, ledger_id, first, request_id)]
    for packet in packets:
        parts += (LENGTH.pack(len(packet)), packet)
    return b"".join(parts)


def encode_refusal(request: AddsV2 | ReadsV2 | BatchReadV2, code: int) -> bytes:
    """Of all that it asks for."""
    word, ledger_id, first = request.word, request.ledger_id, request.first
    if isinstance(request, BatchReadV2):
        return encode_batch_reply(word, code, ledger_id, first, request.request_id, ())
    count = len(request.heads) if isinstance(request, AddsV2) else request.count
    return encode_add_replies(word, code, ledger_id, range(first, first + count))


def encode_auth_reply(word: int, message: bytes) -> bytes:
    """``message``: an ``AuthMessage``."""
    return LENGTH.pack(_WORD.size + len(message)) + _WORD.pack(word) + message
