"""A reverse proxy that serves a server below a path, as an ingress does it."""

import socket
import threading
from typing import Self

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.waiting import wait_until

_OWN = {"connection", "transfer-encoding", "content-length", "date", "server"}


class PrefixProxy:
    """``url`` + path leads to the same path of ``behind``. It changes no page and no header."""

    def __init__(self, behind: str, prefix: str) -> None:
        """
        Args:
            prefix: ``/a/b``; other paths are answered with 404.
        """
        self._behind = behind
        self._prefix = prefix
        route = Route(f"{prefix}/{{path:path}}", self._pass_on, methods=["GET", "POST"])
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        config = uvicorn.Config(Starlette(routes=[route]), log_level="error", loop="asyncio")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}{prefix}/"

    async def _pass_on(self, request: Request) -> Response:
        raw: bytes = request.scope["raw_path"]
        path = raw.removeprefix(self._prefix.encode())
        url = httpx.URL(self._behind, raw_path=path + _query(request))
        body = await request.body()
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.request(
                request.method, url, content=body, headers=request.headers.raw
            )
        passed = Response(answer.content, answer.status_code)
        passed.raw_headers += [
            (name, value)
            for name, value in answer.headers.raw
            if name.lower().decode() not in _OWN | {"content-encoding"}
        ]
        return passed

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._server.started, "the proxy serves")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def _query(request: Request) -> bytes:
    query: bytes = request.scope["query_string"]
    return b"?" + query if query else b""
