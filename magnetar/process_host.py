"""A broker in a child process, which also ends when this process dies: both sides of it."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
from typing import IO, TYPE_CHECKING

from magnetar.errors import EmbeddedError
from magnetar.host import Addresses, Host

if TYPE_CHECKING:
    from magnetar.broker.config import BrokerConfig

_OVER_TLS = re.compile(rb"^magnetar standalone: (pulsar\+ssl:\S+)? ?(https:\S+)? over TLS$")
_READY = re.compile(rb"^magnetar standalone: (\S+) (\S+) ready$")
_LOG_LINES_IN_ERRORS = 20
_CHUNK_BYTES = 4096
# The child imports what we would: a test suite may run from sources that are installed nowhere.
_CHILD = (
    "import pickle, sys\n"
    "sys.path[:] = pickle.load(sys.stdin.buffer)\n"
    "from magnetar.process_host import serve\n"
    "sys.exit(serve(pickle.load(sys.stdin.buffer)))\n"
)


class ProcessHost(Host):
    """See `Host`. Its log is an unnamed file, so that a child that prints a lot never blocks."""

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(config)
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

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
        super().start()

    def ask_to_stop(self) -> None:
        self._asked = True
        if self._process is not None:
            self._process.terminate()

    def give_up(self) -> None:
        if self._process is not None:
            self._process.kill()

    def join(self) -> None:
        super().join()
        if self._log is not None:
            self._log.close()
            self._log = None

    def log(self) -> str:
        if self._log is None:
            return ""
        descriptor = self._log.fileno()
        # By position: the offset of the open file is the child's, which writes there.
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def _run(self) -> None:
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


def serve(config: BrokerConfig) -> int:
    """The child: serve until SIGTERM, or until standard input ends: then the parent is gone."""
    from magnetar.broker.server import standalone

    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    return standalone.run(config)


def _end_with_parent() -> None:
    # Not sys.stdin: its lock would be held at exit.
    while os.read(sys.stdin.fileno(), _CHUNK_BYTES):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
