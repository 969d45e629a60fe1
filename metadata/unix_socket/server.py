"""Serves an embedded store to other processes of this machine: a session for each connection.

A connection of this kind breaks only when one of its ends dies or is told to, so a session ends
with it, at once: what a killed process held is free within milliseconds. A process that is stopped,
or hangs, is silent; its session ends after the timeout that it asked for.
"""

import asyncio
import logging
import struct
from pathlib import Path
from typing import Final, cast

from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError, StoreClosedError
from magnetar.metadata.paths import ROOT
from magnetar.metadata.store import MetadataEvent, SessionEvent
from magnetar.metadata.unix_socket.address import listening_socket
from magnetar.metadata.unix_socket.frames import (
    NOTHING,
    OK,
    REQUEST_BYTES_MAX,
    Operation,
    SocketFrameError,
    SocketFrameReader,
    error_frame,
    event_frame,
    frame,
    names_body,
    node_body,
    read_connect,
    read_delete,
    read_put,
)

_log = logging.getLogger(__name__)

_UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A client that reads nothing is cut off before what waits for it fills the memory."""
_TICKS: Final = 4
"""A session ends after so many parts of its timeout in a row without a sign of life: one look
alone could come when this process was stopped itself, before what it has missed is read."""
_CLOSE_S_MAX: Final = 5.0


class MetadataServer:
    """REQUIRES: the socket's folder can be entered by this user only."""

    def __init__(self, store: EmbeddedMetadataStore, path: Path) -> None:
        self._store, self._path = store, path
        self._server: asyncio.Server | None = None
        self._sessions: set[ServedSession] = set()

    async def listen(self) -> None:
        """Raises OSError."""
        listener = listening_socket(self._path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: ServedSession(self._store, self._sessions), sock=listener
        )

    async def close(self) -> None:
        """Returns when the sessions have ended."""
        if self._server is None:
            return
        self._server.close()
        self._path.unlink(missing_ok=True)
        ends = [session.cut_off("the server ends") for session in self._sessions]
        if ends:
            await asyncio.wait(ends, timeout=_CLOSE_S_MAX)


class ServedSession(asyncio.Protocol):
    """One connection, and the session that it has after ``CONNECT``."""

    def __init__(self, store: EmbeddedMetadataStore, sessions: "set[ServedSession]") -> None:
        self._main, self._sessions = store, sessions
        self._session: EmbeddedMetadataStore | None = None
        self._reader = SocketFrameReader(REQUEST_BYTES_MAX)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._tasks: set[asyncio.Task[None]] = set()  # the loop keeps none of them alive
        self._timer: asyncio.TimerHandle | None = None
        self._silent_ticks = 0
        self._ended: asyncio.Future[None] = self._loop.create_future()

    # What the loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._sessions.add(self)

    def data_received(self, data: bytes) -> None:
        self._silent_ticks = 0
        try:
            for number, code, body in self._reader.feed(data):
                self._on_request(number, Operation(code), body)
        except (SocketFrameError, ValueError) as error:
            self.cut_off(f"it doesn't speak the protocol: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._run(self._end())

    # What this process does.

    def cut_off(self, reason: str) -> "asyncio.Future[None]":
        """Done when the session has ended."""
        if not self._transport.is_closing():
            name = "a client" if self._session is None else f"session {self._session.session_id}"
            _log.info("metadata: %s is cut off: %s", name, reason)
            self._transport.abort()
        return self._ended

    async def _end(self) -> None:
        self._sessions.discard(self)
        try:
            if self._session is not None:
                await self._session.close()
        except MetadataError as error:  # the store is gone, and with it the session
            _log.info("metadata: a session's end: %s", error)
        finally:
            if not self._ended.done():
                self._ended.set_result(None)

    def _run(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_request(self, number: int, operation: Operation, body: bytes) -> None:
        if self._session is None:
            if operation is not Operation.CONNECT:
                raise SocketFrameError(f"{operation.name} before CONNECT")
            try:
                timeout_ms, old_key = read_connect(body)
            except SocketFrameError as error:
                self._send(error_frame(number, StoreClosedError(str(error))))
                self._transport.close()
                return
            self._run(self._begin(number, timeout_ms, old_key))
        elif operation is Operation.PING:
            self._send(frame(number, NOTHING))
        else:
            self._run(self._answer(self._session, number, operation, body))

    async def _begin(self, number: int, timeout_ms: int, old_key: str) -> None:
        try:
            if old_key:
                await self._main.end_session(old_key)
            if self._transport.is_closing():  # it went away meanwhile: nobody would end its session
                return
            self._session = session = self._main.new_session()
        except (MetadataError, ValueError) as error:
            self._send(error_frame(number, error))
            return
        session.watch(ROOT, self._on_event)
        session.on_session_event(self._on_session_event)
        self._send(frame(number, OK, session.session_key.encode()))
        self._look_later(timeout_ms / 1000 / _TICKS)

    async def _answer(
        self, session: EmbeddedMetadataStore, number: int, operation: Operation, body: bytes
    ) -> None:
        try:
            code, reply = await _perform(session, operation, body)
        except (MetadataError, ValueError) as error:
            self._send(error_frame(number, error))
        except struct.error as error:
            self.cut_off(f"{operation.name} is cut short: {error}")
        else:
            self._send(frame(number, code, reply))

    def _send(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            self.cut_off("it reads nothing")

    def _on_event(self, event: MetadataEvent) -> None:
        self._send(event_frame(event))

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self.cut_off("its session has ended")

    def _look_later(self, after_s: float) -> None:
        self._timer = self._loop.call_later(after_s, self._look, after_s)

    def _look(self, after_s: float) -> None:
        self._silent_ticks += 1
        if self._silent_ticks > _TICKS:
            self.cut_off("it is silent")
        else:
            self._look_later(after_s)


async def _perform(
    session: EmbeddedMetadataStore, operation: Operation, body: bytes
) -> tuple[int, bytes]:
    """Code and body of the reply."""
    if operation is Operation.GET:
        node = await session.get(body.decode())
        return (NOTHING, b"") if node is None else (OK, node_body(node))
    if operation is Operation.CHILDREN:
        return OK, names_body(await session.children(body.decode()))
    if operation is Operation.EXISTS:
        return (OK if await session.exists(body.decode()) else NOTHING), b""
    if operation is Operation.PUT:
        path, value, expected, ephemeral, sequential = read_put(body)
        written = await session.put(
            path, value, expected, ephemeral=ephemeral, sequential=sequential
        )
        return OK, node_body(written)
    if operation is Operation.DELETE:
        await session.delete(*read_delete(body))
    elif operation is Operation.DELETE_RECURSIVE:
        await session.delete_recursive(body.decode())
    elif operation is Operation.END_SESSION:
        await session.end_session(body.decode())
    elif operation is Operation.CLOSE:
        await session.close()
    else:
        raise ValueError(f"{operation.name} was sent twice")
    return NOTHING, b""
