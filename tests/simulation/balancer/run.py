"""Large clusters, strategy by strategy: ``python -m tests.simulation.balancer.run --help``.

Each pair of a strategy and a load is one run; its result is a line of JSON in ``results.jsonl`` of
the folder. What is there already, made with the same options, isn't run again, so an interrupted
series goes on where it was. Then the table and, for each load, the curves are written anew. Exits
with 1 when a rule of ``checks.py`` was broken in any of them.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from magnetar.loadbalance.config import SHEDDERS
from tests.simulation.balancer.plots import draw
from tests.simulation.balancer.scenarios import CAPACITY, LOADS, Run, begin, excess

_TROUBLE: Final = {"report_delay_s_max": 5.0, "report_loss": 0.01, "move_failure": 0.01}
_COLUMNS: Final = (
    ("strategy", "strategy"),
    ("deviation at first", "first"),
    ("after 15 min", "after_15"),
    ("after 30 min", "after_30"),
    ("at the end", "last"),
    ("busiest broker at the end", "highest"),
    ("moves", "moves"),
    ("in the last hour", "moves_last_hour"),
    ("moved / had to", "ratio"),
    ("came back", "returns"),
    ("a bundle at most", "most"),
    ("rules broken", "broken"),
)


def main() -> int:
    options = _options()
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "results.jsonl"
    done = _read(path)
    wanted = {
        name: getattr(options, name) for name in ("brokers", "bundles", "hours", "seed")
    } | _TROUBLE
    for load in options.loads.split(","):
        for strategy in options.strategies.split(","):
            found = done.get((load, strategy))
            if found is None or found["options"] != wanted:
                done[load, strategy] = _run(strategy, load, wanted)
                _write(path, done)
                (options.folder / "results.md").write_text(_table(done))
                _draw(options.folder, done)
    return 1 if any(each["violations"] for each in done.values()) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where results are kept, and curves as SVG files")
    parser.add_argument("--brokers", type=int, default=1000)
    parser.add_argument("--bundles", type=int, default=100_000)
    parser.add_argument("--hours", type=float, default=2.0, help="of the world's time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategies", default=",".join(SHEDDERS))
    parser.add_argument("--loads", default=",".join(LOADS))
    return parser.parse_args()


def _run(strategy: str, load: str, options: dict[str, Any]) -> dict[str, Any]:
    """A new leader after a third of the time, a death and a newcomer after two thirds."""
    began_s = time.monotonic()
    config = {key: value for key, value in options.items() if key != "hours"}
    run = begin(strategy, load, **config)
    to_move, first = excess(run.world), _deviation(run)
    run.hours(options["hours"] / 3)
    run.world.elect()
    run.hours(options["hours"] / 3)
    run.world.kill(next(iter(run.world.brokers)))
    run.world.add_broker("newcomer:8080")
    run.hours(options["hours"] / 3)
    print(f"{strategy}, {load}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    for violation in run.watch.violations[:5]:
        print(f"{strategy}, {load}: {violation}", file=sys.stderr, flush=True)
    return {
        "strategy": strategy,
        "load": load,
        "options": options,
        "figures": _metrics(run, to_move, first),
        "violations": run.watch.violations[:20],
        "history": [
            {name: round(row[name], 4) for name in ("minute", "deviation", "highest", "moves")}
            for row in run.world.history
        ],
    }


def _metrics(run: Run, to_move: float, first: float) -> dict[str, str]:
    history, world = run.world.history, run.world
    hour_ago = history[-61]["moves"] if len(history) > 60 else 0.0
    size = world.config.message_bytes
    moved = sum(world.rate[bundle] for _, bundle, _, _ in world.moved) * size / CAPACITY
    times = Counter(bundle for _, bundle, _, _ in world.moved)
    return {
        "first": f"{first:.2f}",
        "after_15": f"{history[min(14, len(history) - 1)]['deviation']:.2f}",
        "after_30": f"{history[min(29, len(history) - 1)]['deviation']:.2f}",
        "last": f"{history[-1]['deviation']:.2f}",
        "highest": f"{100 * history[-1]['highest']:.0f} %",
        "moves": f"{run.moves:,}",
        "moves_last_hour": f"{history[-1]['moves'] - hour_ago:,.0f}",
        "ratio": f"{moved / to_move:.2f}",
        "returns": f"{run.watch.returns:,}",
        "most": str(max(times.values(), default=0)),
        "broken": str(len(run.watch.violations)),
    }


def _deviation(run: Run) -> float:
    usages = run.world.usages()
    mean = sum(usages) / len(usages)
    return float((sum((usage - mean) ** 2 for usage in usages) / len(usages)) ** 0.5)


# --- results


def _read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["load"], row["strategy"]): row for row in rows}


def _write(path: Path, done: dict[tuple[str, str], dict[str, Any]]) -> None:
    beside = path.with_suffix(".new")  # an interrupted write costs no result
    beside.write_text("".join(json.dumps(row) + "\n" for row in done.values()))
    beside.replace(path)


def _table(done: dict[tuple[str, str], dict[str, Any]]) -> str:
    lines = []
    for load in LOADS:
        rows = [done[load, name] for name in SHEDDERS if (load, name) in done]
        if not rows:
            continue
        lines += [f"### {load.capitalize()}", ""]
        lines.append("| " + " | ".join(title for title, _ in _COLUMNS) + " |")
        lines.append("|---" + "|---:" * (len(_COLUMNS) - 1) + "|")
        for row in rows:
            cells = {**row["figures"], "strategy": row["strategy"]}
            lines.append("| " + " | ".join(cells[key] for _, key in _COLUMNS) + " |")
        lines.append("")
    return "\n".join(lines)


def _draw(folder: Path, done: dict[tuple[str, str], dict[str, Any]]) -> None:
    for load in LOADS:
        histories = {name: done[load, name]["history"] for name in SHEDDERS if (load, name) in done}
        if histories:
            (folder / f"{load}.svg").write_text(draw(load, histories))


if __name__ == "__main__":
    sys.exit(main())
