"""Real ``magnetar bookie`` processes for tests: start, kill, pause, restart, stop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

_READY_S_MAX = 60.0
_READY = re.compile(r"^magnetar bookie: (\S+) at (\S+):(\d+) ready$", re.MULTILINE)


class BookieProcess:
    """Owns one process on one data directory; a restart keeps the port, and so the bookie's id."""

    def __init__(self, data: Path, metadata_url: str, *options: str) -> None:
        """``options`` are added to ``magnetar bookie``."""
        self.data = data
        self.bookie_id = ""
        self.port = 0
        self._metadata_url = metadata_url
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BookieProcess:
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

    @property
    def log(self) -> str:
        """What the process printed so far, for assertion messages."""
        path = self._log_path
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def _log_path(self) -> Path:
        return self.data.parent / f"{self.data.name}.log"

    def launch(self) -> None:
        """Start without waiting; ``wait_until_ready`` must follow."""
        assert self._process is None
        self._offset = len(self.log)
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "broker.cli.main", "bookie"),
                    *("--data", str(self.data), "--metadata", self._metadata_url),
                    *("--port", str(self.port), *self._options),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).parent.parent,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _READY_S_MAX
        while (ready := _READY.search(self.log[self._offset :])) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                code, self._process = self._process.wait(), None
                raise AssertionError(
                    f"bookie did not become ready (exit {code}):\n{self.log[self._offset :]}"
                )
            time.sleep(0.01)
        self.bookie_id, self.port = ready[1], int(ready[3])

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def refuse_to_start(self) -> str:
        """Start a process that must end by itself with exit code 1; what it printed."""
        self.launch()
        assert self._process is not None
        process, self._process = self._process, None
        try:
            code = process.wait(_READY_S_MAX)
        finally:
            process.kill()
            process.wait()
        said = self.log[self._offset :]
        assert code == 1, f"exit {code}:\n{said}"
        assert "Traceback" not in said, said
        return said

    def kill(self) -> None:
        """``kill -9``: no chance to flush anything."""
        assert self._process is not None
        process, self._process = self._process, None
        process.kill()
        process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

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

    def cpu_seconds(self) -> tuple[float, float]:
        """CPU time the process used so far: user, system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return int(fields[11]) / ticks, int(fields[12]) / ticks

    def written_bytes(self) -> int:
        """Bytes the process caused to be written to disks."""
        for line in Path(f"/proc/{self.pid}/io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
        raise AssertionError("the kernel tells no write_bytes")
