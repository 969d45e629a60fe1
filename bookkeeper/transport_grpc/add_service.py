"""The bookie's end of add streams.

Reading and answering are two tasks: a stream that isn't read for the moment (back-pressure) is
still answered, so the two directions of HTTP/2 flow control never wait for each other.

A stream whose client takes an offer goes on over an add connection (``add_connection.py``): then
frames come and answers go without a task, and the gRPC stream only says that both are there.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import grpc

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.add_limits import AddLimits
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.transport import AddRequest
from magnetar.bookkeeper.transport_grpc.add_connection import (
    AddConnectionOffer,
    AddConnectionServer,
    ServerAddConnection,
)
from magnetar.bookkeeper.transport_grpc.add_frames import AddFrame, decode_message, encode_answers
from magnetar.bookkeeper.transport_grpc.config import TransportConfig

_log = logging.getLogger(__name__)


class StreamAuthorizer(Protocol):
    """Decides how long a stream may go on."""

    def begin(self, refuse: Callable[[str], None]) -> None:
        """From now on ``refuse`` may be called, with the reason that the client is told."""

    def end(self) -> None:
        """The stream has ended."""


class AddService(AddLimits):
    """All add streams of a server; bounds what the bookie is given at a time."""

    def __init__(self, config: TransportConfig) -> None:
        super().__init__(config.stream_bytes_max)
        self.stream_bytes_max = config.stream_bytes_max

    async def run(
        self,
        bookie: BookieClient,
        context: Any,
        watch: StreamAuthorizer | None = None,
        add_connections: AddConnectionServer | None = None,
    ) -> None:
        """One stream, until the client ends it or sends garbage, or ``watch`` ends it.

        Args:
            add_connections: where the client is offered to go on.
        """
        stream = _Stream(self, bookie, context, add_connections)
        if watch is None:
            await stream.run()
            return
        watch.begin(stream.refuse)
        try:
            await stream.run()
        finally:
            watch.end()


@dataclass(slots=True, eq=False)
class _StreamAdd(AddRequest):
    number: int  # of the frame


class _Stream:
    def __init__(
        self,
        service: AddService,
        bookie: BookieClient,
        context: Any,
        add_connections: AddConnectionServer | None,
    ) -> None:
        self._service = service
        self._bookie = bookie
        self._context = context
        self._add_connections = add_connections
        self._loop = asyncio.get_running_loop()
        self._next_number = 0
        self._pending_bytes = 0
        self._unanswered = 0
        self._answers: list[tuple[int, int]] = []
        self._is_writing = False
        self._wake_writer: asyncio.Future[None] | None = None
        self._wake_reader: asyncio.Future[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._refused = ""  # why
        self._lost: tuple[grpc.StatusCode, str] | None = None  # why the add connection is lost
        self._connection: ServerAddConnection | None = None
        self._connection_first = (
            -1
        )  # the first frame that comes over the add connection; -1: not known yet
        self._held: list[bytes] = []  # of the add connection, behind frames that gRPC still carries
        self._is_answering = False  # scheduled, over the add connection

    async def run(self) -> None:
        if self._refused:  # good when the call came, and not any more
            await self._context.abort(grpc.StatusCode.UNAUTHENTICATED, self._refused)
        offer = None if self._add_connections is None else self._add_connections.offer(self)
        self._is_writing = offer is not None  # already: a call can't end while it writes
        writer = asyncio.create_task(self._write_answers(offer))
        self._task = asyncio.current_task()
        try:
            await self._read()
        except FrameError as error:
            _log.warning("%s sent garbage: %s", self._context.peer(), error)
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            if self._task is None or not (self._refused or self._lost):
                raise
            self._task.uncancel()
            if self._lost is not None:
                await self._context.abort(*self._lost)
            await self._answer_all()  # what was accepted is done, and the client is told so
            await self._context.abort(grpc.StatusCode.UNAUTHENTICATED, self._refused)
        finally:
            self._task = None
            if offer is not None and self._add_connections is not None:
                self._add_connections.withdraw(offer)
            self._leave_connection()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _read(self) -> None:
        """What comes over gRPC: all of it, or what comes before the add connection."""
        while (message := await self._context.read()) is not grpc.aio.EOF:
            for frame in decode_message(message):
                self._accept(frame)
            del message
            if self._connection_first >= 0:
                self._take_held()
            while self._pending_bytes > self._service.stream_bytes_max:
                await self._wait_for_answers()
            await self._service.wait_for_room()
        await self._answer_all()

    def refuse(self, reason: str) -> None:
        """Take no more, answer what was taken, and end; before ``run``: don't begin."""
        if self._refused:
            return
        self._refused = reason
        if self._connection is not None:
            self._connection.pause()
        if self._task is not None:
            self._task.cancel()

    async def _answer_all(self) -> None:
        while self._unanswered or self._answers or self._is_writing:
            await self._wait_for_answers()

    def _accept(self, frame: AddFrame) -> None:
        number = self._next_number
        self._next_number += 1
        self._unanswered += 1
        self._pending_bytes += frame.size
        self._service.pending_bytes += frame.size
        request = _StreamAdd(
            frame.ledger_id,
            frame.master_key,
            frame.entry_ids,
            frame.heads,
            cast("list[bytes]", frame.bodies),  # views of a message that isn't written to
            frame.size,
            frame.recovery,
            self._on_done,
            number,
            deferred_sync=frame.deferred_sync,
            creator=frame.creator,
        )
        if frame.is_intact:
            self._bookie.add_entries(request)
        else:
            _log.error(
                "%s sent corrupt entries of ledger %d", self._context.peer(), frame.ledger_id
            )
            self._on_done(request, codes.IO_ERROR)

    def _on_done(self, request: AddRequest, code: int) -> None:
        add = cast("_StreamAdd", request)
        self._unanswered -= 1
        self._pending_bytes -= add.body_bytes
        self._service.on_answered(add.body_bytes)
        self._answers.append((add.number, code))
        if self._connection is None:
            _wake(self._wake_writer)
        else:
            self._answer_soon()

    async def _write_answers(self, offer: AddConnectionOffer | None) -> None:
        """Everything that was answered while the last message was on its way goes with the next."""
        if offer is not None:
            await self._context.write(offer.encode())
            self._is_writing = False
            _wake(self._wake_reader)
        while True:
            if not self._answers or self._connection is not None:
                _wake(self._wake_reader)
                self._wake_writer = self._loop.create_future()
                await self._wake_writer
                continue
            answers, self._answers = self._answers, []
            self._is_writing = True
            await self._context.write(encode_answers(answers))
            self._is_writing = False
            _wake(self._wake_reader)

    async def _wait_for_answers(self) -> None:
        self._wake_reader = self._loop.create_future()
        await self._wake_reader

    # ---- over an add connection

    def on_add_connection(self, connection: ServerAddConnection) -> None:
        self._connection = connection
        if self._answers:
            self._answer_soon()

    def on_add_connection_begins(self, first_frame: int) -> None:
        if first_frame < self._next_number:
            raise FrameError(f"frame {first_frame} came already")
        self._connection_first = first_frame

    def on_add_connection_message(self, message: bytes) -> None:
        if self._held or self._next_number < self._connection_first:
            self._held.append(message)
        else:
            for frame in decode_message(message):
                self._accept(frame)
        self.read_on()

    def on_add_connection_writable(self) -> None:
        self._answer_soon()
        self.read_on()

    def on_add_connection_lost(self, error: FrameError | None) -> None:
        self._connection = None
        if self._lost is None and self._task is not None:
            self._lost = grpc.StatusCode.UNAVAILABLE, "the add connection is lost"
            if error is not None:
                _log.warning("%s sent garbage: %s", self._context.peer(), error)
                self._lost = grpc.StatusCode.INVALID_ARGUMENT, str(error)
            self._task.cancel()

    def read_on(self) -> None:
        """As much as may be under way, and in order."""
        connection = self._connection
        if connection is None or not connection.is_writable or self._refused:
            return
        if self._held or self._pending_bytes > self._service.stream_bytes_max:
            connection.pause()
        elif self._service.is_full:
            connection.pause()
            self._service.read_on_later(self)
        else:
            connection.resume()

    def _take_held(self) -> None:
        """gRPC has brought more; the add connection's frames may be next."""
        if self._next_number > self._connection_first:
            raise FrameError("frames beside the add connection")
        if self._next_number == self._connection_first:
            held, self._held = self._held, []
            for message in held:
                for frame in decode_message(message):
                    self._accept(frame)
            self.read_on()

    def _answer_soon(self) -> None:
        if not self._is_answering:
            self._is_answering = True
            self._loop.call_soon(self._answer_now)

    def _answer_now(self) -> None:
        """All that was answered within a turn of the loop."""
        self._is_answering = False
        connection = self._connection
        if connection is None or not connection.is_writable or not self._answers:
            return
        answers, self._answers = self._answers, []
        connection.write(encode_answers(answers))
        _wake(self._wake_reader)
        self.read_on()

    def _leave_connection(self) -> None:
        self._service.forget(self)
        self._held.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
