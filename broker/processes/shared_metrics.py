"""One ``/metrics`` for several processes: the first broker's page has the series of all of them.

Each other process gives its page to whoever connects to a Unix socket of its own, and closes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from magnetar.metadata.unix_socket.address import connect_unix, listening_socket

logger = logging.getLogger(__name__)

_SUFFIX: Final = ".metrics"
_ANSWER_S: Final = 10.0

Page = Callable[[], AsyncIterator[bytes]]
"""Makes a page, in pieces."""


class MetricsSocket:
    """Gives the page of this process to the first broker."""

    def __init__(self, folder: Path, process: str, page: Page) -> None:
        self._path, self._page = folder / f"{process}{_SUFFIX}", page
        self._server: asyncio.Server | None = None
        self._answers: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Raises OSError."""
        listener = listening_socket(self._path)
        self._server = await asyncio.start_unix_server(self._answer, sock=listener)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for answer in self._answers:
            answer.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answers.add(task)
        try:
            async for piece in self._page():
                writer.write(piece)
                await writer.drain()
            writer.close()
        except ConnectionError:
            pass  # nobody waits any more
        finally:
            writer.transport.close()
            self._answers.discard(task)


async def pages_of_others(folder: Path) -> list[bytes]:
    """What the other processes have; one that is dead, or too slow, has nothing."""
    names = await asyncio.to_thread(lambda: sorted(folder.glob(f"*{_SUFFIX}")))
    return [page for page in await asyncio.gather(*map(_page_at, names)) if page]


async def _page_at(path: Path) -> bytes:
    reader = _WholeText()
    try:
        async with asyncio.timeout(_ANSWER_S):
            await connect_unix(path, lambda: reader)
            return await reader.text
    except OSError as error:  # TimeoutError is one
        logger.info("no metrics of %s: %s", path.stem, error or "no answer")
        return b""
    finally:
        reader.close()


class _WholeText(asyncio.Protocol):
    """All that comes until the other end closes."""

    def __init__(self) -> None:
        self.text: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pieces: list[bytes] = []
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.text.done():
            self.text.set_result(b"" if error else b"".join(self._pieces))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
