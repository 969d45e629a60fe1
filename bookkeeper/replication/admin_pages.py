"""What auto-recovery tells over HTTP, at the paths of Apache BookKeeper's own admin API."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from magnetar.bookkeeper.bookie.http.admin_server import HttpResponse, Page
from magnetar.bookkeeper.probes import SessionState, probe_pages
from magnetar.bookkeeper.replication.auto_recovery import AutoRecovery
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore

Metrics = Callable[[AutoRecovery], Awaitable[bytes]]

_ROOT = "/api/v1/autorecovery"


class AutoRecoveryPages:
    """Pages of one process; ``recovery`` and ``session`` are set once it works, ``stage`` says
    meanwhile what it is at.

    Args:
        metrics: makes the page for Prometheus; None: there is none.
    """

    def __init__(self, metrics: Metrics | None) -> None:
        self.recovery: AutoRecovery | None = None
        self.marks: UnderReplicationStore | None = None
        self.session: SessionState | None = None
        self.stage = "starting: waiting for the metadata store"
        self._metrics = metrics

    def by_path(self) -> dict[str, Page]:
        return self.status_by_path() | {
            **probe_pages(self._reasons),
            "/heartbeat": self._heartbeat,
            "/metrics": self._metrics_page,
        }

    def status_by_path(self) -> dict[str, Page]:
        """Those for which a bookie's HTTP server has no paths."""
        return {
            f"{_ROOT}/is_ready": self._is_ready,
            f"{_ROOT}/status": self._status,
            f"{_ROOT}/who_is_auditor": self._who_is_auditor,
            f"{_ROOT}/lost_bookie_recovery_delay": self._delay,
        }

    def _reasons(self) -> list[str]:
        """Why it isn't ready."""
        if self.recovery is None or self.session is None:
            return [self.stage]
        return [self.session.trouble] if self.session.trouble else []

    async def _heartbeat(self) -> HttpResponse:
        """The process is alive, whatever it does."""
        return _text(HTTPStatus.OK, "OK\n")

    async def _is_ready(self) -> HttpResponse:
        return _NOT_STARTED if self.recovery is None else _text(HTTPStatus.OK, "")

    async def _status(self) -> HttpResponse:
        """The switch, and what this process does."""
        recovery, marks = self.recovery, self.marks
        if recovery is None or marks is None:
            return _NOT_STARTED
        off, metrics = await marks.disabled(), recovery.metrics
        status: dict[str, object] = {"enabled": off is None}
        if off is not None:
            status |= {"reason": off.reason, "sinceMs": off.since_ms}
        status["isAuditor"] = metrics.is_auditor
        status["workers"] = len(recovery.workers)
        status["zones"] = {
            name: {"state": phase, "available": available, "registered": registered}
            for name, (phase, available, registered) in metrics.zones.items()
        }
        return _json(status)

    async def _who_is_auditor(self) -> HttpResponse:
        recovery = self.recovery
        if recovery is None or recovery.elector is None:
            return _NOT_STARTED
        name = await recovery.elector.leader()
        if name is None:
            return _text(HTTPStatus.NOT_FOUND, "No auditor found\n")
        return _json({"Auditor": name})

    async def _delay(self) -> HttpResponse:
        if self.marks is None:
            return _NOT_STARTED
        seconds = await self.marks.lost_bookie_delay_s()
        return _json({"lostBookieRecoveryDelay": seconds})

    async def _metrics_page(self) -> HttpResponse:
        if self.recovery is None or self._metrics is None:
            return _NOT_STARTED
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return HttpResponse(HTTPStatus.OK, content_type, await self._metrics(self.recovery))


def _text(status: HTTPStatus, text: str) -> HttpResponse:
    return HttpResponse(status, "text/plain; charset=utf-8", text.encode())


def _json(value: dict[str, object]) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, "application/json", json.dumps(value).encode())


_NOT_STARTED = _text(HTTPStatus.SERVICE_UNAVAILABLE, "Auto-recovery is not fully started yet\n")
