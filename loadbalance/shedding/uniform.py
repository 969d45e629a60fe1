"""UniformLoadShedder: the broker with the most messages gives to the one with the fewest.

If messages are even it goes by bytes. One pair a round, and not even a fifth of the difference by
default, so many brokers take many rounds. A broker that can't give anything is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from magnetar.loadbalance.model import BundleData
from magnetar.loadbalance.plan import Plan, ProjectedLoad
from magnetar.loadbalance.shedding.shedder import rate_of, throughput_of


class UniformLoadShedder:
    """Has no memory."""

    def run(self, plan: Plan) -> Iterator[None]:
        config = plan.config
        plan.rank(lambda projected: projected.rate)
        yield
        high, low = _ends(plan)
        if (high - low) * 100 / max(low, 1.0) > (
            config.load_balancer_msg_rate_difference_shedder_threshold
        ):
            yield from _even_out(plan, rate_of, config.min_unload_message, "messages")
        if plan.moves:
            return
        plan.rank(lambda projected: projected.throughput)
        yield
        high, low = _ends(plan)
        if high / max(low, 1.0) > (
            config.load_balancer_msg_throughput_multiplier_difference_shedder_threshold
        ):
            least = config.min_unload_message_throughput
            yield from _even_out(plan, throughput_of, least, "bytes")


def _ends(plan: Plan) -> tuple[float, float]:
    """Highest and lowest score; nothing to do for fewer than two brokers."""
    ranked = plan.ranked()
    return (ranked[-1].score, ranked[0].score) if ranked else (0.0, 0.0)


def _even_out(
    plan: Plan, size: Callable[[BundleData], float], least: float, what: str
) -> Iterator[None]:
    """From the highest broker that can give something."""
    ranked = plan.rested()
    if not ranked:
        return
    target = ranked[0]
    for source in reversed(ranked):
        amount = (source.score - target.score) * plan.config.max_unload_percentage
        if amount < least:
            return
        _shed(plan, source, target, amount, size, f"{amount:.0f} {what}")
        if plan.moves:
            return
        yield


def _shed(
    plan: Plan,
    source: ProjectedLoad,
    target: ProjectedLoad,
    amount: float,
    size: Callable[[BundleData], float],
    reason: str,
) -> None:
    count_max = plan.config.max_unload_bundle_num_per_shedding
    left = amount
    for its, bundle in plan.movable(source, size):
        if 0 <= count_max <= source.given:
            return
        if its <= left and plan.move(bundle, source, its, reason):
            left -= its
