"""``magnetar standalone --processes N`` for tests and benchmarks, and what it starts."""

import contextlib
import re

import psutil

from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

_STARTING = re.compile(r"INFO \S+ (\S+) starting, pid (\d+)$", re.MULTILINE)
_OTHER_BROKER = re.compile(r"^magnetar broker-\d+: \S+ (\S+)$", re.MULTILINE)
_BACK_S = 60.0


class SeveralProcesses(StandaloneProcess):
    """Owns the command."""

    def children(self) -> dict[str, psutil.Process]:
        """The latest process by name; those that are gone already are left out."""
        latest = dict(_STARTING.findall(self.log))
        found = {}
        for name, pid in latest.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                found[name] = psutil.Process(int(pid))
        return found

    @property
    def web_urls(self) -> list[str]:
        """Of each broker, after a start at these ports."""
        return [self.admin_url, *dict.fromkeys(_OTHER_BROKER.findall(self.log))]

    def times_ready(self, name: str) -> int:
        return len(re.findall(rf"INFO \S+ {name} ready( at \S+)?$", self.log, re.MULTILINE))

    def kill_child(self, name: str) -> None:
        """``kill -9``, and wait until it is back."""
        before = self.times_ready(name)
        self.children()[name].kill()
        wait_until(lambda: self.times_ready(name) > before, f"{name} is back", _BACK_S)
