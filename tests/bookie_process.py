"""Real ``magnetar bookie`` processes for tests: start, kill, pause, restart, stop."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.child_process import ChildProcess
from tests.free_port import free_port

_READY = re.compile(r"^magnetar bookie: (\S+) at (\S+):(\d+) ready$", re.MULTILINE)


class BookieProcess(ChildProcess):
    """Owns one process on one data directory; a restart keeps the port, and so the bookie's id."""

    def __init__(self, data: Path, metadata_url: str, *options: str) -> None:
        """``options`` are added to ``magnetar bookie``."""
        super().__init__(data.parent / f"{data.name}.log")
        self.data = data
        self.bookie_id = ""
        self.port = 0
        self._metadata_url = metadata_url
        self._options = options

    def launch(self) -> None:
        """Start without waiting; ``wait_until_ready`` must follow."""
        assert self._process is None
        # Not one of the system's: others might take it while this bookie is down.
        self.port = self.port or free_port()
        self._offset = len(self.log)
        self._process = self.fork(
            *("magnetar.broker.cli.main", "bookie"),
            *("--data", str(self.data), "--metadata", self._metadata_url),
            *("--port", str(self.port), *self._options),
        )

    def wait_until_ready(self) -> None:
        ready = self.wait_for_line(_READY, "bookie", self._offset)
        self.bookie_id, self.port = ready[1], int(ready[3])

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def refuse_to_start(self) -> str:
        """Start a process that must end by itself with exit code 1; what it printed."""
        self.launch()
        return self.refusal(self.take(), self._offset)

    def written_bytes(self) -> int:
        """Bytes the process caused to be written to disks."""
        for line in Path(f"/proc/{self.pid}/io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
        raise AssertionError("the kernel tells no write_bytes")


@contextlib.contextmanager
def running_bookies(bookies: Iterable[BookieProcess]) -> Iterator[list[BookieProcess]]:
    """All of them, started at once."""
    with contextlib.ExitStack() as stack:
        running = []
        for bookie in bookies:
            bookie.launch()
            running.append(stack.push(bookie))
        for bookie in running:
            bookie.wait_until_ready()
        yield running
