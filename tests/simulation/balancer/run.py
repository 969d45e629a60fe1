"""Large clusters, strategy by strategy: ``python -m tests.simulation.balancer.run --help``.

Writes a row for each run, and with ``--plots FOLDER`` the curves of usage and moves as SVG. Exits
with 1 when a rule of ``checks.py`` was broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from loadbalance.config import SHEDDERS
from tests.simulation.balancer.plots import draw
from tests.simulation.balancer.scenarios import LOADS, Run, begin, excess

_COLUMNS: Final = (
    "strategy",
    "load",
    "deviation at first",
    "after 15 min",
    "after 30 min",
    "at the end",
    "highest",
    "moves",
    "moves, last hour",
    "moved / had to",
    "came back",
    "rules broken",
)


def main() -> int:
    options = _options()
    broken, histories = 0, dict[tuple[str, str], list[dict[str, float]]]()
    print("| " + " | ".join(_COLUMNS) + " |")
    print("|---|---" + "|---:" * (len(_COLUMNS) - 2) + "|")
    for load in options.loads.split(","):
        for strategy in options.strategies.split(","):
            began_s = time.monotonic()
            run = begin(
                strategy,
                load,
                brokers=options.brokers,
                bundles=options.bundles,
                seed=options.seed,
                report_delay_s_max=5.0,
                report_loss=0.01,
                move_failure=0.01,
            )
            print(_row(run, strategy, load, options), flush=True)
            broken += len(run.watch.violations)
            histories[load, strategy] = run.world.history
            for violation in run.watch.violations[:5]:
                print(f"{strategy}, {load}: {violation}", file=sys.stderr)
            spent_s = time.monotonic() - began_s
            print(f"{strategy}, {load}: {spent_s:.0f} s", file=sys.stderr)
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
        for load in options.loads.split(","):
            of_load = {name: its for (its_load, name), its in histories.items() if its_load == load}
            (options.plots / f"balancer-{load}.svg").write_text(draw(load, of_load))
    return 1 if broken else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=1000)
    parser.add_argument("--bundles", type=int, default=100_000)
    parser.add_argument("--hours", type=float, default=2.0, help="of the world's time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategies", default=",".join(SHEDDERS))
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="curves as SVG files")
    return parser.parse_args()


def _row(run: Run, strategy: str, load: str, options: argparse.Namespace) -> str:
    """Runs it: a new leader after a third of the time, a death and a newcomer after two thirds."""
    to_move, first = excess(run.world), _deviation(run)
    run.hours(options.hours / 3)
    run.world.elect()
    run.hours(options.hours / 3)
    run.world.kill(next(iter(run.world.brokers)))
    run.world.add_broker("newcomer:8080")
    run.hours(options.hours / 3)
    history = run.world.history
    hour_ago = history[-61]["moves"] if len(history) > 60 else 0.0
    moved = sum(run.world.rate[bundle] for _, bundle, _, _ in run.world.moved) * 1000 / 100e6
    cells = (
        strategy,
        load,
        f"{first:.2f}",
        f"{history[min(14, len(history) - 1)]['deviation']:.2f}",
        f"{history[min(29, len(history) - 1)]['deviation']:.2f}",
        f"{history[-1]['deviation']:.2f}",
        f"{history[-1]['highest']:.2f}",
        f"{run.moves:,}",
        f"{history[-1]['moves'] - hour_ago:,.0f}",
        f"{moved / to_move:.2f}",
        f"{run.watch.returns:,}",
        str(len(run.watch.violations)),
    )
    return "| " + " | ".join(cells) + " |"


def _deviation(run: Run) -> float:
    usages = run.world.usages()
    mean = sum(usages) / len(usages)
    return float((sum((usage - mean) ** 2 for usage in usages) / len(usages)) ** 0.5)


if __name__ == "__main__":
    sys.exit(main())
