"""The life of one process of the cluster: what happened in, what to do next out. Pure."""

import signal
from dataclasses import dataclass
from enum import StrEnum


class MemberState(StrEnum):
    WAITING = "waiting"  # for those it needs
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"  # dead; started again after a while
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """
    Attributes:
        first_s, longest_s: the wait before a restart doubles from the first to the second.
        steady_s: after so long a life the waits begin anew.
        starts_max: so many deaths in a row of a process that was never ready: it can't start.
    """

    enabled: bool = True
    first_s: float = 0.5
    longest_s: float = 30.0
    steady_s: float = 30.0
    starts_max: int = 3


class Member:
    """
    Attributes:
        restarts: since the cluster's start.
        can_not_start: gave up: it died again and again before it was ever ready.
        ends, how_ended: how often it ended by itself, and the last time in words.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.state = MemberState.WAITING
        self.pid = 0  # 0: there is no process
        self.restarts = self.ends = 0
        self.how_ended = ""
        self.can_not_start = False
        self._was_ready = self._ending = False
        self._deaths = 0  # in a row
        self._since_s = 0.0

    @property
    def is_ending(self) -> bool:
        """It was told to end; nothing starts it any more."""
        return self._ending

    def on_started(self, now_s: float, pid: int) -> None:
        if self.state is MemberState.RESTARTING:
            self.restarts += 1
        self.state, self.pid, self._since_s = MemberState.STARTING, pid, now_s

    def on_ready(self) -> None:
        if self.state is MemberState.STARTING:  # else it is being stopped
            self.state, self._was_ready = MemberState.READY, True

    def on_stop(self) -> None:
        """It is to end, and to stay so."""
        self._ending = True
        self.state = MemberState.STOPPING if self.pid else MemberState.STOPPED

    def on_exit(self, now_s: float, how: str) -> float | None:
        """After so many seconds it is to be started again; None: never.

        Args:
            how: see ``how_it_ended``.
        """
        lived_s, self.pid = now_s - self._since_s, 0
        if not self._ending:
            self.ends, self.how_ended = self.ends + 1, how
        self._deaths = 1 if lived_s >= self._policy.steady_s else self._deaths + 1
        self.can_not_start = not self._was_ready and (
            self._deaths >= self._policy.starts_max or not self._policy.enabled
        )
        if self._ending or not self._policy.enabled or self.can_not_start:
            self.state = MemberState.STOPPED
            return None
        self.state = MemberState.RESTARTING
        doublings = min(self._deaths - 1, 32)
        return min(self._policy.first_s * 2.0**doublings, self._policy.longest_s)


def how_it_ended(code: int) -> str:
    """An exit code in words: those of our own processes are in docs/internals/failures.md."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
