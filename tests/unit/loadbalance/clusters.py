"""Clusters for tests: brokers with CPUs of 100 %, bundles of so many bytes a second."""

import random
from collections.abc import Mapping
from typing import Any

from magnetar.loadbalance.balancer import Balancer
from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.model import BrokerLoad, BundleStats, Move, ResourceUsage
from magnetar.loadbalance.policies import PlacementPolicies

MIB = 1024 * 1024.0


def bundle(number: int, namespace: str = "t/n") -> str:
    return f"{namespace}/0x{number:08x}_0x{number + 1:08x}"


def report(
    broker: str,
    usage: float,
    bundles: Mapping[str, float],
    *,
    rates: Mapping[str, float] | None = None,
    **fields: Any,
) -> BrokerLoad:
    """Of a broker at ``usage`` (0 to 1).

    Args:
        bundles: bytes a second by name.
        rates: messages a second by name; else one for each 1,000 bytes.
    """
    stats = {
        name: BundleStats(
            msg_rate_in=size / 1000 if rates is None else rates[name],
            msg_throughput_in=size,
            topics=1,
        )
        for name, size in bundles.items()
    }
    return BrokerLoad(
        broker,
        cpu=ResourceUsage(usage * 100, 100),
        msg_rate_in=sum(each.msg_rate_in for each in stats.values()),
        msg_throughput_in=sum(bundles.values()),
        stats=stats,
        topics=len(stats),
        bundles=sorted(bundles),
        **fields,
    )


def balancer(
    *reports: BrokerLoad, policies: PlacementPolicies | None = None, seed: int = 1, **settings: Any
) -> Balancer:
    made = Balancer(BalancerConfig(**settings), random.Random(seed))
    made.on_policies(policies or PlacementPolicies())
    for each in reports:
        made.on_report(each, 0.0)
    return made


def moves(made: Balancer, now_s: float) -> list[Move]:
    """All of one round, not yet answered."""
    return [each for each in made.round(now_s) if each is not None]


def rounds(made: Balancer, count: int, first_s: float = 0.0) -> list[list[Move]]:
    """One a minute without any news."""
    return [moves(made, first_s + 60.0 * number) for number in range(count)]
