"""The folder of a cluster on this machine: who uses it, what it remembers, its log files."""

import fcntl
import json
import os
import random
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from magnetar.broker.local_cluster.apache_bookkeeper import TEMPORARY
from magnetar.broker.local_cluster.errors import LocalClusterError

_LOG_BYTES_MAX: Final = 16 * 1024 * 1024
# Below what systems give to outgoing connections: none of those can take a port from a
# process that is about to be restarted.
_CANDIDATES: Final = range(20_000, 32_000)


@dataclass(frozen=True, slots=True)
class SavedPorts:
    """The next start on the same data needs them."""

    bookies: int | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    bookkeeper: str | None = None  # whose bookies they are


class ClusterFolder:
    """One cluster at a time uses it. Close it at the end."""

    def __init__(self, path: Path) -> None:
        """Raises LocalClusterError: another cluster uses it, or it can't be written."""
        self.path = path.absolute()
        try:
            (self.path / "logs").mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "cluster.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise LocalClusterError(f"--data {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise LocalClusterError(f"--data {path}: another cluster runs there") from None
        shutil.rmtree(self.path / TEMPORARY, ignore_errors=True)
        (self.path / TEMPORARY).mkdir(exist_ok=True)

    def close(self) -> None:
        os.close(self._lock)

    def saved_ports(self) -> SavedPorts:
        """Raises LocalClusterError: the file is damaged."""
        try:
            stored = json.loads(self._memory.read_text())
            ports = {str(role): int(port) for role, port in stored["ports"].items()}
            bookkeeper = str(stored.get("bookkeeper", "magnetar"))  # older files don't say it
            return SavedPorts(int(stored["bookies"]), ports, bookkeeper)
        except FileNotFoundError:
            return SavedPorts()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LocalClusterError(f"{self._memory} is damaged: {error}") from error

    def remember(self, bookies: int, ports: Mapping[str, int], bookkeeper: str) -> None:
        """Raises LocalClusterError: it can't be written."""
        new = self._memory.with_suffix(".new")
        try:
            with new.open("w") as file:
                stored = {"bookkeeper": bookkeeper, "bookies": bookies, "ports": dict(ports)}
                json.dump(stored, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._memory)
        except OSError as error:
            raise LocalClusterError(f"{self._memory}: {error.strerror}") from error

    def log_path(self, name: str) -> Path:
        """Of a process; a long one is put aside, one generation is kept."""
        path = self.path / "logs" / f"{name}.log"
        if path.exists() and path.stat().st_size > _LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))
        return path

    @property
    def _memory(self) -> Path:
        return self.path / "cluster.json"


def port_is_free(host: str, port: int) -> bool:
    """Whether somebody could listen there now."""
    with socket.socket() as listener:
        # As servers do: connections that a dead one has left don't count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError:
            return False
        return True


def interface_of(host: str) -> str:
    """Name of the network interface with this address; "": none, or all."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == host for each in addresses):
            return name
    return ""


def candidate_ports() -> Iterator[int]:
    """Ports to try, without end."""
    rng = random.Random()
    while True:
        yield rng.choice(_CANDIDATES)
