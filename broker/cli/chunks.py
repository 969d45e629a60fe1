"""Messages that came in pieces, put together. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode_body

Origin: TypeAlias = tuple[int, pb.MessageIdData]
"""Consumer and id of an entry: what is acknowledged."""


@dataclass(slots=True)
class _Partial:
    pieces: list[bytes] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)


@dataclass(slots=True)
class AssembledMessage:
    """An entry body that holds the complete message, and the entries it came in."""

    body: bytes
    origins: list[Origin]


class ClientChunkAssembler:
    """Pieces by message; holds at most so many incomplete messages."""

    def __init__(self, incomplete_max: int) -> None:
        """``incomplete_max``: 0 means no limit."""
        self._incomplete_max = incomplete_max
        self._partial: dict[str, _Partial] = {}
        self.dropped: list[Origin] = []
        """Entries of messages that were given up; the caller takes them away."""

    def add(
        self, metadata: pb.MessageMetadata, payload: bytes, origin: Origin
    ) -> AssembledMessage | None:
        """One piece; the message when it is complete.

        A piece that isn't the next of its message (its beginning is lost) drops the message.
        """
        partial = self._partial.get(metadata.uuid)
        if metadata.chunk_id == 0:
            if partial is not None:  # sent once more from its beginning
                self.dropped += self._partial.pop(metadata.uuid).origins
            partial = self._partial[metadata.uuid] = _Partial()
            self._make_room()
        if partial is None or metadata.chunk_id != len(partial.pieces):
            if partial is not None:
                self.dropped += self._partial.pop(metadata.uuid).origins
            self.dropped.append(origin)
            return None
        partial.pieces.append(payload)
        partial.origins.append(origin)
        if len(partial.pieces) < metadata.num_chunks_from_msg:
            return None
        del self._partial[metadata.uuid]
        # As one piece: whatever reads it needs to know nothing of pieces.
        metadata.num_chunks_from_msg = 1
        return AssembledMessage(encode_body(metadata, b"".join(partial.pieces)), partial.origins)

    def _make_room(self) -> None:
        if 0 < self._incomplete_max < len(self._partial):
            oldest = next(iter(self._partial))
            self.dropped += self._partial.pop(oldest).origins
