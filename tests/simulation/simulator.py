"""Seams of every simulation: virtual time, a network with faults, nodes that crash and pause.

A simulation runs the product's own shells on ``VirtualLoop``, an asyncio loop without sockets or
threads whose clock jumps to the next timer when nothing is left to do. Everything that is chance
comes from one seeded ``random.Random``, so a seed replays exactly.

    world = run_simulation(seed, lambda simulator: scenario(simulator))
"""

import asyncio
import gc
import hashlib
import os
import random
import traceback
from asyncio import base_events
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

T = TypeVar("T")
_CANCEL_ROUNDS = 6


def seeds(default_count: int = 200) -> range:
    """Seeds to run: MAGNETAR_SEEDS of them (default 200), from MAGNETAR_SEED (default 0) on."""
    first = int(os.environ.get("MAGNETAR_SEED", "0"))
    return range(first, first + int(os.environ.get("MAGNETAR_SEEDS", str(default_count))))


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often things go wrong; all off by default. Rates are per message, times in ms.

    Attributes:
        message_loss, message_repeat: of requests and of replies, each on its own.
        delay_ms_max: ordinary messages take 0.1 ms up to this.
        slow_message, slow_ms_max: a few take up to this, longer than the timeout.
        metadata_unknown: a metadata write's answer is lost; it may or may not have happened.
        metadata_ms_max: a metadata operation takes up to this in each direction.
    """

    message_loss: float = 0.0
    message_repeat: float = 0.0
    delay_ms_max: float = 5.0
    slow_message: float = 0.0
    slow_ms_max: float = 3000.0
    metadata_unknown: float = 0.0
    metadata_ms_max: float = 5.0


class Stuck(AssertionError):
    """Nothing can happen any more, or far too much has, and the scenario isn't over."""


_TURNS_MAX = 3_000_000
"""Of a loop: a planted bug may keep a run going for ever. Seeds of the worlds take up to 15,000."""


class _NoSelector:
    """Where a real loop would wait for sockets, time passes at once."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop, self._turns = loop, 0

    def select(self, timeout: float | None) -> list[Any]:
        self._turns += 1
        if self._turns > _TURNS_MAX:
            self._turns = 0  # for what is left to end
            raise Stuck(f"not over after {_TURNS_MAX} turns of the loop")
        if timeout is None:
            raise Stuck("no timer, no message: everybody waits for somebody")
        self._loop.now += max(timeout, 0.0)
        return []

    def close(self) -> None:
        pass


class VirtualLoop(base_events.BaseEventLoop):
    """asyncio with a clock of its own; ``now`` in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._clock_resolution = 1e-9
        self._selector = _NoSelector(self)

    def time(self) -> float:
        return self.now

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class Recorder:
    """What happened in a run: a digest of all events, how often what, and on demand a log.

    Two runs of a seed are the same run exactly if their digests are equal.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, log: TextIO | None = None) -> None:
        self.counters: Counter[str] = Counter()
        self._loop = loop
        self._log = log
        self._hash = hashlib.blake2b(digest_size=16)
        self.ended = False

    def end(self) -> None:
        """What follows isn't part of the run."""
        self.ended = True

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def event(self, *what: object) -> None:
        """Something that took place now; its parts must print alike in every process."""
        if self.ended:
            return
        line = f"{self._loop.time() * 1000:12.3f} ms  {' '.join(map(str, what))}\n"
        self._hash.update(line.encode())
        if self._log is not None:
            self._log.write(line)

    def count(self, what: str, times: int = 1) -> None:
        """A fault that was injected, or a state that was reached."""
        if not self.ended:
            self.counters[what] += times


class Node:
    """A process that takes part: it sends, receives, pauses and dies.

    A crash is set to happen at a count of network steps, because between two of them a process
    changes nothing that others could see: every count is one more crash point.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused_until = 0.0  # virtual seconds
        self.steps_to_crash: int | None = None

    def step(self) -> bool:
        """One message leaves or arrives; False when the node is dead."""
        if self.alive and self.steps_to_crash is not None:
            self.steps_to_crash -= 1
            if self.steps_to_crash < 0:
                self.alive = False
        return self.alive


class Server(Protocol):
    """What a request arrives at; its text names it in the record of a run."""

    @property
    def up(self) -> bool: ...

    def __str__(self) -> str: ...


class Network:
    """Requests and replies between nodes and servers, each delayed, lost or repeated on its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self.loop = loop
        self.faults = FaultRates()
        self.recorder = Recorder(loop)
        self._rng = rng

    def request(
        self,
        node: Node,
        server: Server,
        handle: Callable[[], T],
        on_reply: Callable[[T | None], None],
        timeout_ms: float = 1000.0,
        *,
        lossless: bool = False,
    ) -> None:
        """Run ``handle`` at the server and bring its result back; None after the timeout.

        A repeated reply calls ``on_reply`` again, and so does one that comes after the timeout:
        worse than what a real transport lets through, so that the protocol doesn't lean on it.
        """
        if not node.step():
            return
        _Exchange(self, node, server, handle, on_reply, lossless).start(timeout_ms)

    async def call(
        self,
        node: Node,
        server: Server,
        handle: Callable[[], T],
        timeout_ms: float = 1000.0,
        *,
        lossless: bool = False,
    ) -> T | None:
        """``request`` for coroutines. The coroutine of a dead node never wakes up."""
        future: asyncio.Future[T | None] = self.loop.create_future()

        def on_reply(result: T | None) -> None:
            if not future.done():
                future.set_result(result)

        self.request(node, server, handle, on_reply, timeout_ms, lossless=lossless)
        return await future

    def transmit(self, deliver: Callable[[], None], lossless: bool) -> None:
        rng, faults = self._rng, self.faults
        if lossless:
            self.loop.call_later(rng.uniform(0.1, faults.metadata_ms_max) / 1000, deliver)
            return
        count = self.recorder.count
        if rng.random() < faults.message_loss:
            count("fault: message lost")
            return
        repeated = rng.random() < faults.message_repeat
        if repeated:
            count("fault: message repeated")
        for _ in range(2 if repeated else 1):
            slow = rng.random() < faults.slow_message
            if slow:
                count("fault: message slow")
            delay_ms = rng.uniform(0.1, faults.slow_ms_max if slow else faults.delay_ms_max)
            self.loop.call_later(delay_ms / 1000, deliver)


class _Exchange:
    """One request, its reply and its timeout."""

    def __init__(
        self,
        network: Network,
        node: Node,
        server: Server,
        handle: Callable[[], Any],
        on_reply: Callable[[Any], None],
        lossless: bool,
    ) -> None:
        self._network, self._node, self._server = network, node, server
        self._handle, self._on_reply, self._lossless = handle, on_reply, lossless
        self._answered = False

    def start(self, timeout_ms: float) -> None:
        self._network.transmit(self._arrive, self._lossless)
        self._network.loop.call_later(timeout_ms / 1000, self._time_out)

    def _arrive(self) -> None:
        if self._server.up:
            self._network.recorder.event("request", self._node.name, self._server)
            result = self._handle()
            self._network.transmit(lambda: self._deliver(result), self._lossless)

    def _deliver(self, result: object) -> None:
        loop = self._network.loop
        if self._node.paused_until > loop.time():
            loop.call_at(self._node.paused_until, self._deliver, result)
        elif self._node.step():
            self._answered = True
            self._network.recorder.event("reply", self._node.name, self._server)
            self._on_reply(result)

    def _time_out(self) -> None:
        loop = self._network.loop
        if self._node.paused_until > loop.time():
            # What arrived during the pause is seen before the timer, as in a real process.
            loop.call_at(self._node.paused_until + 0.001, self._time_out)
        elif not self._answered and self._node.alive:
            self._network.recorder.event("timeout", self._node.name, self._server)
            self._on_reply(None)


class Simulator:
    """One run: loop, chance, network, and what went wrong."""

    def __init__(self, seed: int, loop: VirtualLoop, log: TextIO | None = None) -> None:
        self.seed = seed
        self.loop = loop
        self.rng = random.Random(seed)
        self.recorder = Recorder(loop, log)
        self.network = Network(loop, self.rng)
        self.network.recorder = self.recorder
        self.violations: list[str] = []

    def check(self, holds: bool, what: str) -> None:
        """An invariant: recorded at once, because an exception could be swallowed on its way."""
        if not holds and not self.recorder.ended:
            self.recorder.event("VIOLATED", what)
            self.violations.append(f"{self.loop.now * 1000:.1f} ms: {what}")

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(work)

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(duration_ms / 1000)

    async def cancel_all(self) -> None:
        """End the coroutines of nodes that died; what they do on their way out is no event."""
        self.recorder.end()
        for _ in range(_CANCEL_ROUNDS):  # one may wait for a dead node in a ``finally``
            running = asyncio.all_tasks(self.loop) - {asyncio.current_task()}
            if not running:
                return
            for task in running:
                task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self.recorder.ended:
            return
        error = context.get("exception")
        what = context["message"] if error is None else f"{error!r} {_place(error)}"
        self.violations.append(f"unhandled: {what}")


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    # The file's name alone: results are committed, and name no path of the machine they ran on.
    return f"at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


@dataclass(slots=True)
class Outcome:
    """How the run of one seed went; ``digest`` is the same whenever the seed runs again."""

    seed: int
    digest: str
    counters: Counter[str]
    violations: list[str]
    result: Any = None


def simulate(
    seed: int,
    scenario: Callable[[Simulator], Coroutine[Any, Any, Any]],
    log: TextIO | None = None,
    make_loop: Callable[[], VirtualLoop] = VirtualLoop,
) -> Outcome:
    """Run a scenario to its end; what it violated is in the outcome, nothing is raised."""
    loop = make_loop()
    simulator = Simulator(seed, loop, log)
    loop.set_exception_handler(simulator.on_loop_error)
    result: Any = None

    async def main() -> Any:
        try:
            return await scenario(simulator)
        finally:
            await simulator.cancel_all()

    task = loop.create_task(main())
    # A collection may end generators and call finalizers, whenever what else this process did made
    # it due: a seed would not be one run.
    collects = gc.isenabled()
    gc.disable()
    try:
        result = loop.run_until_complete(task)
    except Exception as error:
        simulator.violations.append(f"{error!r} {_place(error)}")
    finally:
        if not task.done():  # stuck: end it, or its frames would outlive the test
            task.cancel()
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()
        if collects:
            gc.enable()
    recorder = simulator.recorder
    return Outcome(seed, recorder.digest, recorder.counters, simulator.violations, result)


def run_simulation(
    seed: int,
    scenario: Callable[[Simulator], Coroutine[Any, Any, T]],
    make_loop: Callable[[], VirtualLoop] = VirtualLoop,
) -> T:
    """Run a scenario to its end.

    Raises:
        AssertionError: with the seed and every violated invariant.
    """
    outcome = simulate(seed, scenario, make_loop=make_loop)
    if outcome.violations:
        raise AssertionError(f"seed {seed}: " + "; ".join(outcome.violations[:5]))
    result: T = outcome.result
    return result
