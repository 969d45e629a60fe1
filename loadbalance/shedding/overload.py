"""OverloadShedder: only brokers above 85 % give anything away.

So a new broker stays empty while the others are at 80 %, and when all are above nothing helps:
a broker gives to one that stands lower, never in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from magnetar.loadbalance.plan import Plan
from magnetar.loadbalance.shedding.shedder import shed_bytes

_MARGIN: Final = 0.05  # below the limit, so that the next message doesn't call for another move


class OverloadShedder:
    """Has no memory."""

    def run(self, plan: Plan) -> Iterator[None]:
        limit = plan.config.load_balancer_broker_overloaded_threshold_percentage / 100
        plan.rank(lambda projected: projected.usage)
        yield
        hot = [each for each in plan.ranked() if each.usage >= limit]
        for source in reversed(hot):
            if source.usage >= limit and not plan.is_full:  # it may have changed meanwhile
                amount = source.throughput * (source.usage - limit + _MARGIN)
                shed_bytes(plan, source, amount, f"usage {source.usage:.2f}")
            yield
