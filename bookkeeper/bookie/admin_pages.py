"""What a bookie tells over HTTP, at the paths of Apache BookKeeper's own admin API."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from bookkeeper.bookie.admin_server import Answer, Page
from bookkeeper.bookie.bookie import Bookie
from bookkeeper.bookie.collector import GarbageCollector

Metrics = Callable[[Bookie], Awaitable[bytes]]


class AdminPages:
    """Pages of one process; ``bookie`` is set once it is open.

    Args:
        metrics: makes the page for Prometheus; None: there is none.
    """

    def __init__(self, metrics: Metrics | None) -> None:
        self.bookie: Bookie | None = None
        self.collector: GarbageCollector | None = None
        self._metrics = metrics

    def by_path(self) -> dict[str, Page]:
        pages: dict[str, Page] = {
            "/heartbeat": self._heartbeat,
            "/api/v1/bookie/is_ready": self._is_ready,
            "/api/v1/bookie/state": self._state,
            "/api/v1/bookie/info": self._info,
            "/api/v1/bookie/gc": self._gc,
            "PUT /api/v1/bookie/gc": self._start_gc,
            "/api/v1/bookie/gc_details": self._gc_details,
            "/api/v1/bookie/data": self._data,
            "PUT /api/v1/bookie/data/scrub": self._scrub,
            "PUT /api/v1/bookie/data/integrity": self._check_integrity,
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

    async def _data(self) -> Answer:
        """What is damaged or in limbo, and how far checks are (docs/bookies.md); our own path."""
        return self._check_data()

    async def _scrub(self) -> Answer:
        """Read and check everything, now and at full speed."""
        return self._check_data(scrub=True)

    async def _check_integrity(self) -> Answer:
        """Compare what should be here with what is."""
        return self._check_data(integrity=True)

    def _check_data(self, *, scrub: bool = False, integrity: bool = False) -> Answer:
        bookie = self._running()
        if bookie is None or bookie.keeper is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n")
        status = bookie.keeper.check(scrub=scrub, integrity=integrity)
        return Answer(HTTPStatus.OK, "application/json", status.encode())

    async def _gc(self) -> Answer:
        """A round that somebody asked for is under way, or not."""
        if self._running() is None or self.collector is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n")
        return _json({"is_in_force_gc": str(self.collector.is_forced).lower()})

    async def _start_gc(self) -> Answer:
        """Collect and compact now; one such round at a time, and one a minute at most."""
        if self._running() is None or self.collector is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n")
        if not self.collector.collect_soon():
            text = "A round was asked for less than a minute ago, or is under way\n"
            return _text(HTTPStatus.TOO_MANY_REQUESTS, text)
        return _text(HTTPStatus.OK, "Triggered GC on the bookie\n")

    async def _gc_details(self) -> Answer:
        """BookKeeper's list of one collector, and how far it is."""
        bookie = self._running()
        if bookie is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n")
        figures, storage = bookie.figures, bookie.storage
        compaction, began_s = figures.last_compaction, figures.last_compaction_at_s
        running = "" if compaction is None or compaction.done else compaction.kind
        document: dict[str, object] = {
            "forceCompacting": running == "forced",
            "majorCompacting": running == "major",
            "minorCompacting": running == "minor",
            "lastMajorCompactionTime": int(began_s["major"] * 1000),
            "lastMinorCompactionTime": int(began_s["minor"] * 1000),
            "majorCompactionCounter": figures.compactions["major"],
            "minorCompactionCounter": figures.compactions["minor"],
            "forcedCompactionCounter": figures.compactions["forced"],
            "collectionCounter": figures.collections,
            "deletedLedgers": figures.deleted_ledgers,
            "emptiedLedgers": figures.emptied_ledgers,
            "reclaimedBytes": figures.deleted_logs_bytes + figures.compacted_logs_bytes,
            "damagedLogs": {f"{id_:016x}": why for id_, why in storage.damaged_logs.items()},
        }
        if compaction is not None:
            document["compaction"] = compaction.as_dict()
        return _json([document])

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


def _json(value: dict[str, object] | list[dict[str, object]]) -> Answer:
    return Answer(HTTPStatus.OK, "application/json", json.dumps(value).encode())
