"""A whole cluster by the comparison loads, beside Apache Pulsar; one command.

    python -m benchmarks.cluster_figures --seconds 20 --out FOLDER [--pulsar .../pulsar.sh]

Three brokers, three bookies, E = Qw = 3, Qa = 2, ZooKeeper and the load generator on this machine.
FOLDER gets ``magnetar.txt`` (a name and a JSON object a line, with the CPU and the context switches
of every process) and, given the peer's script, ``pulsar.txt``; printed are both tables: ratios, and
where the time goes. Our cluster runs first and is stopped before the peer starts.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.comparison_loads import (
    LOADS,
    PEERS,
    Row,
    Server,
    add_options,
    chosen,
    cpu_us,
    run,
    text_of,
)
from tests.cluster_process import ClusterProcess

PULSAR_URL: Final = "pulsar://127.0.0.1:6650"
_QUORUMS: Final = {"EnsembleSize": 3, "WriteQuorum": 3, "AckQuorum": 2}


@contextlib.contextmanager
def our_cluster(folder: Path) -> Iterator[Server]:
    with ClusterProcess(folder / "data", "--brokers", "3", "--bookies", "3") as cluster:
        pids = {name: process.pid for name, process in cluster.children().items()}
        yield Server(cluster.service_urls[0], pids)


@contextlib.contextmanager
def pulsar(script: Path, *settings: str, **environment: str) -> Iterator[tuple[str, int]]:
    """URL and process, which has all in it; the script's ``stop`` is called whatever happens."""
    whole = {**os.environ, **environment}
    try:
        subprocess.run([script, "start", *settings], check=True, env=whole)
        yield PULSAR_URL, int((PEERS / "pulsar/pid").read_text())
    finally:
        subprocess.run([script, "stop"], check=False, env=whole)


def measure(options: argparse.Namespace, server: Server, out: Path) -> dict[str, Row]:
    """The rows of all loads, which go to the file, too."""
    run(options, server, LOADS[0])  # the first messages pay for what is loaded late
    rows: dict[str, Row] = {}
    with out.open("w") as file:
        for load in chosen(options, LOADS):
            rows[load.name] = run(options, server, load)
            line = f"{load.name} {json.dumps(rows[load.name])}"
            print(line[:160], file=sys.stderr)
            print(line, file=file, flush=True)
            time.sleep(1)
    return rows


def table(peer: Mapping[str, Row], ours: Mapping[str, Row]) -> Iterator[str]:
    yield "| load | figure | Apache Pulsar | Magnetar | ratio |"
    yield "|---|---|---|---|---|"
    for load in LOADS:
        for figure in load.figures if load.name in ours else ():
            mine, theirs = ours[load.name][figure], peer.get(load.name, {}).get(figure)
            told = (text_of(theirs), f"{mine / theirs:.2f}") if theirs else ("-", "-")
            yield f"| {load.name} | {figure} | {told[0]} | {text_of(mine)} | {told[1]} |"


def profile(rows: Mapping[str, Row]) -> Iterator[str]:
    """Where the time goes: microseconds of CPU a message, and context switches.

    A load's topic has one owner, so of several brokers the busiest is shown; of bookies the mean.
    """
    yield "| load | client | broker | a bookie | ZooKeeper | switches: broker, a bookie |"
    yield "|---|---|---|---|---|---|"
    for name, row in rows.items():
        processes: dict[str, dict[str, float]] = row.get("processes", {})
        brokers = [each for key, each in processes.items() if key.startswith("broker")]
        bookies = [each for key, each in processes.items() if key.startswith("bookie")]
        if not brokers or not bookies:
            continue
        broker = max(brokers, key=cpu_us)
        cells = [
            *(
                f"{cpu_us(processes['client']):.1f}",
                f"{cpu_us(broker):.1f}",
                _mean(bookies, cpu_us),
            ),
            *(f"{cpu_us(processes['zookeeper']):.1f}",),
            f"{broker['switches']:.2f}, {_mean(bookies, lambda each: each['switches'])}",
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def _mean(uses: list[dict[str, float]], figure: Callable[[dict[str, float]], float]) -> str:
    return f"{sum(map(figure, uses)) / len(uses):.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--pulsar", type=Path, metavar="SCRIPT", help="the peer's start and stop")
    add_options(parser, seconds=20, loads=LOADS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    peers: dict[str, Row] = {}
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-figures-") as folder,
        our_cluster(Path(folder)) as server,
    ):
        ours = measure(options, server, options.out / "magnetar.txt")
    if options.pulsar is not None:
        settings = [f"managedLedgerDefault{key}={value}" for key, value in _QUORUMS.items()]
        with pulsar(options.pulsar.absolute(), *settings, BOOKIES="3") as (url, pid):
            peers = measure(options, Server(url, {"pulsar": pid}), options.out / "pulsar.txt")
    print("\n".join(table(peers, ours)), end="\n\n")
    print("\n".join(profile(ours)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
