"""Transactions beside Apache Pulsar, with the official Java client.

    python -m benchmarks.transactions [--pulsar .../pulsar.sh] [--out FOLDER]

A process of our own and the Apache Pulsar that the script starts (or the one at ``--pulsar-url``)
run at the same time; each load runs against one and then against the other, so both meet the same
machine. Printed are the medians of the rounds, ratios, and the server's CPU a transaction. FOLDER
gets ``magnetar.txt`` and ``pulsar.txt``, a name and a JSON object a line.

The client is Java's: Go's waits for each acknowledgement of a transaction before the next one.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.cluster_figures import pulsar
from benchmarks.comparison_loads import PEERS
from tests.standalone_process import StandaloneProcess

PROGRAM: Final = Path(__file__).parent / "TransactionLoads.java"
_JAVA: Final = ("java", "-Xms512m", "-Xmx512m", "-Dlog4j2.level=WARN")
_ON: Final = "transactionCoordinatorEnabled=true"
_COLUMNS: Final = ("txn_per_s", "p50_ms", "p99_ms", "server_ms")

Row = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """See ``TransactionLoads.java``; ``minimum``: what ours must reach of Pulsar's transactions."""

    name: str
    threads: int
    consumed: int
    produced: int
    minimum: float = 2
    is_plain: bool = False


LOADS: Final = (
    Load("empty-1", 1, 0, 0, 4),
    Load("send-1", 1, 0, 1, 4),
    Load("send-16", 16, 0, 1),
    Load("send-64", 64, 0, 1),
    Load("send-64-of-100", 64, 0, 100),
    Load("transform-1", 1, 1, 1, 4),
    Load("transform-16-of-10", 16, 10, 10),
    Load("plain-64-of-100", 64, 0, 100, 1, is_plain=True),
)


@dataclass(frozen=True)
class Server:
    """``pid``: 0 if it isn't known."""

    name: str
    url: str
    pid: int

    def cpu_s(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


@contextlib.contextmanager
def our_own(folder: Path) -> Iterator[Server]:
    with StandaloneProcess(folder / "data", "--set", _ON) as process:
        yield Server("magnetar", process.service_url, process.pid)


def run(server: Server, load: Load, options: argparse.Namespace) -> Row:
    topic = f"persistent://{options.namespace}/{load.name}-{uuid.uuid4().hex[:8]}"
    words = [server.url, topic, load.threads, load.consumed, load.produced]
    words += [options.warm_up, options.seconds, *(["plain"] if load.is_plain else [])]
    command = [*_JAVA, "-cp", f"{options.jars}/*", str(PROGRAM), *map(str, words)]
    before_s = server.cpu_s() if server.pid else 0.0
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120 + 2 * options.seconds, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    row: Row = json.loads(lines[-1])
    if server.pid:
        # The warm-up's share is estimated by its time.
        part = options.seconds / (options.seconds + options.warm_up)
        used_s = (server.cpu_s() - before_s) * part
        row["server_ms"] = used_s / max(1, row["transactions"]) * 1000
    return row


def table(rounds: dict[tuple[str, str], list[Row]], servers: Sequence[str]) -> Iterator[str]:
    heads = [f"{name}: txn/s | p50 ms | p99 ms | CPU ms" for name in servers]
    yield f"| load | {' | '.join(heads)} | ratio | minimum |"
    yield "|---|" + "---|" * (4 * len(servers) + 2)
    for load in LOADS:
        if (load.name, servers[0]) not in rounds:
            continue
        rows = [rounds[load.name, name] for name in servers]
        cells = [f"{_median(each, column):.4g}" for each in rows for column in _COLUMNS]
        ratio = "-"
        if len(rows) == 2 and (theirs := _median(rows[1], "txn_per_s")):
            ratio = f"{_median(rows[0], 'txn_per_s') / theirs:.2f}"
        yield f"| {load.name} | {' | '.join(cells)} | {ratio} | {load.minimum:g} |"


def _median(rows: Sequence[Row], column: str) -> float:
    return float(statistics.median(row.get(column, 0.0) for row in rows))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="a Magnetar that runs, instead of a process of our own")
    parser.add_argument("--pid", type=int, default=0, help="of its process")
    parser.add_argument("--pulsar", type=Path, metavar="SCRIPT", help="the peer's start and stop")
    parser.add_argument("--pulsar-url", help="a Pulsar that runs, instead of the script's")
    parser.add_argument("--pulsar-pid", type=int, default=0, help="of its process")
    parser.add_argument("--namespace", default="public/default", help="of all topics")
    parser.add_argument("--loads", help="comma list of names; default: all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=6, help="of each load")
    parser.add_argument("--warm-up", type=int, default=2, help="seconds in front of them")
    parser.add_argument("--jars", type=Path, default=PEERS / "pulsar/lib", help="of the client")
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    names = options.loads.split(",") if options.loads else [load.name for load in LOADS]
    with contextlib.ExitStack() as stack:
        if options.url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-loads-"))
            servers = [stack.enter_context(our_own(Path(folder)))]
        else:
            servers = [Server("magnetar", options.url, options.pid)]
        if options.pulsar_url is not None:
            servers.append(Server("pulsar", options.pulsar_url, options.pulsar_pid))
        elif options.pulsar is not None:
            started = stack.enter_context(pulsar(options.pulsar.absolute(), _ON))
            servers.append(Server("pulsar", *started))
        measured = measure([load for load in LOADS if load.name in names], servers, options)
    print("\n".join(table(measured, [server.name for server in servers])))
    return 0


def measure(
    loads: Sequence[Load], servers: Sequence[Server], options: argparse.Namespace
) -> dict[tuple[str, str], list[Row]]:
    """Rows by load and server."""
    rounds: dict[tuple[str, str], list[Row]] = {}
    for _ in range(options.rounds):
        for load in loads:
            for server in servers:
                row = run(server, load, options)
                line = f"{load.name} {json.dumps(row)}"
                print(f"{server.name} {line}", file=sys.stderr)
                rounds.setdefault((load.name, server.name), []).append(row)
                if options.out is not None:
                    options.out.mkdir(parents=True, exist_ok=True)
                    with (options.out / f"{server.name}.txt").open("a") as file:
                        print(line, file=file)
    return rounds


if __name__ == "__main__":
    sys.exit(main())
