"""A whole cluster by the comparison loads, beside Apache Pulsar; one command.

    python -m benchmarks.cluster_figures --seconds 20 --out FOLDER [--pulsar .../pulsar.sh]

Three brokers, three bookies, E = Qw = 3, Qa = 2, ZooKeeper and the load generator on this machine.
FOLDER gets ``magnetar.txt`` (a name and a JSON object a line, as ``compare.py`` reads them, with
the CPU and the context switches of every process) and, given the peer's script, ``pulsar.txt``;
printed are both tables: ratios, and where the time goes. Our cluster runs first and is stopped
before the peer starts.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.compare import Row, read_rows, table
from tests.cluster_process import ClusterProcess

PEERS: Final = Path(os.environ.get("PEERS_HOME", Path.home() / ".cache/magnetar-peers"))
PULSAR_URL: Final = "pulsar://127.0.0.1:6650"
_QUORUMS: Final = {"EnsembleSize": 3, "WriteQuorum": 3, "AckQuorum": 2}
_ONE_BY_ONE: Final = ("-size", "1024", "-batching=false")


@dataclass(frozen=True)
class Load:
    """One run of the load generator; ``topic``: loads with the same letter share one."""

    name: str
    mode: str
    options: tuple[str, ...]
    topic: str
    is_timed: bool = True


#: What measure.sh runs, in its order.
LOADS: Final = (
    Load("batched-1k", "produce", ("-size", "1024", "-pending", "5000"), "b"),
    Load("unbatched-100", "produce", ("-size", "100", "-batching=false"), "u"),
    Load("unbatched-1k", "produce", _ONE_BY_ONE, "v"),
    Load(
        *("unbatched-128k", "produce"),
        ("-size", "131072", "-batching=false", "-pending", "100"),
        "x",
    ),
    Load(
        *("unbatched-1k-100topics", "produce"),
        (*_ONE_BY_ONE, "-pending", "100", "-topics", "100"),
        "m",
    ),
    Load("sync-1k", "produce", ("-sync", "-size", "1024"), "s"),
    Load("drain-batched-1k", "consume", (), "b", is_timed=False),
    Load("e2e-1k-at-1000", "e2e", ("-rate", "1000", "-batching=false"), "e"),
    Load("e2e-1k-at-10000", "e2e", ("-rate", "10000"), "f"),
    Load("fanout-1k-10subs", "fanout", ("-subs", "10", "-size", "1024"), "g"),
    Load("queue-1k-10", "queue", ("-subs", "10", *_ONE_BY_ONE), "q"),
)
_WARM_UP: Final = Load("warm-up", "produce", ("-size", "1024"), "w")


@dataclass(frozen=True)
class Use:
    """What a process has used since it began.

    Attributes:
        switches: of context, all threads, both kinds.
    """

    user_s: float
    system_s: float
    switches: int

    @classmethod
    def of(cls, pid: int) -> "Use":
        times = psutil.Process(pid).cpu_times()
        switches = 0
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            with contextlib.suppress(OSError):  # the thread has ended
                lines = status.read_text().splitlines()
                switches += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
        return cls(times.user, times.system, switches)

    def since(self, before: "Use", messages: int) -> dict[str, float]:
        """Of each message: microseconds, and switches."""
        return {
            "user_us": round((self.user_s - before.user_s) / messages * 1e6, 2),
            "system_us": round((self.system_s - before.system_s) / messages * 1e6, 2),
            "switches": round((self.switches - before.switches) / messages, 3),
        }


class Yardstick:
    """Runs loads against ``url`` and notes what each of ``pids`` (by name) used meanwhile."""

    def __init__(self, url: str, loadgen: Path, pids: Mapping[str, int], seconds: int) -> None:
        self._url = url
        self._loadgen = loadgen
        self._pids = pids
        self._seconds = seconds
        self._topic = f"persistent://public/default/figures-{uuid.uuid4().hex[:10]}"
        self._acked: dict[str, int] = {}

    def run(self, load: Load) -> Row:
        command = [str(self._loadgen), load.mode, *load.options, "-url", self._url]
        command += ["-topic", f"{self._topic}-{load.topic}"]
        if load.is_timed:
            command += ["-seconds", str(self._seconds)]
        else:
            command += ["-count", str(self._acked.get(load.topic, 1))]
        before = {name: Use.of(pid) for name, pid in self._pids.items()}
        client = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120 + 10 * self._seconds
        )
        if done.returncode:
            return {"mode": load.mode, "error": done.stderr.strip() or "failed"}
        row: Row = json.loads(done.stdout)
        messages = row.get("sent") or row.get("acked") or row.get("received") or 1
        self._acked[load.topic] = row.get("acked", 0)
        row["processes"] = {
            name: Use.of(pid).since(before[name], messages) for name, pid in self._pids.items()
        }
        row["processes"]["client"] = _used_by_children(client, messages)
        return row


def _used_by_children(before: resource.struct_rusage, messages: int) -> dict[str, float]:
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = Use(before.ru_utime, before.ru_stime, before.ru_nvcsw + before.ru_nivcsw)
    end = Use(now.ru_utime, now.ru_stime, now.ru_nvcsw + now.ru_nivcsw)
    return end.since(begin, messages)


@contextlib.contextmanager
def our_cluster(folder: Path) -> Iterator[tuple[str, dict[str, int]]]:
    with ClusterProcess(folder / "data", "--brokers", "3", "--bookies", "3") as cluster:
        yield cluster.service_urls[0], {name: p.pid for name, p in cluster.children().items()}


@contextlib.contextmanager
def pulsar(script: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """All in one process; the script's ``stop`` is called whatever happens."""
    settings = [f"managedLedgerDefault{key}={value}" for key, value in _QUORUMS.items()]
    environment = {**os.environ, "BOOKIES": "3"}
    try:
        subprocess.run([script, "start", *settings], check=True, env=environment)
        yield PULSAR_URL, {"pulsar": int((PEERS / "pulsar/pid").read_text())}
    finally:
        subprocess.run([script, "stop"], check=False, env=environment)


def measure(
    where: tuple[str, dict[str, int]], loads: list[Load], options: argparse.Namespace, out: Path
) -> None:
    url, pids = where
    yardstick = Yardstick(url, options.loadgen, pids, options.seconds)
    Yardstick(url, options.loadgen, {}, 5).run(_WARM_UP)
    with out.open("w") as file:
        for load in loads:
            line = f"{load.name} {json.dumps(yardstick.run(load))}"
            print(line[:160], file=sys.stderr)
            print(line, file=file, flush=True)
            time.sleep(1)


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
        broker = max(brokers, key=_cpu_us)
        cells = [
            *(_cpu(processes["client"]), _cpu(broker), _mean(bookies, _cpu_us)),
            *(_cpu(processes["zookeeper"]),),
            f"{broker['switches']:.2f}, {_mean(bookies, lambda each: each['switches'])}",
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def _cpu_us(use: dict[str, float]) -> float:
    return use["user_us"] + use["system_us"]


def _cpu(use: dict[str, float]) -> str:
    return f"{_cpu_us(use):.1f}"


def _mean(uses: list[dict[str, float]], figure: Callable[[dict[str, float]], float]) -> str:
    return f"{sum(map(figure, uses)) / len(uses):.2f}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=20, help="of each load, but the drain")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--pulsar", type=Path, metavar="SCRIPT", help="the peer's start and stop")
    parser.add_argument("--loads", help="comma list of names; default: all")
    parser.add_argument(
        "--loadgen", type=Path, default=PEERS / "loadgen", help="the Go client's load program"
    )
    options = parser.parse_args(arguments)
    names = options.loads.split(",") if options.loads else [load.name for load in LOADS]
    loads = [load for load in LOADS if load.name in names]
    options.out.mkdir(parents=True, exist_ok=True)
    ours, peers = options.out / "magnetar.txt", options.out / "pulsar.txt"
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-figures-") as folder,
        our_cluster(Path(folder)) as where,
    ):
        measure(where, loads, options, ours)
    if options.pulsar is not None:
        with pulsar(options.pulsar.absolute()) as where:
            measure(where, loads, options, peers)
    rows: dict[str, Any] = read_rows(ours)
    print("\n".join(table(read_rows(peers) if peers.exists() else {}, rows)), end="\n\n")
    print("\n".join(profile(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
