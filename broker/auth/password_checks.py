"""The shell around the queue of passwords: small processes that compute hashes, and their lives.

They start with the first password, end when there has been none for a while, and are started anew
when they die; while none can be started, checks fail at once.
"""

import asyncio
import contextlib
import logging
import os
import subprocess
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.auth.errors import TooManyChecksError
from magnetar.broker.auth.password_process import NO, YES, encode_question
from magnetar.broker.auth.password_queue import PasswordQueue, QueuedCheck
from magnetar.broker.cgroup import cores_max
from magnetar.broker.child_process import BOOT, ChildProcess
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
"""So long after a client found no place, unauthenticated clients' guesses get only a share of a
processor:"""
_REST: Final = 5.0
"""a process rests for so many times what a check took, until a trusted client comes."""
_REST_S_MAX: Final = 1.0
_TRIES: Final = 2
_FAILURES_MAX: Final = 3
"""Processes that die one after the other without an answer."""
_AFTER_FAILURES_S: Final = 1.0
_CLOSE_S: Final = 5.0
_BOOT: Final = (
    f"{BOOT} from magnetar.broker.auth.password_process import serve;"
    " serve(source, idle=sys.argv[1] == 'idle')"
)


@dataclass(slots=True, eq=False, kw_only=True)
class _Check(QueuedCheck):
    question: bytes = field(repr=False)
    answer: asyncio.Future[bool]
    tries: int = 0

    def fail(self, error: AuthenticationError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Process(ChildProcess):
    """One that computes hashes, one at a time."""

    def __init__(self, boot: str, *, is_idle: bool) -> None:
        """``is_idle``: it uses idle processors only. Raises OSError."""
        super().__init__(boot, "idle" if is_idle else "share")
        self.is_idle = is_idle

    async def answer(self, question: bytes) -> bool:
        """Raises OSError: it has died, or talks nonsense."""
        self.link.send(question)  # nothing else is on its way: there is room
        answer = await asyncio.get_running_loop().sock_recv(self.link, 1)
        if answer not in (YES, NO):
            raise ConnectionError("no answer")
        return answer == YES


class PasswordChecks:
    """Checks of passwords against hashes, for one authenticator. Used on one loop."""

    def __init__(self, *, boot: str = _BOOT, idle_s: float = _IDLE_S) -> None:
        """``boot``: what a process runs."""
        self._boot = boot
        self._idle_s = idle_s
        self._queue: PasswordQueue[_Check] = PasswordQueue()
        self._under_way: set[_Check] = set()
        self._workers: set[asyncio.Task[None]] = set()  # each has one process at most
        self._processes: set[_Process] = set()
        # Workers that have nothing to do, and those that wait while there is a crowd
        self._free: list[asyncio.Future[_Check]] = []
        self._throttled: list[asyncio.Future[_Check]] = []
        self._crowded_until_s = 0.0  # loop time
        self._is_idle = True  # the next process is
        self._failures = 0
        self._refused_until_s = 0.0  # loop time
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Of the processes that live."""
        return [process.popen.pid for process in self._processes]

    @property
    def pending(self) -> int:
        """Checks that wait or are made."""
        return len(self._queue) + len(self._under_way)

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
            address, name: checks of both share a turn; is_trusted: this one waits for no other.
        Raises:
            TooManyChecksError: others have all the places.
            AuthenticationError: it can't be checked.
        """
        loop = asyncio.get_running_loop()
        if self._closed or loop.time() < self._refused_until_s:
            raise AuthenticationError("passwords can't be checked now")
        question = encode_question(digest, password)
        answer: asyncio.Future[bool] = loop.create_future()
        check = _Check(address, name, is_trusted, question=question, answer=answer)
        if (lost := self._queue.add(check)) is not None:
            self._crowded_until_s = loop.time() + _CROWDED_S
            lost.fail(TooManyChecksError("too many checks at once"))
        self._hand_over(is_trusted=is_trusted)
        return await answer

    def close(self) -> None:
        """Every check fails from now on; the processes are gone when this returns."""
        self._closed = True
        for check in (*self._under_way, *self._queue.clear()):
            check.fail(AuthenticationError("the broker ends"))
        self._under_way.clear()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            for worker in self._workers:
                worker.cancel()
        processes = list(self._processes)
        for process in processes:
            self._end(process)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(_CLOSE_S)

    # --- work

    def _hand_over(self, *, is_trusted: bool) -> None:
        """Give a check to a worker that has nothing to do, or to a new one; one who is trusted
        isn't kept waiting by a rest."""
        count = len(self._workers)
        sleepers = self._free or (self._throttled if is_trusted else [])
        if not sleepers and count and (count >= _processes_max() or len(self._queue) < _SECOND_AT):
            return
        if (check := self._take()) is None:
            return
        if sleepers:
            sleepers.pop().set_result(check)
            return
        worker = asyncio.get_running_loop().create_task(self._work(check))
        self._workers.add(worker)

    def _take(self) -> _Check | None:
        if (check := self._queue.take()) is not None:
            self._under_way.add(check)
        return check

    async def _work(self, check: _Check | None) -> None:
        """Check after check in one process, which is replaced when it dies, until no check has come
        for a while."""
        loop, process = asyncio.get_running_loop(), None
        try:
            while check is not None:
                began_s = loop.time()
                process = await self._make(check, process)
                self._under_way.remove(check)
                check, now_s = None, loop.time()
                if process is not None and now_s < self._crowded_until_s:
                    rest_s = min(_REST * (now_s - began_s), _REST_S_MAX)
                    check = await _sleep(self._throttled, rest_s)
                check = check or self._take() or await _sleep(self._free, self._idle_s)
        finally:
            # Not when the task is done, a turn later: a check that comes meanwhile would wait.
            self._workers = {each for each in self._workers if each is not asyncio.current_task()}
            self._end(process)
        self._is_idle = True

    async def _make(self, check: _Check, process: _Process | None) -> _Process | None:
        """Make a check, or put it back, or fail it; the process for the next one."""
        try:
            if process is None or process.popen.poll() is not None:
                self._end(process)
                process = _Process(self._boot, is_idle=self._is_idle)
                self._processes.add(process)
        except OSError as error:
            self._queue.put_back(check)
            self._failed(f"a process for passwords can't be started: {error}")
            return None
        gives_way = process.is_idle and _SLOW_S < _CHECK_S_MAX
        try:
            async with asyncio.timeout(_SLOW_S if gives_way else _CHECK_S_MAX):
                good = await process.answer(check.question)
        except TimeoutError:
            self._on_slow(check, gives_way=gives_way)
        except OSError:
            self._on_end(check)
        else:
            self._failures = 0
            if not check.answer.done():
                check.answer.set_result(good)
            return process
        self._end(process)
        return None

    def _on_slow(self, check: _Check, *, gives_way: bool) -> None:
        """The hash is dear, or others use all of the processors: the next process gets a share."""
        if gives_way:
            self._is_idle = False
            self._queue.put_back(check)
        else:
            logger.error("a password wasn't checked in %.0f s: too dear a hash", _CHECK_S_MAX)
            check.fail(AuthenticationError("the check of the password takes too long"))

    def _on_end(self, check: _Check) -> None:
        self._failures += 1
        check.tries += 1
        if check.tries < _TRIES:
            self._queue.put_back(check)
        else:
            check.fail(AuthenticationError("the password can't be checked"))
        if self._failures >= _FAILURES_MAX:
            self._failed("the process for passwords dies again and again")
        else:
            logger.warning("the process for passwords has died")

    def _failed(self, why: str) -> None:
        logger.error("%s; nobody gets in by password for %.0f s", why, _AFTER_FAILURES_S)
        self._failures = 0
        self._refused_until_s = asyncio.get_running_loop().time() + _AFTER_FAILURES_S
        for check in self._queue.clear():
            check.fail(AuthenticationError("passwords can't be checked now"))

    def _end(self, process: _Process | None) -> None:
        if process in self._processes:
            self._processes.remove(process)
            process.kill()


async def _sleep(sleepers: list[asyncio.Future[_Check]], seconds: float) -> _Check | None:
    """Until `_hand_over` takes this one out of ``sleepers`` with a check, or for so long."""
    given: asyncio.Future[_Check] = asyncio.get_running_loop().create_future()
    sleepers.append(given)
    await asyncio.wait([given], timeout=seconds)
    if given.done():
        return given.result()
    sleepers.remove(given)
    return None


def _processes_max() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # A container that may use one processor has none for a second process, however many it sees.
    return max(1, min(_PROCESSES_MAX, usable or 1, int(cores_max() or _PROCESSES_MAX)))
