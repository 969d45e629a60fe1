"""What a compaction of many messages takes, and what it saves who opens a table view.

``python -m benchmarks.compaction_table --jars DIR [--messages 10000000] [--keys 10000]``

Messages with random keys, each of them at least once, are published in batches. A table view is
opened, the topic is compacted, and it is opened again some times. Of the process that compacts the
most memory and temporary files are printed. ``--opens 0``: the compaction alone.

The client is Java's, of Apache Pulsar (``--jars``: its ``lib``): the table view of the C++ client
3.x, and so Python's, ends with a segmentation fault on a few hundred thousand messages, on Pulsar's
broker as on ours.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.compaction_latency import OTHER, TABLE, Server
from tests.standalone_process import StandaloneProcess

PROGRAM: Final = Path(__file__).parent / "TableViews.java"
_JAVA: Final = ("java", "-Xms1g", "-Xmx1g", "-Dlog4j2.level=WARN")
_POLL_S: Final = 0.1
_PROCESS: Final = b"compaction_process"


def by_java(jars: str, url: str, *words: object) -> str:
    command = [*_JAVA, "-cp", f"{jars}/*", str(PROGRAM), url, TABLE, *map(str, words)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def opened_s(jars: str, url: str, keys: int, count: int) -> list[float]:
    """Until a table view has all of the topic, by one client again and again."""
    lines = by_java(jars, url, "open", OTHER, count).splitlines()
    rows = [line.split() for line in lines if line.startswith("opened ")]
    assert [int(found) for _, _, found in rows] == [keys] * count, lines
    return [float(seconds) for _, seconds, _ in rows]


class Watch:
    """The process that compacts.

    Attributes:
        memory_bytes: the most that it had.
        file_bytes: the most that its temporary files had.
    """

    def __init__(self, broker_pid: int) -> None:
        self._broker_pid, self.memory_bytes, self.file_bytes = broker_pid, 0, 0

    def look(self) -> None:
        for pid in children_of(self._broker_pid):
            try:
                if _PROCESS in Path(f"/proc/{pid}/cmdline").read_bytes():
                    self.memory_bytes = max(self.memory_bytes, peak_bytes(pid))
                    self.file_bytes = max(self.file_bytes, deleted_file_bytes(pid))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended


def children_of(pid: int) -> list[int]:
    found = list[int]()
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, each.read_text().split())
    return found + [later for child in found for later in children_of(child)]


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(x.split()[1]) for x in status.splitlines() if "VmHWM" in x), 0) * 1024


def deleted_file_bytes(pid: int) -> int:
    links = [each for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
    return sum(x.stat().st_size for x in links if str(x.readlink()).endswith("(deleted)"))


def compact(server: Server, broker_pid: int) -> None:
    watch, began_s = Watch(broker_pid), time.perf_counter()
    server.compact()
    while server.is_compacting():
        watch.look()
        time.sleep(_POLL_S)
    ledger = server.call("GET", f"{TABLE.replace('://', '/')}/internalStats")["compactedLedger"]
    print(
        f"compacted in {time.perf_counter() - began_s:.1f} s: {ledger['entries']:,} entries,"
        f" {ledger['size'] / 1e6:.1f} MB; its process had {watch.memory_bytes / 2**20:.0f} MiB at"
        f" most and {watch.file_bytes / 1e6:.0f} MB of temporary files, the broker"
        f" {peak_bytes(broker_pid) / 2**20:.0f} MiB",
        flush=True,
    )


def measure(standalone: StandaloneProcess, arguments: argparse.Namespace) -> None:
    server, keys = Server(standalone.service_url, standalone.admin_url), arguments.keys
    java = (arguments.jars, standalone.service_url)
    server.client.subscribe(TABLE, "keep").close()  # nothing is trimmed
    began_s = time.perf_counter()
    by_java(*java, "fill", arguments.messages, keys, arguments.bytes)
    took_s = time.perf_counter() - began_s
    print(f"{arguments.messages:,} messages of {keys:,} keys in {took_s:.0f} s", flush=True)
    before_s = opened_s(*java, keys, 1)[0] if arguments.opens else 0.0
    compact(server, standalone.pid)
    if arguments.opens:
        after_s = opened_s(*java, keys, arguments.opens)
        print(
            f"table view opened in {before_s:.2f} s before, in"
            f" {', '.join(f'{x:.2f}' for x in after_s)} s after:"
            f" {before_s / statistics.median(after_s):.0f}x"
        )
    server.client.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction_table")
    add = parser.add_argument
    add("--jars", required=True, help="lib of Apache Pulsar")
    add("--messages", type=int, default=10_000_000)
    add("--keys", type=int, default=10_000)
    add("--bytes", type=int, default=16, help="of each message")
    add("--opens", type=int, default=7, help="of a table view after the compaction; 0: none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        standalone = StandaloneProcess(Path(folder) / "data")
        standalone.start()
        try:
            measure(standalone, arguments)
        finally:
            standalone.stop()


if __name__ == "__main__":
    main()
