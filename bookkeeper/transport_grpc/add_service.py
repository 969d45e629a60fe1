"""The bookie's end of add streams.

Reading and answering are two tasks: a stream that isn't read for the moment (back-pressure) is
still answered, so the two directions of HTTP/2 flow control never wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import grpc

from bookkeeper import codes
from bookkeeper.transport import AddRequest, BookieClient
from bookkeeper.transport_grpc.add_frames import AddFrame, decode_message, encode_answers
from bookkeeper.transport_grpc.config import TransportConfig
from bookkeeper.transport_grpc.errors import FrameError

_log = logging.getLogger(__name__)


class StreamWatch(Protocol):
    """Whoever decides that a stream may go on no longer."""

    def begin(self, refuse: Callable[[str], None]) -> None:
        """From now on ``refuse`` may be called, with the reason that the client is told."""

    def end(self) -> None:
        """The stream has ended."""


class AddService:
    """All add streams of a server; bounds what the bookie is given at a time.

    Attributes:
        pending_bytes: packet bytes accepted from all streams and not yet answered.
    """

    def __init__(self, config: TransportConfig) -> None:
        self.pending_bytes = 0
        self.stream_bytes_max = config.stream_bytes_max
        self._pending_bytes_max = config.stream_bytes_max
        self._waiting: set[asyncio.Future[None]] = set()

    def limit(self, pending_bytes_max: int) -> None:
        self._pending_bytes_max = pending_bytes_max

    async def run(
        self, bookie: BookieClient, context: Any, watch: StreamWatch | None = None
    ) -> None:
        """One stream, until the client ends it or sends garbage, or ``watch`` ends it."""
        stream = _Stream(self, bookie, context)
        if watch is None:
            await stream.run()
            return
        watch.begin(stream.refuse)
        try:
            await stream.run()
        finally:
            watch.end()

    @property
    def is_full(self) -> bool:
        return self.pending_bytes > self._pending_bytes_max

    def on_answered(self, size: int) -> None:
        was_full = self.is_full
        self.pending_bytes -= size
        if was_full and not self.is_full:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)

    async def wait_for_room(self) -> None:
        while self.is_full:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiting)
            try:
                await waiting
            finally:
                self._waiting.discard(waiting)


@dataclass(slots=True, eq=False)
class _StreamAdd(AddRequest):
    number: int  # of the frame


class _Stream:
    def __init__(self, service: AddService, bookie: BookieClient, context: Any) -> None:
        self._service = service
        self._bookie = bookie
        self._context = context
        self._next_number = 0
        self._pending_bytes = 0
        self._unanswered = 0
        self._answers: list[tuple[int, int]] = []
        self._is_writing = False
        self._wake_writer: asyncio.Future[None] | None = None
        self._wake_reader: asyncio.Future[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._refused = ""  # why

    async def run(self) -> None:
        if self._refused:  # good when the call came, and not any more
            await self._context.abort(grpc.StatusCode.UNAUTHENTICATED, self._refused)
        writer = asyncio.create_task(self._write_answers())
        self._task = asyncio.current_task()
        try:
            while (message := await self._context.read()) is not grpc.aio.EOF:
                for frame in decode_message(message):
                    self._accept(frame)
                del message
                while self._pending_bytes > self._service.stream_bytes_max:
                    await self._wait_for_answers()
                await self._service.wait_for_room()
            await self._answer_all()
        except FrameError as error:
            _log.warning("%s sent garbage: %s", self._context.peer(), error)
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            if not self._refused or self._task is None:
                raise
            self._task.uncancel()
            await self._answer_all()  # what was accepted is done, and nobody is to doubt that
            await self._context.abort(grpc.StatusCode.UNAUTHENTICATED, self._refused)
        finally:
            self._task = None
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def refuse(self, reason: str) -> None:
        """Take no more, answer what was taken, and end; before ``run``: don't begin."""
        if self._refused:
            return
        self._refused = reason
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
            cast("list[bytes]", frame.bodies),  # views of a message that nobody writes to
            frame.size,
            frame.recovery,
            self._on_done,
            number,
            deferred_sync=frame.deferred_sync,
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
        _wake(self._wake_writer)

    async def _write_answers(self) -> None:
        """Everything that was answered while the last message was on its way goes with the next."""
        while True:
            if not self._answers:
                _wake(self._wake_reader)
                self._wake_writer = asyncio.get_running_loop().create_future()
                await self._wake_writer
            answers, self._answers = self._answers, []
            self._is_writing = True
            await self._context.write(encode_answers(answers))
            self._is_writing = False
            _wake(self._wake_reader)

    async def _wait_for_answers(self) -> None:
        self._wake_reader = asyncio.get_running_loop().create_future()
        await self._wake_reader


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
