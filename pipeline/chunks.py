"""The beginnings of messages that were stored in chunks, for readers of ranges. Pure.

A chunk is an entry with a slice of one message; the chunks of a message share a uuid and are stored
in order, with entries of other producers between them. The message is where its last chunk is. The
rules are those of Pulsar's consumers (`ChunkAssembler`), so whether an entry completes a message
depends only on what was stored since the nearest first chunk before it, and readers of any ranges
agree.

A range may begin behind the first chunks of a message, and chunks that wait too long in memory are
forgotten. What is `MissingChunk` then, `ChunkLookback` collects from the entries before the last
chunk, and `join` gives the message.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import mmh3
from google.protobuf.message import DecodeError

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.chunks import ChunkAssembler
from magnetar.broker.protocol.entry_header import (
    FLAG_CHUNK,
    FLAG_ENCRYPTED,
    EntryHeaderError,
    parse_header,
)
from magnetar.broker.protocol.framing import MalformedFrameError, parse_entry_body
from magnetar.pipeline.errors import UndecodableError

Chunk: TypeAlias = tuple[pb.MessageMetadata, bytes | memoryview]
"""Metadata and payload of one entry."""


class MissingChunk(NamedTuple):
    """A last chunk was read, and its message isn't known to be complete.

    The reader looks for the others backwards from ``ledger_id:entry_id`` (that entry not included),
    over ledgers, with a `ChunkLookback`.
    """

    uuid: str
    ledger_id: int
    entry_id: int
    partition: str
    """Full name of the topic or partition, for errors."""


def join(chunks: Sequence[Chunk]) -> bytes | None:
    """The message that the last of ``chunks`` completes; None: it completes none.

    REQUIRES: they begin with the nearest first chunk before the last one. What was stored a second
    time may be left out: it changes nothing.
    """
    assembler, joined = ChunkAssembler(sys.maxsize), None
    for number, (metadata, payload) in enumerate(chunks):
        joined = assembler.add(metadata, memoryview(payload), (0, number), 0)
    return None if joined is None else joined.payload


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
        self._found: dict[int, Chunk] = {}  # the latest first

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
        # Stored again later: what came first counts.
        _, again = self._found.pop(metadata.chunk_id, (metadata, b""))
        self._found[metadata.chunk_id] = metadata, bytes(payload)
        self._bytes_left += len(again) - len(payload)
        if self._bytes_left < 0:
            raise UndecodableError(f"chunked message before {self._place} has too many bytes")

    @property
    def _place(self) -> str:
        missing = self._missing
        return f"{missing.partition}: {missing.ledger_id}:{missing.entry_id}"

    def chunks(self) -> list[Chunk] | None:
        """For `EntryDecoder.resolve`: from the first chunk on; None: it was not found."""
        return list(reversed(self._found.values())) if 0 in self._found else None
