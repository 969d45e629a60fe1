"""Ledgers read from bookie processes that have just started: entries a second, and CPU an entry.

    python -m benchmarks.bookkeeper_reads [--quorums 3,3;3,2;3,1] [--entries 100000] [--bytes 1024]
        [--as-apache] [--folder DIR] [--json FILE]

E > Qw is a striped ledger, of which each bookie holds every few entries. A read asks for at most
1 MiB, as a dispatcher that catches up does; ZooKeeper, bookies and the reader share the machine.
"""

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from benchmarks.bookies import HEAD, all_quorums, connected, servers
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import LedgerConfig
from tests.bookie_process import BookieProcess

APPEND_ENTRIES = 100
WINDOW_ENTRIES = 2000
READ_BYTES = 1 << 20
BOOKIES = 3


@dataclass(slots=True)
class Result:
    """CPU in microseconds an entry; that of bookies is of all together."""

    quorums: tuple[int, int]
    entry_bytes: int
    entries_per_s: float
    payload_mb_per_s: float
    reads: int
    reader_cpu_us: float
    bookies_cpu_us: float


async def write(client: BookKeeperClient, quorums: tuple[int, int], body: bytes, count: int) -> int:
    """A closed ledger of so many entries; its id."""
    ensemble, copies = quorums
    ledger = await client.create_ledger(LedgerConfig(ensemble, copies, copies))
    moved = asyncio.Event()
    ledger.on_confirmed = lambda _: moved.set()
    while ledger.next_entry < count:
        await _wait_for(ledger, moved, ledger.next_entry - WINDOW_ENTRIES)
        ledger.append([HEAD] * APPEND_ENTRIES, [body] * APPEND_ENTRIES)
    await _wait_for(ledger, moved, ledger.next_entry - 1)
    await ledger.close()
    return ledger.ledger_id


async def _wait_for(ledger: AsyncLedgerWriter, moved: asyncio.Event, entry: int) -> None:
    while ledger.last_confirmed < entry:
        moved.clear()
        await moved.wait()


async def read(
    client: BookKeeperClient,
    bookies: list[BookieProcess],
    ledger_id: int,
    quorums: tuple[int, int],
    entry_bytes: int,
) -> Result:
    """All of it, from first to last."""
    reader = await client.open_ledger(ledger_id, recover=False)
    cpu = [sum(bookie.cpu_times()) for bookie in bookies]
    own, begin = time.process_time(), time.perf_counter()
    first, reads = 0, 0
    while first <= reader.last_confirmed:
        run = await reader.read(first, reader.last_confirmed, READ_BYTES)
        first += len(run.bodies)
        reads += 1
    took, own = time.perf_counter() - begin, time.process_time() - own
    theirs = sum(sum(b.cpu_times()) - before for b, before in zip(bookies, cpu, strict=True))
    megabytes = first * entry_bytes / 1e6
    per_entry = 1e6 / first
    return Result(
        *(quorums, entry_bytes, first / took, megabytes / took, reads),
        *(own * per_entry, theirs * per_entry),
    )


async def measure(
    url: str, bookies: list[BookieProcess], options: argparse.Namespace, quorums: tuple[int, int]
) -> Result:
    """Bookies start anew before they are read."""
    async with connected(url) as client:
        ledger_id = await write(client, quorums, os.urandom(options.bytes), options.entries)
    for bookie in bookies:
        await asyncio.to_thread(bookie.stop)
    for bookie in bookies:
        await asyncio.to_thread(bookie.start)
    async with connected(url, as_apache=options.as_apache) as client:
        result = await read(client, bookies, ledger_id, quorums, options.bytes)
        await client.delete_ledger(ledger_id)
    return result


def main() -> int:
    options = parse(__doc__ or "", "3,3;3,2;3,1")
    with servers(options, BOOKIES) as (url, bookies):
        uvloop.run(all_quorums(options, partial(measure, url, bookies, options)))
    return 0


def parse(description: str, quorums: str) -> argparse.Namespace:
    """Options of a benchmark of ledgers; ``quorums`` are its own."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quorums", default=quorums, help="E,Qw;E,Qw;...")
    parser.add_argument("--entries", type=int, default=100_000, help="a multiple of 100")
    parser.add_argument("--bytes", type=int, default=1024, help="of an entry's payload")
    parser.add_argument("--as-apache", action="store_true", help="without our own login")
    parser.add_argument("--folder", type=Path, help="where the bookies keep their data")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
