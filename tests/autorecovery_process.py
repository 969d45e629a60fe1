"""Real ``magnetar autorecovery`` processes for tests, and what they show over HTTP."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.child_process import ChildProcess

_READY = re.compile(r"^magnetar autorecovery: (\S+) ready$", re.MULTILINE)
_WEB = re.compile(r"^magnetar autorecovery: (http://\S+) probes and metrics$", re.MULTILINE)


class AutoRecoveryProcess(ChildProcess):
    """Owns one process; it keeps nothing, so a restart is a new one."""

    def __init__(self, folder: Path, name: str, metadata_url: str, *options: str) -> None:
        """``options`` are added to ``magnetar autorecovery``."""
        super().__init__(folder / f"{name}.log")
        self.name = name
        self.web_url = ""
        self._metadata_url = metadata_url
        self._options = options

    def start(self) -> None:
        assert self._process is None
        offset = len(self.log)
        self._process = self.fork(
            *("magnetar.broker.cli.main", "autorecovery"),
            *("--id", self.name, "--metadata", self._metadata_url),
            *("--set", "httpServerEnabled=true", "--set", "httpServerPort=0"),
            *self._options,
        )
        self.wait_for_line(_READY, "autorecovery", offset)
        web = _WEB.search(self.log[offset:])
        assert web is not None, self.log
        self.web_url = web[1]

    def page(self, path: str) -> str:
        """Body of a page; "" when the process doesn't answer, or not with 200."""
        return read_page(f"{self.web_url}{path}")

    def metrics(self) -> dict[str, float]:
        """Value by series, without the label of the cluster."""
        return parse_metrics(self.page("/metrics"))

    def status(self) -> dict[str, Any]:
        text = self.page("/api/v1/autorecovery/status")
        return json.loads(text) if text else {}


def read_page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return ""


def parse_metrics(page: str) -> dict[str, float]:
    """Value by series, without the label of the cluster."""
    found = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            series = re.sub(r'cluster="[^"]*",?', "", series).removesuffix("{}")
            found[series] = float(value)
    return found


def run_command(metadata_url: str, *options: str) -> str:
    """``magnetar autorecovery`` as an operator's command; what it printed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "magnetar.broker.cli.main", "autorecovery"),
            *("--metadata", metadata_url, *options),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()
