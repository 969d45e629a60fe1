"""Processes of a simulated cluster: clocks of their own, pauses, deaths, and links between them.

Every process has a context; what runs in it, and what it starts, belongs to the process. So its
timers go by its clock, wait while it is paused and are gone when it is dead, without the product's
code knowing.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from tests.memory_file_system import PowerLoss
from tests.simulation.simulator import Node, Recorder, VirtualLoop

PROCESS: "contextvars.ContextVar[Process | None]" = contextvars.ContextVar("process", default=None)


class Process(Node):
    """One life of a process. A restart makes a new one, at the same host.

    Attributes:
        host: what partitions and slow links go by.
        clock_rate: how fast its clock runs; 1.0 is true time.
        clock_offset_ms: how wrong its wall clock is.
        context: in which everything of this process runs.
        disk_until: what its threads have begun takes until then, in virtual seconds.
        on_power_loss: told when a call of its file system says so.
    """

    def __init__(self, host: str, life: int = 1) -> None:
        super().__init__(f"{host}.{life}")
        self.host = host
        self.clock_rate = 1.0
        self.clock_offset_ms = 0.0
        self.disk_ms_max = 2.0  # of one event of a thread
        self.disk_until = 0.0
        self.on_power_loss: Callable[[], None] = lambda: None
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    def __str__(self) -> str:
        return self.name

    def wall_clock_ms(self, loop: asyncio.AbstractEventLoop) -> int:
        return int(1_700_000_000_000 + self.clock_offset_ms + loop.time() * 1000 * self.clock_rate)


class ClusterLoop(VirtualLoop):
    """Timers by the clock of the process that sets them, and threads as delayed calls."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)  # replaced by the run's
        self.thread_ms_max = 2.0  # work in a thread takes up to this
        self.tasks: list[asyncio.Task[Any]] = []  # of dead processes, too: nobody else keeps those

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        self.tasks.append(task)
        return task

    def close(self) -> None:
        """A watch of the store, kept until its reader is gone, would keep all of the run."""
        super().close()
        self.tasks.clear()

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        process = PROCESS.get()
        if process is None:
            return super().call_later(delay, callback, *args, context=context)
        cell: list[asyncio.TimerHandle] = []
        delay /= process.clock_rate
        timer = super().call_later(
            delay, self._fire, process, cell, callback, args, context=context
        )
        cell.append(timer)
        return timer

    def _fire(
        self,
        process: Process,
        cell: list[asyncio.TimerHandle],
        callback: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        if cell[0].cancelled() or not process.alive:
            return
        if process.paused_until > self.now:
            self.call_at(process.paused_until, self._fire, process, cell, callback, args)
        else:
            callback(*args)

    def after_ms(
        self, delay_ms: float, callback: Callable[..., Any], *args: Any, process: Process | None
    ) -> None:
        """A timer of the world, not of a process; the callback runs in ``process``."""
        context = None if process is None else process.context
        self.call_at(self.now + delay_ms / 1000, callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Another thread's work: done in one go, some time later."""
        future: asyncio.Future[Any] = self.create_future()
        process = PROCESS.get()

        def work() -> None:
            if process is not None and not process.alive:
                return
            try:
                result = func(*args)
            except PowerLoss:
                if process is not None:
                    process.on_power_loss()
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.after_ms(self.rng.uniform(0.01, self.thread_ms_max), work, process=process)
        return future


@dataclass(slots=True)
class LinkFaults:
    """As ``FaultRates``, for every link between hosts; all off by default."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_ms_max: float = 3.0
    slow: float = 0.0
    slow_ms_max: float = 3000.0


class Links:
    """Messages between hosts, each direction on its own.

    Attributes:
        cut: (from, to) pairs that nothing passes.
        gray: hosts whose messages take a hundred times as long.
    """

    def __init__(self, loop: ClusterLoop, rng: random.Random, recorder: Recorder) -> None:
        self.loop = loop
        self.faults = LinkFaults()
        self.cut: set[tuple[str, str]] = set()
        self.gray: set[str] = set()
        self._rng = rng
        self._recorder = recorder

    def send(
        self, source: str, target: str, deliver: Callable[[], None], process: Process | None = None
    ) -> None:
        """``deliver`` is called once, twice or never, in ``process`` if there is one."""
        rng, faults, count = self._rng, self.faults, self._recorder.count
        if self.cut and (source, target) in self.cut:
            count("fault: message cut off")
            return
        if faults.loss and rng.random() < faults.loss:
            count("fault: message lost")
            return
        copies = 1
        if faults.repeat and rng.random() < faults.repeat:
            count("fault: message repeated")
            copies = 2
        for _ in range(copies):
            delay_ms = rng.uniform(0.1, faults.delay_ms_max)
            if faults.slow and rng.random() < faults.slow:
                count("fault: message slow")
                delay_ms = rng.uniform(faults.delay_ms_max, faults.slow_ms_max)
            if source in self.gray or target in self.gray:
                delay_ms *= 100
            self.loop.after_ms(delay_ms, deliver, process=process)
