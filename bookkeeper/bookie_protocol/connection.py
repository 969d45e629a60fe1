"""Connections to a bookie that speaks BookKeeper's protocol: one for adds, one for reads, one for
the calls that only version 3 has.

Frames go out once a turn of the loop, joined. Whatever goes wrong closes the connection, and its
owner answers what was under way with UNAVAILABLE: that proves nothing.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, cast

from google.protobuf.message import DecodeError

from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.frame_pieces import LENGTH, FramePieces
from magnetar.bookkeeper.bookie_protocol.frames_v2 import Reply, ReplyDecoder
from magnetar.bookkeeper.bookie_protocol.login import LoginSession
from magnetar.bookkeeper.errors import BookieUnavailableError, BookkeeperError, FrameError
from magnetar.bookkeeper.packet import Buffer
from magnetar.bookkeeper.proto.bookkeeper_protocol_pb2 import (
    AuthMessage,
    OperationType,
    Request,
    Response,
)
from magnetar.metadata.sasl.digest_md5 import SaslError

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10))


def _keep_alive(sock: socket.socket | None) -> None:
    """Probes keep an idle connection in the tables of whatever is in between.

    Args:
        sock: None: a transport without one, as in the simulation.
    """
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, option, seconds)


class BookieConnection(asyncio.Protocol):
    """Bytes to and from one bookie."""

    version: ClassVar[int]
    """Of the protocol."""

    def __init__(self, on_lost: Callable[["BookieConnection", Exception], None]) -> None:
        """``on_lost`` is called once, also for an error of ours; never after ``close``."""
        self._on_lost: Callable[[BookieConnection, Exception], None] | None = on_lost
        self._transport: asyncio.Transport | None = None
        self._queue: list[Buffer] = []
        self._loop = asyncio.get_running_loop()
        self.is_lost = False
        self.session: LoginSession | None = None
        """Of its login; None: there was none."""

    def write(self, frame: bytes) -> None:
        """Send it at the end of this turn of the loop."""
        self.write_all((frame,))

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        """The same with frames in pieces, which stay as they are. At least one."""
        if not self._queue:
            self._loop.call_soon(self.flush)
        self._queue += pieces

    def send(self, pieces: Sequence[Buffer]) -> None:
        """Send them now, behind what waits for the end of this turn."""
        self._queue += pieces
        self.flush()

    def flush(self) -> None:
        """Send now what waits for the end of this turn."""
        queue, self._queue = self._queue, []
        if self.session is not None and (renewed := self.session.renew()):
            queue.insert(0, renewed)
        if queue and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(queue)

    def close(self) -> None:
        """Disconnect; nobody is told."""
        self._on_lost = None
        if self._transport is not None:
            self._transport.abort()

    def fail(self, error: Exception) -> None:
        """Disconnect because of it."""
        on_lost, self._on_lost = self._on_lost, None
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()
        if on_lost is not None:
            on_lost(self, error)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        _keep_alive(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(exc or ConnectionResetError("the bookie closed the connection"))

    def data_received(self, data: bytes) -> None:
        try:
            self._received(data)
        except (BookkeeperError, DecodeError, SaslError) as error:
            self.fail(error)

    def _received(self, data: bytes) -> None:
        raise NotImplementedError


class ConnectionV2(BookieConnection):
    """Version 2: adds, or reads."""

    version = v2.VERSION

    def __init__(
        self,
        on_lost: Callable[[BookieConnection, Exception], None],
        on_reply: Callable[[Reply], None],
        frame_bytes_max: int,
    ) -> None:
        super().__init__(on_lost)
        self._on_reply = on_reply
        self._decoder = ReplyDecoder(frame_bytes_max)

    def _received(self, data: bytes) -> None:
        for reply in self._decoder.feed(data):
            if isinstance(reply, v2.AuthReply):
                self._check_login(reply.message)
            else:
                self._on_reply(reply)

    def _check_login(self, message: bytes) -> None:
        if self.session is None:
            raise FrameError("an answer to a login that nobody began")
        self.session.check(AuthMessage.FromString(message))


class ConnectionV3(BookieConnection):
    """Version 3: a request, a response with the same ``txnId``."""

    version = 3

    def __init__(
        self, on_lost: Callable[[BookieConnection, Exception], None], frame_bytes_max: int
    ) -> None:
        super().__init__(on_lost)
        self._buffer = FramePieces(frame_bytes_max)
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._next = 1

    async def call(
        self, request: Request, operation: "OperationType.ValueType", timeout_s: float
    ) -> Response:
        """
        Raises:
            TimeoutError; BookieUnavailableError: the connection was lost.
        """
        number, self._next = self._next, self._next + 1
        request.header.version, request.header.operation = self.version, operation
        request.header.txnId = number
        body = request.SerializeToString()
        call: asyncio.Future[Response] = self._loop.create_future()
        self._calls[number] = call
        self.write(LENGTH.pack(len(body)) + body)
        try:
            async with asyncio.timeout(timeout_s):
                response = await call
            return response
        finally:
            self._calls.pop(number, None)

    def fail(self, error: Exception) -> None:
        self._end_calls(error)
        super().fail(error)

    def close(self) -> None:
        super().close()
        self._end_calls(ConnectionError("closed"))

    def _end_calls(self, error: Exception) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(BookieUnavailableError(str(error)))

    def _received(self, data: bytes) -> None:
        view, at = self._buffer.take(data), 0
        while view is not None and (end := self._buffer.end_of_frame(view, at)) is not None:
            response = Response.FromString(bytes(view[at + LENGTH.size : end]))
            at = end
            call = self._calls.get(response.header.txnId)
            if call is not None and not call.done():
                call.set_result(response)
