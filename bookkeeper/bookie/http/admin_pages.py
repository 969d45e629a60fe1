"""What a bookie tells over HTTP, at the paths of Apache BookKeeper's own admin API."""

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.drain import Drain
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector
from magnetar.bookkeeper.bookie.http.admin_server import (
    BodyPage,
    HttpResponse,
    Page,
    json_page,
    metrics_page,
    text_page,
)
from magnetar.bookkeeper.probes import probe_pages

Metrics = Callable[[Bookie], Awaitable[bytes]]
BookiePage = Callable[[Bookie], Awaitable[HttpResponse]]

DRAIN_PATH: Final = "/api/v1/bookie/drain"
"""Our own: see drain.py."""
_READ_ONLY_PATH: Final = "/api/v1/bookie/state/readonly"
_ORDER_S_MAX: Final = 5.0  # until a bookie is registered otherwise


class AdminPages:
    """Pages of one process; ``bookie`` and ``drain`` are set once it is open.

    Attributes:
        stage: what a start is at, told as the reason why it isn't ready.

    Args:
        metrics: makes the page for Prometheus; None: there is none.
    """

    def __init__(self, metrics: Metrics | None) -> None:
        self.bookie: Bookie | None = None
        self.drain: Drain | None = None
        self.stage = "starting"
        self.collector: GarbageCollector | None = None
        self._metrics = metrics

    def by_path(self) -> dict[str, Page | BodyPage]:
        pages: dict[str, Page | BodyPage] = {
            **probe_pages(self._reasons),
            "/heartbeat": self._heartbeat,
            "/api/v1/bookie/state": self._state,
            f"PUT {_READ_ONLY_PATH}": BodyPage(self._order_read_only),
        }
        of_bookie: dict[str, BookiePage] = {
            "/api/v1/bookie/is_ready": self._is_ready,
            _READ_ONLY_PATH: self._read_only,
            "/api/v1/bookie/info": self._info,
            "/api/v1/bookie/gc": self._gc,
            "PUT /api/v1/bookie/gc": self._start_gc,
            "/api/v1/bookie/gc_details": self._gc_details,
            "/api/v1/bookie/data": self._data,
            "PUT /api/v1/bookie/data/scrub": self._scrub,
            "PUT /api/v1/bookie/data/integrity": self._check_integrity,
            DRAIN_PATH: self._drain_state,
            f"PUT {DRAIN_PATH}": self._begin_drain,
            f"DELETE {DRAIN_PATH}": self._end_drain,
        }
        if (metrics := self._metrics) is not None:

            async def metrics_of(bookie: Bookie) -> HttpResponse:
                return metrics_page(await metrics(bookie))

            of_bookie["/metrics"] = metrics_of
        return pages | {path: self._once_started(page) for path, page in of_bookie.items()}

    def _once_started(self, page: BookiePage) -> Page:
        async def answer() -> HttpResponse:
            bookie = self._running()
            return _NOT_STARTED if bookie is None else await page(bookie)

        return answer

    def _reasons(self) -> list[str]:
        """Why it isn't ready."""
        bookie, drain = self.bookie, self.drain
        if bookie is None:
            return [self.stage]
        if bookie.error is not None:
            return [f"the storage failed: {bookie.error}"]
        if bookie.is_closed:
            return ["stopping"]
        reasons = []
        if not bookie.is_registered:
            reasons.append("not registered in the metadata store")
        if bookie.is_stalled:
            reasons.append("no space for the journal")
        if drain is not None and drain.is_before_stop:
            reasons.append("draining: read-only by order")
        return reasons

    async def _drain_state(self, bookie: Bookie) -> HttpResponse:
        """Whether writers were sent away, and have gone."""
        drain = self.drain
        if drain is None:
            return _NOT_STARTED
        return json_page({"draining": drain.is_under_way, "done": drain.done})

    async def _begin_drain(self, bookie: Bookie) -> HttpResponse:
        """Send writers away: read-only, whatever the disk says."""
        if self.drain is not None:
            self.drain.begin()
        return await self._drain_state(bookie)

    async def _end_drain(self, bookie: Bookie) -> HttpResponse:
        """Take writers again."""
        if self.drain is not None:
            await self.drain.end()
        return await self._drain_state(bookie)

    async def _read_only(self, bookie: Bookie) -> HttpResponse:
        """Whether it refuses writers, by order or for its disk."""
        return json_page({"readOnly": bookie.read_only})

    async def _order_read_only(self, body: bytes) -> HttpResponse:
        """Refuse writers until the opposite is said, or until the process ends."""
        bookie, drain = self._running(), self.drain
        if bookie is None or drain is None:
            return _NOT_STARTED
        wanted = _read_only_of(body)
        if wanted is None:
            return text_page(HTTPStatus.BAD_REQUEST, 'Send {"readOnly": true} or false\n')
        if not wanted:
            await drain.end()
        else:
            drain.begin(before_stop=False)
            if not await drain.wait_refusing(_ORDER_S_MAX):
                text = "It will be read-only as soon as it is registered so\n"
                return text_page(HTTPStatus.SERVICE_UNAVAILABLE, text)
        return await self._read_only(bookie)

    async def _heartbeat(self) -> HttpResponse:
        """The process is alive, whatever its bookie does."""
        return text_page(HTTPStatus.OK, "OK\n")

    async def _is_ready(self, bookie: Bookie) -> HttpResponse:
        """It answers clients: for readiness probes."""
        return text_page(HTTPStatus.OK, "")

    async def _state(self) -> HttpResponse:
        bookie = self._running()
        read_only = bookie is not None and bookie.read_only
        return json_page(
            {
                "running": bookie is not None,
                "readOnly": read_only,
                "shuttingDown": self.bookie is not None and bookie is None,
                "availableForHighPriorityWrites": bookie is not None and bookie.takes_recovery(),
            }
        )

    async def _info(self, bookie: Bookie) -> HttpResponse:
        info = await bookie.info()
        return json_page({"freeSpace": info.free_bytes, "totalSpace": info.total_bytes})

    async def _data(
        self, bookie: Bookie, *, scrub: bool = False, integrity: bool = False
    ) -> HttpResponse:
        """Damage, limbo and the progress of checks (docs/operate/bookies.md). Our own path."""
        if bookie.integrity is None:
            return _NOT_STARTED
        status = bookie.integrity.check(scrub=scrub, integrity=integrity)
        return HttpResponse(HTTPStatus.OK, "application/json", status.encode())

    async def _scrub(self, bookie: Bookie) -> HttpResponse:
        """Read and check everything, now and at full speed."""
        return await self._data(bookie, scrub=True)

    async def _check_integrity(self, bookie: Bookie) -> HttpResponse:
        """Compare what should be here with what is."""
        return await self._data(bookie, integrity=True)

    async def _gc(self, bookie: Bookie) -> HttpResponse:
        """A round that was asked for is under way, or not."""
        if self.collector is None:
            return _NOT_STARTED
        return json_page({"is_in_force_gc": str(self.collector.is_forced).lower()})

    async def _start_gc(self, bookie: Bookie) -> HttpResponse:
        """Collect and compact now; one such round at a time, and one a minute at most."""
        if self.collector is None:
            return _NOT_STARTED
        if not self.collector.collect_soon():
            text = "A round was asked for less than a minute ago, or is under way\n"
            return text_page(HTTPStatus.TOO_MANY_REQUESTS, text)
        return text_page(HTTPStatus.OK, "Triggered GC on the bookie\n")

    async def _gc_details(self, bookie: Bookie) -> HttpResponse:
        """BookKeeper's list of one collector, and how far it is."""
        metrics, storage = bookie.metrics, bookie.storage
        compaction, began_s = metrics.last_compaction, metrics.last_compaction_at_s
        running = "" if compaction is None or compaction.done else compaction.kind
        document: dict[str, object] = {
            "forceCompacting": running == "forced",
            "majorCompacting": running == "major",
            "minorCompacting": running == "minor",
            "lastMajorCompactionTime": int(began_s["major"] * 1000),
            "lastMinorCompactionTime": int(began_s["minor"] * 1000),
            "majorCompactionCounter": metrics.compactions["major"],
            "minorCompactionCounter": metrics.compactions["minor"],
            "forcedCompactionCounter": metrics.compactions["forced"],
            "collectionCounter": metrics.collections,
            "deletedLedgers": metrics.deleted_ledgers,
            "emptiedLedgers": metrics.emptied_ledgers,
            "reclaimedBytes": metrics.deleted_logs_bytes + metrics.compacted_logs_bytes,
            "damagedLogs": {f"{id_:016x}": why for id_, why in storage.damaged_logs.items()},
        }
        if compaction is not None:
            document["compaction"] = compaction.as_dict()
        return json_page([document])

    def _running(self) -> Bookie | None:
        bookie = self.bookie
        return None if bookie is None or bookie.is_closed else bookie


def _read_only_of(body: bytes) -> bool | None:
    """None: it isn't said."""
    try:
        document = json.loads(body)
    except ValueError:
        return None
    found = document.get("readOnly") if isinstance(document, dict) else None
    return found if isinstance(found, bool) else None


_NOT_STARTED = text_page(HTTPStatus.SERVICE_UNAVAILABLE, "Bookie is not fully started yet\n")
