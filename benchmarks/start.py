"""How long ``magnetar standalone`` takes to be ready: wall time and CPU of all its processes.

    python -m benchmarks.start [TREE ...] [--starts 10] [--processes 1 2]

Checkouts in turn (this one, if none is given), each with an empty data directory and with one that
was used and stopped before. The CPU depends less on what else the machine does.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Final

import psutil

ROOT: Final = Path(__file__).parent.parent
_KINDS: Final = ("empty", "used")


def start(tree: Path, data: Path, processes: int) -> tuple[float, float]:
    """Wall and CPU seconds until it says that it is ready; it is stopped then."""
    python = tree / ".venv" / "bin" / "python"
    command = (
        *(str(python if python.exists() else sys.executable), "-m", "magnetar.broker.cli.main"),
        *("standalone", "--data", str(data), "--bind", "127.0.0.1"),
        *("--port", "0", "--web-port", "0", "--processes", str(processes)),
    )
    # Bytecode is written by the first start, as at users'.
    environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
    begun_s = time.perf_counter()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tree,  # with -m modules are looked for there first
        env=environment,
        text=True,
    ) as made:
        assert made.stdout is not None
        if not any(line.startswith("magnetar standalone: ") for line in made.stdout):
            raise RuntimeError(f"{tree}: it can't start, exit {made.wait()}")
        wall_s = time.perf_counter() - begun_s
        own = psutil.Process(made.pid)
        times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
        made.send_signal(signal.SIGTERM)
        made.stdout.read()
    return wall_s, sum(each.user + each.system for each in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT], metavar="TREE")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    trees = [each.resolve() for each in options.trees]
    found: dict[tuple[str, int, Path], list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="magnetar-start-") as folder:
        used = Path(folder) / "used"
        for tree in trees:
            start(tree, used, 1)  # and its bytecode
        for number in range(options.starts):
            for kind in _KINDS:
                for count in options.processes:
                    for index, tree in enumerate(trees):
                        empty = Path(folder) / f"{kind}-{count}-{number}-{index}"
                        data = used if kind == "used" else empty
                        found[kind, count, tree].append(start(tree, data, count))
    print("| directory | processes | checkout | wall, median (least) | CPU, median (least) |")
    print("|---|---|---|---|---|")
    for (kind, count, tree), runs in sorted(found.items(), key=lambda each: each[0][:2]):
        walls, cpus = zip(*runs, strict=True)
        print(
            f"| {kind} | {count} | {tree.name} | {median(walls):.2f} s ({min(walls):.2f})"
            f" | {median(cpus):.2f} s ({min(cpus):.2f}) |"
        )


if __name__ == "__main__":
    main()
