"""An event loop in a thread of its own, for callers that are threads of somebody else."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines; ``close`` cancels what they have begun, and ends the thread."""

    def __init__(self, name: str) -> None:
        # With a factory, or it would become the loop of the thread that we are in.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._stop.wait())

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin ``work``, behind what was begun before."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, or what it raised."""
        return self.start(work).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
