"""The bookie's Python threads: one for each journal, one for everything slow and sequential.

A thread sleeps in ``SimpleQueue.get`` (no polling) and answers with one ``call_soon_threadsafe``
per piece of work.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TypeAlias

OnDone: TypeAlias = Callable[[BaseException | None], None]


class Worker:
    """One thread that runs functions in order. ``on_done`` gets the error or None, on the loop."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Callable[[], None], OnDone] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None], on_done: OnDone) -> None:
        self._queue.put((work, on_done))

    def stop(self) -> None:
        """Let the thread end after what is queued; does not wait."""
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, on_done = item
            error: BaseException | None = None
            try:
                work()
            except BaseException as caught:  # the loop decides about it
                error = caught
            self._answer(on_done, error)
            del item, work, on_done, error  # don't keep a whole group alive while idle

    def _answer(self, on_done: OnDone, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(on_done, error)


class CooperativeWorker(Worker):
    """A worker for long jobs given as generators of steps.

    Urgent jobs (flushes) run between two steps of a long one (compaction, deletion), so that a long
    one never holds up the write cache. A step is atomic: jobs must be consistent at each yield.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._urgent: SimpleQueue[tuple[Iterator[None], OnDone]] = SimpleQueue()
        super().__init__(name, loop)

    def submit_steps(self, steps: Iterator[None], on_done: OnDone, *, urgent: bool) -> None:
        if urgent:
            self._urgent.put((steps, on_done))
            self.submit(self._run_urgent, lambda _error: None)
        else:
            self.submit(lambda: self._run_steps(steps), on_done)

    def _run_steps(self, steps: Iterator[None]) -> None:
        for _ in steps:
            self._run_urgent()

    def _run_urgent(self) -> None:
        while True:
            try:
                steps, on_done = self._urgent.get_nowait()
            except Empty:
                return
            error: BaseException | None = None
            try:
                for _ in steps:
                    pass
            except BaseException as caught:  # the loop decides about it
                error = caught
            self._answer(on_done, error)
