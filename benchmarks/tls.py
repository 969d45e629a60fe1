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
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.beside_pulsar import broker_of, compare
from benchmarks.comparison_loads import Load, Server, add_options
from tests.certificates import Authority, Pair
from tests.standalone_process import StandaloneProcess

LOADS: Final = (
    Load("batched-1k", ("produce", "-size", "1024", "-pending", "5000")),
    Load("drain-batched-1k", ("consume",)),  # of a topic that is filled for it
    Load("unbatched-1k", ("produce", "-size", "1024", "-batching=false")),
    Load("unbatched-64k", ("produce", "-size", "65536", "-batching=false", "-pending", "100")),
    Load("sync-1k", ("produce", "-sync", "-size", "1024"), ("p50_ms",)),
)


def sides(plain: str, tls: str, pid: int | None, authority: Path) -> dict[str, Server]:
    # Where Go looks for the authorities it trusts
    trust = {"SSL_CERT_FILE": str(authority)}
    return {
        side: Server(url, broker_of(pid), trust) for side, url in (("plain", plain), ("TLS", tls))
    }


@contextlib.contextmanager
def our_own(folder: Path) -> Iterator[dict[str, Server]]:
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
        tls = f"pulsar+ssl://127.0.0.1:{port}"
        yield sides(process.service_url, tls, process.pid, authority)


def certificates(folder: Path) -> tuple[Path, Pair]:
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder)
    return authority.certificate, authority.sign("localhost", file="broker")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", help="service URL; without it a process of our own is started")
    parser.add_argument("--tls", help="its URL over TLS")
    parser.add_argument("--ca", type=Path, help="the authority that signed its certificate")
    parser.add_argument("--pid", type=int, help="its process, for the column CPU")
    parser.add_argument("--certificates", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    add_options(parser, seconds=5, loads=LOADS)
    options = parser.parse_args()
    if options.certificates is not None:
        authority, pair = certificates(options.certificates)
        print(f"tlsTrustCertsFilePath={authority}")
        print(f"tlsCertificateFilePath={pair.certificate}\ntlsKeyFilePath={pair.key}")
        return 0
    with tempfile.TemporaryDirectory(prefix="magnetar-tls-") as name:
        if options.plain is not None:
            ca = options.ca.absolute()
            compare(options, sides(options.plain, options.tls, options.pid, ca), LOADS, Path(name))
        else:
            with our_own(Path(name)) as found:
                compare(options, found, LOADS, Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
