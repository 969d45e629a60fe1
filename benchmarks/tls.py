"""TLS beside plain text, with the Go client of the comparison loads: `python -m benchmarks.tls`.

    python -m benchmarks.tls                                     a fresh process of our own
    python -m benchmarks.tls --plain URL --tls URL --ca FILE [--pid PID]     a running broker
    python -m benchmarks.tls --certificates FOLDER               only files for such a broker

Each load runs plain and over TLS in turns, so that both meet the same machine; rows have the
medians of all rounds. CPU is the broker's (of --pid), all threads and its part of the kernel.
"""

import argparse
import contextlib
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.comparison_loads import PROGRAM, Load, Row, Server, new_topic, run
from tests.certificates import Authority, Pair
from tests.standalone_process import StandaloneProcess

SIDES: Final = ("plain", "tls")
_DRAIN_MAX: Final = 600_000

LOADS: Final = (
    Load("batched-1k", ("produce", "-size", "1024", "-pending", "5000")),
    Load("drain-batched-1k", ("consume",)),  # of what the row above has left
    Load("unbatched-1k", ("produce", "-size", "1024", "-batching=false")),
    Load("unbatched-64k", ("produce", "-size", "65536", "-batching=false", "-pending", "100")),
    Load("sync-1k", ("produce", "-sync", "-size", "1024"), ("p50_ms",)),
)


@dataclass(frozen=True)
class Target:
    urls: dict[str, str]
    authority: Path
    pid: int | None

    def server(self, side: str) -> Server:
        # Where Go looks for the authorities it trusts
        return Server(self.urls[side], self.pid, {"SSL_CERT_FILE": str(self.authority)})


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


def one_round(
    options: argparse.Namespace, target: Target, rows: dict[tuple[str, str], list[Row]]
) -> None:
    topics: dict[str, tuple[str, int]] = {}
    for load in LOADS:
        if options.loads and load.name not in options.loads.split(","):
            continue
        for side in SIDES:
            topic = new_topic()
            extra = ["-seconds", str(options.seconds)]
            if load.options[0] == "consume":
                topic, count = topics[side]
                extra = ["-count", str(min(count, _DRAIN_MAX))]
            row = run(options.loadgen, target.server(side), load, topic, extra)
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
        (figure,) = load.figures
        ratios = [b[figure] / a[figure] for a, b in zip(plain, tls, strict=True)]
        cpu = " / ".join(f"{_median(each, 'cpu_us'):.2f}" for each in (plain, tls))
        print(
            f"| {load.name} | {figure} | {_text(_median(plain, figure))} |"
            f" {_text(_median(tls, figure))} | **{statistics.median(ratios):.2f}** |"
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
        "--loadgen", type=Path, default=PROGRAM, help="the Go client's load program"
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
            run(options.loadgen, target.server(side), warm_up, new_topic(), ["-seconds", "2"])
        for _ in range(options.rounds):
            one_round(options, target, rows)
        table(rows, target.pid is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
