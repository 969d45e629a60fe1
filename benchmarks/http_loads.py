"""WebSocket and REST on commits of this repository and on Apache Pulsar, in turn.

    python -m benchmarks.http_loads HEAD~1 HEAD --pulsar http://127.0.0.1:8080 --pulsar-pid PID

Messages a second, and CPU of the broker's process a message. Needs Go; Pulsar has to run already.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from benchmarks.compare_commits import check_out
from tests.standalone_process import StandaloneProcess

LOADS: Final = {
    "WebSocket produce": ("-load=websocket-produce",),
    "WebSocket produce and consume": ("-load=websocket-pipe",),
    "REST, one message a call": ("-load=rest-produce", "-connections=8"),
    "REST, 100 messages a call": ("-load=rest-produce", "-connections=8", "-batch=100"),
}
Figures = dict[str, float]
Measure = Callable[[], dict[str, Figures]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs="+")
    parser.add_argument("--pulsar", metavar="URL", help="HTTP of a running Pulsar")
    parser.add_argument("--pulsar-pid", type=int, help="its process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-http-") as name:
        folder = Path(name)
        program = folder / "load"
        source = Path(__file__).parent / "http"
        subprocess.run(["go", "build", "-o", str(program), "."], cwd=source, check=True)
        run = partial(_run, program, options.seconds)
        sides: dict[str, Measure] = {}
        if options.pulsar:
            sides["Pulsar"] = partial(_pulsar, options, run)
        for commit in options.commits:
            tree = check_out(commit, folder)
            sides[tree.name] = partial(_ours, folder, tree, options.loads, run)
        found: dict[str, list[dict[str, Figures]]] = {side: [] for side in sides}
        for number in range(options.rounds):
            for side in sorted(sides, reverse=number % 2 == 1):
                found[side].append(sides[side]())
                print(side, json.dumps(found[side][-1]), flush=True)
    print("\n".join(table(found)))


def table(found: dict[str, list[dict[str, Figures]]]) -> list[str]:
    """Lines of Markdown: medians of all rounds."""
    lines = [f"| load | figure | {' | '.join(found)} |", f"|---|---|{'---|' * len(found)}"]
    first = next(iter(found.values()))[0]
    for load, figures in first.items():
        for figure in figures:
            values = [median(each[load][figure] for each in rounds) for rounds in found.values()]
            cells = (load, figure, *(f"{value:,.4g}" for value in values))
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _pulsar(
    options: argparse.Namespace, run: Callable[[str, int, str], Figures]
) -> dict[str, Figures]:
    return {name: run(options.pulsar, options.pulsar_pid, name) for name in options.loads}


def _ours(
    folder: Path, tree: Path, loads: Sequence[str], run: Callable[[str, int, str], Figures]
) -> dict[str, Figures]:
    with (
        tempfile.TemporaryDirectory(dir=folder) as data,
        StandaloneProcess(Path(data) / "data", tree=tree) as process,
    ):
        return {name: run(process.admin_url, process.pid, name) for name in loads}


def _run(program: Path, seconds: float, url: str, pid: int, name: str) -> Figures:
    command = [str(program), "-web", url, f"-seconds={seconds}", *LOADS[name]]
    server = psutil.Process(pid)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        assert load.stdout.readline() == "measuring\n", f"{command} failed"
        before = server.cpu_times()
        answer = load.stdout.readline()
        after = server.cpu_times()
    row = json.loads(answer)
    assert not row["failed"], row
    used_s = after.user + after.system - before.user - before.system
    return {
        "msg/s": row["messages"] / row["seconds"],
        "CPU us a message": used_s / row["messages"] * 1e6,
        "p50 ms": row["p50_ms"],
        "p99 ms": row["p99_ms"],
    }


if __name__ == "__main__":
    main()
