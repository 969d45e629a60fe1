"""Processes of this machine: started stage by stage, kept alive, stopped in order.

On the main thread's loop: children die with the thread that made them (parent_guard.py).
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from magnetar.broker.local_cluster import parent_guard
from magnetar.broker.local_cluster.errors import LocalClusterError
from magnetar.broker.local_cluster.member_process import (
    Member,
    MemberState,
    RestartPolicy,
    how_it_ended,
)
from magnetar.broker.local_cluster.plan import STAGES, PlannedProcess

_READY_LINE: Final = re.compile(
    # Of ours, or of Apache's bookies once they have registered.
    rb"^magnetar \w+: .* ready$|Started component bookie-server",
    re.MULTILINE,
)
_READY_S_MAX: Final = 180.0  # of one stage, on a loaded machine
_POLL_S: Final = 0.1
_TAIL_BYTES: Final = 2_000
_STAGE_KINDS: Final = tuple(reversed(STAGES))


class ChildOutput(ABC):
    """What a process writes, and where it goes."""

    place: str
    """For messages: what to look at."""

    @abstractmethod
    async def spawn(self, command: Sequence[str]) -> asyncio.subprocess.Process:
        """Raises OSError."""

    @abstractmethod
    async def wait_until_ready(self) -> None:
        """Returns when this incarnation has said that it is ready."""

    @abstractmethod
    def end(self) -> str:
        """What this incarnation wrote last, or where that is."""


class LogFile(ChildOutput):
    """Everything goes into a file."""

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self._path, self._offset = path, 0

    async def spawn(self, command: Sequence[str]) -> asyncio.subprocess.Process:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as log:
            self._offset = log.tell()
            return await spawn(command, log, asyncio.subprocess.STDOUT)

    async def wait_until_ready(self) -> None:
        while True:
            if await asyncio.to_thread(self._is_ready):
                return
            await asyncio.sleep(_POLL_S)

    def end(self) -> str:
        text = ""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._offset, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace").strip()
        return f"the end of {self.place}:\n{text}"

    def _is_ready(self) -> bool:
        with self._path.open("rb") as log:
            log.seek(self._offset)
            return _READY_LINE.search(log.read()) is not None


class PassedOn(ChildOutput):
    """Its log is this process's; of what it prints the line that says "ready" is kept."""

    place = "the log"

    def __init__(self) -> None:
        self._ready = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def spawn(self, command: Sequence[str]) -> asyncio.subprocess.Process:
        process = await spawn(command, asyncio.subprocess.PIPE, None)
        assert process.stdout is not None
        self._ready = asyncio.Event()
        self._reading = asyncio.create_task(self._pass_on(process.stdout, self._ready))
        return process

    async def wait_until_ready(self) -> None:
        await self._ready.wait()

    def end(self) -> str:
        return "the log says why"

    async def _pass_on(self, stdout: asyncio.StreamReader, ready: asyncio.Event) -> None:
        while line := await stdout.readline():
            if _READY_LINE.search(line):
                ready.set()
            else:
                sys.stdout.write(line.decode(errors="replace"))
                sys.stdout.flush()


class Child:
    """One planned process, whichever incarnation of it is alive."""

    def __init__(self, plan: PlannedProcess, policy: RestartPolicy, output: ChildOutput) -> None:
        self.plan, self.member, self.output = plan, Member(policy), output
        self.process: asyncio.subprocess.Process | None = None
        self.settled = asyncio.Event()  # it was ready once, or can't start
        self.task: asyncio.Task[None] | None = None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def write_files(self) -> None:
        for path, text in self.plan.files.items():
            Path(path).write_text(text)

    async def wait_until_ready(self) -> None:
        await self.output.wait_until_ready()


class Children:
    """Args:
    say: is told each change of a process, a line each.
    """

    def __init__(self, children: Sequence[Child], say: Callable[[str], None]) -> None:
        self._children, self._say = children, say

    async def start(self, children: Sequence[Child]) -> None:
        """Returns when these are ready, and keeps them alive.

        Raises:
            LocalClusterError: one of them can't start; what it said is in the text.
        """
        for child in children:
            child.task = asyncio.create_task(self._keep(child))
        try:
            async with asyncio.timeout(_READY_S_MAX):
                for child in children:
                    await child.settled.wait()
                    if child.member.can_not_start:
                        raise LocalClusterError(
                            f"{child.plan.name} can't start; {child.output.end()}"
                        )
        except TimeoutError:
            late = [child for child in children if not child.settled.is_set()]
            places = ", ".join(f"{child.plan.name} (see {child.output.place})" for child in late)
            raise LocalClusterError(f"not ready within {_READY_S_MAX:.0f} s: {places}") from None

    async def stop(self, seconds_max: float) -> list[str]:
        """SIGTERM, each kind when those that need it are gone.

        Returns:
            Names of those that had to be killed because the time was over.
        """
        deadline = time.monotonic() + seconds_max
        killed: list[str] = []
        for child in self._children:
            child.member.on_stop()  # all of them first: nothing is started any more
        for kind in _STAGE_KINDS:
            children = [child for child in self._children if child.plan.kind is kind]
            for child in children:
                child.signal(signal.SIGTERM)
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
            child.signal(signal.SIGKILL)

    async def _keep(self, child: Child) -> None:
        """Until it is to stay down."""
        name, member = child.plan.name, child.member
        try:
            while True:  # on_exit ends it
                try:
                    ended = how_it_ended(await self._live(child))
                except OSError as error:  # no process, no memory, no space for the log
                    ended = str(error)
                child.process = None
                wait_s = member.on_exit(time.monotonic(), ended)
                if member.is_ending:
                    self._say(f"{name} stopped")
                elif wait_s is None:
                    self._say(f"{name} ended: {ended}; it stays down, see {child.output.place}")
                else:
                    self._say(f"{name} ended: {ended}; again in {wait_s:g} s")
                if wait_s is None:
                    return
                await asyncio.sleep(wait_s)
        finally:
            child.settled.set()

    async def _live(self, child: Child) -> int:
        """One incarnation, from its start to its exit code."""
        process = await self._spawn(child)
        getting_ready = asyncio.create_task(self._wait_until_ready(child))
        code = await process.wait()
        getting_ready.cancel()
        await asyncio.gather(getting_ready, return_exceptions=True)
        return code

    async def _spawn(self, child: Child) -> asyncio.subprocess.Process:
        child.write_files()
        program = child.plan.program or (sys.executable, "-m", "magnetar.broker.cli.main")
        process = await child.output.spawn((*program, *child.plan.arguments))
        ending = child.member.is_ending
        child.process = process
        child.member.on_started(time.monotonic(), process.pid)
        if ending:  # the stop came while it was born
            child.member.on_stop()
            child.signal(signal.SIGTERM)
        else:
            self._say(f"{child.plan.name} starting, pid {process.pid}")
        return process

    async def _wait_until_ready(self, child: Child) -> None:
        await child.wait_until_ready()
        child.member.on_ready()
        if child.member.state is MemberState.READY:
            child.settled.set()
            place = f" at {child.plan.address}" if child.plan.port or child.plan.web_port else ""
            self._say(f"{child.plan.name} ready{place}")


async def spawn(
    command: Sequence[str], stdout: IO[bytes] | int, stderr: int | None
) -> asyncio.subprocess.Process:
    """A child that ends with us. Raises OSError."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", parent_guard.__file__, str(os.getpid()), *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        # Ctrl-C goes to a terminal's whole group: they are to end in our order.
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
