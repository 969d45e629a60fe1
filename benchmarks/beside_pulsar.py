"""The comparison loads on Apache Pulsar and on Magnetar, load by load in turns.

    python -m benchmarks.beside_pulsar --pulsar URL --pulsar-pid PID [--commit HEAD]
    python -m benchmarks.beside_pulsar --pulsar URL --pulsar-pid PID --url URL --pid PID

Without ``--url`` a fresh standalone process of the commit serves our side. Each load has a topic of
its own, and runs on both servers before the next one begins, the other one first in every other
round. Rows have medians of all rounds. CPU is that of the broker's process.

Meanwhile a probe syncs 4 KiB on the same disk ten times a second. Its slowest sync of a load is
printed with the latencies of each round: what the disk did can't be blamed on a broker.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.compare_commits import check_out
from benchmarks.comparison_loads import (
    LATENCIES,
    LOADS,
    Load,
    Row,
    Server,
    add_options,
    chosen,
    run,
    text_of,
)
from tests.standalone_process import StandaloneProcess

_PROBE_GAP_S: Final = 0.1


class DiskProbe:
    """Syncs a small block again and again, in a thread; ``slowest_ms`` since it was last asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._slowest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "DiskProbe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def slowest_ms(self) -> float:
        slowest_s, self._slowest_s = self._slowest_s, 0.0
        return slowest_s * 1e3

    def _run(self) -> None:
        with (self._folder / "probe").open("wb", buffering=0) as file:
            while not self._stop.wait(_PROBE_GAP_S):
                begin = time.perf_counter()
                os.pwrite(file.fileno(), bytes(4096), 0)
                os.fdatasync(file.fileno())
                self._slowest_s = max(self._slowest_s, time.perf_counter() - begin)


def compare(
    options: argparse.Namespace, sides: Mapping[str, Server], loads: Sequence[Load], folder: Path
) -> None:
    """Print the table of two servers, the first by the second, and below it the latencies."""
    with DiskProbe(folder) as probe:
        for server in sides.values():
            run(options, server, LOADS[0])  # the first messages pay for what is loaded late
        rounds: list[str] = []
        print(f"| load | figure | {' | '.join(sides)} | ratio | of each round |")
        print("|---|---|---|---|---|---|")
        for load in chosen(options, loads):
            found = measure(options, sides, load, probe)
            print("\n".join(lines_of(load, list(found.values()))), flush=True)
            rounds += rounds_of(load, found)
        print("\n".join(("", *rounds)))


def measure(
    options: argparse.Namespace, sides: Mapping[str, Server], load: Load, probe: DiskProbe
) -> dict[str, list[Row]]:
    """The rows of all rounds, of each server."""
    found: dict[str, list[Row]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(list(sides)):
            probe.slowest_ms()
            row = run(options, sides[side], load)
            row["disk_ms"] = probe.slowest_ms()
            found[side].append(row)
    return found


def lines_of(load: Load, found: Sequence[list[Row]]) -> Iterator[str]:
    """Lines of Markdown: each figure of a load, and the CPU for a message."""
    for figure in (*load.figures, "cpu_us"):
        first, second = ([row[figure] for row in rows] for rows in found)
        ratios = [b / a for a, b in zip(first, second, strict=True) if a]
        if not ratios:
            continue
        cells = (
            *(load.name, figure, *(text_of(statistics.median(each)) for each in (first, second))),
            *(f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"),
        )
        yield f"| {' | '.join(cells)} |"


def rounds_of(load: Load, found: Mapping[str, list[Row]]) -> Iterator[str]:
    """The latencies of each round beside the slowest sync of the probe."""
    if load.figures != LATENCIES:
        return
    for side, rows in found.items():
        for row in rows:
            latencies = ", ".join(f"{name} {text_of(row[name])}" for name in LATENCIES)
            yield f"{load.name}, {side}: {latencies}; slowest sync {row['disk_ms']:.1f} ms"


def broker_of(pid: int | None) -> dict[str, int]:
    return {} if pid is None else {"broker": pid}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pulsar", required=True, metavar="URL", help="of a running Pulsar")
    parser.add_argument("--pulsar-pid", type=int, help="its broker's process")
    parser.add_argument("--commit", default="HEAD", help="of ours")
    parser.add_argument("--url", help="a running broker of ours instead")
    parser.add_argument("--pid", type=int, help="its process")
    parser.add_argument("--rounds", type=int, default=3)
    add_options(parser, seconds=5, loads=LOADS)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-beside-")))
        url, pid = options.url, options.pid
        if url is None:
            tree = check_out(options.commit, folder)
            ours = stack.enter_context(StandaloneProcess(folder / "data", tree=tree))
            url, pid = ours.service_url, ours.pid
        sides = {
            "Apache Pulsar": Server(options.pulsar, broker_of(options.pulsar_pid)),
            "Magnetar": Server(url, broker_of(pid)),
        }
        compare(options, sides, LOADS, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
