"""Add connections: add streams that go on over a plain connection. What both ends share; no I/O.

A message over gRPC costs some five threads' turns and a quarter of a millisecond of processor at
each end, as much as everything else that a single entry costs. So a bookie offers each add stream
a connection of its own, over which the same frames and answers travel as they are. The stream
stays: it says who the two are, notices when one is gone, and ends with a reason.

On the add connection the client sends its token, the number of the first frame that comes here,
then frames; the bookie sends its token, then answers. Nobody else knows either token.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from struct import Struct
from typing import Final

from magnetar.bookkeeper.transport_grpc.add_frames import ANSWER_RUN, FRAME_HEADER, MANY_BYTES_MAX
from magnetar.bookkeeper.transport_grpc.errors import FrameError

ADD_CONNECTION_HEADER: Final = "add-lane"
"""Metadata of an add stream whose client takes offers."""
FIRST_FRAME: Final = Struct(">Q")
TOKEN_BYTES: Final = 16
_OFFER: Final = Struct(f">H{TOKEN_BYTES}s{TOKEN_BYTES}s")
_SIZE_AND_COUNT: Final = Struct(">II")

# So an offer is never taken for answers, nor answers for an offer.
assert _OFFER.size % ANSWER_RUN.size


@dataclass(frozen=True, slots=True)
class AddConnectionOffer:
    """What a bookie tells over the stream: its port, and two secrets for one connection."""

    port: int
    client_token: bytes
    server_token: bytes

    @classmethod
    def make(cls, port: int) -> AddConnectionOffer:
        return cls(port, secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES))

    def encode(self) -> bytes:
        return _OFFER.pack(self.port, self.client_token, self.server_token)

    @classmethod
    def decode(cls, message: bytes) -> AddConnectionOffer | None:
        """None: the message is no offer, so it is answers."""
        return cls(*_OFFER.unpack(message)) if len(message) == _OFFER.size else None


class FrameSplitter:
    """Cuts what comes over an add connection into messages of whole frames.

    Args:
        frame_bytes_max: a longer frame is refused by its header.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._parts: list[bytes] = []  # of the frame that isn't whole yet
        self._size = 0
        self._wanted = 0  # bytes of that frame; 0: too little is there to say

    def feed(self, data: bytes) -> list[bytes]:
        """Messages for ``decode_message``: at most the frame that was begun, and what follows.

        Raises:
            FrameError: a header that no frame has; nothing more may be fed.
        """
        messages: list[bytes] = []
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < max(self._wanted, _SIZE_AND_COUNT.size):
                return messages
            data = b"".join(self._parts)
            self._parts = []
            self._wanted = self._wanted or self._frame_size(data, 0)
            if len(data) < self._wanted:
                self._keep(data, self._wanted)
                return messages
            messages.append(data[: self._wanted])
            data = data[self._wanted :]
        offset, end, wanted = 0, len(data), 0
        while offset < end:
            if end - offset < _SIZE_AND_COUNT.size:
                wanted = 0
                break
            wanted = self._frame_size(data, offset)
            if wanted > end - offset:
                break
            offset += wanted
        if offset:
            messages.append(data[:offset])  # no copy if it is all
        if offset < end:
            self._keep(data[offset:], wanted)
        return messages

    def _keep(self, rest: bytes, wanted: int) -> None:
        self._parts, self._size, self._wanted = [rest], len(rest), wanted

    def _frame_size(self, data: bytes, offset: int) -> int:
        size: int
        size, count = _SIZE_AND_COUNT.unpack_from(data, offset)
        if not FRAME_HEADER.size <= size <= self._frame_bytes_max:
            raise FrameError(f"a frame of {size} bytes, {self._frame_bytes_max} at most")
        if size > MANY_BYTES_MAX and count != 1:
            raise FrameError(f"{size} bytes with more than one entry")
        return size
