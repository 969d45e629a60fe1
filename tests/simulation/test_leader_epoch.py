"""Ownership where the leader alone assigns bundles, in its epoch, with leaders that come and go.

Real ``OwnershipService`` and ``LeaderEpoch`` objects over sessions that lose requests and replies.
At any step of what it does a leader dies, or is deposed and goes on without knowing. Beside what
holds in both modes (one owner at most, caches as the nodes): nobody takes a bundle by an assignment
of an epoch that had ended when it asked, assignments and epochs never go back, and no two leaders
have one epoch.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import orjson
import pytest

from magnetar.bundles.errors import BundleNotReadyError
from magnetar.bundles.ownership import Redirect
from magnetar.loadbalance.leader_epoch import (
    ASSIGNMENTS_ROOT,
    EPOCH_PATH,
    BundleAssignment,
    LeaderEpoch,
)
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError
from tests.simulation.simulator import seeds
from tests.simulation.test_bundles_ownership import (
    TOPICS,
    Broker,
    FaultySession,
    World,
    outcomes_of,
    run_world,
)


class Leader:
    """Believes to lead from the moment when its epoch has begun, for ever."""

    def __init__(self, world: "EpochWorld", name: str) -> None:
        self.name, self.epoch = name, 0
        self.store = FaultySession(world.base, world.rng)
        self.leader_epoch = LeaderEpoch(self.store)


class EpochWorld(World):
    def __init__(self, seed: int, base: EmbeddedMetadataStore) -> None:
        super().__init__(seed, base)
        self.leaders: list[Leader] = []
        self.begun = 0  # the latest epoch that has surely begun
        self.epochs_of: Counter[int] = Counter()
        self.broken: list[str] = []
        self.rows: dict[str, int] = {}  # epoch by path, as last seen
        self.known = {broker.name: LeaderEpoch(broker.store) for broker in self.brokers}
        for broker in self.brokers:
            broker.service._choose = self._ask_the_leader
            broker.service._permit = self._permit_of(broker)
            broker.load = partial(self._load, broker)  # type: ignore[method-assign]

    async def _ask_the_leader(self, bundle: str) -> Redirect | None:
        raise BundleNotReadyError(bundle, "the leader shall say")

    async def _load(self, broker: Broker, topic: str) -> None:
        """As the loader does: nobody loads what isn't the broker's; who waited asks again."""
        await broker.service.ensure_owned(topic)
        if broker.proves(topic):
            broker.loaded[self.bundle_of[topic]] += 1

    def _permit_of(self, broker: Broker) -> Callable[[str], Awaitable[None]]:
        async def permit(bundle: str) -> None:
            begun = self.begun
            try:
                allowed = await self.known[broker.name].is_assigned(bundle, broker.name)
            except MetadataError as error:
                raise BundleNotReadyError(bundle, str(error)) from error
            if not allowed:
                self.outcomes["not assigned"] += 1
                raise BundleNotReadyError(bundle, "it isn't assigned")
            self.outcomes["assigned"] += 1
            # Rows never go back, so what it saw wasn't later than what is there.
            row = self.rows_now()[f"{ASSIGNMENTS_ROOT}/{bundle}"]
            if row < begun:
                self.broken.append(f"{bundle} at {broker.name} by epoch {row}, {begun} had begun")

        return permit

    def rows_now(self) -> dict[str, int]:
        found = {}
        for path, node in self.base._tree.nodes.items():
            if path == EPOCH_PATH:
                found[path] = int(orjson.loads(node.value)["epoch"])
            elif path.startswith(f"{ASSIGNMENTS_ROOT}/t/n/"):
                row = BundleAssignment.decode(node.value)
                assert row is not None
                found[path] = row.epoch
        return found

    def check_safety(self) -> None:
        super().check_safety()
        now = self.rows_now()
        for path, epoch in self.rows.items():
            assert now.get(path, 0) >= epoch, f"{path} went back from {epoch}"
        self.rows = now
        assert self.broken == []

    def act(self) -> None:
        kind = self.rng.random()
        if kind < 0.05:
            self.start(self.elect())
        elif kind < 0.5 and self.leaders:
            # The latest, or one that was deposed and doesn't know.
            leader = self.rng.choice([self.leaders[-1], *self.leaders[-3:]])
            self.crash_somewhere(self.place(leader, self.rng.choice(TOPICS)))
        else:
            super().act()

    def crash_somewhere(self, call: Coroutine[Any, Any, None]) -> None:
        """Mostly it comes to its end; else its leader dies at some step of it."""
        task = asyncio.get_running_loop().create_task(call)
        if self.rng.random() < 0.2:
            self.start(self.cancel_later(task, self.rng.randrange(40)))
        self.start(asyncio.wait((task,)))

    async def cancel_later(self, task: asyncio.Task[None], turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        self.outcomes["crashed"] += 1

    async def elect(self) -> None:
        leader = Leader(self, f"leader{len(self.leaders)}")
        leader.epoch = await leader.leader_epoch.begin(leader.name)
        self.epochs_of[leader.epoch] += 1
        assert self.epochs_of[leader.epoch] == 1, f"two leaders have epoch {leader.epoch}"
        self.begun = max(self.begun, leader.epoch)
        self.leaders.append(leader)
        self.leaders.sort(key=lambda each: each.epoch)

    async def place(self, leader: Leader, topic: str) -> None:
        """As the leader answers a lookup: assign, then send the client there."""
        bundle, begun = self.bundle_of[topic], self.begun
        chosen = self.rng.choice(self.brokers)
        try:
            assigned = await leader.leader_epoch.assign(bundle, chosen.name, leader.epoch)
        except MetadataError:
            return
        if not assigned:
            self.outcomes["deposed"] += 1
            return
        if leader.epoch < begun:
            self.broken.append(f"epoch {leader.epoch} assigned {bundle}, {begun} had begun")
        self.start(chosen.service.lookup(topic))

    async def check_liveness(self) -> None:
        """One leader gives every bundle that nobody owns to somebody."""
        await self.elect()
        self.leaders[-1].store.healed = True
        for topic, bundle in self.bundle_of.items():
            if await self.brokers[0].service.owner_of_bundle(bundle) is None:
                await self.place(self.leaders[-1], topic)
                await asyncio.gather(*self.tasks)
        await super().check_liveness()


@pytest.mark.parametrize("seed", seeds(20))
async def test_nobody_owns_by_an_epoch_that_has_ended(seed: int) -> None:
    await outcomes_of(EpochWorld, seed)


async def test_the_runs_meet_what_they_are_for() -> None:
    outcomes = Counter[str]()
    for seed in range(20):
        outcomes += await outcomes_of(EpochWorld, seed)
    assert outcomes["assigned"] > 100
    assert outcomes["not assigned"] > 50
    assert outcomes["deposed"] > 20
    assert outcomes["crashed"] > 50


async def test_a_seed_replays_its_run() -> None:
    first, second = [await run_world(EpochWorld, random.Random(3).randrange(99)) for _ in range(2)]
    assert first.outcomes == second.outcomes
