"""Long turns of event loops fail the test in which they came; conftest.py asks after each.

Processes and embedded brokers of tests look at their loops (``loopStallThresholdMillis``) and write
a line for each turn above 50 ms. What a turn computed counts. Not that in which it was only held
up: a thread that waits for the GIL of another one, which waits for a processor, can't be told from
one in a system call, and test machines are busy.

A busy machine is also slower while a thread has a processor: the others take its caches. So the
limit grows with the threads that want one (the load average of a minute), and is 50 ms while there
are no more of them than processors.

A turn in which the loop itself was at work whenever it was looked at, and no callback, was one of
the kernel's (a socket written, memory given back), which a busy machine stretches most: its limit
is five times as much.
"""

import logging
import os
import re
from typing import Protocol

STALL_MS = 50
SETTING = "loopStallThresholdMillis"
VARIABLE = f"MAGNETAR_{SETTING}"
_LINE = re.compile(
    r"loop stall: .* computed for (?P<computed>\d+) ms, collections: (?P<collected>\d+) ms,"
    r" cause: \w+, at: (?P<at>.*)"
)
_NO_CALLBACK = re.compile(r"runners\.py:\d+ run\b")
_NO_CALLBACK_FACTOR = 5


class Watched(Protocol):
    """A `ChildProcess`."""

    @property
    def is_running(self) -> bool: ...

    def new_stalls(self) -> list[str]: ...


def limit_ms() -> float:
    return STALL_MS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


_watched: list[Watched] = []
_applied: list[str] = []  # by brokers that no longer run, or run in this process


def found_in(said: str) -> list[str]:
    """Lines of turns that computed for too long."""
    return [line[0] for line in _LINE.finditer(said) if int(line["computed"]) > _limit_of(line)]


def _limit_of(line: re.Match[str]) -> float:
    return limit_ms() * (_NO_CALLBACK_FACTOR if _NO_CALLBACK.match(line["at"]) else 1)


def watch(process: Watched) -> None:
    if process not in _watched:
        _watched.append(process)


def note(said: str) -> None:
    """The log of a process that is about to be gone with it."""
    _applied.extend(found_in(said))


def skip(reason: str) -> None:
    """What loops in this process have said so far was expected: readers are told why."""
    _applied.clear()


def check() -> None:
    """Fails for each long turn since the last time."""
    found = list(_applied)
    _applied.clear()
    for process in list(_watched):
        found += process.new_stalls()
        if not process.is_running:
            _watched.remove(process)
    assert found == [], "\n".join(found)


class Handler(logging.Handler):
    """Of loops in this process. Collections don't count: they walk all that the tests keep."""

    def emit(self, record: logging.LogRecord) -> None:
        line = _LINE.search(record.getMessage())
        if line and int(line["computed"]) - int(line["collected"]) > _limit_of(line):
            _applied.append(line[0])
