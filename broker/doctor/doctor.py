"""What is wrong with this broker, and with its cluster: collected when asked, then kept a moment.

A thin shell: ``*_collector.py`` collect facts, the checks are pure functions of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.cluster.latest_result import LatestResult, kept_s
from magnetar.broker.doctor.findings import Report, bounded
from magnetar.broker.errors import STORAGE_ERRORS, BrokerError
from magnetar.bundles.errors import BundleError
from magnetar.metadata.loop_turns import LoopTurns

if TYPE_CHECKING:
    from magnetar.broker.doctor.process_checks import ProcessFacts
    from magnetar.broker.service.broker_service import BrokerService

KEPT_S: Final = 5.0
"""An answer is given again for so long at least: a page that many look at costs one look. Of very
many topics: see ``kept_s``."""
_LOADED: Final = (
    *("broker.doctor.broker_collector", "broker.doctor.cluster_collector"),
    *("broker.doctor.process_checks", "bookkeeper.replication.stated_ends"),
    *("bookkeeper.replication.repair_state", "bookkeeper.replication.under_replication"),
)
"""What a look needs, and what that imports."""
_ERRORS: Final = (*STORAGE_ERRORS, BrokerError, BundleError)


class Doctor:
    """One broker's; costs nothing until it is asked."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._broker = LatestResult(self._examine_broker, KEPT_S)
        self._cluster = LatestResult(self._examine_cluster, KEPT_S)
        self.processes: Callable[[], Sequence[ProcessFacts]] | None = None
        """Those that one command started with this one; raises OSError, ValueError. None: this one
        was started by itself."""

    async def broker_report(self) -> dict[str, Any]:
        """What this broker knows of itself: its findings and settings; and its clock now."""
        report = await self._broker.get()
        from magnetar.broker.doctor.broker_collector import settings_of

        settings = settings_of(self._service)
        return {**report.as_json(), "settings": settings, "clockMs": self._service.wall_clock()}

    async def cluster_report(self) -> Report:
        """What is wrong with the whole cluster."""
        return await self._cluster.get()

    def close(self) -> None:
        self._broker.close()
        self._cluster.close()

    def _new_report(self) -> Report:
        service = self._service
        addresses = [each for each in (service.service_url, service.service_url_tls) if each]
        return Report(
            service.cluster, service.broker_id, service.wall_clock(), [service.broker_id], addresses
        )

    async def _examine_broker(self) -> Report:
        # Loaded when first asked for, in a thread: that takes longer than a turn of the loop may.
        for name in _LOADED:
            await asyncio.to_thread(import_module, f"magnetar.{name}")
        from magnetar.broker.doctor.broker_checks import check_broker
        from magnetar.broker.doctor.broker_collector import (
            collect_broker,
            collect_topics,
            collect_transactions,
        )
        from magnetar.broker.doctor.topic_checks import check_topics
        from magnetar.broker.doctor.transaction_checks import check_transactions

        report = self._new_report()
        report.findings += check_broker(await collect_broker(self._service))
        with report.part(f"{self._service.broker_id}, topics", *_ERRORS):
            turns = LoopTurns()
            facts = await collect_topics(self._service, turns)
            self._broker.kept_s = max(KEPT_S, kept_s(turns.used_s))
            report.findings += check_topics(facts)
            if facts.unlisted:
                report.not_looked_at.append(
                    f"{self._service.broker_id}: {facts.unlisted:,} more faults of topics"
                )
        transactions = await collect_transactions(self._service)
        report.findings += check_transactions(transactions)
        if transactions.unlisted:
            report.not_looked_at.append(
                f"{self._service.broker_id}: {transactions.unlisted:,} more transactions that can't"
                " end"
            )
        report.findings = bounded(report.findings)
        return report

    async def _examine_cluster(self) -> Report:
        own = await self._broker.get()  # before the imports: it has loaded them
        from magnetar.broker.doctor.broker_collector import settings_of
        from magnetar.broker.doctor.cluster_checks import ClusterFacts, PeerFacts, check_cluster
        from magnetar.broker.doctor.cluster_collector import (
            collect_closed,
            collect_ownerless,
            collect_peers,
            collect_storage,
        )
        from magnetar.broker.doctor.storage_checks import check_storage
        from magnetar.broker.doctor.transaction_checks import TransactionsFacts, check_transactions

        service = self._service
        report = replace(own, findings=[*own.findings], not_looked_at=[*own.not_looked_at])
        report.brokers, report.addresses = [*own.brokers], [*own.addresses]
        brokers = [PeerFacts(service.broker_id, settings=settings_of(service))]
        leader, ownerless, live = None, dict[str, str](), None
        with report.part("brokers", *_ERRORS):
            if (load := await service.cluster_members.load(service.broker_id)) is not None:
                brokers[0] = replace(brokers[0], version=load.version)
            for peer, answer in await collect_peers(service):
                brokers.append(peer)
                report.brokers.append(peer.broker_id)
                report.addresses += answer.addresses
                report.findings += answer.findings
                report.not_looked_at += answer.not_looked_at
            live = [each.broker_id for each in brokers]
        if self.processes is not None:
            from magnetar.broker.doctor.process_checks import ProcessesFacts, check_processes

            with report.part("processes", OSError, ValueError):
                found = await asyncio.to_thread(self.processes)
                report.findings += check_processes(
                    ProcessesFacts(service.wall_clock(), found, live)
                )
        with report.part("leader", *_ERRORS):
            leader = (await service.cluster_members.leader() or {}).get("brokerId", "")
        if service.sharing is not None:
            with report.part("owners of bundles", *_ERRORS):
                ownerless = await collect_ownerless(service)
                closed = await collect_closed(service, ownerless)
                facts = TransactionsFacts(service.clock(), closed=closed)
                report.findings += check_transactions(facts)
        report.findings += check_cluster(ClusterFacts(brokers, leader, ownerless=ownerless))
        with report.part("bookies", *_ERRORS):
            report.findings += check_storage(await collect_storage(service))
        report.findings = bounded(report.findings)
        return report
