"""Turns of the event loop that held up all other work: how long, why, and where.

A timer comes every beat: half the threshold, or ``BEAT_S`` where that is more. How late it is is
what is left of the turn that was under way when it was due, so that a loop with many short turns is
never late, however busy; a turn just above the threshold may be missed. From that the time is taken
in which the loop's thread was ready and had no processor (``schedstat`` of the thread): a busy
machine is no fault of the turn. A thread of its own looks every beat whether one is overdue, and
then notes where the loop's thread is.

Causes: ``gc`` (more than half of it were collections), ``running`` (the thread computed),
``blocked`` (it waited in a system call, or for the GIL that another thread had).

Cost while it is on: at most a hundred timers and as many wake-ups of a thread a second, together
2 % of a processor; nothing per turn or message. Off, which is the default, there is none of it.
"""

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

logger = logging.getLogger(__name__)

BEAT_S: Final = 0.01
"""The least."""
CAUSES: Final = ("running", "blocked", "gc")
_FRAMES_MAX: Final = 12


class _Thread:
    """What the system says of the calling thread."""

    def __init__(self) -> None:
        self._file = -1
        with contextlib.suppress(OSError):  # not Linux, or a kernel without these statistics
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def waited_s(self) -> float:
        """Seconds that it was ready and had no processor; 0: not known."""
        if self._file < 0:
            return 0.0
        return int(os.pread(self._file, 64, 0).split()[1]) / 1e9

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class LoopStalls:
    """Of the running loop, from ``start`` to ``close``, both called on it.

    ``seconds`` and ``counts``: of turns above the threshold, by cause.
    """

    def __init__(self, threshold_s: float) -> None:
        self.threshold_s = threshold_s
        self._beat_s = max(BEAT_S, threshold_s / 2)
        self.seconds = dict.fromkeys(CAUSES, 0.0)
        self.counts = dict.fromkeys(CAUSES, 0)
        self.longest_s = dict.fromkeys(CAUSES, 0.0)
        self._closing = threading.Event()
        self._collected_s = 0.0
        self._collecting_from = 0.0
        self._stack: list[str] = []

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._thread = _Thread()
        self._due = self._loop.time() + self._beat_s
        self._note()
        self._timer = self._loop.call_at(self._due, self._beat)
        self._watcher = threading.Thread(target=self._watch, name="loop stalls", daemon=True)
        self._watcher.start()
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        self._closing.set()
        self._timer.cancel()
        gc.callbacks.remove(self._on_collection)
        self._watcher.join()
        self._thread.close()

    def _note(self) -> None:
        """What to compare with at the next beat."""
        self._waited_s = self._thread.waited_s()
        self._computed_s = time.thread_time()
        self._collected_s = 0.0

    def _beat(self) -> None:
        now = self._loop.time()
        if now - self._due > self.threshold_s:
            self._look(now - self._due)
        self._stack = []
        self._note()
        self._due = self._loop.time() + self._beat_s
        self._timer = self._loop.call_at(self._due, self._beat)

    def _look(self, late_s: float) -> None:
        stall_s = late_s - (self._thread.waited_s() - self._waited_s)
        if stall_s <= self.threshold_s:
            return
        computed_s = time.thread_time() - self._computed_s
        if self._collected_s > stall_s / 2:
            cause = "gc"
        elif computed_s > stall_s / 2:
            cause = "running"
        else:
            cause = "blocked"
        self.seconds[cause] += stall_s
        self.counts[cause] += 1
        self.longest_s[cause] = max(self.longest_s[cause], stall_s)
        logger.warning(
            "loop stall: %.0f ms, computed for %.0f ms, collections: %.0f ms, cause: %s, at: %s",
            *(stall_s * 1000, computed_s * 1000, self._collected_s * 1000, cause),
            " < ".join(self._stack) or "not seen",
        )

    def _watch(self) -> None:
        while not self._closing.wait(self._beat_s):
            if self._loop.time() - self._due > self.threshold_s / 2 and not self._stack:
                frame = sys._current_frames().get(self._ident)
                self._stack = _told(frame) if self._loop.time() > self._due else []

    def _on_collection(self, phase: str, _info: dict[str, Any]) -> None:
        if threading.get_ident() != self._ident:
            return
        if phase == "start":
            self._collecting_from = time.perf_counter()
        else:
            self._collected_s += time.perf_counter() - self._collecting_from


def _told(frame: Any) -> list[str]:
    """Innermost first.

    The loop goes on when another thread is let in, which reading source lines would do, and its
    frames are then others: in Python 3.11 one of them may be no frame.
    """
    found = list[str]()
    while isinstance(frame, FrameType) and len(found) < _FRAMES_MAX:
        code = frame.f_code
        found.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return found
