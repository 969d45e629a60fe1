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
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.compare_commits import check_out
from benchmarks.comparison_loads import PROGRAM, Load, Row, Server, new_topic, run
from tests.standalone_process import StandaloneProcess

LATENCIES: Final = ("p50_ms", "p99_ms")
LOADS: Final = (
    Load("batched-1k", ("produce", "-size", "1024", "-pending", "5000")),
    Load("unbatched-100", ("produce", "-size", "100", "-batching=false")),
    Load("unbatched-1k", ("produce", "-size", "1024", "-batching=false")),
    Load("unbatched-128k", ("produce", "-size", "131072", "-batching=false", "-pending", "100")),
    Load(
        "unbatched-1k-100topics",
        ("produce", "-size", "1024", "-batching=false", "-pending", "100", "-topics", "100"),
    ),
    Load("sync-1k", ("produce", "-sync", "-size", "1024"), LATENCIES),
    Load("drain-batched-1k", ("consume",)),  # of a topic that is filled for it
    Load("e2e-1k-at-1000", ("e2e", "-rate", "1000", "-batching=false"), LATENCIES),
    Load("e2e-1k-at-10000", ("e2e", "-rate", "10000"), LATENCIES),
    Load("fanout-1k-10subs", ("fanout", "-subs", "10", "-size", "1024"), ("delivered_per_s",)),
    Load(
        "queue-1k-10",
        ("queue", "-subs", "10", "-size", "1024", "-batching=false"),
        ("delivered_per_s",),
    ),
)
_SIDES: Final = ("Apache Pulsar", "Magnetar")
_DRAIN_MAX: Final = 600_000
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


def one_run(options: argparse.Namespace, server: Server, load: Load) -> Row:
    extra, topic = ["-seconds", str(options.seconds)], new_topic()
    if load.options[0] == "consume":
        filled = run(options.loadgen, server, LOADS[0], topic, extra)
        extra = ["-count", str(min(int(filled["acked"]), _DRAIN_MAX))]
    return run(options.loadgen, server, load, topic, extra)


def measure(
    options: argparse.Namespace, servers: list[Server], load: Load, probe: DiskProbe
) -> tuple[list[Row], list[Row]]:
    """The rows of all rounds, of each server."""
    found: tuple[list[Row], list[Row]] = ([], [])
    for number in range(options.rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            probe.slowest_ms()
            row = one_run(options, servers[side], load)
            row["disk_ms"] = probe.slowest_ms()
            found[side].append(row)
    return found


def lines_of(load: Load, found: tuple[list[Row], list[Row]]) -> Iterator[str]:
    """Lines of Markdown: each figure of a load, and the CPU for a message."""
    for figure in (*load.figures, "cpu_us"):
        pulsar, ours = ([row[figure] for row in rows] for rows in found)
        ratios = [b / a for a, b in zip(pulsar, ours, strict=True) if a]
        if not ratios:
            continue
        cells = (
            *(load.name, figure, _text(statistics.median(pulsar)), _text(statistics.median(ours))),
            *(f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"),
        )
        yield f"| {' | '.join(cells)} |"


def rounds_of(load: Load, found: tuple[list[Row], list[Row]]) -> Iterator[str]:
    """The latencies of each round beside the slowest sync of the probe."""
    if load.figures != LATENCIES:
        return
    for side, rows in zip(_SIDES, found, strict=True):
        for row in rows:
            latencies = ", ".join(f"{name} {_text(row[name])}" for name in LATENCIES)
            yield f"{load.name}, {side}: {latencies}; slowest sync {row['disk_ms']:.1f} ms"


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pulsar", required=True, metavar="URL", help="of a running Pulsar")
    parser.add_argument("--pulsar-pid", type=int, help="its broker's process")
    parser.add_argument("--commit", default="HEAD", help="of ours")
    parser.add_argument("--url", help="a running broker of ours instead")
    parser.add_argument("--pid", type=int, help="its process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5, help="of each load, but the drain")
    parser.add_argument("--loads", nargs="+", choices=[load.name for load in LOADS])
    parser.add_argument(
        "--loadgen", type=Path, default=PROGRAM, help="the Go client's load program"
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-beside-")))
        url, pid = options.url, options.pid
        if url is None:
            tree = check_out(options.commit, folder)
            ours = stack.enter_context(StandaloneProcess(folder / "data", tree=tree))
            url, pid = ours.service_url, ours.pid
        servers = [Server(options.pulsar, options.pulsar_pid, {}), Server(url, pid, {})]
        probe = stack.enter_context(DiskProbe(folder))
        for server in servers:
            one_run(options, server, LOADS[0])  # the first messages pay for what is loaded late
        rounds: list[str] = []
        print(f"| load | figure | {' | '.join(_SIDES)} | ratio | of each round |")
        print("|---|---|---|---|---|---|")
        for load in LOADS:
            if options.loads is None or load.name in options.loads:
                found = measure(options, servers, load, probe)
                print("\n".join(lines_of(load, found)), flush=True)
                rounds += rounds_of(load, found)
        print("\n".join(("", *rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
