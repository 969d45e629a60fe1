"""What repairs data in a simulated cluster: auto-recovery's processes, and upkeep by bookies.

Put together as ``bookie/process.py`` and ``replication/process.py`` do it, with shorter times.
"""

import asyncio
from typing import Any, Final

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.cookie import read_instance_id
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector, MetadataFreshnessCheck
from magnetar.bookkeeper.bookie.gc.over_replicated import OverReplicatedLedgers
from magnetar.bookkeeper.bookie.integrity.integrity_check import IntegrityConfig
from magnetar.bookkeeper.bookie.integrity.integrity_service import (
    IntegrityService,
    IntegrityServiceConfig,
)
from magnetar.bookkeeper.bookie.integrity.replica_source import EnsembleReplicaSource
from magnetar.bookkeeper.bookie.integrity.scrubber import ScrubConfig
from magnetar.bookkeeper.client.async_ledger_recovery import recover_ledger
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.replication.auditor_checks import ChecksConfig
from magnetar.bookkeeper.replication.auditor_core import AuditorConfig
from magnetar.bookkeeper.replication.auto_recovery import AutoRecovery, AutoRecoveryConfig
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.replication.zones import ZoneConfig
from magnetar.metadata.errors import MetadataError
from tests.simulation.cluster.machine import BookieMachine
from tests.simulation.cluster.metadata_model import ClusterStore
from tests.simulation.cluster.world import Cluster, Member

SETTLE_MS: Final = 400
AUTO_RECOVERY: Final = AutoRecoveryConfig(
    auditor=AuditorConfig(SETTLE_MS, ZoneConfig(settle_ms=SETTLE_MS)),
    checks=ChecksConfig(
        bookie_check_s=3.0,
        all_ledgers_s=3.0,
        share=1.0,
        silent_grace_s=1.0,
        replicas_s=0.0,
        census_s=0.0,
        request_timeout_s=1.0,
    ),
    replication=ReplicationConfig(
        batch_bytes=1 << 10,
        batch_entries=3,
        request_timeout_s=1.0,
        busy_pause_s=0.005,
        open_ledger_grace_s=0.6,
        unreachable_grace_s=1.0,
        backoff_min_s=0.2,
        backoff_max_s=1.0,
        rescan_s=3.0,
        resume_bytes_min=500,
        decommission_poll_s=1.0,
    ),
)
GC_INTERVAL_S: Final = 2.0


class Repairs:
    """Starts both kinds."""

    def __init__(self, cluster: Cluster, *, scrubs: bool) -> None:
        self.cluster = cluster
        self.scrubs = scrubs
        self.units: dict[str, Member] = {}  # host -> its process now
        for machine in cluster.machines.values():
            machine.on_open = self._look_after

    def start_unit(self, host: str) -> None:
        """A process of auto-recovery: a candidate for the auditor's seat, and a worker."""
        process = self.cluster.process(host)
        self.cluster.run_in(process, self._run_unit(host, process))

    async def _run_unit(self, host: str, process: Any) -> None:
        cluster = self.cluster
        member = self.units[host] = cluster.member(process)
        while True:
            try:
                await member.pool.start()
                unit = AutoRecovery(
                    member.store,
                    member.pool,
                    member.placement,
                    process.name,
                    clock=lambda: process.wall_clock_ms(cluster.loop),
                    rng=cluster.rng,
                    config=AUTO_RECOVERY,
                    layout=cluster.layout,
                )
                await unit.start()
            except MetadataError:
                await asyncio.sleep(0.3)
            else:
                cluster.recorder.count("state: auto-recovery started")
                return

    def _look_after(self, machine: BookieMachine, bookie: Bookie, store: ClusterStore) -> None:
        task = asyncio.get_running_loop().create_task(
            self._begin_integrity_service(machine, bookie, store)
        )
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _begin_integrity_service(
        self, machine: BookieMachine, bookie: Bookie, store: ClusterStore
    ) -> None:
        """As a bookie's process does; what the store can't answer is asked again."""
        cluster, process, host = self.cluster, machine.process, machine.host
        while True:
            try:
                instance_id = await read_instance_id(store)
                pool = BookiePool(store, lambda other: cluster.linked(process, other))
                await pool.start()
            except MetadataError:
                await asyncio.sleep(0.3)
            else:
                break
        ledgers = LedgerStore(store, cluster.layout)

        def clock_ms() -> int:
            return process.wall_clock_ms(cluster.loop)

        locks = UnderReplicationStore(store, clock_ms, cluster.layout)
        collector = GarbageCollector(
            bookie,
            ledgers,
            before_listing=MetadataFreshnessCheck(store, host, instance_id).check,
            over_replicated=OverReplicatedLedgers(host, ledgers, locks),
            now_s=lambda: clock_ms() / 1000,
        )
        collector.start(GC_INTERVAL_S)
        placement, config = cluster.placement(pool), ClientConfig()

        async def recover(ledger_id: int) -> LedgerMetadata:
            return await recover_ledger(ledger_id, ledgers, pool, placement, cluster.rng, config)

        background_tasks = IntegrityService(
            bookie,
            EnsembleReplicaSource(host, ledgers, pool, recover, locks.repairs),
            IntegrityServiceConfig(
                scrub_enabled=self.scrubs,
                scrub=ScrubConfig(interval_s=2.0, bytes_per_s=0, first_s=0.5),
                integrity=IntegrityConfig(open_grace_s=0.6, retry_s=0.5, retry_max_s=1.0),
            ),
        )
        background_tasks.scrubber._now_s = lambda: clock_ms() / 1000
        machine.background_tasks = background_tasks
        background_tasks.start()
