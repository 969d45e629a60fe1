"""Messages that were stored in pieces, joined for readers of ranges. Pure.

A chunk is an entry with a slice of one message; the chunks of a message share a uuid and are stored
in order, with entries of other producers between them. The message is where its last chunk is. The
rules are those of Pulsar's consumers: a first chunk begins (again), the next one continues, one
that was there already is ignored (a producer sends again what it has no receipt for), and one after
a gap ends the message. So whether an entry completes a message depends only on what was stored
since the nearest first chunk before it, and readers of any ranges agree.

A range may begin behind the first chunks of a message, and chunks that wait too long in memory are
forgotten. `ChunkJoiner` then tells what is `MissingChunk`, and `ChunkLookback` collects it from
entries before the range.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import mmh3
from google.protobuf.message import DecodeError

from magnetar.broker.protocol.entry_header import (
    FLAG_CHUNK,
    FLAG_ENCRYPTED,
    EntryHeaderError,
    parse_header,
)
from magnetar.broker.protocol.framing import MalformedFrameError, parse_entry_body
from magnetar.pipeline.errors import UndecodableError

ENDED_MAX: Final = 10_000
"""Messages that are over and whose uuids are remembered; of others one has to look back."""


class MessageChunk(NamedTuple):
    """One stored slice."""

    chunk_id: int
    payload: bytes


class MissingChunk(NamedTuple):
    """A last chunk was read whose beginning was not.

    The reader looks for it backwards from ``ledger_id:entry_id`` (that entry not included), over
    ledgers, with a `ChunkLookback`.
    """

    uuid: str
    chunk_count: int
    ledger_id: int
    entry_id: int
    publish_time_ms: int
    """Of the message: when its producer built it."""
    partition: str = ""
    """Full name of the topic or partition, for errors."""


def join(chunks: Sequence[MessageChunk], chunk_count: int) -> bytes | None:
    """The message that the last of ``chunks`` completes; None: it completes none.

    REQUIRES: they begin with the nearest first chunk before the last one. What was stored a second
    time may be left out: it changes nothing.
    """
    slices: list[bytes] = []
    for number, (chunk_id, payload) in enumerate(chunks, 1):
        if chunk_id > len(slices):
            return None  # a gap
        if chunk_id == len(slices):
            slices.append(payload)
            if len(slices) == chunk_count:
                return b"".join(slices) if number == len(chunks) else None  # it was over before
    return None


@dataclass(slots=True)
class _Partial:
    """A message under way: its chunks in order, each but once.

    ``headless``: they begin at ``ledger_id:entry_id``, and there are earlier ones; else they begin
    with the first chunk.
    """

    headless: bool
    ledger_id: int
    entry_id: int
    chunks: dict[int, MessageChunk] = field(default_factory=dict)
    slice_bytes: int = 0


class ChunkJoiner:
    """The chunks of one partition, given in order; holds at most ``bytes_max`` bytes of slices."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._partial: OrderedDict[str, _Partial] = OrderedDict()  # oldest first
        # Messages that are over: nothing more of them counts before a first chunk.
        self._ended: OrderedDict[str, None] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """Of slices."""
        return self._bytes

    def add(self, uuid: str, chunk: MessageChunk, ledger_id: int, entry_id: int) -> None:
        """One chunk."""
        partial = self._partial.get(uuid)
        if chunk.chunk_id == 0:
            self._ended.pop(uuid, None)
            self._forget(uuid)
            partial = None
        elif uuid in self._ended:
            return
        if partial is None:
            partial = self._partial[uuid] = _Partial(chunk.chunk_id > 0, ledger_id, entry_id)
        if chunk.chunk_id in partial.chunks:
            return
        partial.chunks[chunk.chunk_id] = chunk
        partial.slice_bytes += len(chunk.payload)
        self._bytes += len(chunk.payload)
        while self._bytes > self._bytes_max:
            # The oldest of the others; they can be looked for again.
            self._forget(next((each for each in self._partial if each != uuid), uuid))

    def complete(self, chunk: MessageChunk, last: MissingChunk) -> bytes | MissingChunk | None:
        """The last chunk of a message.

        Args:
            last: of this chunk: its own position.
        Returns:
            The whole message; None: there is none; or from where to look back for it: then
            `resolve` follows.
        """
        self.add(last.uuid, chunk, last.ledger_id, last.entry_id)
        partial = self._partial.get(last.uuid)
        if partial is None:  # it is over, or was itself too much
            return None if last.uuid in self._ended else last
        if partial.headless:
            return last._replace(ledger_id=partial.ledger_id, entry_id=partial.entry_id)
        self._end(last.uuid)
        return join(list(partial.chunks.values()), last.chunk_count)

    def resolve(
        self, missing: MissingChunk, chunk: MessageChunk, chunks: list[MessageChunk] | None
    ) -> bytes | None:
        """The message whose beginning was `MissingChunk`; None: there is none.

        Args:
            chunk: its last one, as it was given to `complete`.
            chunks: what was stored before the missing one's position; None: it wasn't found.
        """
        partial = self._partial.get(missing.uuid)
        known = [chunk] if partial is None else list(partial.chunks.values())
        self._end(missing.uuid)
        return None if chunks is None else join(chunks + known, missing.chunk_count)

    def _end(self, uuid: str) -> None:
        self._forget(uuid)
        self._ended[uuid] = None
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def _forget(self, uuid: str) -> None:
        partial = self._partial.pop(uuid, None)
        if partial is not None:
            self._bytes -= partial.slice_bytes


class ChunkLookback:
    """Collects the beginning of one message from entries before those that were read.

    Usage::

        lookback = ChunkLookback(decoder.missing)
        while not lookback.done and (window := the entries before the last window):
            lookback.add(window.heads, window.bodies)
        decoder.resolve(lookback.chunks())
    """

    def __init__(
        self, missing: MissingChunk, *, entries_max: int = 1 << 20, bytes_max: int = 1 << 30
    ) -> None:
        """
        Args:
            entries_max: so many entries without a first chunk: the message counts as gone.
            bytes_max: of slices held.
        """
        self._missing = missing
        self._entries_left, self._bytes_left = entries_max, bytes_max
        self._hash = mmh3.hash(missing.uuid, signed=False)
        self._found: dict[int, MessageChunk] = {}  # the latest first

    @property
    def done(self) -> bool:
        """No earlier entry is of interest: the first chunk is found, or the limit is reached."""
        return 0 in self._found or self._entries_left <= 0

    def add(self, heads: Sequence[bytes], bodies: Sequence[bytes | memoryview]) -> None:
        """Look at one window: consecutive entries in ascending order, that end where the window
        before began (the first one: before `MissingChunk`'s entry).

        Raises:
            UndecodableError: a broken entry, or a message of more than ``bytes_max``.
        """
        for head, body in zip(reversed(heads), reversed(bodies), strict=True):
            if self.done:
                return
            self._entries_left -= 1
            try:
                flags, *_, uuid_hash = parse_header(head)
                if flags & (FLAG_CHUNK | FLAG_ENCRYPTED) == FLAG_CHUNK and uuid_hash == self._hash:
                    self._add(body)
            except (EntryHeaderError, MalformedFrameError, DecodeError) as error:
                text = f"before {self._place}, an entry can't be decoded: {error}"
                raise UndecodableError(text) from error

    def _add(self, body: bytes | memoryview) -> None:
        metadata, payload = parse_entry_body(body)
        if metadata.uuid != self._missing.uuid:
            return
        chunk = MessageChunk(metadata.chunk_id, bytes(payload))
        # Stored again later: what came first counts.
        again = self._found.pop(chunk.chunk_id, MessageChunk(0, b""))
        self._found[chunk.chunk_id] = chunk
        self._bytes_left += len(again.payload) - len(chunk.payload)
        if self._bytes_left < 0:
            raise UndecodableError(f"chunked message before {self._place} has too many bytes")

    @property
    def _place(self) -> str:
        missing = self._missing
        return f"{missing.partition}: {missing.ledger_id}:{missing.entry_id}"

    def chunks(self) -> list[MessageChunk] | None:
        """For `EntryDecoder.resolve`: from the first chunk on; None: it was not found."""
        return list(reversed(self._found.values())) if 0 in self._found else None
