"""What a bookie tells over HTTP, at the paths of Apache BookKeeper's own admin API."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from bookkeeper.bookie.admin_server import Answer, Page
from bookkeeper.bookie.bookie import Bookie

Metrics = Callable[[Bookie], Awaitable[bytes]]


class AdminPages:
    """Pages of one process; ``bookie`` is set once it is open.

    Args:
        metrics: makes the page for Prometheus; None: there is none.
    """

    def __init__(self, metrics: Metrics | None) -> None:
        self.bookie: Bookie | None = None
        self._metrics = metrics

    def by_path(self) -> dict[str, Page]:
        pages: dict[str, Page] = {
            "/heartbeat": self._heartbeat,
            "/api/v1/bookie/is_ready": self._is_ready,
            "/api/v1/bookie/state": self._state,
            "/api/v1/bookie/info": self._info,
        }
        if self._metrics is not None:
            pages["/metrics"] = self._metrics_page
        return pages

    async def _heartbeat(self) -> Answer:
        """The process is alive, whatever its bookie does."""
        return _text(HTTPStatus.OK, "OK\n")

    async def _is_ready(self) -> Answer:
        """It answers clients: for readiness probes."""
        if self._running() is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n")
        return _text(HTTPStatus.OK, "")

    async def _state(self) -> Answer:
        bookie = self._running()
        read_only = bookie is not None and bookie.read_only
        return _json(
            {
                "running": bookie is not None,
                "readOnly": read_only,
                "shuttingDown": self.bookie is not None and bookie is None,
                "availableForHighPriorityWrites": bookie is not None and bookie.takes_recovery(),
            }
        )

    async def _info(self) -> Answer:
        bookie = self._running()
        if bookie is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n")
        info = await bookie.info()
        return _json({"freeSpace": info.free_bytes, "totalSpace": info.total_bytes})

    async def _metrics_page(self) -> Answer:
        bookie = self._running()
        if bookie is None or self._metrics is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n")
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return Answer(HTTPStatus.OK, content_type, await self._metrics(bookie))

    def _running(self) -> Bookie | None:
        bookie = self.bookie
        return None if bookie is None or bookie.is_closed else bookie


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", text.encode())


def _json(value: dict[str, object]) -> Answer:
    return Answer(HTTPStatus.OK, "application/json", json.dumps(value).encode())
