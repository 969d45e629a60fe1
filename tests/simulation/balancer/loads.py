"""Traffic over time: skewed, moving, adversarial. It is ``world.rate``, messages a second."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.simulation.balancer.world import World


class Load(Protocol):
    def apply(self, world: World) -> None:
        """Sets the traffic of now."""


def skewed(count: int, mean: float, rng: random.Random) -> list[float]:
    """A few large and many small ones: a fifth of the bundles has four fifths of the traffic."""
    weights = [rng.paretovariate(1.16) for _ in range(count)]
    cap = 12 * sum(weights) / count  # a bundle that fills a broker can't be helped by moves
    weights = [min(weight, cap) for weight in weights]
    scale = mean * count / sum(weights)
    return [weight * scale for weight in weights]


class Skewed:
    """The same all the time, but for noise of a few percent."""

    def __init__(self, count: int, mean: float, rng: random.Random, noise: float = 0.05) -> None:
        self._base, self._rng, self._noise = skewed(count, mean, rng), rng, noise

    def apply(self, world: World) -> None:
        draw, noise = self._rng.random, self._noise
        world.rate = [base * (1 + noise * (2 * draw() - 1)) for base in self._base]


class Moving:
    """Each namespace has its own hours: up to four times its lowest traffic, in two hours."""

    def __init__(self, count: int, mean: float, rng: random.Random, period_s: float = 7200) -> None:
        self._base = skewed(count, mean, rng)
        self._period_s = period_s
        self._phase = [rng.random() for _ in range(count)]

    def apply(self, world: World) -> None:
        turn = world.now_s / self._period_s
        phases = {
            namespace: 1 + 0.6 * math.sin(2 * math.pi * (turn + self._phase[namespace]))
            for namespace in range(world.namespace_count)
        }
        of = world.namespace_of
        world.rate = [base * phases[of(number)] for number, base in enumerate(self._base)]


class Adversary:
    """Knows who has what: what was moved last becomes five times as large where it is now.

    So each move looks wrong a minute after it was made.
    """

    def __init__(self, count: int, mean: float, rng: random.Random) -> None:
        self._base = skewed(count, mean, rng)

    def apply(self, world: World) -> None:
        world.rate = list(self._base)
        since_s = world.now_s - 300
        for moved_s, bundle, _, _ in reversed(world.moved):
            if moved_s < since_s:
                break
            world.rate[bundle] = 5 * self._base[bundle]


class Alternating:
    """F26: every minute the other half of the brokers is three times as busy as the first."""

    def __init__(self, count: int, mean: float, rng: random.Random) -> None:
        self._base = skewed(count, mean, rng)

    def apply(self, world: World) -> None:
        phase = int(world.now_s // 60) % 2
        world.rate = list(self._base)
        for number, broker in enumerate(world.brokers.values()):
            factor = 1.5 if number % 2 == phase else 0.5
            for bundle in broker.bundles:
                world.rate[bundle] *= factor
