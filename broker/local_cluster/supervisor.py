"""The processes of a cluster: started stage by stage, looked at, stopped in order."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import psutil

from magnetar.broker.local_cluster.children import Child, Children, LogFile
from magnetar.broker.local_cluster.cluster_folder import ClusterFolder
from magnetar.broker.local_cluster.errors import LocalClusterError
from magnetar.broker.local_cluster.member_process import MemberState, RestartPolicy
from magnetar.broker.local_cluster.plan import ClusterPlan, PlannedProcess, ProcessKind
from magnetar.broker.local_cluster.probes import ClusterRegistry, health_of, zookeeper_answers
from magnetar.broker.local_cluster.status_table import ProcessRow, ProcessStats, row
from magnetar.metadata.errors import MetadataError

_log = logging.getLogger(__name__)
_LOOK_S: Final = 2.0
_POLL_S: Final = 0.1


class _Member(Child):
    """A process of the cluster, with what is shown of it."""

    def __init__(self, plan: PlannedProcess, policy: RestartPolicy, log: LogFile) -> None:
        super().__init__(plan, policy, log)
        self.stats = ProcessStats()
        self._meter: psutil.Process | None = None

    async def wait_until_ready(self) -> None:
        plan = self.plan
        if plan.kind is not ProcessKind.ZOOKEEPER:
            await super().wait_until_ready()
            return
        while True:
            if await asyncio.to_thread(zookeeper_answers, plan.host, plan.port):
                return
            await asyncio.sleep(_POLL_S)

    def measure(self) -> None:
        """Memory, and CPU since the last time."""
        pid = self.member.pid
        with contextlib.suppress(psutil.Error):  # it died just now
            if self._meter is None or self._meter.pid != pid:
                self._meter = psutil.Process(pid) if pid else None
            if self._meter is None:
                return
            with self._meter.oneshot():
                resident = self._meter.memory_info().rss
                share = self._meter.cpu_percent(None) / 100
            self.stats = replace(self.stats, resident_bytes=resident, cpu_share=share)


class Supervisor:
    """Owns the processes of one cluster; start it, then stop it, on the main thread's loop."""

    def __init__(
        self,
        plan: ClusterPlan,
        folder: ClusterFolder,
        say: Callable[[str], None],
        policy: RestartPolicy,
    ) -> None:
        """
        Args:
            say: is told each change of a process, a line each.
        """
        self.plan = plan
        self._members = [
            _Member(each, policy, LogFile(folder.log_path(each.name))) for each in plan.processes
        ]
        self._children = Children(self._members, say)
        self._registry = ClusterRegistry(
            plan.ledgers_url, plan.metadata_url.removeprefix(plan.ledgers_url)
        )
        self._setup_log = LogFile(folder.log_path("bookkeeper-setup"))
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when all are ready.

        Raises:
            LocalClusterError: one of them can't start; what it said is in the text.
        """
        self._looking = asyncio.create_task(self._look_for_ever())
        for group in (
            (ProcessKind.ZOOKEEPER,),
            (ProcessKind.BOOKIE,),
            (ProcessKind.AUTORECOVERY, ProcessKind.BROKER),
        ):
            members = [each for each in self._members if each.plan.kind in group]
            if self.plan.new_cluster and ProcessKind.BOOKIE in group:
                await self._make_ledgers(members)
            await self._children.start(members)

    async def _make_ledgers(self, bookies: Sequence[_Member]) -> None:
        """Raises LocalClusterError."""
        for bookie in bookies:
            bookie.write_files()
        try:
            if await self._registry.has_ledgers():
                return
            code = await (await self._setup_log.spawn(self.plan.new_cluster)).wait()
        except (MetadataError, OSError) as error:
            raise LocalClusterError(f"{self.plan.ledgers_url}: {error}") from error
        if code:
            raise LocalClusterError(
                f"no new BookKeeper cluster could be made; {self._setup_log.end()}"
            )

    async def stop(self, seconds_max: float) -> list[str]:
        """SIGTERM from the brokers down to ZooKeeper, each kind when the ones above are gone.

        Returns:
            Names of those that had to be killed because the time was over.
        """
        await self._stop_looking()
        return await self._children.stop(seconds_max)

    def kill(self) -> None:
        """SIGKILL to all that are alive, at once."""
        self._children.kill()

    def rows(self) -> list[ProcessRow]:
        """The table, with memory and CPU of now."""
        for each in self._members:
            each.measure()
        return [row(each.plan, each.member, each.stats) for each in self._members]

    async def _look_for_ever(self) -> None:
        while True:
            ready = [each for each in self._members if each.member.state is MemberState.READY]
            seen = await self._registry.look() if ready else None
            answers = await asyncio.gather(*(health_of(each.plan, seen) for each in ready))
            for member, health in zip(ready, answers, strict=True):
                if health != member.stats.health:
                    _log.info("%s: %s", member.plan.name, health)
                member.stats = replace(member.stats, health=health)
            await asyncio.sleep(_LOOK_S)

    async def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        await self._registry.close()
