"""Ledgers of a bookie that is gone, copied by auto-recovery: entries a second, and CPU an entry.

    python -m benchmarks.bookkeeper_repair [--quorums 3,3;3,2;5,3] [--entries 100000] [--bytes 1024]
        [--folder DIR] [--json FILE]

E > Qw is a striped ledger, of which each bookie holds every few entries. Bookies are processes that
have just started; one of the ledger's is stopped, and a worker in this process gives its share to
another one. ZooKeeper, bookies and the worker share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from benchmarks.bookkeeper_reads import connected, write
from bookkeeper.client.ledger_store import LedgerStore
from bookkeeper.client.placement import RandomPlacement
from bookkeeper.client.pool import BookiePool
from bookkeeper.replication.under_replication import UnderReplicationStore
from bookkeeper.replication.worker import ReplicationWorker
from bookkeeper.transport_grpc.config import TransportConfig
from bookkeeper.transport_grpc.connector import BookieConnector
from metadata.opening import connect_store
from tests.bookie_process import BookieProcess
from tests.zookeeper_process import ZooKeeperProcess


@dataclass(slots=True)
class Result:
    """Of the entries that were copied. CPU in microseconds; that of bookies is of all together."""

    quorums: tuple[int, int]
    entry_bytes: int
    copied: int
    entries_per_s: float
    worker_cpu_us: float
    bookies_cpu_us: float


def now_ms() -> int:
    return int(time.time() * 1000)


async def repair(
    url: str, bookies: dict[str, BookieProcess], ledger_id: int, lost: str
) -> tuple[int, float, float, float]:
    """Entries copied; seconds, and CPU seconds of this process and of the bookies."""
    store = await connect_store(url)
    connector = BookieConnector(store, TransportConfig())
    pool = BookiePool(store, connector.connect)
    await pool.start()
    rng = random.Random(1)
    worker = ReplicationWorker(
        store, LedgerStore(store), pool, RandomPlacement(rng), clock=now_ms, rng=rng
    )
    markers = UnderReplicationStore(store, now_ms)
    running = [process for bookie, process in bookies.items() if bookie != lost]
    try:
        await markers.mark(ledger_id, [lost])
        changed = asyncio.Event()
        store.watch(markers.marker_path(ledger_id), lambda _: changed.set())
        theirs = sum(sum(process.cpu_times()) for process in running)
        own, begin = time.process_time(), time.perf_counter()
        worker.start()
        while await markers.read(ledger_id) is not None:
            changed.clear()
            await changed.wait()
        took, own = time.perf_counter() - begin, time.process_time() - own
        theirs = sum(sum(process.cpu_times()) for process in running) - theirs
        return worker.figures.entries_copied, took, own, theirs
    finally:
        await worker.close()
        await pool.close()
        await connector.close()
        await store.close()


async def run(url: str, bookies: list[BookieProcess], options: argparse.Namespace) -> list[Result]:
    """All quorums, one after the other; bookies start anew before each repair."""
    body, results = os.urandom(options.bytes), list[Result]()
    by_id = {process.bookie_id: process for process in bookies}
    for text in options.quorums.split(";"):
        ensemble, copies = map(int, text.split(","))
        async with connected(url) as client:
            ledger_id = await write(client, (ensemble, copies), body, options.entries)
            reader = await client.open_ledger(ledger_id, recover=False)
            lost = reader.metadata.segments[0].bookies[0]
        for process in bookies:
            await asyncio.to_thread(process.stop)
        for bookie, process in by_id.items():
            if bookie != lost:
                await asyncio.to_thread(process.start)
        copied, took, own, theirs = await repair(url, by_id, ledger_id, lost)
        each = 1e6 / max(1, copied)
        result = Result(
            *((ensemble, copies), options.bytes, copied, copied / took, own * each, theirs * each)
        )
        print(row(result), flush=True)
        results.append(result)
        await asyncio.to_thread(by_id[lost].start)
        async with connected(url) as client:
            await client.delete_ledger(ledger_id)
    return results


COLUMNS = ("E, Qw", "entry", "copied", "entries/s", "worker us/entry", "bookies us/entry")
HEADER = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def row(result: Result) -> str:
    ensemble, copies = result.quorums
    return (
        f"| {ensemble}, {copies} | {result.entry_bytes} | {result.copied:,} "
        f"| {result.entries_per_s:,.0f} | {result.worker_cpu_us:.1f} "
        f"| {result.bookies_cpu_us:.1f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quorums", default="3,3;3,2;5,3", help="E,Qw;E,Qw;...")
    parser.add_argument("--entries", type=int, default=100_000, help="a multiple of 100")
    parser.add_argument("--bytes", type=int, default=1024, help="of an entry's payload")
    parser.add_argument("--folder", type=Path, help="where the bookies keep their data")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    options = parser.parse_args()
    count = 1 + max(int(text.split(",")[0]) for text in options.quorums.split(";"))
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="magnetar-bookies-", dir=options.folder)
            )
        )
        zookeeper = stack.enter_context(ZooKeeperProcess(folder / "zookeeper", tick_ms=2000))
        bookies = [
            stack.enter_context(BookieProcess(folder / f"bookie-{number}", zookeeper.url()))
            for number in range(count)
        ]
        print(HEADER, flush=True)
        results = uvloop.run(run(zookeeper.url(), bookies, options))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
