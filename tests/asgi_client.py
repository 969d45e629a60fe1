"""A client whose answer is read while it comes: httpx's transport for ASGI collects it first."""

import asyncio
from typing import Any, Final

_WAIT_S: Final = 30


class AsgiClient:
    """A request as a server makes it, whose answer is read while it comes."""

    def __init__(self, app: Any, path: str, query: str = "", accept: str = "") -> None:
        self.received = asyncio.Queue[dict[str, Any]]()
        self._left = asyncio.Event()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost"), (b"accept", accept.encode())],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        }
        self.task = asyncio.create_task(app(scope, self._receive, self.received.put))
        self._is_asked = False

    async def _receive(self) -> dict[str, Any]:
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def read(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.received.get(), _WAIT_S)

    async def piece(self) -> str:
        return str((await self.read())["body"].decode())

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, _WAIT_S)
