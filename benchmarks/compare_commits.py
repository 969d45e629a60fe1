"""Two commits of ours beside each other: CPU a message, throughput and latency, pair by pair.

    make bench-compare A=COMMIT B=COMMIT [PAIRS=10] [SECONDS_PER_LOAD=3] [OUT=file.md]
                       [BOOKIES=apache]

Each pair starts one fresh standalone process of each commit, in turn, B first in every other pair,
and runs the loads of ``run.py`` (official Python client) against it. A ratio is B's figure by A's
of the same pair. The spread of A against itself is the ratio of each A to the A of the pair before:
what the machine's drift does to equal code. Both commits run with the packages of this
environment: when their pins differ, say so beside the figures.

With ``apache`` each process is a broker on three bookies of Apache BookKeeper, which are as fresh;
CPU is the broker's alone. They write everything six times.

Held: CPU a message when the median ratio is within 3 %; throughput and latency when the median
ratio lies within the spread. Exit code 1: something isn't held.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import pulsar

from benchmarks import run
from tests.apache_bookies import start_bookies
from tests.broker_process import BrokerProcess
from tests.standalone_process import StandaloneProcess
from tests.zookeeper_process import ZooKeeperProcess

CPU: Final = "CPU us/message"
CPU_RATIO_MAX: Final = 1.03

Figures = dict[str, float]
Load = Callable[[pulsar.Client, float], Figures]
Start = Callable[[Path, Path], AbstractContextManager[StandaloneProcess]]
"""A process of a tree, with what it needs, in an empty folder."""

LOADS: Final[dict[str, Load]] = {
    "batched-1k": lambda client, seconds: run.produce(client, 1024, True, seconds),
    "unbatched-100": lambda client, seconds: run.produce(client, 100, False, seconds),
    "unbatched-1k": lambda client, seconds: run.produce(client, 1024, False, seconds),
    "sync-1k": lambda client, seconds: run.synchronous(client, 1024, seconds),
    "in-and-out-1k": lambda client, seconds: run.in_and_out(client, 1024, seconds),
}
_SHOWN: Final = {"msg_per_s": "msg/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms"}


@dataclass(frozen=True)
class Row:
    """One figure of one load over all pairs.

    Attributes:
        a, b: medians of each commit.
        ratios: B by A, a pair each.
        spread: A by the A before, between two pairs each.
    """

    load: str
    figure: str
    a: float
    b: float
    ratios: Sequence[float]
    spread: Sequence[float]

    @property
    def is_held(self) -> bool:
        ratio = median(self.ratios)
        if self.figure == CPU:
            return ratio <= CPU_RATIO_MAX
        # Each ratio of A to itself could as well have been measured the other way round.
        widest = max(max(each, 1 / each) for each in self.spread)
        return ratio >= 1 / widest if self.figure == "msg/s" else ratio <= widest

    def line(self) -> str:
        cells = (
            *(self.load, self.figure, f"{self.a:,.4g}", f"{self.b:,.4g}"),
            *(f"{median(self.ratios):.3f}", _range(self.ratios), _range(self.spread)),
            "yes" if self.is_held else "**no**",
        )
        return f"| {' | '.join(cells)} |"


def rows_of(pairs: Sequence[tuple[dict[str, Figures], dict[str, Figures]]]) -> Iterator[Row]:
    """A row for each figure of each load; ``pairs``: figures by load, of A and of B."""
    series: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for a, b in pairs:
        for load, metrics in a.items():
            for figure, value in metrics.items():
                series[load, figure].append((value, b[load][figure]))
    for (load, figure), values in series.items():
        a_values, b_values = [a for a, _ in values], [b for _, b in values]
        spread = [after / before for before, after in pairwise(a_values)]
        ratios = [b / a for a, b in values]
        yield Row(load, figure, median(a_values), median(b_values), ratios, spread)


def table(a: str, b: str, rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown; ``a`` and ``b`` are the commits' names."""
    return [
        f"| load | figure | A: {a} | B: {b} | B/A, median | B/A | A/A | held |",
        "|---|---|---|---|---|---|---|---|",
        *(row.line() for row in rows),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", help="commit: before")
    parser.add_argument("b", help="commit: after")
    parser.add_argument("--pairs", type=int, default=10, help="two at least")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--bookies", choices=("own", "apache"), default="own")
    parser.add_argument("--out", type=Path, help="file that gets the table too")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("the spread of A against itself needs two pairs")
    with tempfile.TemporaryDirectory(prefix="magnetar-compare-") as name:
        folder = Path(name)
        trees = [check_out(commit, folder) for commit in (options.a, options.b)]
        start = _on_apache if options.bookies == "apache" else _standalone
        measure = partial(_measure, folder, start, loads=options.loads, seconds=options.seconds)
        pairs = []
        for number in range(options.pairs):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            found = {side: measure(trees[side]) for side in order}
            pairs.append((found[0], found[1]))
            print(f"pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
        rows = list(rows_of(pairs))
        lines = table(trees[0].name, trees[1].name, rows)
    print("\n".join(lines))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(lines) + "\n")
    return int(not all(row.is_held for row in rows))


def check_out(commit: str, folder: Path) -> Path:
    """The tree of a commit, in a folder that bears its short name."""
    name = _git("rev-parse", "--short", "--verify", f"{commit}^{{commit}}").decode().strip()
    tree = folder / name
    if not tree.exists():
        tree.mkdir()
        archive = _git("archive", "--format=tar", name)
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
        if next(tree.glob("broker/**/*.pyx"), None):
            _compile(tree, folder)
    return tree


def _compile(tree: Path, folder: Path) -> None:
    """Put a commit's compiled modules where an installation has them."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"]
    subprocess.run([*pip, "-w", str(folder), str(tree)], check=True)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tree, [name for name in packed.namelist() if name.endswith(".so")])
    wheel.unlink()


def _git(*arguments: str) -> bytes:
    root = Path(__file__).resolve().parent.parent
    return subprocess.run(["git", *arguments], cwd=root, stdout=subprocess.PIPE, check=True).stdout


def _measure(
    folder: Path, start: Start, tree: Path, *, loads: Sequence[str], seconds: float
) -> dict[str, Figures]:
    with (
        tempfile.TemporaryDirectory(dir=folder) as data,
        start(Path(data), tree) as process,
        _client(process.service_url) as client,
    ):
        run.produce(client, 1024, True, min(seconds, 1.0))  # the first messages pay for imports
        return {name: _run(LOADS[name], client, process, seconds) for name in loads}


def _standalone(folder: Path, tree: Path) -> StandaloneProcess:
    return StandaloneProcess(folder / "data", tree=tree)


@contextmanager
def _on_apache(folder: Path, tree: Path) -> Iterator[StandaloneProcess]:
    with ZooKeeperProcess(folder) as zookeeper, ExitStack() as bookies:
        for bookie in start_bookies(folder, zookeeper.port, settings=[("journalSyncData", "true")]):
            bookies.callback(bookie.stop)
        settings = [
            f"bookkeeperMetadataServiceUri=zk+hierarchical://127.0.0.1:{zookeeper.port}/ledgers",
            *(f"managedLedgerDefault{x}=3" for x in ("EnsembleSize", "WriteQuorum")),
            "managedLedgerDefaultAckQuorum=2",
        ]
        options = [word for each in settings for word in ("--set", each)]
        url = zookeeper.url("/magnetar")
        with BrokerProcess(folder / "broker", url, *options, tree=tree) as broker:
            yield broker


def _run(load: Load, client: pulsar.Client, process: StandaloneProcess, seconds: float) -> Figures:
    before = process.cpu_seconds()
    found = load(client, seconds)
    used = process.cpu_seconds() - before
    assert not found.get("lost"), found
    shown = {_SHOWN[key]: value for key, value in found.items() if key in _SHOWN}
    return {CPU: used / found["messages"] * 1e6, **shown}


@contextmanager
def _client(url: str) -> Iterator[pulsar.Client]:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


if __name__ == "__main__":
    sys.exit(main())
