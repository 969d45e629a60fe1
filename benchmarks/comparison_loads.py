"""The comparison loads: a Go program with the official client, and the CPU of the server under it.

The program isn't in this repository. It prints one JSON object for a load.
"""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

PROGRAM: Final = (
    Path(os.environ.get("PEERS_HOME", Path.home() / ".cache/magnetar-peers")) / "loadgen"
)
_COUNTS: Final = ("acked", "received")  # of messages, by kind of load

Row = dict[str, float]


@dataclass(frozen=True)
class Load:
    """One of them; ``figures`` are the names of what counts in its object."""

    name: str
    options: tuple[str, ...]
    figures: tuple[str, ...] = ("msg_per_s",)


@dataclass(frozen=True)
class Server:
    """What a load is run against; ``pid`` is the broker's process, for its CPU."""

    url: str
    pid: int | None
    environment: dict[str, str]


def new_topic() -> str:
    return f"persistent://public/default/load-{uuid.uuid4().hex[:10]}"


def run(program: Path, server: Server, load: Load, topic: str, extra: Sequence[str]) -> Row:
    """The program's object, with ``cpu_us``: microseconds of the broker's CPU for a message."""
    command = [str(program), *load.options, "-url", server.url, "-topic", topic, *extra]
    before_s = _cpu_s(server.pid)
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
    row["cpu_us"] = (_cpu_s(server.pid) - before_s) / messages * 1e6
    if "error" in row or any(row.get(fault) for fault in ("failed", "wrong", "lost")):
        print(f"{load.name} at {server.url}: {done.stdout.strip()}", file=sys.stderr)
    return row


def _cpu_s(pid: int | None) -> float:
    """Seconds of all threads of a process, its part of the kernel included."""
    if pid is None:
        return 0.0
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
