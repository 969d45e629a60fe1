"""Adds and reads at the same bookies: as one of our clients, and as one of Apache BookKeeper's.

    python -m benchmarks.bookie_protocols [--pairs 5] [--seconds 2] [--quorums 3,3,2]
        [--loads 1024x64,1024x1,65536x4,1048576x1] [--folder DIR]

Both speak version 2. Ours has logged in as such: flags, one reply for a run of adds, batch reads
alone. Processor time counts, as other work on the machine hardly changes it: of the client's
process, and of all bookies together. Both ways take turns, and the median of the ratios of
neighbours is told. Loads are as in ``bookkeeper_cluster.py``; ``one`` is one entry at a time,
``tail`` reads of single entries, ``catch-up`` reads of 1 MiB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

import uvloop

from benchmarks.bookies import as_a_broker, client_of, connecting, header, joined, servers
from benchmarks.bookkeeper_cluster import Load, Writer
from benchmarks.bookkeeper_reads import READ_BYTES, write
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connector import ProtocolConnector
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from tests.bookie_process import BookieProcess

BOOKIES = 3
READ_ENTRIES = {1024: 40_000, 65_536: 2_000, 1_048_576: 200}


@dataclass(slots=True)
class Cost:
    """Processor time in microseconds an entry; ``p50_ms`` of an append and its confirmation."""

    client_us: float
    bookies_us: float
    p50_ms: float = 0.0


class Meter:
    """Processor time of this process and of the bookies since it was made."""

    def __init__(self, bookies: list[BookieProcess]) -> None:
        self._bookies = bookies
        self._theirs = self._sum()
        self._own = time.process_time()

    def _sum(self) -> float:
        return sum(sum(bookie.cpu_times()) for bookie in self._bookies)

    def cost(self, entries: int, p50_ms: float = 0.0) -> Cost:
        own, theirs = time.process_time() - self._own, self._sum() - self._theirs
        return Cost(own / entries * 1e6, theirs / entries * 1e6, p50_ms)


async def add(
    load: Load,
    quorums: LedgerConfig,
    client: BookKeeperClient,
    meter: Callable[[], Meter],
    s: float,
) -> Cost:
    """Appends for ``s`` seconds."""
    ledger = await client.create_ledger(quorums)
    writer = Writer(ledger, load)
    await writer.run(time.perf_counter() + s / 4)
    writer.latencies_ms.clear()
    before, measured = writer.confirmed, meter()
    await writer.run(time.perf_counter() + s)
    cost = measured.cost(writer.confirmed - before, statistics.median(writer.latencies_ms))
    await ledger.close()
    await client.delete_ledger(ledger.ledger_id)
    return cost


async def add_one(
    quorums: LedgerConfig, client: BookKeeperClient, meter: Callable[[], Meter], s: float
) -> Cost:
    """One entry of 1 KiB at a time."""
    ledger = await client.create_ledger(quorums)
    writer = Writer(ledger, Load(1024, 1))
    for _ in range(50):
        await writer.append_and_wait()
    writer.latencies_ms.clear()
    measured, end = meter(), time.perf_counter() + s
    while time.perf_counter() < end:
        await writer.append_and_wait()
    cost = measured.cost(len(writer.latencies_ms), statistics.median(writer.latencies_ms))
    await ledger.close()
    await client.delete_ledger(ledger.ledger_id)
    return cost


async def read(
    ledger_id: int, bytes_max: int, client: BookKeeperClient, meter: Callable[[], Meter], s: float
) -> Cost:
    """The ledger from first to last, again and again for ``s`` seconds."""
    reader = await client.open_ledger(ledger_id, recover=False)
    entries, measured, end = 0, meter(), time.perf_counter() + s
    while time.perf_counter() < end:
        first = 0
        while first <= reader.last_confirmed and time.perf_counter() < end:
            last = first if bytes_max == 1 else reader.last_confirmed
            run = await reader.read(first, last, bytes_max)
            first += len(run.bodies)
        entries += first
    return measured.cost(entries)


async def open_clients(stack: AsyncExitStack, url: str) -> list[BookKeeperClient]:
    """One that the bookies know as ours, one as Apache's would be."""
    store, layout = await stack.enter_async_context(joined(url))
    assert isinstance(layout, BookKeeperLayout)
    connector = ProtocolConnector(store, layout, ProtocolConfig())
    stack.push_async_callback(connector.close)
    ways = (await stack.enter_async_context(connecting(store, layout)), connector.connect)
    return [await stack.enter_async_context(client_of(store, layout, connect)) for connect in ways]


Run = Callable[[BookKeeperClient, Callable[[], Meter], float], Awaitable[Cost]]


async def run(url: str, bookies: list[BookieProcess], options: argparse.Namespace) -> None:
    """All loads, one after the other."""
    as_a_broker()
    ensemble, write_quorum, ack_quorum = map(int, options.quorums.split(","))
    quorums = LedgerConfig(ensemble, write_quorum, ack_quorum)
    async with AsyncExitStack() as stack:
        clients = await open_clients(stack, url)
        runs: list[tuple[str, Run]] = [("one", partial(add_one, quorums))]
        sizes: list[int] = []
        for text in options.loads.split(","):
            size, _, batch = text.partition("x")
            runs.append((f"add {text}", partial(add, Load(int(size), int(batch or 1)), quorums)))
            if int(size) not in sizes:
                sizes.append(int(size))
        for size in sizes:
            count = READ_ENTRIES[size]
            copies = (quorums.ensemble_size, quorums.write_quorum)
            ledger_id = await write(clients[0], copies, os.urandom(size), count)
            runs += (
                (f"tail {size}", partial(read, ledger_id, 1)),
                (f"catch-up {size}", partial(read, ledger_id, READ_BYTES)),
            )
        for name, one in runs:
            await compare(name, one, clients, bookies, options)


async def compare(
    name: str,
    one: Run,
    clients: list[BookKeeperClient],
    bookies: list[BookieProcess],
    options: argparse.Namespace,
) -> None:
    """Pairs of one load, and their line."""
    pairs: list[tuple[Cost, Cost]] = []
    for number in range(options.pairs):
        costs: dict[int, Cost] = {}
        for way in (0, 1) if number % 2 == 0 else (1, 0):
            costs[way] = await one(clients[way], partial(Meter, bookies), options.seconds)
        pairs.append((costs[0], costs[1]))
    print(row(name, pairs), flush=True)


COLUMNS = (
    *("load", "client: own us/entry", "BookKeeper's", "ratio", "bookies: own us/entry"),
    *("BookKeeper's", "ratio", "both together, ratio", "p50 ms: own", "BookKeeper's"),
)


def row(name: str, pairs: list[tuple[Cost, Cost]]) -> str:
    median = statistics.median
    cells = [name]
    for of in (attrgetter("client_us"), attrgetter("bookies_us")):
        own, theirs = median(of(a) for a, _ in pairs), median(of(b) for _, b in pairs)
        ratio = median(of(b) / of(a) for a, b in pairs)
        cells += (f"{own:.2f}", f"{theirs:.2f}", f"{ratio:.2f}")
    ratio = median((b.client_us + b.bookies_us) / (a.client_us + a.bookies_us) for a, b in pairs)
    cells += (f"{ratio:.2f}",)
    cells += (f"{median(a.p50_ms for a, _ in pairs):.2f}",)
    cells += (f"{median(b.p50_ms for _, b in pairs):.2f}",)
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--quorums", default="3,3,2", help="ensemble, write quorum, ack quorum")
    parser.add_argument(
        "--loads", default="1024x64,1024x1,65536x4,1048576x1", help="SIZExBATCH,..."
    )
    parser.add_argument("--folder", type=Path, help="where the bookies keep their data")
    options = parser.parse_args()
    with servers(options, BOOKIES) as (url, bookies):
        print(header(COLUMNS), flush=True)
        uvloop.run(run(url, bookies, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
