"""Chunked messages put together again, as they come. Pure.

A chunk is an entry with a slice of one message; all chunks of a message share a uuid. They arrive
in order, but chunks of other messages may come between them, and a redelivery begins again at the
first one. What can't be completed goes the way of Pulsar's clients: the oldest incomplete message
makes room for an eleventh (maxPendingChunkedMessage), and one that is incomplete for a minute
(expireTimeOfIncompleteChunkedMessage) is given up.
"""

from collections import OrderedDict
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.managed_ledger.position import Position

PENDING_MAX: Final = 10
EXPIRE_MS: Final = 60_000
RETURNING_MAX: Final = 1_000
CHUNKS_MAX: Final = 100_000
"""Of one message: its positions are kept until it is acknowledged."""


@dataclass(slots=True)
class ByteBudget:
    """What all holders of one broker hold together; only code of its loop counts here."""

    bytes_max: int
    used: int = 0

    @property
    def full(self) -> bool:
        return self.used > self.bytes_max


@dataclass(slots=True)
class _Pending:
    """One message under way."""

    deadline_ms: int
    positions: dict[Position, None] = field(default_factory=dict)  # in order of arrival
    slices: list[bytes] | None = None
    """None: it can't be completed any more, only its positions count."""
    slice_bytes: int = 0


@dataclass(slots=True)
class JoinedMessage:
    """A whole message: the last chunk's metadata goes with it."""

    payload: bytes
    positions: tuple[Position, ...]


@dataclass(slots=True, eq=False, repr=False)
class ChunkAssembler:
    """Of one source (a topic or partition). Holds at most ``bytes_max`` bytes of slices."""

    bytes_max: int
    _shared: ByteBudget | None = None
    """When it is full, this source's messages make room: the oldest first, at last the one whose
    chunk has come. They are delivered again later."""
    _: KW_ONLY
    pending_max: int = PENDING_MAX
    expire_ms: int = EXPIRE_MS
    # Oldest first.
    _pending: OrderedDict[str, _Pending] = field(default_factory=OrderedDict, init=False)
    _bytes: int = field(default=0, init=False)
    # Messages that were put back: what still comes of them is not a message without beginning.
    _returning: OrderedDict[str, None] = field(default_factory=OrderedDict, init=False)
    given_up: list[Position] = field(default_factory=list, init=False)
    """Chunks of messages that expired or are too large: to be acknowledged, then cleared."""
    put_back: list[Position] = field(default_factory=list, init=False)
    """Chunks that made room for others: to be delivered again later, then cleared."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def pending_bytes(self) -> int:
        return self._bytes

    @property
    def next_deadline_ms(self) -> int | None:
        """When ``expire`` has something to do."""
        return next(iter(self._pending.values())).deadline_ms if self._pending else None

    def add(
        self, metadata: pb.MessageMetadata, payload: memoryview, position: Position, now_ms: int
    ) -> JoinedMessage | None:
        """Take one chunk; the whole message when it was the last one missing."""
        uuid, chunk_id, count = metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg
        pending = self._pending.get(uuid)
        if chunk_id == 0 and (pending is None or pending.slices is None or len(pending.slices)):
            pending = self._begin(uuid, pending, now_ms)
        elif pending is None and uuid in self._returning:  # to come again with its beginning
            self.put_back.append(position)
            return None
        elif pending is None:  # its beginning was expired, acknowledged or never stored
            pending = self._pending[uuid] = _Pending(now_ms + self.expire_ms)
        pending.positions[position] = None
        slices = pending.slices
        if slices is None or chunk_id < len(slices):  # lost, or delivered twice
            self._make_room(uuid)
            return None
        if chunk_id > len(slices) or count > CHUNKS_MAX:
            self._drop_slices(pending)
            self._make_room(uuid)
            return None
        slices.append(bytes(payload))
        pending.slice_bytes += len(payload)
        self._charge(len(payload))
        if pending.slice_bytes > self.bytes_max:
            self._give_up(uuid)
            return None
        if len(slices) == count:
            del self._pending[uuid]
            self._charge(-pending.slice_bytes)
            return JoinedMessage(b"".join(slices), tuple(pending.positions))
        self._make_room(uuid)
        return None

    def _begin(self, uuid: str, old: _Pending | None, now_ms: int) -> _Pending:
        """A first chunk: of a new message, or of one that is delivered again from its start."""
        self._returning.pop(uuid, None)
        if old is not None:
            self._drop_slices(old)
            del self._pending[uuid]
        pending = self._pending[uuid] = _Pending(now_ms + self.expire_ms, slices=[])
        return pending

    def _charge(self, size: int) -> None:
        self._bytes += size
        if self._shared is not None:
            self._shared.used += size

    def _drop_slices(self, pending: _Pending) -> None:
        self._charge(-pending.slice_bytes)
        pending.slices, pending.slice_bytes = None, 0

    def _make_room(self, uuid: str) -> None:
        """The oldest others go while there are too many messages or bytes."""
        while (
            len(self._pending) > self.pending_max
            or self._bytes > self.bytes_max
            or (self._bytes and self._shared is not None and self._shared.full)
        ):
            oldest = next((each for each in self._pending if each != uuid), uuid)
            pending = self._pending.pop(oldest)
            self._charge(-pending.slice_bytes)
            self.put_back += pending.positions
            self._returning[oldest] = None
            if len(self._returning) > RETURNING_MAX:
                self._returning.popitem(last=False)

    def _give_up(self, uuid: str) -> None:
        pending = self._pending.pop(uuid)
        self._charge(-pending.slice_bytes)
        self.given_up += pending.positions

    def expire(self, now_ms: int) -> None:
        """Give up what is incomplete for too long."""
        while self._pending:
            uuid, oldest = next(iter(self._pending.items()))
            if oldest.deadline_ms > now_ms:
                return
            self._give_up(uuid)

    def close(self) -> None:
        """Forget everything: the source is gone, its entries come again elsewhere."""
        self._pending.clear()
        self._charge(-self._bytes)
