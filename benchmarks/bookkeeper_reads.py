"""Ledgers read from bookie processes that have just started: entries a second, and CPU an entry.

    python -m benchmarks.bookkeeper_reads [--quorums 3,3;3,2;3,1] [--entries 100000] [--bytes 1024]
        [--folder DIR] [--json FILE]

E > Qw is a striped ledger, of which each bookie holds every few entries. A read asks for at most
1 MiB, as a dispatcher that catches up does; ZooKeeper, bookies and the reader share the machine.
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
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.layout.find_layout import open_layout
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from magnetar.metadata.factory import connect_store
from tests.bookie_process import BookieProcess
from tests.zookeeper_process import ZooKeeperProcess

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

HEAD = bytes(32)  # what a broker puts in front of each entry
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


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[BookKeeperClient]:
    store = await connect_store(url)
    layout = await open_layout(store)
    connector = BookieConnector(store, TransportConfig(), layout=layout)
    pool = BookiePool(store, connector.connect)
    await pool.start()
    rng = random.Random(1)
    try:
        yield BookKeeperClient(
            *(store, pool, RandomPlacement(rng)),
            clock=lambda: int(time.time() * 1000),
            rng=rng,
            layout=layout,
        )
    finally:
        await pool.close()
        await connector.close()
        await store.close()


async def run(url: str, bookies: list[BookieProcess], options: argparse.Namespace) -> list[Result]:
    """All quorums, one after the other; bookies start anew before each is read."""
    body, results = os.urandom(options.bytes), list[Result]()
    for text in options.quorums.split(";"):
        ensemble, copies = map(int, text.split(","))
        quorums = (ensemble, copies)
        async with connected(url) as client:
            ledger_id = await write(client, quorums, body, options.entries)
        for bookie in bookies:
            await asyncio.to_thread(bookie.stop)
        for bookie in bookies:
            await asyncio.to_thread(bookie.start)
        async with connected(url) as client:
            result = await read(client, bookies, ledger_id, quorums, options.bytes)
            await client.delete_ledger(ledger_id)
        print(row(result), flush=True)
        results.append(result)
    return results


COLUMNS = ("E, Qw", "entry", "entries/s", "MB/s", "reads", "reader us/entry", "bookies us/entry")


def row(result: Result) -> str:
    ensemble, copies = result.quorums
    return (
        f"| {ensemble}, {copies} | {result.entry_bytes} | {result.entries_per_s:,.0f} "
        f"| {result.payload_mb_per_s:.1f} | {result.reads} | {result.reader_cpu_us:.1f} "
        f"| {result.bookies_cpu_us:.1f} |"
    )


def main() -> int:
    options = parse(__doc__ or "", "3,3;3,2;3,1")
    with servers(options, BOOKIES) as (url, bookies):
        print(header(COLUMNS), flush=True)
        save(uvloop.run(run(url, bookies, options)), options)
    return 0


def parse(description: str, quorums: str) -> argparse.Namespace:
    """Options of a benchmark of ledgers; ``quorums`` are its own."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quorums", default=quorums, help="E,Qw;E,Qw;...")
    parser.add_argument("--entries", type=int, default=100_000, help="a multiple of 100")
    parser.add_argument("--bytes", type=int, default=1024, help="of an entry's payload")
    parser.add_argument("--folder", type=Path, help="where the bookies keep their data")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    return parser.parse_args()


@contextlib.contextmanager
def servers(options: argparse.Namespace, count: int) -> Iterator[tuple[str, list[BookieProcess]]]:
    """A ZooKeeper server, its URL, and so many bookies that have registered there."""
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="magnetar-bookies-", dir=options.folder)
            )
        )
        url = stack.enter_context(ZooKeeperProcess(folder / "zookeeper", tick_ms=2000)).url()
        yield (
            url,
            [
                stack.enter_context(BookieProcess(folder / f"bookie-{number}", url))
                for number in range(count)
            ],
        )


def header(columns: Sequence[str]) -> str:
    """The first lines of a table."""
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def save(results: Sequence[DataclassInstance], options: argparse.Namespace) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    sys.exit(main())
