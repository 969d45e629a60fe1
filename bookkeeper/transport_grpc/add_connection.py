"""Add connections: add streams that go on over a plain connection: both ends.

A message over gRPC costs some five threads' turns and a quarter of a millisecond of processor at
each end, as much as everything else that a single entry costs. So a bookie offers each add stream
a connection of its own, over which the same frames and answers travel as they are. The stream
stays: it names the two, notices when one is gone, and ends with a reason.

On the add connection the client sends its token, the number of the first frame that comes here,
then frames; the bookie sends its token, then answers. Nobody else knows either token.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol, cast

from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.transport_grpc.add_frames import ANSWER_RUN, FRAME_HEADER, MANY_BYTES_MAX

ADD_CONNECTION_HEADER: Final = "add-lane"
"""Metadata of an add stream whose client takes offers."""
FIRST_FRAME: Final = Struct(">Q")
TOKEN_BYTES: Final = 16
_OFFER: Final = Struct(f">H{TOKEN_BYTES}s{TOKEN_BYTES}s")
_SIZE_AND_COUNT: Final = Struct(">II")
_QUEUED_BYTES: Final = 256 * 1024  # in the transport; above, what comes waits to be joined
_TOKEN_TIMEOUT_S: Final = 5.0  # for an unauthenticated client to show a token
_UNAUTHENTICATED_MAX: Final = 64  # beyond, the oldest has to go

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


class AddConnectionListener(Protocol):
    """The stream that the add connection belongs to."""

    def on_add_connection_answers(self, message: bytes) -> None:
        """Whole answers. Raises: FrameError: they are none; the add connection is lost."""
        ...

    def on_add_connection_writable(self) -> None:
        """After ``is_writable`` was False."""
        ...

    def on_add_connection_lost(self, connection: ClientAddConnection, error: BaseException) -> None:
        """Once; never after ``close``."""
        ...


class ClientAddConnection(asyncio.Protocol):
    """Made by ``connect``. Frames follow ``begin``.

    Attributes:
        is_writable: False while too much waits to be sent.
    """

    def __init__(self, offer: AddConnectionOffer, owner: AddConnectionListener) -> None:
        self.is_writable = True
        self._offer = offer
        self._owner = owner
        self._transport: asyncio.Transport
        self._is_known = asyncio.get_running_loop().create_future()
        self._rest = b""
        self._is_over = False

    @classmethod
    async def connect(
        cls, host: str, offer: AddConnectionOffer, owner: AddConnectionListener
    ) -> ClientAddConnection:
        """To the bookie that made the offer.

        Raises:
            OSError: nothing listens there, or another server.
        """
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(offer, owner), host, offer.port)
        try:
            await connection._is_known
        except BaseException:  # also when cancelled
            connection.close()
            raise
        return connection

    def begin(self, first_frame: int) -> None:
        """From this frame on they come here."""
        self._transport.write(FIRST_FRAME.pack(first_frame))

    def write(self, message: bytes) -> None:
        self._transport.write(message)

    def close(self) -> None:
        """At once, and without news."""
        self._is_over = True
        self._transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_QUEUED_BYTES)
        stay_noticed(self._transport)
        self._transport.write(self._offer.client_token)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        if not self._is_known.done():
            expected = self._offer.server_token
            if len(data) < len(expected):
                self._rest = data
                return
            if not hmac.compare_digest(data[: len(expected)], expected):
                self._is_known.set_exception(ConnectionError("it isn't the bookie that answers"))
                self.close()
                return
            self._is_known.set_result(None)
            data = data[len(expected) :]
        if cut := len(data) % ANSWER_RUN.size:
            data, self._rest = data[:-cut], data[-cut:]
        if data and not self._is_over:
            try:
                self._owner.on_add_connection_answers(data)
            except FrameError as error:
                self._lose(error)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        if not self._is_over:
            self._owner.on_add_connection_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        error = exc or ConnectionError("the bookie closed the add connection")
        if not self._is_known.done():
            self._is_known.set_exception(error)
        elif not self._is_over:
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        self.close()
        self._owner.on_add_connection_lost(self, error)


def stay_noticed(transport: asyncio.BaseTransport) -> None:
    """Probes keep an idle connection in the tables of whatever is in between."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10)):
        if (option := getattr(socket, name, None)) is not None:  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, option, seconds)


class OfferedAddStream(Protocol):
    """The add stream that an offer is made to."""

    def on_add_connection(self, connection: ServerAddConnection) -> None:
        """It was taken."""
        ...

    def on_add_connection_begins(self, first_frame: int) -> None:
        """Frames follow. Raises: FrameError: this isn't the number of the next one."""
        ...

    def on_add_connection_message(self, message: bytes) -> None:
        """Whole frames. Raises: FrameError: they are none."""
        ...

    def on_add_connection_writable(self) -> None:
        """After ``is_writable`` was False."""
        ...

    def on_add_connection_lost(self, error: FrameError | None) -> None:
        """Once; never after ``close``. None: the connection ended."""
        ...


class AddConnectionServer:
    """Listens for add connections of the streams that it made offers to."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.port = 0
        self._server: asyncio.Server | None = None
        self._offers: dict[bytes, tuple[AddConnectionOffer, OfferedAddStream]] = {}
        self._unauthenticated: dict[ServerAddConnection, asyncio.TimerHandle] = {}  # oldest first

    async def listen(self, host: str, port: int) -> None:
        """Raises: OSError: the address can't be used."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ServerAddConnection(self), host, port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Add connections that are in use end with their streams."""
        if self._server is not None:
            self._server.close()
        self._offers.clear()
        for unauthenticated in list(self._unauthenticated):
            unauthenticated.close()

    def offer(self, stream: OfferedAddStream) -> AddConnectionOffer:
        offer = AddConnectionOffer.make(self.port)
        self._offers[offer.client_token] = offer, stream
        return offer

    def withdraw(self, offer: AddConnectionOffer) -> None:
        """It was taken, or the stream is over."""
        self._offers.pop(offer.client_token, None)

    def welcome(self, unauthenticated: ServerAddConnection) -> None:
        if len(self._unauthenticated) >= _UNAUTHENTICATED_MAX:
            next(iter(self._unauthenticated)).close()
        loop = asyncio.get_running_loop()
        self._unauthenticated[unauthenticated] = loop.call_later(
            _TOKEN_TIMEOUT_S, unauthenticated.close
        )

    def forget(self, unauthenticated: ServerAddConnection) -> None:
        if (timer := self._unauthenticated.pop(unauthenticated, None)) is not None:
            timer.cancel()

    def redeem(self, client_token: bytes) -> tuple[AddConnectionOffer, OfferedAddStream] | None:
        """An offer is good for one connection."""
        for known in list(self._offers):  # as many as streams that are about to move
            if hmac.compare_digest(known, client_token):
                return self._offers.pop(known)
        return None


class ServerAddConnection(asyncio.Protocol):
    """One connection; an unauthenticated client until it shows its token.

    Attributes:
        is_writable: False while the client doesn't read its answers.
    """

    def __init__(self, add_server: AddConnectionServer) -> None:
        self.is_writable = True
        self._add_server = add_server
        self._transport: asyncio.Transport
        self._stream: OfferedAddStream | None = None
        self._has_begun = False
        self._is_paused = False
        self._is_over = False
        self._rest = b""  # of the token, or of the first frame's number
        self._cutter = FrameSplitter(add_server.frame_bytes_max)

    def write(self, answers: bytes) -> None:
        self._transport.write(answers)

    def pause(self) -> None:
        """Read no more for now; what was read already still comes."""
        if not self._is_paused and not self._is_over:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and not self._is_over:
            self._is_paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """When what was written is sent, or at once if that can't be; without news."""
        if not self._is_over:
            self._is_over = True
            self._add_server.forget(self)
            if self.is_writable:
                self._transport.close()
            else:
                self._transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        stay_noticed(self._transport)
        self._add_server.welcome(self)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            if self._has_begun:
                self._take(data)
            else:
                self._greet(self._rest + data)
        except FrameError as error:
            self._lose(error)

    def pause_writing(self) -> None:
        self.is_writable = False
        self.pause()  # a client that doesn't read answers must not send

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._stream is not None and not self._is_over:
            self._stream.on_add_connection_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_over:
            self._lose(None)

    def _greet(self, data: bytes) -> None:
        if self._stream is None:
            if len(data) < TOKEN_BYTES:
                self._rest = data
                return
            found = self._add_server.redeem(data[:TOKEN_BYTES])
            if found is None:
                self.close()
                return
            self._add_server.forget(self)
            offer, self._stream = found
            self._transport.write(offer.server_token)
            self._stream.on_add_connection(self)
            data = data[TOKEN_BYTES:]
        if len(data) < FIRST_FRAME.size:
            self._rest = data
            return
        self._rest = b""
        self._has_begun = True
        self._stream.on_add_connection_begins(FIRST_FRAME.unpack_from(data)[0])
        if rest := data[FIRST_FRAME.size :]:
            self._take(rest)

    def _take(self, data: bytes) -> None:
        assert self._stream is not None
        for message in self._cutter.feed(data):
            self._stream.on_add_connection_message(message)

    def _lose(self, error: FrameError | None) -> None:
        stream, self._is_over = self._stream, True
        self._add_server.forget(self)
        self._transport.abort()
        if stream is not None:
            stream.on_add_connection_lost(error)
