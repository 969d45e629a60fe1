"""A TCP proxy in the test's loop that loses what it is told to lose."""

import asyncio
import contextlib
from types import TracebackType


class Proxy:
    """Between clients and one port. What goes in a direction that is off vanishes."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.requests_pass = self.answers_pass = True
        self.accepts = True
        self.request_bytes_lost = self.answer_bytes_lost = 0

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def url(self, chroot: str) -> str:
        return f"zk:127.0.0.1:{self.port}{chroot}"

    def cut(self) -> None:
        """Resets every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        """Everything passes again; what was cut or lost stays so."""
        self.requests_pass = self.answers_pass = self.accepts = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.accepts:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(
                "127.0.0.1", self._target_port
            )
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        pumps = [
            self._pump(reader, server_writer, is_request=True),
            self._pump(server_reader, writer, is_request=False),
        ]
        with contextlib.suppress(asyncio.CancelledError):  # the test failed, the loop ends
            await asyncio.gather(*pumps)
        self._writers -= {writer, server_writer}

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.requests_pass if is_request else self.answers_pass:
                    writer.write(data)
                elif is_request:
                    self.request_bytes_lost += len(data)
                else:
                    self.answer_bytes_lost += len(data)
        writer.transport.abort()
