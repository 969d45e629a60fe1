"""Servers of tests are forks of one process that has imported them: a start costs a tenth so.

Python's own fork server (``multiprocessing``), one of each pytest process. It opens nothing, and
has no threads. Its children end with whoever started them, and without ``atexit``. The tests of
``magnetar cluster`` itself, of the command line and of installations start real interpreters.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

# What servers import, early or late, except the module that is run and gRPC: servers set its
# environment before they load it.
_IMPORTED: Final = [
    *(
        "magnetar.broker.cli.server_start",
        "magnetar.broker.cli.standalone_command",
        "magnetar.broker.server.standalone",
    ),
    *(
        "magnetar.broker.http.server.app",
        "magnetar.broker.http.server.server",
        "magnetar.broker.http.metrics.replication_metrics",
    ),
    *("magnetar.broker.cli.bookie_command", "magnetar.broker.cli.autorecovery_command"),
    *("magnetar.broker.cli.cluster_command", "magnetar.broker.local_cluster.run"),
    *("magnetar.bookkeeper.bookie.open_bookie", "magnetar.bookkeeper.bookie.http.admin_pages"),
    *(
        "magnetar.bookkeeper.client.pool_placement",
        "magnetar.bookkeeper.replication.under_replication",
    ),
    *("magnetar.metadata.zookeeper.store", "encodings.idna"),
]
_SERVERS: Final = multiprocessing.get_context("forkserver")
_SERVERS.set_forkserver_preload(_IMPORTED)


class Fork:
    """What tests use of ``subprocess.Popen``, of a process that the fork server made."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        """``command``: a module and its arguments, as behind ``python -m``."""
        self._process: ForkServerProcess = _SERVERS.Process(
            target=_run, args=(command, dict(environment), folder, log), daemon=True
        )
        # A child would import the ``__main__`` of its parent: of a benchmark, with gRPC.
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            self._process.start()
        finally:
            sys.modules["__main__"] = main
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable when the process has ended."""
        return self._process.sentinel

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _run(command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> None:
    with log.open("ab") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr] # as PYTHONUNBUFFERED
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # A fork server says nothing of modules that it doesn't find.
    assert not (unknown := set(_IMPORTED) - set(sys.modules)), unknown
    assert "grpc" not in sys.modules
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv[1:] = command[1:]
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
