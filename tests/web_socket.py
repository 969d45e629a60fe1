"""A WebSocket for tests that wait."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from magnetar.broker.cli.loop_thread import LoopThread


class WebSocket:
    """Its methods raise ``websockets.exceptions.ConnectionClosed``."""

    def __init__(self, thread: LoopThread, connection: ClientConnection) -> None:
        self._thread, self._connection = thread, connection

    def send(self, text: str) -> None:
        self._thread.call(self._connection.send(text))

    def recv(self, timeout_s: float | None = None) -> str | bytes:
        """The next frame. Raises TimeoutError: none in that time; a later call has it."""
        return self._thread.call(asyncio.wait_for(self._connection.recv(), timeout_s))


@contextmanager
def open_web_socket(url: str, **options: Any) -> Iterator[WebSocket]:
    """A connection for the time of a block; ``options``: of ``websockets``' ``connect``."""

    async def opened() -> ClientConnection:
        return await connect(url, **options)

    thread = LoopThread("web-socket")
    try:
        connection = thread.call(opened())
        try:
            yield WebSocket(thread, connection)
        finally:
            thread.call(connection.close())
    finally:
        thread.close()
