"""``magnetar standalone --processes N`` for tests and benchmarks, and what it starts."""

import re

import psutil

from tests.standalone_process import StandaloneProcess

_STARTING = re.compile(r"INFO \S+ (\S+) starting, pid (\d+)$", re.MULTILINE)


class SeveralProcesses(StandaloneProcess):
    """Owns the command."""

    def children(self) -> dict[str, psutil.Process]:
        """The latest process by name."""
        latest = dict(_STARTING.findall(self.log))
        return {name: psutil.Process(int(pid)) for name, pid in latest.items()}
