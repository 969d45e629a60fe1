"""A broker in a child process, which also ends when this process dies: both sides of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from typing import IO, TYPE_CHECKING, Any

from magnetar.errors import EmbeddedError
from magnetar.host import Addresses, ClockKind, Host

if TYPE_CHECKING:
    from magnetar.broker.config import BrokerConfig
    from magnetar.broker.server.standalone import Standalone
    from magnetar.controls import ControlledBroker

_OVER_TLS = re.compile(rb"^magnetar standalone: (pulsar\+ssl:\S+)? ?(https:\S+)? over TLS$")
_READY = re.compile(rb"^magnetar standalone: (\S+) (\S+) ready$")
_LOG_LINES_IN_ERRORS = 20
_ANSWER = "magnetar standalone: answer "
# The child imports what we would: a test suite may run from sources that are installed nowhere.
_CHILD = (
    "import pickle, sys\n"
    "sys.path[:] = pickle.load(sys.stdin.buffer)\n"
    "from magnetar.process_host import serve\n"
    "sys.exit(serve(*pickle.load(sys.stdin.buffer)))\n"
)


class ProcessHost(Host):
    """See `Host`. Its log is an unnamed file, so that a child that prints a lot never blocks."""

    def __init__(self, config: BrokerConfig, clock: ClockKind, ahead_ms: int) -> None:
        super().__init__(config, clock, ahead_ms)
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._lock = threading.Lock()  # guards what follows
        self._orders: dict[int, Future[Any]] | None = {}  # not answered yet; None: it has ended
        self._number = 0

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

    def perform(self, order: str, *arguments: Any) -> Future[Any]:
        with self._lock:
            process, orders = self._process, self._orders
            if orders is None or process is None or process.stdin is None:
                raise EmbeddedError("the broker has ended")
            self._number += 1
            answered = orders[self._number] = Future()
            line = json.dumps([self._number, order, arguments]) + "\n"
            with contextlib.suppress(BrokenPipeError):  # its end answers
                process.stdin.write(line.encode())
                process.stdin.flush()
        return answered

    def _on_answer(self, line: bytes) -> None:
        number, answer, error = json.loads(line[len(_ANSWER) :])
        with self._lock:
            answered = None if self._orders is None else self._orders.pop(number, None)
        if answered is None:
            return
        if error:
            answered.set_exception(EmbeddedError(error))
        else:
            answered.set_result(answer)

    def _give_up_orders(self) -> None:
        with self._lock:
            orders, self._orders = self._orders, None
        for answered in (orders or {}).values():
            answered.set_exception(EmbeddedError("the broker ended meanwhile"))

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
                pickle.dump((self._config, self._clock, self._ahead_ms), process.stdin)
                process.stdin.flush()  # stays open: its end tells the child that we are gone
            over_tls = ["", ""]
            for line in stdout:
                if line.startswith(_ANSWER.encode()):
                    self._on_answer(line)
                elif (match := _OVER_TLS.match(line)) is not None:
                    over_tls = [(url or b"").decode() for url in match.groups()]
                elif (match := _READY.match(line)) is not None and not self.ready.done():
                    self.ready.set_result(
                        Addresses(match[1].decode(), match[2].decode(), *over_tls)
                    )
            code = process.wait()
        self._give_up_orders()
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


def serve(config: BrokerConfig, clock: ClockKind, ahead_ms: int) -> int:
    """The child: serve until SIGTERM, or until standard input ends: then the parent is gone."""
    from magnetar.broker.server import standalone
    from magnetar.controls import ControlledBroker

    orders = _Orders()

    def new_node() -> Standalone:
        orders.broker = ControlledBroker(config, clock, ahead_ms)
        orders.loop = asyncio.get_running_loop()
        return orders.broker.standalone

    threading.Thread(target=orders.follow, name="parent-watch", daemon=True).start()
    return standalone.run_node(config, new_node)


class _Orders:
    """The child's side of `ProcessHost.perform`: a line of JSON in, one out."""

    loop: asyncio.AbstractEventLoop
    broker: ControlledBroker

    def follow(self) -> None:
        # Not sys.stdin: its lock would be held at exit.
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as file:
            for line in file:
                order = self._perform(*json.loads(line))
                asyncio.run_coroutine_threadsafe(order, self.loop)
        os.kill(os.getpid(), signal.SIGTERM)

    async def _perform(self, number: int, order: str, arguments: list[Any]) -> None:
        answer, error = None, ""
        try:
            answer = await self.broker.perform(order, arguments)
        except Exception as caught:  # the caller's to handle, whatever it is
            error = str(caught) or type(caught).__name__
        print(_ANSWER + json.dumps([number, answer, error]), flush=True)
