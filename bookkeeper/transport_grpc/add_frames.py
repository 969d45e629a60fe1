"""Frames of the add stream: bytes in, requests out, and back. No I/O (docs/formats).

Both sides number the frames of a stream from 0 on in the order they are sent; the number is not on
the wire, so one encoded message serves every bookie of a write set.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from struct import Struct, error, unpack_from
from struct import pack as struct_pack
from typing import Final

from crc32c import crc32c

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.packet import PACKET_HEADER, PACKET_HEADER_BYTES
from magnetar.bookkeeper.transport import AddRequest

#: frame bytes u32 (all of it), count u32, ledger u64, first entry u64, flags u8, key bytes u8
FRAME_HEADER: Final = Struct(">IIQQBB")
FLAG_RECOVERY: Final = 1
FLAG_SPARSE: Final = 2  # entry ids follow, because they aren't consecutive
FLAG_DEFERRED: Final = 4  # answered before it is durable; bookies before November 2026 refuse it
#: The creator's token (u64) follows the key; only for bookies that say that they know it.
FLAG_CREATOR: Final = 8
_FLAGS: Final = FLAG_RECOVERY | FLAG_SPARSE | FLAG_DEFERRED | FLAG_CREATOR
_CREATOR: Final = Struct(">Q")
#: A message above this holds a single entry: no message may hold a bookie's loop for seconds.
MANY_BYTES_MAX: Final = 8 << 20

ANSWER_RUN: Final = Struct(">QIB")  # number of the first frame, count of frames, code of all
_ANSWER_RUNS_MAX: Final = 1 << 20

#: Larger packets stay views of the message they came in, smaller ones are copied: a copy costs no
#: more than a view, and frees the message's buffer.
COPY_BYTES_MAX: Final = 4096
_DIGESTED_BYTES: Final = PACKET_HEADER_BYTES - 4
_ENTRY_ID_MAX: Final = (1 << 63) - 1


@dataclass(slots=True)
class AddFrame:
    """One decoded frame.

    Attributes:
        number: position in the stream's sequence of frames.
        heads, bodies: of each packet the first part and the rest; the rest may be empty.
        size: packet bytes.
        is_intact: every packet has the frame's ledger and entry id, and the right digest.
    """

    ledger_id: int
    master_key: bytes
    entry_ids: Sequence[int]
    heads: list[bytes]
    bodies: list[bytes | memoryview]
    size: int
    recovery: bool
    deferred_sync: bool
    is_intact: bool
    creator: int = 0


def largest_packet(request: AddRequest) -> int:
    """Bytes of the largest packet."""
    pairs = zip(request.heads, request.bodies, strict=True)
    return max(len(head) + len(body) for head, body in pairs)


def split_request(request: AddRequest, bytes_max: int) -> list[AddRequest]:
    """The same entries as requests of at most ``bytes_max``, or of one entry each.

    ``request.done`` is called once all pieces are answered, with the first code that isn't OK.
    """
    ids, heads, bodies = request.entry_ids, request.heads, request.bodies
    bounds = [0]
    size = 0
    for at, (head, body) in enumerate(zip(heads, bodies, strict=True)):
        packet = len(head) + len(body)
        if size + packet > bytes_max and at > bounds[-1]:
            bounds.append(at)
            size = 0
        size += packet
    bounds.append(len(heads))
    answer = _AllAnswered(request, len(bounds) - 1)
    pieces: list[AddRequest] = []
    for first, end in pairwise(bounds):
        some_heads, some_bodies = heads[first:end], bodies[first:end]
        size = sum(map(len, some_heads)) + sum(map(len, some_bodies))
        key, recovery = request.master_key, request.recovery
        pieces.append(
            AddRequest(
                request.ledger_id,
                key,
                ids[first:end],
                some_heads,
                some_bodies,
                size,
                recovery,
                answer.on_piece,
                deferred_sync=request.deferred_sync,
                creator=request.creator,
            )
        )
    return pieces


class _AllAnswered:
    """Counts the answers to the pieces of a request."""

    def __init__(self, request: AddRequest, pieces: int) -> None:
        self._request = request
        self._left = pieces
        self._code = codes.OK

    def on_piece(self, _piece: AddRequest, code: int) -> None:
        self._left -= 1
        if self._code == codes.OK:
            self._code = code
        if not self._left:
            self._request.done(self._request, self._code)


def merge_requests(requests: Iterable[AddRequest]) -> list[list[AddRequest]]:
    """Groups of neighbours that fit into one frame each: same ledger and rights, ids that go on."""
    groups: list[list[AddRequest]] = []
    group: list[AddRequest] = []
    ledger_id = end = -1  # end: the entry id that goes on; -1: none does
    master_key, recovery, deferred, creator = b"", False, False, 0
    for request in requests:
        ids = request.entry_ids
        is_range = type(ids) is range
        if (
            is_range
            and ids[0] == end
            and request.ledger_id == ledger_id
            and request.recovery is recovery
            and request.deferred_sync is deferred
            and request.creator == creator
            and request.master_key == master_key
        ):
            group.append(request)
        else:
            group = [request]
            groups.append(group)
            ledger_id, recovery = request.ledger_id, request.recovery
            master_key, deferred = request.master_key, request.deferred_sync
            creator = request.creator
        end = ids[-1] + 1 if is_range else -1
    return groups


def encode_message(groups: Iterable[Sequence[AddRequest]], *, creators: bool = True) -> bytes:
    """One message with a frame for each group of ``merge_requests``.

    Args:
        creators: say whose ledgers they are. Bookies from before that end the stream.
    """
    parts: list[bytes] = []
    for group in groups:
        _encode_frame(group, parts, group[0].creator if creators else 0)
    return b"".join(parts)


def _encode_frame(group: Sequence[AddRequest], parts: list[bytes], creator: int) -> None:
    first = group[0]
    if len(group) == 1:
        ids, heads, bodies, size = first.entry_ids, first.heads, first.bodies, first.body_bytes
    else:
        ids = range(first.entry_ids[0], group[-1].entry_ids[-1] + 1)
        heads = list(chain.from_iterable(request.heads for request in group))
        bodies = list(chain.from_iterable(request.bodies for request in group))
        size = sum(request.body_bytes for request in group)
    count = len(ids)
    assert count == len(heads), "entries of a group follow each other"
    flags = FLAG_RECOVERY if first.recovery else 0
    if first.deferred_sync:
        flags |= FLAG_DEFERRED
    sparse = b""
    if type(ids) is not range and ids[-1] - ids[0] != count - 1:
        flags |= FLAG_SPARSE
        sparse = struct_pack(f">{count}Q", *ids)
    key, token = first.master_key, b""
    if creator:
        flags |= FLAG_CREATOR
        token = _CREATOR.pack(creator)
    if count == 1:
        sizes = struct_pack(">I", size)
    else:
        lengths = [len(head) + len(body) for head, body in zip(heads, bodies, strict=True)]
        sizes = struct_pack(f">{count}I", *lengths)
    total = FRAME_HEADER.size + len(key) + len(token) + len(sparse) + len(sizes) + size
    parts.append(
        FRAME_HEADER.pack(total, count, first.ledger_id, ids[0], flags, len(key))
        + key
        + token
        + sparse
        + sizes
    )
    if count == 1:
        parts.append(heads[0])
        parts.append(bodies[0])
    else:
        parts.extend(chain.from_iterable(zip(heads, bodies, strict=True)))


def decode_message(message: bytes) -> list[AddFrame]:
    """All frames of a message.

    Raises:
        FrameError: the bytes are no frames; nothing of the message may be used.
    """
    frames: list[AddFrame] = []
    offset, limit = 0, len(message)
    view = memoryview(message)
    if limit > MANY_BYTES_MAX and FRAME_HEADER.unpack_from(message)[:2] != (limit, 1):
        raise FrameError(f"{limit} bytes with more than one entry")
    while offset < limit:
        if limit - offset < FRAME_HEADER.size:
            raise FrameError(f"{limit - offset} bytes are left at offset {offset}, no frame header")
        total = FRAME_HEADER.unpack_from(message, offset)[0]
        if total < FRAME_HEADER.size or total > limit - offset:
            raise FrameError(
                f"the frame at offset {offset} claims {total} bytes, {limit - offset} are there"
            )
        frames.append(_decode_frame(message, view, offset, offset + total))
        offset += total
    if not frames:
        raise FrameError("an empty message")
    return frames


def _decode_frame(message: bytes, view: memoryview, start: int, end: int) -> AddFrame:
    _, count, ledger_id, first, flags, key_bytes = FRAME_HEADER.unpack_from(message, start)
    if flags & ~_FLAGS:
        raise FrameError(f"unknown flags {flags} at offset {start}")
    per_entry = 12 if flags & FLAG_SPARSE else 4
    key_at = start + FRAME_HEADER.size
    tables_at = key_at + key_bytes
    creator = 0
    if flags & FLAG_CREATOR:
        tables_at += _CREATOR.size
        if tables_at > end:
            raise FrameError(f"no creator in the frame at offset {start}")
        (creator,) = _CREATOR.unpack_from(message, tables_at - _CREATOR.size)
    offset = tables_at + per_entry * count
    if count < 1 or offset + count * PACKET_HEADER_BYTES > end:
        raise FrameError(f"{count} entries don't fit the frame at offset {start}")
    if first + count > _ENTRY_ID_MAX:
        raise FrameError(f"entry ids from {first} on at offset {start}")
    ids: Sequence[int] = range(first, first + count)
    sizes_at = tables_at
    if flags & FLAG_SPARSE:
        ids = unpack_from(f">{count}Q", message, tables_at)
        sizes_at += 8 * count
        if ids[0] != first or any(a >= b for a, b in pairwise(ids)):
            raise FrameError(f"entry ids that don't ascend at offset {start}")
        if ids[-1] > _ENTRY_ID_MAX:
            raise FrameError(f"entry id {ids[-1]} at offset {start}")
    sizes = unpack_from(f">{count}I", message, sizes_at)
    if sum(sizes) != end - offset or min(sizes) < PACKET_HEADER_BYTES:
        raise FrameError(f"sizes of packets that don't fill the frame at offset {start}")
    heads, bodies, is_intact = _cut_packets(message, view, offset, sizes, ledger_id, ids)
    key = message[key_at : key_at + key_bytes]
    return AddFrame(
        ledger_id,
        key,
        ids,
        heads,
        bodies,
        end - offset,
        bool(flags & FLAG_RECOVERY),
        bool(flags & FLAG_DEFERRED),
        is_intact,
        creator,
    )


def _cut_packets(
    message: bytes,
    view: memoryview,
    offset: int,
    sizes: Sequence[int],
    ledger_id: int,
    ids: Sequence[int],
) -> tuple[list[bytes], list[bytes | memoryview], bool]:
    """Heads, bodies, and whether all packets are what the frame says."""
    heads: list[bytes] = []
    bodies: list[bytes | memoryview] = []
    is_intact = True
    unpack = PACKET_HEADER.unpack_from
    nothing = b""
    for entry_id, size in zip(ids, sizes, strict=True):
        found_ledger, found_entry, _, _, digest = unpack(message, offset)
        body_at = offset + PACKET_HEADER_BYTES
        end = offset + size
        found = crc32c(view[body_at:end], crc32c(view[offset : offset + _DIGESTED_BYTES]))
        if found != digest or found_entry != entry_id or found_ledger != ledger_id:
            is_intact = False
        if size <= COPY_BYTES_MAX:
            heads.append(message[offset:end])
            bodies.append(nothing)
        else:
            heads.append(message[offset:body_at])
            bodies.append(view[body_at:end])
        offset = end
    return heads, bodies, is_intact


def encode_answers(answers: Iterable[tuple[int, int]]) -> bytes:
    """Runs of (frame number, code), as few as the order allows."""
    pack = ANSWER_RUN.pack
    parts: list[bytes] = []
    first, count, run_code = 0, 0, -1
    for number, code in answers:
        if code == run_code and number == first + count:
            count += 1
            continue
        if count:
            parts.append(pack(first, count, run_code))
        first, count, run_code = number, 1, code
    if count:
        parts.append(pack(first, count, run_code))
    return b"".join(parts)


def decode_answers(message: bytes) -> list[tuple[int, int, int]]:
    """(first frame number, count, code) of each run.

    Raises:
        FrameError: the bytes are no runs.
    """
    if not message or len(message) % ANSWER_RUN.size or len(message) > _ANSWER_RUNS_MAX:
        raise FrameError(f"{len(message)} bytes are no runs of answers")
    try:
        return list(ANSWER_RUN.iter_unpack(message))
    except error as cause:  # pragma: no cover - the length was checked
        raise FrameError(str(cause)) from cause
