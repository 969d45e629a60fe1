"""One writer and bookie processes: entries a second, bytes and CPU of every stage.

    python -m benchmarks.bookkeeper_cluster [--seconds 10] [--bookies 3] [--quorums 3,3,2]
        [--loads 1024x1,65536x1] [--as-apache] [--folder DIR] [--json FILE]

A load is SIZExBATCH: payload bytes of an entry, and entries per append. The writer keeps a window
of unconfirmed entries; an entry counts when its ack quorum of bookies has synced it. ZooKeeper, the
bookies and the writer share the machine, as a small cluster on one node would. ``--as-apache``: the
client is known to the bookies as one of Apache BookKeeper's.
"""

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path

import uvloop

from benchmarks.bookies import HEAD, as_a_broker, connected, header, row, save, servers
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.errors import LedgerError
from tests.bookie_process import BookieProcess

WINDOW_BYTES = 16 << 20
WINDOW_ENTRIES = 10_000
WARM_UP_S = 1.0
RECOVERIES = 5
RECOVERED_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """``entry_bytes`` of payload, ``batch`` entries an append."""

    entry_bytes: int
    batch: int

    @property
    def window(self) -> int:
        return max(self.batch, min(WINDOW_ENTRIES, WINDOW_BYTES // self.entry_bytes))


@dataclass(slots=True)
class Result:
    """CPU in seconds per second (1.0 = one core), writer and mean of the bookies."""

    entry_bytes: int
    batch: int
    entries_per_s: float
    payload_mb_per_s: float
    p50_ms: float
    p99_ms: float
    writer_cpu: float
    bookie_cpu_user: float
    bookie_cpu_system: float
    bookie_disk_mb_per_s: float
    all_cpu_us_per_entry: float


class Writer:
    """Keeps a window of entries under way; counts and times confirmations."""

    def __init__(self, ledger: AsyncLedgerWriter, load: Load) -> None:
        self.latencies_ms: list[float] = []
        self.error: LedgerError | None = None
        self._ledger = ledger
        self._load = load
        self._body = os.urandom(load.entry_bytes)
        self._sent_at: list[float] = []  # of each append
        self._timed = 0
        self._moved = asyncio.Event()
        ledger.on_confirmed = self._on_confirmed
        ledger.on_failed = self._on_failed

    @property
    def confirmed(self) -> int:
        return self._ledger.last_confirmed + 1

    async def append_and_wait(self) -> None:
        """One append, confirmed."""
        self._append()
        while self.confirmed < self._ledger.next_entry:
            await self._wait()

    async def run(self, until: float) -> None:
        """Append until the clock says so, then wait for the rest."""
        ledger, load = self._ledger, self._load
        while time.perf_counter() < until:
            while ledger.next_entry - self.confirmed < load.window:
                self._append()
            await self._wait()
        while self.confirmed < ledger.next_entry:
            await self._wait()

    def _append(self) -> None:
        batch = self._load.batch
        self._sent_at.append(time.perf_counter())
        self._ledger.append([HEAD] * batch, [self._body] * batch)

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()
        if self.error is not None:
            raise self.error

    def _on_confirmed(self, upto: int) -> None:
        now = time.perf_counter()
        done = (upto + 1) // self._load.batch
        self.latencies_ms += [(now - sent) * 1000 for sent in self._sent_at[self._timed : done]]
        self._timed = done
        self._moved.set()

    def _on_failed(self, error: LedgerError) -> None:
        self.error = error
        self._moved.set()


async def measure(
    client: BookKeeperClient,
    bookies: list[BookieProcess],
    quorums: LedgerConfig,
    load: Load,
    seconds: float,
) -> Result:
    """One load on a ledger of its own."""
    ledger = await client.create_ledger(quorums)
    writer = Writer(ledger, load)
    await writer.run(time.perf_counter() + WARM_UP_S)
    writer.latencies_ms.clear()
    before = writer.confirmed
    cpu = [bookie.cpu_times() for bookie in bookies]
    disk = [bookie.written_bytes() for bookie in bookies]
    own, begin = time.process_time(), time.perf_counter()
    await writer.run(begin + seconds)
    took = time.perf_counter() - begin
    own = time.process_time() - own
    user = sum(b.cpu_times()[0] - c[0] for b, c in zip(bookies, cpu, strict=True))
    system = sum(b.cpu_times()[1] - c[1] for b, c in zip(bookies, cpu, strict=True))
    written = sum(b.written_bytes() - d for b, d in zip(bookies, disk, strict=True))
    count = writer.confirmed - before
    await ledger.close()
    await client.delete_ledger(ledger.ledger_id)
    latencies = sorted(writer.latencies_ms)
    return Result(
        load.entry_bytes,
        load.batch,
        count / took,
        count * load.entry_bytes / took / 1e6,
        latencies[len(latencies) // 2],
        latencies[len(latencies) * 99 // 100],
        own / took,
        user / took / len(bookies),
        system / took / len(bookies),
        written / took / len(bookies) / 1e6,
        (own + user + system) / count * 1e6,
    )


async def measure_recovery(client: BookKeeperClient, quorums: LedgerConfig) -> float:
    """Milliseconds to recover a ledger whose bookies know none of its 1,000 entries confirmed."""
    times_ms: list[float] = []
    for _ in range(RECOVERIES):
        ledger = await client.create_ledger(quorums)
        writer = Writer(ledger, Load(1024, RECOVERED_ENTRIES))
        # One append: every entry carries a LAC of -1, so recovery has to read all of them.
        await writer.append_and_wait()
        begin = time.perf_counter()
        reader = await client.open_ledger(ledger.ledger_id, recover=True)
        times_ms.append((time.perf_counter() - begin) * 1000)
        assert reader.last_confirmed == RECOVERED_ENTRIES - 1, reader.last_confirmed
        await client.delete_ledger(ledger.ledger_id)
    return sorted(times_ms)[RECOVERIES // 2]


async def run(
    url: str, bookies: list[BookieProcess], quorums: LedgerConfig, options: argparse.Namespace
) -> list[Result]:
    """All loads, one after the other."""
    as_a_broker()
    results: list[Result] = []
    async with connected(url, as_apache=options.as_apache) as client:
        for text in options.loads.split(","):
            size, _, batch = text.partition("x")
            load = Load(int(size), int(batch or 1))
            result = await measure(client, bookies, quorums, load, options.seconds)
            print(row(result), flush=True)
            results.append(result)
        took_ms = await measure_recovery(client, quorums)
        print(f"recovery of {RECOVERED_ENTRIES} unconfirmed entries: {took_ms:.0f} ms (median)")
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each load")
    parser.add_argument("--bookies", type=int, default=3)
    parser.add_argument("--quorums", default="3,3,2", help="ensemble, write quorum, ack quorum")
    parser.add_argument("--loads", default="1024x1,1024x16,65536x1", help="SIZExBATCH,...")
    parser.add_argument("--as-apache", action="store_true", help="without our own login")
    parser.add_argument("--folder", type=Path, help="where the bookies keep their data")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    options = parser.parse_args()
    ensemble, write, ack = map(int, options.quorums.split(","))
    quorums = LedgerConfig(ensemble, write, ack)
    with servers(options, options.bookies) as (url, bookies):
        print(header([each.name for each in fields(Result)]), flush=True)
        save(uvloop.run(run(url, bookies, quorums, options)), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
