"""What auto-recovery tells over HTTP, at the paths of Apache BookKeeper's own admin API."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from magnetar.bookkeeper.bookie.http.admin_server import (
    HttpResponse,
    Page,
    json_page,
    metrics_page,
    text_page,
)
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
        return text_page(HTTPStatus.OK, "OK\n")

    async def _is_ready(self) -> HttpResponse:
        return _NOT_STARTED if self.recovery is None else text_page(HTTPStatus.OK, "")

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
        return json_page(status)

    async def _who_is_auditor(self) -> HttpResponse:
        recovery = self.recovery
        if recovery is None or recovery.elector is None:
            return _NOT_STARTED
        name = await recovery.elector.leader()
        if name is None:
            return text_page(HTTPStatus.NOT_FOUND, "No auditor found\n")
        return json_page({"Auditor": name})

    async def _delay(self) -> HttpResponse:
        if self.marks is None:
            return _NOT_STARTED
        seconds = await self.marks.lost_bookie_delay_s()
        return json_page({"lostBookieRecoveryDelay": seconds})

    async def _metrics_page(self) -> HttpResponse:
        if self.recovery is None or self._metrics is None:
            return _NOT_STARTED
        return metrics_page(await self._metrics(self.recovery))


_NOT_STARTED = text_page(HTTPStatus.SERVICE_UNAVAILABLE, "Auto-recovery is not fully started yet\n")
