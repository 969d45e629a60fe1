"""TLS handshakes, in a thread of their own.

A handshake costs the processor up to a millisecond, nearly all of it in OpenSSL, without the GIL.
On the loop it would keep all clients waiting. Here others only share the machine with it, and never
more than a quarter of one processor: the thread rests three times as long as it has worked, and up
to fifteen times while most peers leave in the middle (``CpuBudget``). (A low priority would be no
good: the thread needs the GIL for moments, and who waits for that would wait for all other
processes of the machine. To be interrupted in the middle of a step, as hashes of passwords are, is
none either, for the same reason: measured with half handshakes at 2,000 a second, p99 of a known
client 1.7 ms with interruptions, 1.3 without, 2.8 where the thread rests only as long as it has
worked.) Addresses take turns: one that makes thousands of handshakes delays its own.
"""

import asyncio
import logging
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

_REST_S_MAX: Final = 0.02
_REST_SHARE: Final = 3  # of the time that it has worked
_CROWD_REST_SHARE: Final = 15
_FINISHING: Final = 0.25
"""Finished handshakes for each step of the thread: 1, 1/2 or 1/3 where peers mean it."""
_MEMORY_STEPS: Final = 64
_RECORD_HEAD_BYTES: Final = 5
_HANDSHAKE_RECORD: Final = 22
_MAJORS: Final = (b"", b"\3")
_RECORD_BYTES_MAX: Final = 16 * 1024 + 256


class TlsHandshake:
    """One server-side handshake without its socket: bytes in, bytes out."""

    __slots__ = ("bytes_in", "context", "done", "error", "incoming", "outgoing", "steps", "tls")

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: ssl.SSLObject | None = None
        self.done = False
        self.error: Exception | None = None
        self.steps = self.bytes_in = 0

    @staticmethod
    def records(received: bytearray, *, first: bool) -> int:
        """How many bytes of ``received`` are whole records, so that a step can be made of them.

        Args:
            first: nothing was said before; it has to be a handshake then.
        Raises:
            ValueError: that is no TLS.
        """
        if first and (received[0] != _HANDSHAKE_RECORD or bytes(received[1:2]) not in _MAJORS):
            raise ValueError("no TLS")
        whole, size = 0, len(received)
        while size - whole >= _RECORD_HEAD_BYTES:
            length = int.from_bytes(received[whole + 3 : whole + 5], "big")
            if length > _RECORD_BYTES_MAX:
                raise ValueError("a record that is too long")
            if (end := whole + _RECORD_HEAD_BYTES + length) > size:
                break
            whole = end
        return whole

    @property
    def is_nearly_done(self) -> bool:
        """Whether the next step is a matter of microseconds: all that is hard was in the first."""
        return (
            self.tls is not None
            and self.context.verify_mode == ssl.CERT_NONE
            and self.tls.version() == "TLSv1.3"
        )

    def step(self, data: bytes) -> bytes:
        """Go on with what has come; what is to be sent. Then look at ``error`` and ``done``."""
        self.steps += 1
        self.bytes_in += len(data)
        try:
            if self.tls is None:
                self.tls = self.context.wrap_bio(self.incoming, self.outgoing, server_side=True)
            self.incoming.write(data)
            self.tls.do_handshake()
            self.done = True
        except ssl.SSLWantReadError:
            pass
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self.error = error
        return self.outgoing.read()


class CpuBudget:
    """How long the thread rests: the longer, the fewer of the last handshakes were finished."""

    __slots__ = ("_finishing",)

    def __init__(self) -> None:
        self._finishing = 2 * _FINISHING

    def finished(self) -> None:
        """A peer has gone through with it."""
        # The thread writes it, too; a lost update is one of 64.
        self._finishing += 1 / _MEMORY_STEPS

    def rest_s(self, worked_s: float) -> float:
        """After a step that took ``worked_s`` seconds."""
        self._finishing -= self._finishing / _MEMORY_STEPS
        crowd = max(0.0, 1 - self._finishing / _FINISHING)
        share = _REST_SHARE + crowd * (_CROWD_REST_SHARE - _REST_SHARE)
        return min(_REST_S_MAX, share * worked_s)


class TlsHandshakes:
    """Makes the steps of all handshakes of one port, one after the other."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_step: Callable[[TlsHandshake, bytes], None]
    ) -> None:
        """``on_step`` is called on the loop with what is to be sent."""
        self._loop = loop
        self._on_step = on_step
        self._changed = threading.Condition()
        # By address, in the order of their turns; all under _changed
        self._waiting: dict[str, deque[tuple[TlsHandshake, bytes]]] = {}
        self._closed = False
        self._thread: threading.Thread | None = None
        self._results: deque[tuple[TlsHandshake, bytes]] = deque()
        self._told = False  # the loop is about to take the results
        self.cpu_budget = CpuBudget()

    def add(self, address: str, handshake: TlsHandshake, data: bytes) -> None:
        with self._changed:
            queue = self._waiting.get(address)
            if queue is None:
                queue = self._waiting[address] = deque()
            queue.append((handshake, data))
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="magnetar-handshakes", daemon=True
            )
            self._thread.start()

    def drop(self, address: str, handshake: TlsHandshake) -> None:
        """No task waits for it any more; a step under way is still told."""
        with self._changed:
            if (queue := self._waiting.get(address)) is None:
                return
            for step in queue:
                if step[0] is handshake:
                    queue.remove(step)
                    break
            if not queue:
                del self._waiting[address]

    def close(self) -> None:
        """Finish the step under way, and no other."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _next(self) -> tuple[TlsHandshake, bytes] | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            address = next(iter(self._waiting))
            queue = self._waiting.pop(address)
            step = queue.popleft()
            if queue:
                self._waiting[address] = queue  # behind the others
            return step

    def _run(self) -> None:
        while (step := self._next()) is not None:
            handshake, data = step
            began_s = time.perf_counter()
            self._results.append((handshake, handshake.step(data)))
            if not self._told:
                self._told = True
                try:
                    self._loop.call_soon_threadsafe(self._tell)
                except RuntimeError:
                    return  # the loop is closed
            worked_s = time.perf_counter() - began_s
            time.sleep(self.cpu_budget.rest_s(worked_s))

    def _tell(self) -> None:
        self._told = False  # before the results are taken: one that comes now is told anew
        while self._results:
            self._on_step(*self._results.popleft())
