"""A cluster in one thread: bookies, metadata store, links, and the processes of clients."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import (
    ClientConfig,
    ReadConfig,
    SpeculationConfig,
    WriteConfig,
)
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.metadata.errors import MetadataError
from tests.memory_file_system import PowerLoss
from tests.simulation.cluster.checker import Checker
from tests.simulation.cluster.clients import LinkedBookie
from tests.simulation.cluster.machine import SESSION_TIMEOUT_MS, BookieMachine
from tests.simulation.cluster.metadata_model import ClusterStore, MetadataServer
from tests.simulation.cluster.nodes import ClusterLoop, Links, Process
from tests.simulation.simulator import Simulator

EXPLICIT_LAC_MS = 150
ZONES = ("z1", "z2", "z3")
logging.getLogger("magnetar.bookkeeper").addHandler(logging.NullHandler())
logging.getLogger("magnetar.bookkeeper").propagate = False


class Member:
    """A client process of the cluster: its session, its pool, its ledger client."""

    def __init__(self, cluster: "Cluster", process: Process) -> None:
        self.process = process
        self.store = ClusterStore(cluster.server, process)
        self.pool = BookiePool(self.store, lambda host: cluster.linked(process, host))
        self.placement = cluster.placement(self.pool)
        self.client = BookKeeperClient(
            self.store,
            self.pool,
            self.placement,
            clock=lambda: process.wall_clock_ms(cluster.loop),
            rng=cluster.rng,
            config=cluster.client_config,
            layout=cluster.layout,
        )


class Cluster:
    """See the module's text; satisfies ``clients.Net``."""

    def __init__(
        self,
        simulator: Simulator,
        bookies: int,
        upgrade_domains: int = 2,
        layout: Layout | None = None,
    ) -> None:
        assert isinstance(simulator.loop, ClusterLoop)
        self.simulator = simulator
        self.loop: ClusterLoop = simulator.loop
        self.rng: random.Random = simulator.rng
        self.recorder = simulator.recorder
        self.loop.rng = self.rng
        self.loop.set_exception_handler(self._on_loop_error)
        self.links = Links(self.loop, self.rng, self.recorder)
        self.layout = layout or JsonLayout()
        self.checker = Checker(simulator, self.layout)
        self.server = MetadataServer(self.loop, self.rng, self.recorder)
        self.server.on_change = self.checker.on_metadata
        self.members: list[Member] = []
        self.client_config = ClientConfig(
            recovery_read_entries=7,
            reads=ReadConfig(
                reorder=self.rng.random() < 0.3,
                sticky=self.rng.random() < 0.5,
                speculation=SpeculationConfig(self.rng.choice([0, 0, 100])),
            ),
            writes=WriteConfig(
                explicit_lac_interval_ms=EXPLICIT_LAC_MS,
                add_quorum_timeout_ms=self.rng.choice([0, 0, 0, 1500]),
                delay_ensemble_change=self.rng.random() < 0.2,
            ),
        )
        # Dice of their own: the other seeds are the runs they were before there were late copies.
        self._late_rng = random.Random(5 * simulator.seed + 3)
        self.repeats_late = self._late_rng.random() < 0.3
        self.placement: Callable[[BookiePool], EnsemblePlacementPolicy] = lambda _: RandomPlacement(
            self.rng
        )
        self._lives: dict[str, int] = {}
        for number in range(bookies):
            zone = ZONES[number % len(ZONES)]
            domain = f"ud{number // len(ZONES) % upgrade_domains}"
            self.add_machine(f"b{number}", zone, domain)

    @property
    def machines(self) -> dict[str, BookieMachine]:
        return self.checker.machines

    def late_copy_s(self) -> float:
        """See ``clients.Net``."""
        if not self.repeats_late or self._late_rng.random() < 0.5:
            return 0.0
        self.recorder.count("fault: explicit LAC comes again")
        return self._late_rng.uniform(0.1, 1.5)

    def add_machine(self, host: str, zone: str, domain: str) -> BookieMachine:
        machine = BookieMachine(
            *(self.server, self.recorder, self.checker, host, f"/{zone}/{domain}"), self.layout
        )
        self.checker.machines[host] = machine
        self.checker.zones[host] = zone, domain
        return machine

    def linked(self, process: Process, host: str) -> LinkedBookie | None:
        machine = self.machines.get(host)
        return None if machine is None else LinkedBookie(self, process, machine)

    def process(self, host: str) -> Process:
        """A new life of a process of this name."""
        self._lives[host] = self._lives.get(host, 0) + 1
        return Process(host, self._lives[host])

    def member(self, process: Process) -> Member:
        """REQUIRES: called in ``process``."""
        member = Member(self, process)
        self.members.append(member)
        return member

    def run_in(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that belongs to a process."""
        return process.context.run(self.simulator.start, work)

    def kill(self, member: Member) -> None:
        """The process is gone; its session ends a while later."""
        self.recorder.event("killed", member.process)
        member.process.alive = False
        self.end_later(member)

    def end_later(self, member: Member) -> None:
        self.loop.after_ms(
            self.rng.uniform(0.3, 1.0) * SESSION_TIMEOUT_MS,
            self.server.end_session,
            member.store.session_id,
            process=None,
        )

    def stores(self) -> list[ClusterStore]:
        """Of the processes that live."""
        return [store for store in self.server.stores if store.process.alive]

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), PowerLoss):
            self.simulator.on_loop_error(loop, context)


async def patiently(start: Callable[[], Any]) -> None:
    """A client whose metadata store doesn't answer tries again."""
    while True:
        try:
            await start()
        except MetadataError:
            await asyncio.sleep(0.2)
        else:
            return
