"""A broker in a child process, which also ends when this process dies."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from typing import IO, TYPE_CHECKING

from magnetar.errors import EmbeddedError
from magnetar.host import Addresses

if TYPE_CHECKING:
    from magnetar.broker.config import BrokerConfig

_OVER_TLS = re.compile(rb"^magnetar standalone: (pulsar\+ssl:\S+)? ?(https:\S+)? over TLS$")
_READY = re.compile(rb"^magnetar standalone: (\S+) (\S+) ready$")
_LOG_LINES_IN_ERRORS = 20
# The child imports what we would: a test suite may run from sources that are installed nowhere.
_CHILD = (
    "import pickle, sys\n"
    "sys.path[:] = pickle.load(sys.stdin.buffer)\n"
    "from magnetar.process_main import main\n"
    "sys.exit(main(pickle.load(sys.stdin.buffer)))\n"
)


class ProcessHost:
    """See `Host`. Its log is an unnamed file, so that a child that prints a lot never blocks."""

    def __init__(self, config: BrokerConfig) -> None:
        self.ready: Future[Addresses] = Future()
        self.ended: Future[None] = Future()
        self.pid = 0
        self._config = config
        self._asked = False
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._watcher = threading.Thread(target=self._watch, name="magnetar-embedded", daemon=True)

    def start(self) -> None:
        """Raises EmbeddedError or OSError: this Python can't start another one."""
        if not sys.executable:
            raise EmbeddedError('this program embeds Python: mode="thread" is possible here')
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (open until join)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Control-C is for us: we stop the child, after the tests' own cleaning up.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._watcher.start()

    def ask_to_stop(self) -> None:
        self._asked = True
        if self._process is not None:
            self._process.terminate()

    def give_up(self) -> None:
        if self._process is not None:
            self._process.kill()

    def join(self) -> None:
        if self._watcher.ident is not None:
            self._watcher.join()
        if self._log is not None:
            self._log.close()
            self._log = None

    def log(self) -> str:
        if self._log is None:
            return ""
        descriptor = self._log.fileno()
        # By position: the offset of the open file is the child's, which writes there.
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def _watch(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout as stdout:
            with contextlib.suppress(BrokenPipeError):  # it died at once: its exit code tells
                pickle.dump(sys.path, process.stdin)
                pickle.dump(self._config, process.stdin)
                process.stdin.flush()  # stays open: its end tells the child that we are gone
            over_tls = ["", ""]
            for line in stdout:
                if (match := _OVER_TLS.match(line)) is not None:
                    over_tls = [(url or b"").decode() for url in match.groups()]
                elif (match := _READY.match(line)) is not None and not self.ready.done():
                    self.ready.set_result(
                        Addresses(match[1].decode(), match[2].decode(), *over_tls)
                    )
            code = process.wait()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        error = EmbeddedError(f"the broker's process ended with exit code {code}:\n{self._tail()}")
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ended.set_result(None)
        elif self._asked and code == 0:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def _tail(self) -> str:
        return "\n".join(self.log().splitlines()[-_LOG_LINES_IN_ERRORS:])
