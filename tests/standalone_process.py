"""A real ``magnetar standalone`` process for tests: start, kill, restart, stop."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

MAGNETAR = ("broker.cli.main",)
_READY_S_MAX = 60.0


class StandaloneProcess:
    """Owns one process; ``service_url`` and ``admin_url`` are those of the last start."""

    word = "standalone"

    def __init__(
        self,
        data: Path,
        *options: str,
        command: Sequence[str] = MAGNETAR,
        files_max: int | None = None,
    ) -> None:
        """
        Args:
            options: of ``magnetar standalone``, behind those for data directory and ports.
            command: module and its arguments in front of the word ``standalone``.
            files_max: limit of open files of the process (RLIMIT_NOFILE).
        """
        self.data = data
        self.command = tuple(command)
        self._options = options
        self._files_max = files_max
        self._process: subprocess.Popen[str] | None = None
        self.service_url = ""
        self.admin_url = ""

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
            self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self.service_url.rsplit(":", 1)[1])

    @property
    def web_port(self) -> int:
        return int(self.admin_url.rsplit(":", 1)[1])

    @property
    def log(self) -> str:
        """What the process printed so far, for assertion messages."""
        path = self._log_path
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def _log_path(self) -> Path:
        return self.data.parent / f"{self.data.name}.log"

    def start(self, *, same_ports: bool = False) -> None:
        """Start and wait until it says that it is ready."""
        assert self._process is None
        ports = (self.port, self.web_port) if same_ports else (0, 0)
        offset = len(self.log)
        self._process = self._launch(*ports)
        deadline = time.monotonic() + _READY_S_MAX
        said = re.compile(rf"^magnetar {self.word}: (\S+) (\S+) ready$", re.MULTILINE)
        while (ready := said.search(self.log[offset:])) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                code, self._process = self._process.wait(), None
                raise AssertionError(
                    f"{self.word} did not become ready (exit {code}):\n{self.log[offset:]}"
                )
            time.sleep(0.01)
        self.service_url, self.admin_url = ready.groups()

    def refuse_to_start(self, port: int = 0, web_port: int = 0) -> str:
        """Start a process that must end by itself with exit code 1; what it printed."""
        offset = len(self.log)
        process = self._launch(port, web_port)
        try:
            code = process.wait(_READY_S_MAX)
        finally:
            process.kill()
            process.wait()
        said = self.log[offset:]
        assert code == 1, f"exit {code}:\n{said}"
        assert "Traceback" not in said, said
        return said

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

    def _launch(self, port: int, web_port: int) -> subprocess.Popen[str]:
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("a") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", *self.command, self.word, *self._place()),
                    *("--bind", "127.0.0.1"),
                    *("--port", str(port), "--web-port", str(web_port)),
                    *self._options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parent.parent,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                text=True,
            )
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

    def resident_bytes(self) -> int:
        """Memory that the process holds now, shared libraries included."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def peak_bytes(self) -> int:
        """The most memory that the process ever held."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel tells no VmHWM")

    def cpu_seconds(self) -> float:
        """CPU time the process used so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """``kill -9``: no chance to flush anything."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self, seconds_max: float = 60.0) -> int:
        """SIGTERM and wait; returns the exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
