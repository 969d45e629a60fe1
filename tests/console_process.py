"""A real ``magnetar console`` process for tests: in front of any cluster."""

import re
from pathlib import Path
from typing import Final

from tests.child_process import ChildProcess
from tests.free_port import free_port

_READY: Final = re.compile(r"^console of \S+: (\S+)$", re.MULTILINE)


class ConsoleProcess(ChildProcess):
    """``url`` is that of its pages."""

    def __init__(self, log: Path, admin_url: str, *options: str) -> None:
        super().__init__(log)
        self._words = ("console", "--admin-url", admin_url, *options)
        self.url = ""

    def start(self) -> None:
        assert self._process is None
        offset = len(self.log)
        words = (*self._words, "--port", str(free_port()))
        self._process = self.fork("magnetar.broker.cli.main", *words)
        self.url = self.wait_for_line(_READY, "console", offset)[1]
