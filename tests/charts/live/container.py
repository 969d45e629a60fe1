"""One container of a pod over its life: started, probed, started anew, ended."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.charts.live.probes import Health
from tests.charts.live.sandbox import Process, Sandbox
from tests.charts.renderings import Object

_BACK_OFF_S: Final = 10.0  # before the second restart; doubled each time
_BACK_OFF_MAX_S: Final = 300.0
_FORGIVEN_AFTER_S: Final = 600.0
_TICK_S: Final = 0.05
_LAST_CHANCE_S: Final = 2.0  # after SIGTERM, however long preStop took


def now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Container(threading.Thread):
    """Runs until ``end`` or, if its pod's policy says so, until it ends by itself."""

    def __init__(self, sandbox: Sandbox, log: Path, on_change: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._sandbox, self._log, self._on_change = sandbox, log, on_change
        self._deadline_s: float | None = None  # on the monotonic clock: by when it is to be gone
        self._ending = threading.Event()
        self._process: Process | None = None
        self._health: Health | None = None
        self._restarts = 0
        self._start_time = ""
        self._state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self._last_state: Object = {}

    def end(self, grace_s: float) -> None:
        """Begin to end it, or, if it has begun, give it less time."""
        deadline_s = time.monotonic() + grace_s
        if self._deadline_s is None or deadline_s < self._deadline_s:
            self._deadline_s = deadline_s
        self._ending.set()

    def run(self) -> None:
        delay_s = 0.0
        while not self._ending.is_set():
            began_s = time.monotonic()
            code = self._live()
            if self._ending.is_set() or not self._is_to_live_again(code):
                break
            if time.monotonic() - began_s > _FORGIVEN_AFTER_S:
                delay_s = 0.0
            self._restarts += 1
            self._last_state, self._state = self._state, {"waiting": {"reason": "CrashLoopBackOff"}}
            self._on_change()
            self._ending.wait(delay_s)
            delay_s = min(max(_BACK_OFF_S, 2 * delay_s), _BACK_OFF_MAX_S)
        self._on_change()

    def _is_to_live_again(self, code: int) -> bool:
        policy = self._sandbox.pod["spec"].get("restartPolicy", "Always")
        return bool(policy == "Always" or (policy == "OnFailure" and code))

    def _live(self) -> int:
        """From one start to its end; the exit code."""
        sandbox, spec = self._sandbox, self._sandbox.spec
        process = sandbox.start(self._log)
        self._start_time = now_text()
        self._state = {"running": {"startedAt": self._start_time}}
        self._process = process
        health = Health(spec, process, sandbox.network, sandbox.address, self._on_change)
        self._health = health
        self._on_change()
        while process.exit_code is None and not self._ending.wait(_TICK_S):
            if health.has_failed:
                grace_s = sandbox.pod["spec"]["terminationGracePeriodSeconds"]
                self._bring_down(process, time.monotonic() + grace_s)
        if process.exit_code is None:
            self._bring_down(process, None)
        health.close()
        code = process.exit_code
        assert code is not None
        # The health stays the last: nobody is ready any more.
        self._health = self._process = None
        self._state = {
            "terminated": {
                "exitCode": code,
                "reason": "Completed" if code == 0 else "Error",
                "startedAt": self._start_time,
                "finishedAt": now_text(),
            }
        }
        self._on_change()
        return code

    def _bring_down(self, process: Process, deadline_s: float | None) -> None:
        """preStop, SIGTERM, and SIGKILL at the deadline (None: that of ``end``, which may move)."""

        def left_s() -> float:
            until_s = self._deadline_s if deadline_s is None else deadline_s
            assert until_s is not None
            return until_s - time.monotonic()

        hook = self._sandbox.spec.get("lifecycle", {}).get("preStop", {})
        if "sleep" in hook:
            wake_s = time.monotonic() + hook["sleep"]["seconds"]
            while process.exit_code is None and left_s() > 0 and time.monotonic() < wake_s:
                time.sleep(_TICK_S)
        elif "exec" in hook:
            process.execute(hook["exec"]["command"], max(left_s(), _TICK_S))
        if left_s() > -_LAST_CHANCE_S:
            process.signal(signal.SIGTERM)
            last_s = time.monotonic() + (_LAST_CHANCE_S if hook else 0)
            while process.exit_code is None and (left_s() > 0 or time.monotonic() < last_s):
                time.sleep(_TICK_S)
        while process.exit_code is None:
            process.signal(signal.SIGKILL)
            time.sleep(_TICK_S)

    @property
    def pid(self) -> int:
        """Of its first process; 0: none runs."""
        process = self._process
        return process.pid if process else 0

    def execute(self, command: Sequence[str], timeout_s: float) -> str | None:
        """What a command in it prints; None: it failed, or nothing runs."""
        process = self._process
        return process.execute(command, timeout_s) if process else None

    @property
    def state(self) -> Object:
        return self._state

    @property
    def is_ready(self) -> bool:
        health = self._health
        return health is not None and health.is_ready

    def status(self) -> Object:
        """One of a pod's ``containerStatuses``."""
        spec, health = self._sandbox.spec, self._health
        status: Object = {
            "name": spec["name"],
            "image": spec["image"],
            "imageID": spec["image"],
            "containerID": f"process://{self.pid}",
            "restartCount": self._restarts,
            "state": self._state,
            "ready": self.is_ready,
            "started": health is not None and health.is_started,
        }
        return {**status, "lastState": self._last_state} if self._last_state else status
