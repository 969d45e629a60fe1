"""The comparison loads: a Go program with the official client, and what servers use under it.

The program isn't in this repository. It prints one JSON object for a load.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

PEERS: Final = Path(os.environ.get("PEERS_HOME", Path.home() / ".cache/magnetar-peers"))
_COUNTS: Final = ("acked", "received")  # of messages, by kind of load
_DRAIN_MAX: Final = 600_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """One of them; ``figures`` are the names of what counts in its object."""

    name: str
    options: tuple[str, ...]
    figures: tuple[str, ...] = ("msg_per_s",)


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


@dataclass(frozen=True)
class Server:
    """What a load is run against; ``pids`` are its processes by name, for what they use."""

    url: str
    pids: Mapping[str, int]
    environment: Mapping[str, str] = field(default_factory=dict)


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

    @classmethod
    def of_clients(cls) -> "Use":
        """Of the programs that have ended."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(used.ru_utime, used.ru_stime, used.ru_nvcsw + used.ru_nivcsw)

    def since(self, before: "Use", messages: int) -> dict[str, float]:
        """Of each message: microseconds, and switches."""
        return {
            "user_us": (self.user_s - before.user_s) / messages * 1e6,
            "system_us": (self.system_s - before.system_s) / messages * 1e6,
            "switches": (self.switches - before.switches) / messages,
        }


def cpu_us(used: Mapping[str, float]) -> float:
    return used["user_us"] + used["system_us"]


def add_options(parser: argparse.ArgumentParser, *, seconds: int, loads: Sequence[Load]) -> None:
    parser.add_argument("--seconds", type=int, default=seconds, help="of each load, but the drain")
    parser.add_argument("--loads", nargs="+", choices=[load.name for load in loads])
    parser.add_argument(
        "--loadgen", type=Path, default=PEERS / "loadgen", help="the Go client's load program"
    )


def chosen(options: argparse.Namespace, loads: Sequence[Load]) -> list[Load]:
    return [load for load in loads if options.loads is None or load.name in options.loads]


def run(options: argparse.Namespace, server: Server, load: Load) -> Row:
    """The program's object for a topic of its own.

    With ``processes``: what each process of the server and the client used for a message; and
    ``cpu_us``: microseconds of the server's CPU for a message.
    """
    topic = f"persistent://public/default/load-{uuid.uuid4().hex[:10]}"
    timed = ["-seconds", str(options.seconds)]
    if load.options[0] == "consume":
        filled = _run(options.loadgen, server, LOADS[0], topic, timed)
        timed = ["-count", str(min(int(filled["acked"]), _DRAIN_MAX))]
    return _run(options.loadgen, server, load, topic, timed)


def _run(program: Path, server: Server, load: Load, topic: str, extra: Sequence[str]) -> Row:
    command = [str(program), *load.options, "-url", server.url, "-topic", topic, *extra]
    before = {name: Use.of(pid) for name, pid in server.pids.items()}
    client = Use.of_clients()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **server.environment},
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    row: Row = json.loads(done.stdout)
    messages = next((row[name] for name in _COUNTS if row.get(name)), 1)
    used = {name: Use.of(pid).since(before[name], messages) for name, pid in server.pids.items()}
    row["cpu_us"] = sum(map(cpu_us, used.values()))
    row["processes"] = {**used, "client": Use.of_clients().since(client, messages)}
    if "error" in row or any(row.get(fault) for fault in ("failed", "wrong", "lost")):
        print(f"{load.name} at {server.url}: {done.stdout.strip()}", file=sys.stderr)
    return row


def text_of(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
