"""The shell around the queue of passwords: small processes that compute hashes, and their lives.

They start with the first password, end when there has been none for a while, and are started anew
when they die; one that can't be started lets nobody in, and nobody wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.broker.auth.errors import TooManyChecksError
from magnetar.broker.auth.password_process import NO, YES, encode_question
from magnetar.broker.auth.password_queue import PasswordQueue, QueuedCheck
from magnetar.broker.cgroup import cores_max
from magnetar.broker.errors import AuthenticationError

logger = logging.getLogger(__name__)

_PROCESSES_MAX: Final = 2
_SECOND_AT: Final = 4
"""So many wait when a second process is worth its memory."""
_IDLE_S: Final = 60.0
_CHECK_S_MAX: Final = 30.0
"""A hash whose cost is a typing error would take days."""
_SLOW_S: Final = 1.0
"""After so long a process that uses only idle processors gives way to one that is owed a share."""
_CROWDED_S: Final = 1.0
"""So long after somebody found no place, unauthenticated clients' guesses get only a share of a
processor:"""
_REST: Final = 5.0
"""a process rests for so many times what a check took, until somebody comes who was good before."""
_REST_S_MAX: Final = 1.0
_TRIES: Final = 2
_FAILURES_MAX: Final = 3
"""Processes that die one after the other without an answer."""
_AFTER_FAILURES_S: Final = 1.0
_CLOSE_S: Final = 5.0
# No secrets of the broker's environment; what the loader and the C library may need
_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_BOOT: Final = (
    "import json, sys; source = open(0, 'rb'); sys.path[:] = json.loads(source.readline());"
    " from magnetar.broker.auth.password_process import serve;"
    " serve(source, idle=sys.argv[1] == 'idle')"
)


@dataclass(slots=True, eq=False)
class _Check:
    question: bytes
    answer: asyncio.Future[bool]
    tries: int = 0


class _Worker:
    """One process, and the check that it is at."""

    __slots__ = ("began_s", "current", "is_idle", "limit", "link", "process", "slow")

    def __init__(self, boot: str, *, is_idle: bool) -> None:
        """Raises OSError."""
        here, there = socket.socketpair()
        with there:
            try:
                self.process: subprocess.Popen[bytes] = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", boot, "idle" if is_idle else "share"],
                    stdin=there.fileno(),
                    stdout=there.fileno(),
                    cwd="/",
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                    process_group=0,  # Ctrl-C is the broker's: it ends its processes itself
                )
            except OSError:
                here.close()
                raise
        here.setblocking(False)
        # Room for this and a question is always there: nothing else is on its way.
        here.send(json.dumps(_path()).encode() + b"\n")
        self.link = here
        self.current: QueuedCheck | None = None
        self.began_s = 0.0  # loop time
        self.is_idle = is_idle
        self.limit: asyncio.TimerHandle | None = None
        self.slow: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        return self.process.pid


class PasswordChecks:
    """Checks of passwords against hashes, for one authenticator. Used on one loop."""

    def __init__(self, *, boot: str = _BOOT, idle_s: float = _IDLE_S) -> None:
        """``boot``: what a process runs."""
        self._boot = boot
        self._idle_s = idle_s
        self._queue = PasswordQueue()
        self._workers: list[_Worker] = []
        self._free: list[_Worker] = []  # of them
        self._throttled: dict[_Worker, asyncio.TimerHandle] = {}  # others of them
        self._crowded_until_s = 0.0  # loop time
        self._is_idle = True  # the next process is
        self._failures = 0
        self._refused_until_s = 0.0  # loop time
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def pids(self) -> list[int]:
        """Of the processes that live."""
        return [worker.pid for worker in self._workers]

    @property
    def pending(self) -> int:
        """Checks that wait or are made."""
        return len(self._queue) + len(self._workers) - len(self._free) - len(self._throttled)

    def has_room(self, address: str, name: str, *, is_trusted: bool) -> bool:
        """Whether ``check`` would begin now, not refuse at once."""
        if self._queue.has_room(QueuedCheck(address, name, is_trusted)):
            return True
        self._crowded_until_s = asyncio.get_running_loop().time() + _CROWDED_S
        return False

    async def check(
        self, digest: str, password: bytes, *, address: str, name: str, is_trusted: bool
    ) -> bool:
        """Whether the hash is the password's, however long that takes.

        Args:
            address, name: who share a turn in the queue; is_trusted: this one waits for nobody.
        Raises:
            TooManyChecksError: others have all the places.
            AuthenticationError: it can't be checked.
        """
        loop = self._loop = asyncio.get_running_loop()
        if self._closed or loop.time() < self._refused_until_s:
            raise AuthenticationError("passwords can't be checked now")
        check = _Check(encode_question(digest, password), loop.create_future())
        lost = self._queue.add(QueuedCheck(address, name, is_trusted, check))
        if lost is not None:
            self._crowded_until_s = loop.time() + _CROWDED_S
            _fail(lost, TooManyChecksError("too many checks at once"))
        if is_trusted and self._throttled:
            self._wake(next(iter(self._throttled)))
        self._go_on()
        return await check.answer

    def close(self) -> None:
        """Nobody is let in any more; the processes are gone when this returns."""
        self._closed = True
        self._stop_idling()
        workers = list(self._workers)
        for worker in workers:
            self._drop(worker)
            worker.process.kill()
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(_CLOSE_S)
            if worker.current is not None:
                _fail(worker.current, AuthenticationError("the broker ends"))
        for each in self._queue.clear():
            _fail(each, AuthenticationError("the broker ends"))

    # --- work

    def _go_on(self) -> None:
        """Give what waits to who is free."""
        self._stop_idling()
        while len(self._queue):
            worker = self._free.pop() if self._free else self._start()
            if worker is None:
                break
            each = self._queue.take()
            if each is None:
                self._free.append(worker)
                break
            self._give(worker, each)
        if not self.pending and self._workers:
            self._idle = self._loop.call_later(self._idle_s, self._on_idle)

    def _start(self) -> _Worker | None:
        count = len(self._workers)
        if count and (count >= _processes_max() or len(self._queue) < _SECOND_AT):
            return None
        try:
            worker = _Worker(self._boot, is_idle=self._is_idle)
        except OSError as error:
            self._failed(f"a process for passwords can't be started: {error}")
            return None
        self._loop.add_reader(worker.link, self._on_answer, worker)
        self._workers.append(worker)
        return worker

    def _give(self, worker: _Worker, each: QueuedCheck) -> None:
        check: _Check = each.item
        worker.current = each
        worker.began_s = self._loop.time()
        worker.limit = self._loop.call_later(_CHECK_S_MAX, self._on_limit, worker)
        if worker.is_idle:
            worker.slow = self._loop.call_later(_SLOW_S, self._on_slow, worker)
        with contextlib.suppress(OSError):  # it has died: what it says next is its end
            worker.link.send(check.question)

    def _on_answer(self, worker: _Worker) -> None:
        try:
            answer = worker.link.recv(1)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        each = worker.current
        if answer not in (YES, NO) or each is None:
            self._on_end(worker)
            return
        self._failures = 0
        self._set_free(worker)
        check: _Check = each.item
        if not check.answer.done():
            check.answer.set_result(answer == YES)
        now_s = self._loop.time()
        if now_s < self._crowded_until_s:
            rest_s = min(_REST * (now_s - worker.began_s), _REST_S_MAX)
            self._throttled[worker] = self._loop.call_later(rest_s, self._on_rested, worker)
        else:
            self._free.append(worker)
        self._go_on()

    def _on_rested(self, worker: _Worker) -> None:
        self._wake(worker)
        self._go_on()

    def _wake(self, worker: _Worker) -> None:
        self._throttled.pop(worker).cancel()
        self._free.append(worker)

    def _set_free(self, worker: _Worker) -> None:
        worker.current = None
        for timer in (worker.limit, worker.slow):
            if timer is not None:
                timer.cancel()
        worker.limit = worker.slow = None

    # --- ends

    def _on_end(self, worker: _Worker) -> None:
        """It has died, or talks nonsense."""
        self._drop(worker)
        worker.process.kill()
        _reap_soon(worker.process)
        each = worker.current
        self._set_free(worker)
        if each is not None:
            self._failures += 1
            check: _Check = each.item
            check.tries += 1
            if check.tries < _TRIES:
                self._queue.put_back(each)
            else:
                _fail(each, AuthenticationError("the password can't be checked"))
        if self._failures >= _FAILURES_MAX:
            self._failed("the process for passwords dies again and again")
        else:
            logger.warning("the process for passwords has died")
            self._go_on()

    def _on_slow(self, worker: _Worker) -> None:
        """Others use all of the processors, or the hash is dear: it gets a share from now on."""
        self._is_idle = False
        each = worker.current
        self._drop(worker)
        worker.process.kill()
        _reap_soon(worker.process)
        self._set_free(worker)
        if each is not None:
            self._queue.put_back(each)
        self._go_on()

    def _on_limit(self, worker: _Worker) -> None:
        each = worker.current
        self._drop(worker)
        worker.process.kill()
        _reap_soon(worker.process)
        self._set_free(worker)
        if each is not None:
            logger.error("a password wasn't checked in %.0f s: too dear a hash", _CHECK_S_MAX)
            _fail(each, AuthenticationError("the check of the password takes too long"))
        self._go_on()

    def _failed(self, why: str) -> None:
        logger.error("%s; nobody gets in by password for %.0f s", why, _AFTER_FAILURES_S)
        self._failures = 0
        self._refused_until_s = self._loop.time() + _AFTER_FAILURES_S
        for each in self._queue.clear():
            _fail(each, AuthenticationError("passwords can't be checked now"))

    def _drop(self, worker: _Worker) -> None:
        """It is none of ours any more; its end of the socket is closed."""
        self._workers.remove(worker)
        if worker in self._free:
            self._free.remove(worker)
        if (rest := self._throttled.pop(worker, None)) is not None:
            rest.cancel()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.remove_reader(worker.link)
        worker.link.close()

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _on_idle(self) -> None:
        self._idle = None
        self._is_idle = True
        for worker in list(self._free):
            self._drop(worker)  # so it ends by itself
            _reap_soon(worker.process)


def _processes_max() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # A container that may use one processor has none for a second process, however many it sees.
    return max(1, min(_PROCESSES_MAX, usable or 1, int(cores_max() or _PROCESSES_MAX)))


def _path() -> list[str]:
    """Where a process finds what it imports: as this one does, wherever it was started."""
    entries = [os.path.abspath(entry) for entry in sys.path]
    # If an import hook has found us. Not resolved: the link's path is the one that is imported.
    here = str(Path(__file__).absolute().parents[3])
    return entries if here in entries else [*entries, here]


def _fail(each: QueuedCheck, error: AuthenticationError) -> None:
    check: _Check = each.item
    if not check.answer.done():
        check.answer.set_exception(error)


def _reap_soon(process: subprocess.Popen[bytes]) -> None:
    """It ends soon, but whoever waits for a process waits for its turn on the processor, too."""
    threading.Thread(target=process.wait, name="magnetar-reaper", daemon=True).start()
