"""A real ``magnetar standalone`` process for tests: start, kill, restart, stop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

_READY_S_MAX = 30.0
_READY = re.compile(r"^magnetar standalone: (\S+) (\S+) ready$", re.MULTILINE)


class StandaloneProcess:
    """Owns one process; ``service_url`` and ``admin_url`` are those of the last start."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.service_url = ""
        self.admin_url = ""

    def __enter__(self) -> StandaloneProcess:
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
        self.data.parent.mkdir(parents=True, exist_ok=True)
        offset = self._log_path.stat().st_size if self._log_path.exists() else 0
        with self._log_path.open("a") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "broker.cli.main", "standalone"),
                    *("--data", str(self.data), "--bind", "127.0.0.1"),
                    *("--port", str(ports[0]), "--web-port", str(ports[1])),
                    *self._options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parent.parent,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                text=True,
            )
        deadline = time.monotonic() + _READY_S_MAX
        while True:
            text = self._log_path.read_text(errors="replace")[offset:]
            if (ready := _READY.search(text)) is not None:
                break
            if self._process.poll() is not None or time.monotonic() > deadline:
                code, self._process = self._process.poll(), None
                raise AssertionError(f"standalone did not become ready (exit {code}):\n{text}")
            time.sleep(0.01)
        self.service_url, self.admin_url = ready.groups()

    def kill(self) -> None:
        """``kill -9``: no chance to flush anything."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self, seconds_max: float = 20.0) -> int:
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
