"""A bookie's threads as events of the virtual loop: ``with threads_as_events(): ...``.

The work of a thread is one event, a step of a long job too; between two events anything may happen.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from magnetar.bookkeeper.bookie import workers
from magnetar.bookkeeper.bookie.workers import OnDone
from tests.memory_file_system import PowerLoss
from tests.simulation.cluster.nodes import PROCESS, ClusterLoop, Process


class EventWorker:
    """Stands in for ``Worker`` and ``CooperativeWorker``."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        assert isinstance(loop, ClusterLoop)
        self._loop = loop
        self._process: Process | None = PROCESS.get()
        self._queue: deque[tuple[Iterator[None], OnDone]] = deque()
        self._urgent: deque[tuple[Iterator[None], OnDone]] = deque()
        self._busy = False

    def submit(self, work: Callable[[], None], on_done: OnDone) -> None:
        self._put(self._queue, _one_step(work), on_done)

    def submit_steps(self, steps: Iterator[None], on_done: OnDone, *, urgent: bool) -> None:
        self._put(self._urgent if urgent else self._queue, steps, on_done)

    def stop(self) -> None:
        pass

    def join(self) -> None:
        pass

    def _put(
        self, queue: deque[tuple[Iterator[None], OnDone]], steps: Iterator[None], on_done: OnDone
    ) -> None:
        queue.append((steps, on_done))
        if not self._busy:
            self._busy = True
            self._again()

    def _again(self) -> None:
        loop, process = self._loop, self._process
        took_ms = loop.rng.uniform(0.01, 2.0 if process is None else process.disk_ms_max)
        if process is not None:
            process.disk_until = max(process.disk_until, loop.now + took_ms / 1000)
        loop.after_ms(took_ms, self._step, process=process)

    def _step(self) -> None:
        """Next step of what is urgent, else of the oldest job."""
        process = self._process
        if process is not None and not process.alive:
            return
        queue = self._urgent or self._queue
        steps, on_done = queue[0]
        error: BaseException | None = None
        try:
            ended = next(steps, _END) is _END
        except PowerLoss:
            if process is not None:
                process.on_power_loss()
            return
        except BaseException as caught:
            error, ended = caught, True
        if ended:
            queue.popleft()
        self._busy = bool(self._urgent or self._queue)
        if self._busy:
            self._again()
        if ended:
            self._loop.call_soon(on_done, error)


_END: Any = object()


def _one_step(work: Callable[[], None]) -> Iterator[None]:
    work()
    yield from ()


@contextlib.contextmanager
def threads_as_events() -> Iterator[None]:
    """For the time of a run, no bookie starts a thread."""
    names = ("__init__", "submit", "stop", "join")
    replaced = {name: vars(EventWorker)[name] for name in names}
    helpers = {name: vars(EventWorker)[name] for name in ("_put", "_again", "_step")}
    steps = {"__init__": replaced["__init__"], "submit_steps": vars(EventWorker)["submit_steps"]}
    with (
        patch.multiple(workers.Worker, **replaced),
        patch.multiple(workers.Worker, create=True, **helpers),
        patch.multiple(workers.CooperativeWorker, **steps),
    ):
        yield
