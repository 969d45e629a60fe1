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
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from magnetar.broker.config import BrokerConfig
from magnetar.errors import EmbeddedError
from magnetar.host import Addresses, ClockKind, Host

if TYPE_CHECKING:
    from magnetar.broker.server.standalone import Standalone
    from magnetar.controls import ControlledBroker

_OVER_TLS = re.compile(rb"^magnetar standalone: (pulsar\+ssl:\S+)? ?(https:\S+)? over TLS$")
_READY = re.compile(rb"^magnetar standalone: (\S+) (\S+) ready$")
_LOG_LINES_IN_ERRORS = 20
_ANSWER = "magnetar standalone: answer "
_KILLED = "magnetar standalone: killed "
# The child imports what we would: a test suite may run from sources that are installed nowhere.
_CHILD = (
    "import pickle, sys\n"
    "sys.path[:] = pickle.load(sys.stdin.buffer)\n"
    "from magnetar.process_host import serve\n"
    "sys.exit(serve(*pickle.load(sys.stdin.buffer)))\n"
)


class ProcessHost(Host):
    """See `Host`. Its log is an unnamed file, so that a child that prints a lot never blocks.

    A child that is killed as a fault is followed by another one, on the same data, the same ports
    and the same time, with the same faults. Orders that it didn't answer go to the next one.
    """

    def __init__(self, config: BrokerConfig, clock: ClockKind, ahead_ms: int) -> None:
        super().__init__(config, clock, ahead_ms)
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._changed = threading.Condition()  # guards what follows
        self._orders: dict[int, _Order] | None = {}  # not answered yet; None: it has ended
        self._number = 0
        self._is_killed = self._is_up = False
        self._faults: list[Any] = []  # arguments of the last set_faults
        self._drawn: dict[str, int] = {}

    def start(self) -> None:
        """Raises EmbeddedError or OSError: this Python can't start another one."""
        if not sys.executable:
            raise EmbeddedError('this program embeds Python: mode="thread" is possible here')
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (open until join)
        self._launch()
        super().start()

    def _launch(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Control-C is for us: we stop the child, after the tests' own cleaning up.
            start_new_session=True,
        )
        self.pid = self._process.pid

    def ask_to_stop(self) -> None:
        with self._changed:
            self._asked = True
            if self._process is not None:
                self._process.terminate()

    def give_up(self) -> None:
        with self._changed:
            self._asked = True
            if self._process is not None:
                self._process.kill()

    def kill(self, timeout_s: float) -> None:
        """By ``kill -9``; returns when the next process serves.

        Raises:
            EmbeddedError: it doesn't, within this time.
        """
        with self._changed:
            assert self._process is not None
            before = self._process
            self._is_killed, self._is_up = True, False
            before.kill()
            self._changed.wait_for(lambda: self._is_up or self._orders is None, timeout_s)
            if not self._is_up:
                raise EmbeddedError(f"the broker was not ready within {timeout_s:g} s")

    def perform(self, order: str, *arguments: Any) -> Future[Any]:
        with self._changed:
            if self._orders is None:
                raise EmbeddedError("the broker has ended")
            self._number += 1
            waiting = self._orders[self._number] = _Order(order, list(arguments))
            if self._is_up:
                self._send(self._number, waiting)
        return waiting.answered

    def _send(self, number: int, order: _Order) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        line = json.dumps([number, order.name, order.arguments]) + "\n"
        with contextlib.suppress(BrokenPipeError):  # the next process gets it
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def _on_answer(self, line: bytes) -> None:
        number, answer, error = json.loads(line[len(_ANSWER) :])
        with self._changed:
            order = None if self._orders is None else self._orders.pop(number, None)
            if order is None:
                return
            if not error and order.name == "set_faults":
                self._faults, self._drawn = order.arguments, {}
            elif not error and order.name == "advance_to":
                (self._ahead_ms,) = order.arguments
        if error:
            order.answered.set_exception(EmbeddedError(error))
        else:
            order.answered.set_result(answer)

    def _on_killed(self, line: bytes) -> None:
        state = json.loads(line[len(_KILLED) :])
        with self._changed:
            self._is_killed, self._is_up = True, False
            self._ahead_ms, self._drawn = state["ahead_ms"], state["drawn"]

    def _on_ready(self, addresses: Addresses) -> None:
        if not self.ready.done():
            self.ready.set_result(addresses)
        with self._changed:
            if self._faults:
                self._send(0, _Order("set_faults", [*self._faults[:3], self._drawn]))
            for number, order in (self._orders or {}).items():
                self._send(number, order)
            self._is_up = True
            self._changed.notify_all()

    def _give_up_orders(self) -> None:
        with self._changed:
            orders, self._orders = self._orders, None
            self._changed.notify_all()
        for order in (orders or {}).values():
            order.answered.set_exception(EmbeddedError("the broker ended meanwhile"))

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
        code = self._follow()
        while self._launch_again():
            code = self._follow()
        self._give_up_orders()
        error = EmbeddedError(f"the broker's process ended with exit code {code}:\n{self._tail()}")
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ended.set_result(None)
        elif self._asked and code == 0:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def _launch_again(self) -> bool:
        """After a fault killed the process; else False."""
        with self._changed:
            was_killed, self._is_killed = self._is_killed, False
            if not was_killed or self._asked:
                return False
            self._config = self._config.with_keys(self._ports())
            self._launch()
            return True

    def _ports(self) -> dict[str, int | None]:
        """Those that clients know."""
        addresses = self.ready.result()
        ports = {
            "brokerServicePort": addresses.service_url,
            "webServicePort": addresses.web_url,
            "brokerServicePortTls": addresses.service_url_tls,
            "webServicePortTls": addresses.web_url_tls,
        }
        return {key: urlsplit(url).port for key, url in ports.items() if url}

    def _follow(self) -> int:
        """Listen to a process until it ends; its exit code."""
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
                elif line.startswith(_KILLED.encode()):
                    self._on_killed(line)
                elif (match := _OVER_TLS.match(line)) is not None:
                    over_tls = [(url or b"").decode() for url in match.groups()]
                elif (match := _READY.match(line)) is not None:
                    self._on_ready(Addresses(match[1].decode(), match[2].decode(), *over_tls))
            code = process.wait()
        with self._changed:
            self._is_up = False
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        return code

    def _tail(self) -> str:
        return "\n".join(self.log().splitlines()[-_LOG_LINES_IN_ERRORS:])


@dataclass(slots=True)
class _Order:
    name: str
    arguments: list[Any]
    answered: Future[Any] = field(default_factory=Future)


def serve(config: BrokerConfig, clock: ClockKind, ahead_ms: int) -> int:
    """The child: serve until SIGTERM, or until standard input ends: then the parent is gone."""
    from magnetar.broker.server import standalone
    from magnetar.controls import ControlledBroker

    orders = _Orders()

    def new_node() -> Standalone:
        orders.broker = ControlledBroker(config, clock, ahead_ms, _kill)
        orders.loop = asyncio.get_running_loop()
        return orders.broker.standalone

    threading.Thread(target=orders.follow, name="parent-watch", daemon=True).start()
    return standalone.run_node(config, new_node)


def _kill(state: dict[str, Any]) -> NoReturn:
    """Of the child: tell what the next one goes on from, and end as by ``kill -9``."""
    print(_KILLED + json.dumps(state), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError  # it isn't reached


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
