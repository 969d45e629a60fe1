"""A server process of a test: its output in a file, and its ends: stop, kill, pause."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from re import Match, Pattern
from types import MappingProxyType, TracebackType
from typing import Self, TypeAlias

from tests import stalls
from tests.fork_server import Fork

READY_S_MAX = 120.0
_STOPPED_S_MAX = 90.0
ROOT = Path(__file__).parent.parent
Running: TypeAlias = subprocess.Popen[bytes] | Fork


class ChildProcess:
    """Owns at most one process at a time. Subclasses know how to start it."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._process: Running | None = None
        self._looked_at: dict[Path, int] = {}  # bytes of logs, by `new_stalls`

    def start(self) -> None:
        """Start and wait until it serves."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.resume()
            self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_paths(self) -> list[Path]:
        """Of this process and of those that it starts."""
        return [self._log_path]

    @property
    def log(self) -> str:
        """What the process printed so far, for assertion messages."""
        path = self._log_path
        return path.read_text(errors="replace") if path.exists() else ""

    def popen(
        self,
        command: Sequence[str],
        *,
        folder: Path = ROOT,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> subprocess.Popen[bytes]:
        """A process that writes to the log."""
        own = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if folder != ROOT:
            own.pop(stalls.VARIABLE, None)  # another version doesn't know it
        self._begin_log()
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**own, **environment},
            )

    def fork(self, *command: str) -> Fork:
        """As `popen` of ``python -m`` in this tree, but cheap: see `fork_server`."""
        self._begin_log()
        return Fork(command, os.environ, ROOT, self._log_path)

    def _begin_log(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        stalls.watch(self)

    def wait_for_line(self, said: Pattern[str], name: str, offset: int) -> Match[str]:
        """The line of the log, behind ``offset``, that says that the process serves."""
        assert self._process is not None
        deadline = time.monotonic() + READY_S_MAX
        while (ready := said.search(self.log[offset:])) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                code, self._process = self._process.wait(), None
                raise AssertionError(
                    f"{name} did not become ready (exit {code}):\n{self.log[offset:]}"
                )
            time.sleep(0.01)
        return ready

    def refusal(self, process: Running, offset: int) -> str:
        """What a process printed that must end by itself with exit code 1."""
        try:
            code = process.wait(READY_S_MAX)
        finally:
            process.kill()
            process.wait()
        said = self.log[offset:]
        assert code == 1, f"exit {code}:\n{said}"
        assert "Traceback" not in said, said
        return said

    def take(self) -> Running:
        """The process, which is the caller's from now on."""
        assert self._process is not None
        process, self._process = self._process, None
        return process

    def kill(self) -> None:
        """``kill -9``: no chance to flush anything."""
        process = self.take()
        process.kill()
        process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nobody answers from here on."""
        assert self._process is not None
        suspend(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self, seconds_max: float = 60.0) -> int:
        """SIGTERM and wait; returns the exit code."""
        process = self.take()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return code

    def skip_stalls(self, reason: str) -> None:
        """What it has said so far of its loop's turns was expected: readers are told why."""
        self.new_stalls()

    def new_stalls(self) -> list[str]:
        """Long turns that its logs tell of (`stalls.found_in`) and that nobody has asked for."""
        found = []
        for path in self.log_paths():
            if not path.exists():
                continue
            offset = self._looked_at.get(path, 0)
            with path.open("rb") as log:
                log.seek(offset)
                said = log.read()
            said = said[: said.rfind(b"\n") + 1]  # a line that is being written is next time's
            self._looked_at[path] = offset + len(said)
            found += [f"{path.stem}: {x}" for x in stalls.found_in(said.decode(errors="replace"))]
        return found

    def resident_bytes(self) -> int:
        """Memory that the process holds now, shared libraries included."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def cpu_times(self) -> tuple[float, float]:
        """CPU seconds the process used so far: user, system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return int(fields[11]) / ticks, int(fields[12]) / ticks


def suspend(pid: int) -> None:
    """SIGSTOP, and wait until no thread runs: on a busy machine that takes a while."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _STOPPED_S_MAX
    tasks = Path(f"/proc/{pid}/task")
    while running := [task.name for task in tasks.glob("*") if _state(task) not in "TtZX"]:
        assert time.monotonic() < deadline, f"{pid} didn't stop: {running}"
        time.sleep(0.001)


def unread_connections(port: int, bytes_min: int = 1) -> int:
    """Connections to a port of 127.0.0.1 that have brought so much that its process hasn't read."""
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        is_its = int(local.split(":")[1], 16) == port
        count += is_its and int(queues.split(":")[1], 16) >= bytes_min
    return count


def _state(task: Path) -> str:
    """The letter of proc(5); X: the thread has ended."""
    try:
        return (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
