"""Clusters to begin with, and what "even" means for each strategy."""

import random
from collections.abc import Callable
from typing import Any, Final

from magnetar.loadbalance.config import (
    AVG_SHEDDER,
    LEAST_LONG_TERM_MESSAGE_RATE,
    LEAST_RESOURCE_USAGE,
    OVERLOAD_SHEDDER,
    THRESHOLD_SHEDDER,
    TRANSFER_SHEDDER,
    UNIFORM_SHEDDER,
    BalancerConfig,
)
from tests.simulation.balancer.checks import Watch
from tests.simulation.balancer.loads import Adversary, Alternating, Load, Moving, Skewed
from tests.simulation.balancer.world import World, WorldConfig

#: The placement that goes with each shedder, by the advice of PIP-364.
PARTNERS: Final = {
    AVG_SHEDDER: AVG_SHEDDER,
    OVERLOAD_SHEDDER: LEAST_LONG_TERM_MESSAGE_RATE,
    THRESHOLD_SHEDDER: LEAST_RESOURCE_USAGE,
    UNIFORM_SHEDDER: LEAST_LONG_TERM_MESSAGE_RATE,
    TRANSFER_SHEDDER: LEAST_RESOURCE_USAGE,
}
LOADS: Final[dict[str, Callable[[int, float, random.Random], Load]]] = {
    "skewed": Skewed,
    "moving": Moving,
    "adversarial": Adversary,
    "alternating": Alternating,
}
CAPACITY: Final = 100e6  # bytes a second of a broker


class Run:
    """A world, its traffic, and who watches."""

    def __init__(self, world: World, load: Load) -> None:
        self.world, self.load, self.watch = world, load, Watch(world)

    def hours(self, count: float, each: Callable[[], None] | None = None) -> None:
        self.world.run(self.load, 3600 * count, each)
        self.watch.check_books()
        self.watch.check_served()

    def moves_since(self, before: int) -> int:
        return self.world.counters["moves"] - before

    @property
    def moves(self) -> int:
        return self.world.counters["moves"]


def begin(
    strategy: str,
    load: str | Load = "skewed",
    *,
    brokers: int = 10,
    bundles: int = 300,
    mean_usage: float = 0.5,
    empty: float = 0.5,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    **config: Any,
) -> Run:
    """A cluster with a leader, in which a part of the brokers has just joined and is empty.

    Args:
        load: of LOADS, or made already.
        mean_usage: what the brokers would have if all were even, besides 4 % of their own.
        empty: the share of brokers without bundles.
    """
    balancing = BalancerConfig(
        load_balancer_load_shedding_strategy=strategy,
        load_balancer_load_placement_strategy=PARTNERS[strategy],
        **(settings or {}),
    )
    world_config = WorldConfig(brokers=brokers, bundles=bundles, **config)
    world = World(world_config, balancing, seed)
    if isinstance(load, str):
        mean = mean_usage * CAPACITY / world_config.message_bytes * brokers / bundles
        load = LOADS[load](bundles, mean, world.rng)
    load.apply(world)
    full = brokers - round(brokers * empty)
    for number in range(full):
        world.add_broker(f"b{number}:8080", CAPACITY)
    world.seat()
    for number in range(full, brokers):
        world.add_broker(f"b{number}:8080", CAPACITY)
    for broker in world.brokers.values():
        world.write_report(broker)
    world.elect()
    return Run(world, load)


def excess(world: World) -> float:
    """Usage above the mean, over all brokers: what has to move at least."""
    usages = world.usages()
    mean = sum(usages) / len(usages)
    return sum(max(0.0, usage - mean) for usage in usages)


def is_even(strategy: str, world: World, slack: float = 0.05) -> bool:
    """Whether what calls for moves is gone, give or take what noise and whole bundles need."""
    usages = sorted(world.usages())
    mean = sum(usages) / len(usages)
    deviation = (sum((usage - mean) ** 2 for usage in usages) / len(usages)) ** 0.5
    if strategy == OVERLOAD_SHEDDER:
        return usages[-1] < 0.85 + slack
    if strategy == THRESHOLD_SHEDDER:
        return usages[-1] < mean + 0.10 + 2 * slack
    if strategy == AVG_SHEDDER:
        return usages[-1] - usages[0] < 0.40 + slack
    if strategy == TRANSFER_SHEDDER:
        return deviation < 0.25 and usages[0] > mean * 0.125 - slack
    return usages[-1] - usages[0] < 0.34 + slack  # Uniform: half as many again, at a mean of 0.5
