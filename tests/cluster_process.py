"""A real ``magnetar cluster`` for tests, and the processes it starts."""

import fcntl
import os
import re
import sys
import tempfile
from pathlib import Path

import psutil

from tests import ledger_store
from tests.child_process import ChildProcess

MAGNETAR = "magnetar.broker.cli.main"
_READY = re.compile(r"^magnetar cluster: (\S+) (\S+) ready$", re.MULTILINE)
_STARTING = re.compile(r"^(\S+) starting, pid (\d+)$", re.MULTILINE)


class ClusterProcess(ChildProcess):
    """Owns the parent; ``service_urls`` and ``web_urls`` are those of each broker."""

    def __init__(self, data: Path, *options: str, program: str = "tests.forked_cluster") -> None:
        """``program``: the module that is run; `MAGNETAR` starts its processes as users' are."""
        super().__init__(data.parent / f"{data.name}.log")
        self.data = data
        self._options, self._program = options, program
        self._offset = 0
        self.service_url = ""
        self.service_urls: list[str] = []
        self.web_urls: list[str] = []

    def log_paths(self) -> list[Path]:
        return [self._log_path, *sorted((self.data / "logs").glob("*.log"))]

    def launch(self) -> None:
        """Start without waiting."""
        self._offset = len(self.log)
        command = (
            *(self._program, "cluster", "--data", str(self.data), "--port", "0"),
            # All brokers are on one machine: its processors say nothing about any of them.
            *("--broker-set", "loadBalancerCPUResourceWeight=0", *self._options),
            *ledger_store.cluster_options(),
        )
        if self._program == MAGNETAR:
            self._process = self.popen([sys.executable, "-m", *command])
        else:
            self._process = self.fork(*command)

    def start(self) -> None:
        assert self._process is None
        # Ports are chosen seconds before they are used: clusters of other workers wait.
        lock = Path(tempfile.gettempdir()) / f"magnetar-cluster-start-{os.getuid()}.lock"
        with lock.open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            self.launch()
            ready = self.wait_for_line(_READY, "cluster", self._offset)
        self.service_url = ready[1]
        self.service_urls = [
            f"pulsar://{address}" for address in ready[1].removeprefix("pulsar://").split(",")
        ]
        self.web_urls = ready[2].split(",")

    def children(self) -> dict[str, psutil.Process]:
        """The latest process by name; those that are gone already are left out."""
        found = {}
        for name, pid in _STARTING.findall(self.log[self._offset :]):
            try:
                found[name] = psutil.Process(int(pid))
            except psutil.NoSuchProcess:
                found.pop(name, None)
        return found

    def count(self, line: str) -> int:
        """How often the cluster said that since its start."""
        return self.log[self._offset :].count(f"{line}\n")


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a dead one that nobody has waited for doesn't."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
