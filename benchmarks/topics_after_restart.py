"""How long topics take until they answer after a restart, and their memory; beside Apache Pulsar:

    python -m benchmarks.topics_after_restart [--count 10000] [--pulsar .../pulsar.sh] [--json FILE]

One after the other, on an otherwise quiet machine. By HTTP, 32 calls at a time: each topic is made
with a subscription; the server is stopped and started on the same data; each topic is loaded by
asking for its statistics. ``--pulsar``: starts and stops Apache Pulsar standalone with a pid file
in ``$PEERS_HOME/pulsar`` (default ``~/.cache/magnetar-peers``); its memory is what is live on its
heap after a collection (``jcmd``), ours what is resident.
"""

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import httpx
import psutil

from benchmarks.managed_ledgers import SETTLE_S, Report, request_all
from tests.standalone_process import StandaloneProcess

READY_S_MAX = 180.0


class Server(Protocol):
    """A broker that keeps its data over a restart."""

    @property
    def admin_url(self) -> str: ...

    def used_bytes(self) -> int:
        """Memory, of which the part by topic grows with them."""

    def stop(self) -> None: ...

    def start(self) -> None:
        """Returns when it serves."""


class Magnetar:
    """``magnetar standalone``."""

    def __init__(self, process: StandaloneProcess) -> None:
        self._process = process

    @property
    def admin_url(self) -> str:
        return self._process.admin_url

    def used_bytes(self) -> int:
        return self._process.resident_bytes()

    def stop(self) -> None:
        self._process.stop()

    def start(self) -> None:
        self._process.start()


class Pulsar:
    """Apache Pulsar standalone; started again with the command that its script made."""

    admin_url = "http://127.0.0.1:8080"

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._command, self._folder = self._process.cmdline(), self._process.cwd()

    def used_bytes(self) -> int:
        pid = str(self._process.pid)
        subprocess.run(["jcmd", pid, "GC.run"], check=True, capture_output=True)
        command = ["jcmd", pid, "GC.class_histogram"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        total = re.search(r"^Total\s+\d+\s+(\d+)", said, re.MULTILINE)
        assert total is not None, said[-500:]
        return int(total[1])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(READY_S_MAX)

    def start(self) -> None:
        with (Path(self._folder) / "log").open("ab") as log:
            process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._process = psutil.Process(process.pid)
        deadline = time.monotonic() + READY_S_MAX
        while not self._is_ready():
            assert time.monotonic() < deadline, "it doesn't become ready"
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.admin_url}/admin/v2/brokers/health", timeout=10).is_success
        return False


def measure(told: Report, server: Server, count: int) -> None:
    paths = [f"/admin/v2/persistent/public/default/idle-{n}" for n in range(count)]
    warm = [f"{paths[0]}-warm-{n}" for n in range(32)]
    asyncio.run(request_all(server.admin_url, warm, create=True))
    base = server.used_bytes()
    took = asyncio.run(request_all(server.admin_url, paths, create=True))
    time.sleep(SETTLE_S)
    told(f"{count} topics made, with a subscription: time", took, "s")
    told(f"{count} topics made: memory each", (server.used_bytes() - base) / count, "B")
    server.stop()
    began = time.perf_counter()
    server.start()
    told("restart until it serves", time.perf_counter() - began, "s")
    asyncio.run(request_all(server.admin_url, warm, create=False))
    base = server.used_bytes()
    took = asyncio.run(request_all(server.admin_url, paths, create=False))
    time.sleep(SETTLE_S)
    told(f"{count} topics that answer after the restart: time", took, "s")
    told(f"{count} topics loaded: memory each", (server.used_bytes() - base) / count, "B")


@contextlib.contextmanager
def pulsar_of(script: Path) -> Iterator[Pulsar]:
    """A fresh one; stopped at the end whatever process it is by then."""
    subprocess.run([str(script), "start"], check=True)
    home = Path(os.environ.get("PEERS_HOME", Path.home() / ".cache/magnetar-peers")) / "pulsar"
    server = Pulsar(int((home / "pid").read_text()))
    try:
        yield server
    finally:
        server.stop()
        (home / "pid").unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topics_after_restart")
    parser.add_argument("--count", type=int, default=10_000, help="topics")
    parser.add_argument("--pulsar", type=Path, help="its script: start")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-topics-") as folder,
        StandaloneProcess(Path(folder) / "data") as process,
    ):
        measure(Report(options.json, "ours"), Magnetar(process), options.count)
    if options.pulsar is not None:
        with pulsar_of(options.pulsar) as pulsar:
            measure(Report(options.json, "pulsar"), pulsar, options.count)


if __name__ == "__main__":
    main()
