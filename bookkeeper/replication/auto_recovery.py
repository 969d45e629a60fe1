"""Auto-recovery as one unit: a candidate for the auditor's seat and some replication workers."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, PlacementRandom
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.replication.auditor import Auditor, AuditorDependencies
from magnetar.bookkeeper.replication.auditor_checks import ChecksConfig, PeriodicChecks
from magnetar.bookkeeper.replication.auditor_core import AuditorConfig
from magnetar.bookkeeper.replication.auditor_elector import AuditorElector
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.ledger_checker import LedgerChecker
from magnetar.bookkeeper.replication.metrics import AuditorMetrics
from magnetar.bookkeeper.replication.replication_worker import ReplicationWorker
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class AutoRecoveryConfig:
    """What one process does.

    Attributes:
        audits: take part in the election.
        workers: how many; each repairs some ledgers at a time.
        location: ``/zone/upgrade-domain`` of this process.
    """

    auditor: AuditorConfig = field(default_factory=AuditorConfig)
    checks: ChecksConfig = field(default_factory=ChecksConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    client: ClientConfig = field(default_factory=ClientConfig)
    audits: bool = True
    workers: int = 1
    location: str = ""


class AutoRecovery:
    """``await start()``, ``await close()``.

    Args:
        store: the session that the election and the workers' locks live in.
        bookies: started by the caller.
        name: of this candidate; no two processes may have the same.
        clock: wall clock in milliseconds since the epoch, for dates in stored values.
        layout: of the cluster; None: our own.

    Attributes:
        metrics: what the auditor counts, whether it is this process or not.
        elector: None: this process only repairs.
    """

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookiePool,
        placement: EnsemblePlacementPolicy,
        name: str,
        *,
        clock: Callable[[], int],
        rng: PlacementRandom,
        config: AutoRecoveryConfig | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.metrics = AuditorMetrics()
        self._config = config = config or AutoRecoveryConfig()
        ledgers = LedgerStore(store, layout)
        marks = UnderReplicationStore(store, clock, layout)
        self._ports = AuditorDependencies(store, ledgers, marks, clock)
        self._bookies, self._placement = bookies, placement
        self._checker = LedgerChecker(bookies, rng, config.replication)
        self.elector: AuditorElector | None = None
        if config.audits:
            self.elector = AuditorElector(self._ports, name, self._make_auditor, self.metrics)
        self.workers = [
            ReplicationWorker(
                store,
                ledgers,
                bookies,
                placement,
                clock=clock,
                rng=rng,
                config=config.replication,
                client_config=config.client,
                location=config.location,
            )
            for _ in range(config.workers)
        ]
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Returns when this candidate has run for the seat once; retries go on by themselves."""
        for worker in self.workers:
            worker.start()
            self._stack.push_async_callback(worker.close)
        if self.elector is not None:
            self._stack.push_async_callback(self.elector.close)
            await self.elector.start()

    async def close(self) -> None:
        """Give up the seat, leave what is under repair: another worker finds its copies."""
        await self._stack.aclose()

    def _make_auditor(self) -> Auditor:
        config = self._config
        auditor = Auditor(self._ports, config.auditor, self.metrics)
        checks = PeriodicChecks(
            auditor, config.checks, self._bookies, self._placement, self._checker
        )
        auditor.start(*checks.coroutines())
        return auditor
