"""Where a round's moves go: the lowest that may have the bundle, by figures of this moment."""

import random

import pytest

from magnetar.loadbalance.broker_selector import BrokerSelector
from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.plan import Plan, ProjectedLoad
from magnetar.loadbalance.policies import IsolationPolicies, PlacementPolicies
from tests.unit.loadbalance.clusters import MIB, balancer, bundle, report

# A third of the namespaces is isolated on half of the brokers, another third on a few of these.
POLICIES = PlacementPolicies(
    isolation=IsolationPolicies.parse(
        {
            "half": {"namespaces": ["t/half"], "primary": ["b[0-9]*[02468]"], "secondary": []},
            "few": {"namespaces": ["t/few"], "primary": ["b[0-4]"], "secondary": []},
        }
    )
)


def lowest(
    plan: Plan, placement: BrokerSelector, namespace: str, source: ProjectedLoad
) -> str | None:
    """By looking at all of them."""
    may = [
        (each.score, each.broker)
        for each in plan.projections.values()
        if not each.in_cooldown and each is not source and placement.allows(namespace, each.broker)
    ]
    return min(may)[1] if may else None


@pytest.mark.parametrize("seed", range(20))
def test_a_bundle_goes_to_the_lowest_that_may_have_it(seed: int) -> None:
    rng = random.Random(seed)
    reports = []
    for number in range(40):
        usage = rng.choice([0.1, 0.2, rng.random()])  # some are equal
        names = [f"t/{rng.choice(['half', 'few', 'free'])}" for _ in range(10)]
        its = {bundle(number * 10 + k, name): 10 * MIB for k, name in enumerate(names)}
        reports.append(report(f"b{number}:1", usage, its))
    made = balancer(*reports, policies=POLICIES, seed=seed)
    state, config = made.state, BalancerConfig()
    for broker in rng.sample(list(state.brokers.values()), 15):
        broker.moved_s = -30.0  # rests
    placement = BrokerSelector(state, config, rng)
    placement.use(POLICIES)
    plan = Plan(state, placement, config, set(), 0.0)
    list(plan.evaluate())
    plan.rank(lambda projected: projected.usage)
    moved = 0
    for source in reversed(plan.ranked()):
        for _, name in plan.movable(source, lambda load: load.short.throughput):
            wanted = lowest(plan, placement, name.rpartition("/")[0], source)
            fits = (
                wanted is not None
                and not source.in_cooldown
                and source.bundles > 1
                and plan.projections[wanted].score + 0.01 <= source.score - 0.01 + 1e-9
            )
            move = plan.move(name, source, 0.01, "test")
            assert (None if move is None else move.target) == (wanted if fits else None)
            moved += move is not None
            assert [each.score for each in plan.ranked()] == sorted(
                each.score for each in plan.projections.values()
            )
    assert moved > 20


def test_what_rests_is_not_looked_at() -> None:
    """A thousand brokers rest after a large round: offering each bundle to all of them took 3 s."""
    hot = report("hot:1", 0.95, {bundle(number): 10 * MIB for number in range(50)})
    made = balancer(hot, *(report(f"b{number}:1", 0.1, {}) for number in range(100)))
    for name, broker in made.state.brokers.items():
        if name not in {"hot:1", "b7:1"}:
            broker.moved_s = -30.0
    config = BalancerConfig()
    placement = Asked(made.state, config, random.Random(1))
    plan = Plan(made.state, placement, config, set(), 0.0)
    list(plan.evaluate())
    plan.rank(lambda projected: projected.usage)
    source = plan.projections["hot:1"]
    for _, name in plan.movable(source, lambda load: load.short.throughput):
        plan.move(name, source, 0.001, "test")
    assert {move.target for move in plan.moves} == {"b7:1"}
    assert placement.asked < 200  # not 50 times 100


class Asked(BrokerSelector):
    """Counts how often a broker is considered."""

    asked = 0

    def allows(self, namespace: str, broker: str) -> bool:
        self.asked += 1
        return super().allows(namespace, broker)
