"""Starts the processes of a plan stage by stage, keeps them alive, stops them in order."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

import psutil

from magnetar.broker.local_cluster import parent_guard
from magnetar.broker.local_cluster.cluster_folder import ClusterFolder
from magnetar.broker.local_cluster.errors import LocalClusterError
from magnetar.broker.local_cluster.member_process import (
    Member,
    MemberState,
    RestartPolicy,
    how_it_ended,
)
from magnetar.broker.local_cluster.plan import STAGES, ClusterPlan, PlannedProcess, ProcessKind
from magnetar.broker.local_cluster.probes import ClusterRegistry, health_of, zookeeper_answers
from magnetar.broker.local_cluster.status_table import ProcessRow, ProcessStats, row
from magnetar.metadata.errors import MetadataError

_log = logging.getLogger(__name__)
_READY_LINE: Final = re.compile(
    # Of ours, or of Apache's bookies once they have registered.
    rb"^magnetar \w+: .* ready$|Started component bookie-server",
    re.MULTILINE,
)
_READY_S_MAX: Final = 180.0  # of one stage, on a loaded machine
_LOOK_S: Final = 2.0
_POLL_S: Final = 0.1
_TAIL_BYTES: Final = 2_000


class _Child:
    """One planned process, whichever incarnation of it is alive."""

    def __init__(self, plan: PlannedProcess, policy: RestartPolicy, log: Path) -> None:
        self.plan, self.member, self.log = plan, Member(policy), log
        self.stats = ProcessStats()
        self.process: asyncio.subprocess.Process | None = None
        self.meter: psutil.Process | None = None
        self.settled = asyncio.Event()  # it was ready once, or can't start
        self.task: asyncio.Task[None] | None = None
        self.log_offset = 0


class Supervisor:
    """Owns the processes of one cluster; start it, then stop it, on the main thread's loop.

    The main thread's: children die with the thread that made them (parent_guard.py).
    """

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
        self._say = say
        self._children = [
            _Child(each, policy, folder.log_path(each.name)) for each in plan.processes
        ]
        self._registry = ClusterRegistry(
            plan.ledgers_url, plan.metadata_url.removeprefix(plan.ledgers_url)
        )
        self._setup_log = folder.log_path("bookkeeper-setup")
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
            children = [child for child in self._children if child.plan.kind in group]
            if self.plan.new_cluster and ProcessKind.BOOKIE in group:
                await self._make_ledgers(children)
            for child in children:
                child.task = asyncio.create_task(self._keep(child))
            try:
                async with asyncio.timeout(_READY_S_MAX):
                    for child in children:
                        await child.settled.wait()
                        if child.member.can_not_start:
                            raise LocalClusterError(
                                f"{child.plan.name} can't start; the end of {child.log}:\n"
                                f"{_tail(child.log, child.log_offset)}"
                            )
            except TimeoutError:
                late = [c.plan.name for c in children if not c.settled.is_set()]
                raise LocalClusterError(
                    f"not ready within {_READY_S_MAX:.0f} s: {', '.join(late)};"
                    f" see {children[0].log.parent}"
                ) from None

    async def _make_ledgers(self, bookies: Sequence[_Child]) -> None:
        """Raises LocalClusterError."""
        for bookie in bookies:
            _write_files(bookie)
        try:
            if await self._registry.has_ledgers():
                return
            with self._setup_log.open("wb") as log:
                process = await self._run(self.plan.new_cluster, log)
                code = await process.wait()
        except (MetadataError, OSError) as error:
            raise LocalClusterError(f"{self.plan.ledgers_url}: {error}") from error
        if code:
            raise LocalClusterError(
                f"no new BookKeeper cluster could be made; the end of {self._setup_log}:\n"
                f"{_tail(self._setup_log, 0)}"
            )

    async def stop(self, seconds_max: float) -> list[str]:
        """SIGTERM from the brokers down to ZooKeeper, each kind when the ones above are gone.

        Returns:
            Names of those that had to be killed because the time was over.
        """
        deadline = time.monotonic() + seconds_max
        killed: list[str] = []
        await self._stop_looking()
        for child in self._children:
            child.member.on_stop()  # all of them first: nothing is started any more
        for kind in reversed(STAGES):
            children = [child for child in self._children if child.plan.kind is kind]
            for child in children:
                _signal(child, signal.SIGTERM)
                if child.process is None and child.task is not None:
                    child.task.cancel()  # it waits for a restart
            tasks = [child.task for child in children if child.task is not None]
            if not tasks:
                continue
            left_s = max(deadline - time.monotonic(), 0.0)
            _, late = await asyncio.wait(tasks, timeout=left_s)
            if late:
                killed += [child.plan.name for child in children if child.task in late]
                self.kill()
                await asyncio.wait(late)
        return killed

    def kill(self) -> None:
        """SIGKILL to all that are alive, at once."""
        for child in self._children:
            child.member.on_stop()
            _signal(child, signal.SIGKILL)

    def rows(self) -> list[ProcessRow]:
        """The table, with memory and CPU of now."""
        for child in self._children:
            _measure(child)
        return [row(child.plan, child.member, child.stats) for child in self._children]

    async def _keep(self, child: _Child) -> None:
        """Until it is to stay down."""
        name, member = child.plan.name, child.member
        try:
            while True:  # on_exit ends it
                try:
                    ended = how_it_ended(await self._live(child))
                except OSError as error:  # no process, no memory, no space for the log
                    ended = str(error)
                child.process = child.meter = None
                wait_s = member.on_exit(time.monotonic())
                if member.is_ending:
                    self._say(f"{name} stopped")
                elif wait_s is None:
                    self._say(f"{name} ended: {ended}; it stays down, see {child.log}")
                else:
                    self._say(f"{name} ended: {ended}; again in {wait_s:g} s")
                if wait_s is None:
                    return
                await asyncio.sleep(wait_s)
        finally:
            child.settled.set()

    async def _live(self, child: _Child) -> int:
        """One incarnation, from its start to its exit code."""
        process = await self._spawn(child)
        getting_ready = asyncio.create_task(self._wait_until_ready(child))
        code = await process.wait()
        getting_ready.cancel()
        await asyncio.gather(getting_ready, return_exceptions=True)
        return code

    async def _spawn(self, child: _Child) -> asyncio.subprocess.Process:
        child.log.parent.mkdir(parents=True, exist_ok=True)
        _write_files(child)
        program = child.plan.program or (sys.executable, "-m", "magnetar.broker.cli.main")
        with child.log.open("ab") as log:
            child.log_offset = log.tell()
            process = await self._run((*program, *child.plan.arguments), log)
        ending = child.member.is_ending
        child.process = process
        child.member.on_started(time.monotonic(), process.pid)
        with contextlib.suppress(psutil.Error):
            child.meter = psutil.Process(process.pid)
        if ending:  # the stop came while it was born
            child.member.on_stop()
            _signal(child, signal.SIGTERM)
        else:
            self._say(f"{child.plan.name} starting, pid {process.pid}")
        return process

    async def _run(self, command: Sequence[str], log: IO[bytes]) -> asyncio.subprocess.Process:
        """As a child that ends with us."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", parent_guard.__file__, str(os.getpid()), *command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C goes to a terminal's whole group: they are to end in our order.
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    async def _wait_until_ready(self, child: _Child) -> None:
        while True:
            if await asyncio.to_thread(_is_ready, child):
                break
            await asyncio.sleep(_POLL_S)
        child.member.on_ready()
        if child.member.state is MemberState.READY:
            child.settled.set()
            self._say(f"{child.plan.name} ready at {child.plan.address}")

    async def _look_for_ever(self) -> None:
        while True:
            ready = [each for each in self._children if each.member.state is MemberState.READY]
            seen = await self._registry.look() if ready else None
            answers = await asyncio.gather(*(health_of(each.plan, seen) for each in ready))
            for child, health in zip(ready, answers, strict=True):
                if health != child.stats.health:
                    _log.info("%s: %s", child.plan.name, health)
                child.stats = replace(child.stats, health=health)
            await asyncio.sleep(_LOOK_S)

    async def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        await self._registry.close()


def _write_files(child: _Child) -> None:
    for path, text in child.plan.files.items():
        Path(path).write_text(text)


def _is_ready(child: _Child) -> bool:
    plan = child.plan
    if plan.kind is ProcessKind.ZOOKEEPER:
        return zookeeper_answers(plan.host, plan.port)
    with child.log.open("rb") as log:
        log.seek(child.log_offset)
        return _READY_LINE.search(log.read()) is not None


def _signal(child: _Child, number: signal.Signals) -> None:
    if child.process is not None and child.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)


def _measure(child: _Child) -> None:
    if child.meter is None:
        return
    with contextlib.suppress(psutil.Error):  # it died just now
        with child.meter.oneshot():
            resident = child.meter.memory_info().rss
            share = child.meter.cpu_percent(None) / 100
        child.stats = replace(child.stats, resident_bytes=resident, cpu_share=share)


def _tail(log: Path, offset: int) -> str:
    """The end of what a process wrote."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(offset, size - _TAIL_BYTES))
        return file.read().decode(errors="replace").strip()
    return ""
