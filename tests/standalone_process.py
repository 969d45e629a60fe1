"""A real ``magnetar standalone`` process for tests: start, kill, restart, stop."""

import contextlib
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.child_process import ROOT, ChildProcess, Running
from tests.free_port import free_port

MAGNETAR = ("magnetar.broker.cli.main",)


class StandaloneProcess(ChildProcess):
    """Owns one process; ``service_url`` and ``admin_url`` are those of the last start."""

    word = "standalone"

    def __init__(
        self,
        data: Path,
        *options: str,
        command: Sequence[str] = MAGNETAR,
        files_max: int | None = None,
        tree: Path = ROOT,
    ) -> None:
        """
        Args:
            options: of ``magnetar standalone``, behind those for data directory and ports.
            command: module and its arguments in front of the word ``standalone``.
            files_max: limit of open files of the process (RLIMIT_NOFILE).
            tree: the checkout whose code runs.
        """
        super().__init__(data.parent / f"{data.name}.log")
        self.data = data
        self.command = tuple(command)
        self._options = options
        self._files_max = files_max
        self._tree = tree
        if not (tree / "magnetar" / "broker").exists():  # a commit before decision 0043
            self.command = tuple(word.removeprefix("magnetar.") for word in self.command)
        self.service_url = ""
        self.admin_url = ""

    @property
    def port(self) -> int:
        return int(self.service_url.rsplit(":", 1)[1])

    @property
    def web_port(self) -> int:
        return int(self.admin_url.rsplit(":", 1)[1])

    def start(self, *, same_ports: bool = False) -> None:
        """Start and wait until it says that it is ready."""
        assert self._process is None
        ports = (self.port, self.web_port) if same_ports else (free_port(), free_port())
        offset = len(self.log)
        self._process = self._launch(*ports)
        said = re.compile(rf"^magnetar {self.word}: (\S+) (\S+) ready$", re.MULTILINE)
        ready = self.wait_for_line(said, self.word, offset)
        self.service_url, self.admin_url = ready.groups()

    def refuse_to_start(self, port: int = 0, web_port: int = 0) -> str:
        """Start a process that must end by itself with exit code 1; what it printed."""
        offset = len(self.log)
        return self.refusal(self._launch(port, web_port), offset)

    def launch_and_kill(self, after_s: float) -> None:
        """Start, and ``kill -9`` so many seconds later, ready or not."""
        process = self._launch(0, 0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        assert process.returncode is None, f"it ended by itself:\n{self.log}"
        process.kill()
        process.wait()

    def _place(self) -> tuple[str, ...]:
        """Options that say where the process keeps what it keeps."""
        return "--data", str(self.data)

    def _launch(self, port: int, web_port: int) -> Running:
        command = (
            *(*self.command, self.word, *self._place()),
            *("--bind", "127.0.0.1"),
            *("--port", str(port), "--web-port", str(web_port)),
            *self._options,
        )
        process: Running
        if self.command == MAGNETAR and self._tree == ROOT:
            process = self.fork(*command)
        else:
            process = self.popen([sys.executable, "-m", *command], folder=self._tree)
        if self._files_max is not None:
            limits = (self._files_max, self._files_max)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        return process

    def wait_for_end(self, seconds_max: float = 60.0) -> int:
        """The exit code of a process that ends by itself."""
        assert self._process is not None
        code = self._process.wait(seconds_max)
        self._process = None
        return code

    def peak_bytes(self) -> int:
        """The most memory that the process ever held."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel tells no VmHWM")

    def cpu_seconds(self) -> float:
        """CPU time the process used so far, user and system."""
        return sum(self.cpu_times())
