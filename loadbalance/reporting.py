"""When a broker writes a new load report: docs/spec/bundles.md, "Load reports". Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from magnetar.loadbalance.config import BalancerConfig
    from magnetar.loadbalance.model import BrokerLoad, Weights

SETTLE_S: Final = 60.0
"""After this time a change of a broker's bundles shows in its usage of CPU and network."""


def largest_change(last: BrokerLoad, now: BrokerLoad, weights: Weights) -> float:
    """Percent: of messages, bytes and bundles by their last value, of usage in points."""
    return max(
        _percent(last.rate, now.rate),
        _percent(last.throughput, now.throughput),
        _percent(len(last.bundles), len(now.bundles)),
        100.0 * abs(now.usage(weights) - last.usage(weights)),
    )


def report_due(
    last: BrokerLoad | None, age_s: float, now: BrokerLoad, config: BalancerConfig, weights: Weights
) -> bool:
    """Whether ``now`` is to be written; asked every ``report_update_min_interval_millis``.

    Never ask while the store is out of reach. A split, the start and the beginning of a drain are
    reported at once, without asking.

    Args:
        last: what was written last, ``age_s`` ago by a clock that doesn't jump.
    """
    if last is None or age_s >= config.load_balancer_report_update_max_interval_minutes * 60:
        return True
    if age_s * 1000 < config.load_balancer_report_update_min_interval_millis:
        return False
    if largest_change(last, now, weights) > config.load_balancer_report_update_threshold_percentage:
        return True
    # Not in Pulsar: one bundle of hundreds changes nothing by ten percent, and the leader, who
    # moved it, would judge both brokers by its own guess for a quarter of an hour.
    return age_s >= SETTLE_S and set(last.bundles) != set(now.bundles)


def _percent(old: float, new: float) -> float:
    if old == 0:
        return 0.0 if new == 0 else math.inf
    return 100.0 * abs(old - new) / old
