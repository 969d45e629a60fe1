"""What the leader's work costs: `python -m benchmarks.micro.balancer [BROKERS BUNDLES]`.

Reports of all brokers, placements, and rounds of each strategy that have much to move and nothing
to move. A round is told whole and by its longest step, because others run between steps. All times
are of the processor, so that other work on the machine counts less.
"""

import gc
import random
import statistics
import sys
import time

import orjson

from magnetar.loadbalance.balancer import Balancer
from magnetar.loadbalance.config import PLACEMENTS, SHEDDERS, BalancerConfig
from magnetar.loadbalance.documents import broker_load_document, broker_load_of, parse
from tests.simulation.balancer.scenarios import Run, begin
from tests.simulation.balancer.world import Leader


def main() -> None:
    brokers, bundles = (int(each) for each in (*sys.argv[1:], "1000", "100000")[:2])
    print(f"{brokers} brokers, {bundles} bundles, Python {sys.version.split()[0]}\n")
    _reports(begin(SHEDDERS[0], brokers=brokers, bundles=bundles, empty=0.0))
    _placements(begin(SHEDDERS[0], brokers=brokers, bundles=bundles))
    print("\n| a round | whole, ms | longest step, ms | moves | us a bundle |")
    print("|---|---:|---:|---:|---:|")
    for strategy in SHEDDERS:
        for empty, state in ((0.5, "uneven"), (0.0, "even")):
            run = begin(strategy, brokers=brokers, bundles=bundles, empty=empty)
            gc.collect()
            gc.freeze()  # as a broker does after its start
            _round_robin(run.world.leaders[0], f"{strategy}, {state}", bundles)


def _reports(run: Run) -> None:
    """What a new leader spends on each: the first is of a broker that it doesn't know yet."""
    balancer = Balancer(run.world.settings, random.Random(1))
    balancer.on_policies(run.world.policies)
    written = [each.written for each in run.world.brokers.values() if each.written is not None]
    values = [orjson.dumps(broker_load_document(each, 0.5)) for each in written]
    began_s = time.thread_time()
    for load, value in zip(written, values, strict=True):
        broker_load_of(load.broker_id, parse("a report", value))
    _each("a report is decoded", time.thread_time() - began_s, len(written))
    for name, now_s in (("a broker's first report", 1.0), ("a later report", 60.0)):
        began_s = time.thread_time()
        for load in written:
            balancer.on_report(load, now_s)
        _each(name, time.thread_time() - began_s, len(written))


def _each(name: str, spent_s: float, count: int) -> None:
    print(f"{name}: {spent_s / count * 1e6:.0f} us")


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
            began_s = time.thread_time()
            balancer.place(f"t/new{number // 32}/0x{number:08x}_0x{number + 1:08x}", 1.0)
            spent.append(time.thread_time() - began_s)
        print(f"a placement, {strategy}: {statistics.median(spent) * 1e6:.0f} us")


def _round_robin(leader: Leader, name: str, bundles: int) -> None:
    """As many as it takes until the strategy has waited long enough; the dearest is told."""
    worst = (0.0, 0.0, 0)
    for number in range(1, 10):
        began_s = last_s = time.thread_time()
        longest_s, moves = 0.0, 0
        for move in leader.balancer.round(leader.ahead_s + 60.0 * number):
            now_s = time.thread_time()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
            moves += move is not None
        worst = max(worst, (time.thread_time() - began_s, longest_s, moves))
    whole_s, longest_s, moves = worst
    print(
        f"| {name} | {whole_s * 1e3:.1f} | {longest_s * 1e3:.1f} | {moves:,} "
        f"| {whole_s / bundles * 1e6:.2f} |"
    )


if __name__ == "__main__":
    main()
