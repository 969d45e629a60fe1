"""What a strategy is, and what several of them do alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from magnetar.loadbalance.model import BundleData
from magnetar.loadbalance.plan import Plan, ProjectedLoad


class Shedder(Protocol):
    """Keeps what it has to know of earlier rounds, above all how long a difference lasts."""

    def run(self, plan: Plan) -> Iterator[None]:
        """Makes the moves of one round by ``plan.move``.

        Stops after each broker or so: whoever runs it may do something else in between.
        """


def rate_of(load: BundleData) -> float:
    return load.short.rate


def throughput_of(load: BundleData) -> float:
    return load.short.throughput


def shed_bytes(plan: Plan, source: ProjectedLoad, amount: float, reason: str) -> float:
    """Moves the largest bundles until ``amount`` bytes a second are gone, or nothing fits.

    Overshoots by less than one bundle. Scores must be shares of usage.

    Returns:
        Bytes a second that were moved.
    """
    moved = 0.0
    for size, bundle in plan.movable(source, throughput_of):
        if moved >= amount or plan.is_full:
            break
        if plan.move(bundle, source, plan.usage_part(source, size), reason) is not None:
            moved += size
    return moved
