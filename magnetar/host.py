"""Runs an embedded broker: on a thread of this process, or in a child process."""

import os
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from magnetar.broker.config import BrokerConfig

ClockKind: TypeAlias = Literal["real", "virtual"]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a broker that is ready listens."""

    service_url: str
    web_url: str
    service_url_tls: str = ""  # "": not served over TLS
    web_url_tls: str = ""


class Host(ABC):
    """One run of one broker. Both futures end by themselves, whatever happens."""

    def __init__(self, config: BrokerConfig, clock: ClockKind, ahead_ms: int) -> None:
        """``ahead_ms``: of its virtual clock at the start."""
        self.pid = os.getpid()
        self.ready: Future[Addresses] = Future()
        """Set when clients are served; the error when that can't be."""
        self.ended: Future[None] = Future()
        """Set when nothing of the run is left; the error when it ended before it was asked to."""
        self._config, self._clock, self._ahead_ms = config, clock, ahead_ms
        self._asked = False
        # A daemon: a program that never leaves the block must still be able to end.
        self._thread = threading.Thread(target=self._run, name="magnetar-embedded", daemon=True)

    def start(self) -> None:
        """Return at once; ``ready`` tells the outcome."""
        self._thread.start()

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Begin an orderly end; from any thread, more than once, at any time."""

    @abstractmethod
    def give_up(self) -> None:
        """End the run by force when the orderly end takes too long."""

    def join(self) -> None:
        """Wait for the threads of the host; call it when ``ended`` is set."""
        if self._thread.ident is not None:
            self._thread.join()

    def log(self) -> str:
        """The output of the broker; "" where it logs into this process's logging."""
        return ""

    @abstractmethod
    def perform(self, order: str, *arguments: Any) -> Future[Any]:
        """Have the broker do something: see `ControlledBroker`. REQUIRES: it is ready."""

    @abstractmethod
    def _run(self) -> None:
        """The thread's work: it sets both futures."""
