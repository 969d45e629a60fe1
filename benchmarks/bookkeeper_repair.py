"""Ledgers of a bookie that is gone, copied by auto-recovery: entries a second, and CPU an entry.

    python -m benchmarks.bookkeeper_repair [--quorums 3,3;3,2;5,3] [--entries 100000] [--bytes 1024]
        [--as-apache] [--folder DIR] [--json FILE]

E > Qw is a striped ledger, of which each bookie holds every few entries. Bookies are processes that
have just started; one of the ledger's is stopped, and a worker in this process gives its share to
another one. ZooKeeper, bookies and the worker share the machine.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from dataclasses import dataclass
from functools import partial

import uvloop

from benchmarks.bookies import all_quorums, connected, connecting, joined, now_ms, servers
from benchmarks.bookkeeper_reads import parse, write
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.replication.replication_worker import ReplicationWorker
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from tests.bookie_process import BookieProcess


@dataclass(slots=True)
class Result:
    """Of the entries that were copied. CPU in microseconds; that of bookies is of all together."""

    quorums: tuple[int, int]
    entry_bytes: int
    copied: int
    entries_per_s: float
    worker_cpu_us: float
    bookies_cpu_us: float


async def repair(
    url: str, bookies: dict[str, BookieProcess], ledger_id: int, lost: str, *, as_apache: bool
) -> tuple[int, float, float, float]:
    """Entries copied; seconds, and CPU seconds of this process and of the bookies."""
    async with (
        joined(url) as (store, layout),
        connecting(store, layout, as_apache=as_apache) as connect,
    ):
        pool, rng = BookiePool(store, connect), random.Random(1)
        await pool.start()
        worker = ReplicationWorker(
            store, LedgerStore(store, layout), pool, RandomPlacement(rng), clock=now_ms, rng=rng
        )
        markers = UnderReplicationStore(store, now_ms, layout)
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
            return worker.metrics.entries_copied, took, own, theirs
        finally:
            await worker.close()
            await pool.close()


async def measure(
    url: str, bookies: list[BookieProcess], options: argparse.Namespace, quorums: tuple[int, int]
) -> Result:
    """Bookies start anew before the repair."""
    by_id = {process.bookie_id: process for process in bookies}
    async with connected(url) as client:
        ledger_id = await write(client, quorums, os.urandom(options.bytes), options.entries)
        reader = await client.open_ledger(ledger_id, recover=False)
        lost = reader.metadata.segments[0].bookies[0]
    for process in bookies:
        await asyncio.to_thread(process.stop)
    for bookie, process in by_id.items():
        if bookie != lost:
            await asyncio.to_thread(process.start)
    copied, took, own, theirs = await repair(
        url, by_id, ledger_id, lost, as_apache=options.as_apache
    )
    await asyncio.to_thread(by_id[lost].start)
    async with connected(url) as client:
        await client.delete_ledger(ledger_id)
    each = 1e6 / max(1, copied)
    return Result(quorums, options.bytes, copied, copied / took, own * each, theirs * each)


def main() -> int:
    options = parse(__doc__ or "", "3,3;3,2;5,3")
    most = max(int(text.split(",")[0]) for text in options.quorums.split(";"))
    with servers(options, most + 1) as (url, bookies):
        uvloop.run(all_quorums(options, partial(measure, url, bookies, options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
