"""A client's end of an add connection (``add_connection.py``)."""

from __future__ import annotations

import asyncio
import hmac
import socket
from typing import Final, Protocol, cast

from magnetar.bookkeeper.transport_grpc.add_connection import FIRST_FRAME, AddConnectionOffer
from magnetar.bookkeeper.transport_grpc.add_frames import ANSWER_RUN
from magnetar.bookkeeper.transport_grpc.errors import FrameError

_QUEUED_BYTES: Final = 256 * 1024  # in the transport; above, what comes waits to be joined


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
            OSError: nobody is there, or somebody else.
        """
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(offer, owner), host, offer.port)
        try:
            await connection._is_known
        except BaseException:
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
