"""A bookie's end of add connections (``add_connection.py``): the port, and the connections."""

from __future__ import annotations

import asyncio
import hmac
from typing import Final, Protocol, cast

from magnetar.bookkeeper.transport_grpc.add_connection import (
    FIRST_FRAME,
    TOKEN_BYTES,
    AddConnectionOffer,
    FrameSplitter,
)
from magnetar.bookkeeper.transport_grpc.add_connection_client import stay_noticed
from magnetar.bookkeeper.transport_grpc.errors import FrameError

_TOKEN_TIMEOUT_S: Final = 5.0  # for an unauthenticated client to show a token
_UNAUTHENTICATED_MAX: Final = 64  # beyond, the oldest has to go


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
        self.pause()  # who doesn't take answers may not ask

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
