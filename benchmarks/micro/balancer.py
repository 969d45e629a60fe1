"""What the leader's work costs: `python -m benchmarks.micro.balancer [BROKERS BUNDLES]`.

Reports of all brokers, placements, and rounds of each strategy that have much to move and nothing
to move. A round is told whole and by its longest step, because others run between steps.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from loadbalance.balancer import Balancer
from loadbalance.config import PLACEMENTS, SHEDDERS, BalancerConfig
from tests.simulation.balancer.scenarios import Run, begin


def main() -> None:
    brokers, bundles = (int(each) for each in (*sys.argv[1:], "1000", "100000")[:2])
    print(f"{brokers} brokers, {bundles} bundles, Python {sys.version.split()[0]}\n")
    _reports(begin(SHEDDERS[0], brokers=brokers, bundles=bundles), bundles)
    _placements(begin(SHEDDERS[0], brokers=brokers, bundles=bundles))
    print("\n| a round | whole, ms | longest step, ms | moves | us a bundle |")
    print("|---|---:|---:|---:|---:|")
    for strategy in SHEDDERS:
        for empty, state in ((0.5, "uneven"), (0.0, "even")):
            run = begin(strategy, brokers=brokers, bundles=bundles, empty=empty)
            _rounds(run.world.leaders[0].balancer, f"{strategy}, {state}", bundles)


def _reports(run: Run, bundles: int) -> None:
    balancer = run.world.leaders[0].balancer
    written = [each.written for each in run.world.brokers.values() if each.written is not None]
    began_s = time.perf_counter()
    for load in written:
        balancer.on_report(load, 60.0)
    spent_s = time.perf_counter() - began_s
    print(f"reports: {spent_s / len(written) * 1e6:.0f} us each, ", end="")
    print(f"{spent_s / bundles * 1e6:.2f} us a bundle")


def _placements(run: Run) -> None:
    for strategy in PLACEMENTS:
        config = BalancerConfig(load_balancer_load_placement_strategy=strategy)
        balancer = Balancer(config, random.Random(1))
        balancer.on_policies(run.world.policies)
        for broker in run.world.brokers.values():
            if broker.written is not None:
                balancer.on_report(broker.written, 0.0)
        spent = []
        for number in range(300):
            began_s = time.perf_counter()
            balancer.place(f"t/new{number // 32}/0x{number:08x}_0x{number + 1:08x}", 1.0)
            spent.append(time.perf_counter() - began_s)
        print(f"a placement, {strategy}: {statistics.median(spent) * 1e6:.0f} us")


def _rounds(balancer: Balancer, name: str, bundles: int) -> None:
    """As many as it takes until the strategy has waited long enough; the dearest is told."""
    worst = (0.0, 0.0, 0)
    for number in range(1, 10):
        began_s = last_s = time.perf_counter()
        longest_s, moves = 0.0, 0
        for move in balancer.round(60.0 * number):
            now_s = time.perf_counter()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
            moves += move is not None
        worst = max(worst, (time.perf_counter() - began_s, longest_s, moves))
    whole_s, longest_s, moves = worst
    print(
        f"| {name} | {whole_s * 1e3:.1f} | {longest_s * 1e3:.1f} | {moves:,} "
        f"| {whole_s / bundles * 1e6:.2f} |"
    )


if __name__ == "__main__":
    main()
