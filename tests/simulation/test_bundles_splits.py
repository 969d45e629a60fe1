"""Brokers that split bundles while they race for them and lose sessions, requests and replies.

As in ``test_bundles_ownership.py``, but boundaries are persistent. Moreover, once healed: the
stored boundaries hold every cut that was confirmed, and no node is left of a bundle that is none.
"""

from collections import Counter

import pytest

from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.local_policies import LocalPolicies
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.simulation.simulator import seeds
from tests.simulation.test_bundles_ownership import (
    TOPICS,
    Broker,
    World,
    outcomes_of,
    run_world,
)

NAMESPACE = "t/n"


class SplitWorld(World):
    def __init__(self, seed: int, base: EmbeddedMetadataStore) -> None:
        super().__init__(seed, base)
        self.cuts: set[int] = set()  # of splits that were confirmed

    def act(self) -> None:
        if self.rng.random() < 0.12:
            self.start(self.split(self.rng.choice(self.brokers)))
        else:
            super().act()

    async def split(self, broker: Broker) -> None:
        ranges = (await broker.service.bundles(NAMESPACE)).ranges
        bundle = ranges[0] if self.rng.random() < 0.5 else self.rng.choice(ranges)
        width = bundle.upper - bundle.lower
        points = sorted({bundle.lower + self.rng.randrange(1, width) for _ in range(2)})
        points = points[: self.rng.randrange(1, 3)]
        try:
            await broker.service.split(NAMESPACE, bundle, points)
        except InvalidBundleError:
            self.outcomes["gone"] += 1  # it had been split before
        else:
            self.outcomes["split"] += 1
            self.cuts.update(points)

    async def stored(self) -> LocalPolicies:
        found = await self.base.get(f"/admin/local-policies/{NAMESPACE}")
        assert found is not None
        return LocalPolicies.decode(NAMESPACE, found.value)

    def check_safety(self) -> None:
        for topic in TOPICS:
            provers = self.provers(topic)
            assert len(provers) <= 1, f"{topic}: {[broker.name for broker in provers]}"
            for broker in provers:
                bundle = broker.service.bundle_of_nowait(topic)
                node = broker.store._tree.nodes.get(f"/namespace/{bundle}")
                assert node is not None, f"{bundle}: {broker.name} has no node"
                assert node.owner == broker.store.session_id

    async def check_liveness(self) -> None:
        local = await self.stored()
        assert self.cuts <= set(local.bundles.boundaries)
        for topic in TOPICS:
            self.bundle_of[topic] = local.bundles.bundle_of(topic)
            answers = []
            for broker in self.rng.sample(self.brokers, len(self.brokers)):
                answer = await broker.service.lookup(topic)
                assert answer is not None
                assert answer.bundle == self.bundle_of[topic]
                answers.append(answer.broker)
            assert len(set(answers)) == 1, f"{topic}: {answers}"
            (owner,) = [broker for broker in self.brokers if broker.lookup == answers[0]]
            await owner.service.acquire(topic)
            assert owner.proves(topic)
        self.check_safety()
        nodes = {f"{NAMESPACE}/{name}" for name in await self.base.children("/namespace/t/n")}
        assert nodes <= set(local.bundles.names), "nodes of bundles that are none"
        caches = [each for broker in self.brokers for each in broker.service.owned_bundles]
        assert sorted(caches) == sorted(nodes)


@pytest.mark.parametrize("seed", seeds(20))
async def test_splits_leave_one_owner_for_every_topic(seed: int) -> None:
    await outcomes_of(SplitWorld, seed)


async def test_the_runs_meet_what_they_are_for() -> None:
    outcomes = Counter[str]()
    for seed in range(20):
        outcomes += await outcomes_of(SplitWorld, seed)
    for each in ("split", "BundleBusyError", "BundleNotReadyError"):
        assert outcomes[each] > 20, outcomes


async def test_a_seed_replays_its_run() -> None:
    first, again = await run_world(SplitWorld, 7), await run_world(SplitWorld, 7)
    assert first.outcomes == again.outcomes
    assert first.cuts == again.cuts
    assert _state(first) == _state(again)


def _state(world: SplitWorld) -> object:
    """Where the next number of its chance stands: any other event would have moved it."""
    return world.rng.getstate()
