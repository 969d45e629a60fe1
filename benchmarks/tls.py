"""TLS beside plain text, with the Go client of the comparison loads: `python -m benchmarks.tls`.

    python -m benchmarks.tls                                     a fresh process of our own
    python -m benchmarks.tls --plain URL --tls URL --ca FILE [--pid PID]     a running broker
    python -m benchmarks.tls --certificates FOLDER               only files for such a broker

Each load runs plain and over TLS in turns, so that both meet the same machine; rows have the
medians of all rounds. CPU is the broker's (of --pid), all threads and its part of the kernel.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.certificates import Authority, Pair
from tests.standalone_process import StandaloneProcess

PEERS: Final = Path(os.environ.get("PEERS_HOME", Path.home() / ".cache/magnetar-peers"))
SIDES: Final = ("plain", "tls")
_DRAIN_MAX: Final = 600_000

Row = dict[str, float]


@dataclass(frozen=True)
class Load:
    name: str
    options: tuple[str, ...]
    figure: str = "msg_per_s"


LOADS: Final = (
    Load("batched-1k", ("produce", "-size", "1024", "-pending", "5000")),
    Load("drain-batched-1k", ("consume",)),  # of what the row above has left
    Load("unbatched-1k", ("produce", "-size", "1024", "-batching=false")),
    Load("unbatched-64k", ("produce", "-size", "65536", "-batching=false", "-pending", "100")),
    Load("sync-1k", ("produce", "-sync", "-size", "1024"), "p50_ms"),
)


@dataclass(frozen=True)
class Target:
    urls: dict[str, str]
    authority: Path
    pid: int | None


@contextlib.contextmanager
def our_own(folder: Path) -> Iterator[Target]:
    authority, pair = certificates(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "brokerServicePortTls": port,
        "tlsCertificateFilePath": pair.certificate,
        "tlsKeyFilePath": pair.key,
    }
    options = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
    with StandaloneProcess(folder / "data", *options) as process:
        urls = {"plain": process.service_url, "tls": f"pulsar+ssl://127.0.0.1:{port}"}
        yield Target(urls, authority, process.pid)


def certificates(folder: Path) -> tuple[Path, Pair]:
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder)
    return authority.certificate, authority.sign("localhost", file="broker")


def run(loadgen: Path, target: Target, side: str, load: Load, topic: str, extra: list[str]) -> Row:
    command = [str(loadgen), *load.options, "-url", target.urls[side], "-topic", topic, *extra]
    before_s = _cpu_s(target.pid)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=180,
        # Where Go looks for the authorities it trusts
        env={**os.environ, "SSL_CERT_FILE": str(target.authority)},
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    row: Row = json.loads(done.stdout)
    messages = row.get("acked") or row.get("received") or 1
    row["cpu_us"] = (_cpu_s(target.pid) - before_s) / messages * 1e6
    if row.get("failed") or "error" in row:
        print(f"{load.name} {side}: {done.stdout.strip()}", file=sys.stderr)
    return row


def _cpu_s(pid: int | None) -> float:
    if pid is None:
        return 0.0
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def one_round(
    options: argparse.Namespace, target: Target, rows: dict[tuple[str, str], list[Row]]
) -> None:
    topics: dict[str, tuple[str, int]] = {}
    for load in LOADS:
        if options.loads and load.name not in options.loads.split(","):
            continue
        for side in SIDES:
            topic = f"persistent://public/default/tls-{uuid.uuid4().hex[:10]}"
            extra = ["-seconds", str(options.seconds)]
            if load.options[0] == "consume":
                topic, count = topics[side]
                extra = ["-count", str(min(count, _DRAIN_MAX))]
            row = run(options.loadgen, target, side, load, topic, extra)
            if load.name == "batched-1k":
                topics[side] = topic, int(row["acked"])
            rows.setdefault((load.name, side), []).append(row)
            time.sleep(0.5)


def table(rows: dict[tuple[str, str], list[Row]], has_cpu: bool) -> None:
    print("| load | figure | plain | TLS | TLS by plain | of each round | CPU us plain / TLS |")
    print("|---|---|---|---|---|---|---|")
    for load in LOADS:
        if (load.name, "plain") not in rows:
            continue
        plain, tls = (rows[load.name, side] for side in SIDES)
        ratios = [b[load.figure] / a[load.figure] for a, b in zip(plain, tls, strict=True)]
        cpu = " / ".join(f"{_median(each, 'cpu_us'):.2f}" for each in (plain, tls))
        print(
            f"| {load.name} | {load.figure} | {_text(_median(plain, load.figure))} |"
            f" {_text(_median(tls, load.figure))} | **{statistics.median(ratios):.2f}** |"
            f" {', '.join(f'{each:.2f}' for each in ratios)} | {cpu if has_cpu else '-'} |"
        )


def _median(rows: list[Row], figure: str) -> float:
    return statistics.median(row[figure] for row in rows)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", help="service URL; without it a process of our own is started")
    parser.add_argument("--tls", help="its URL over TLS")
    parser.add_argument("--ca", type=Path, help="the authority that signed its certificate")
    parser.add_argument("--pid", type=int, help="its process, for the column CPU")
    parser.add_argument("--certificates", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5, help="of each load, but the drain")
    parser.add_argument("--loads", help="comma list; default: all")
    parser.add_argument(
        "--loadgen", type=Path, default=PEERS / "loadgen", help="the Go client's load program"
    )
    options = parser.parse_args()
    if options.certificates is not None:
        authority, pair = certificates(options.certificates)
        print(f"tlsTrustCertsFilePath={authority}")
        print(f"tlsCertificateFilePath={pair.certificate}\ntlsKeyFilePath={pair.key}")
        return 0
    rows: dict[tuple[str, str], list[Row]] = {}
    with contextlib.ExitStack() as stack:
        if options.plain is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-tls-"))
            target = stack.enter_context(our_own(Path(folder)))
        else:
            target = Target(
                {"plain": options.plain, "tls": options.tls}, options.ca.absolute(), options.pid
            )
        warm_up = Load("warm-up", ("produce", "-size", "1024"))
        for side in SIDES:
            topic = f"persistent://public/default/tls-{uuid.uuid4().hex[:10]}"
            run(options.loadgen, target, side, warm_up, topic, ["-seconds", "2"])
        for _ in range(options.rounds):
            one_round(options, target, rows)
        table(rows, target.pid is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
