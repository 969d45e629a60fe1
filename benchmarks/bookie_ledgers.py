"""Memory and start-up time of a bookie process by the number of ledgers it holds.

    python -m benchmarks.bookie_ledgers [--counts 1000,10000,100000] [--entries 4] [--folder DIR]

Each count has a fresh ``magnetar bookie`` and a client that writes ``--entries`` entries of 100
bytes to each ledger over gRPC. Resident memory is told when everything is flushed to entry logs,
and again after a restart, which has read the index and nothing else.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from pathlib import Path

import uvloop

from benchmarks.bookies import connecting, header, joined, scratch
from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from tests.bookie_process import BookieProcess

KEY = bytes(20)
BODY = os.urandom(100)
WINDOW = 2000
FLUSH_S_MAX = 120.0


class Writer:
    """Sends one request a ledger, ``WINDOW`` of them under way."""

    def __init__(self, client: BookieClient, entries: int) -> None:
        self._client = client
        self._entries = entries
        self._room = asyncio.Semaphore(WINDOW)
        self.refused: list[int] = []

    async def write(self, ledgers: range) -> None:
        for ledger_id in ledgers:
            await self._room.acquire()
            ids = range(self._entries)
            heads = [packet.encode_head(ledger_id, id_, id_ - 1, 0, b"", BODY) for id_ in ids]
            size = sum(map(len, heads)) + len(BODY) * len(ids)
            bodies = [BODY] * len(ids)
            self._client.add_entries(
                AddRequest(ledger_id, KEY, ids, heads, bodies, size, False, self._on_done)
            )
        for _ in range(WINDOW):
            await self._room.acquire()

    def _on_done(self, _request: AddRequest, code: int) -> None:
        if code != codes.OK:
            self.refused.append(code)
        self._room.release()


async def fill(url: str, bookie_id: str, count: int, entries: int) -> float:
    """Seconds that writing took."""
    async with joined(url) as (store, layout), connecting(store, layout) as connect:
        begin = time.perf_counter()
        writer = Writer(connect(bookie_id), entries)
        await writer.write(range(1, count + 1))
        assert writer.refused == [], writer.refused[:3]
        return time.perf_counter() - begin


def wait_for_flush(bookie: BookieProcess) -> None:
    """Until the process has been idle for a while."""
    until = time.monotonic() + FLUSH_S_MAX
    idle = 0
    while idle < 6:
        before = sum(bookie.cpu_times())
        time.sleep(0.5)
        idle = idle + 1 if sum(bookie.cpu_times()) - before <= 0.02 else 0
        assert time.monotonic() < until, "the bookie never came to rest"


def check_read(url: str, bookie_id: str, ledger_id: int, entries: int) -> None:
    """What was written is there."""

    async def read() -> int:
        async with joined(url) as (store, layout), connecting(store, layout) as connect:
            request = ReadRequest(ledger_id, 0, entries + 1, 1 << 20)
            return len((await connect(bookie_id).read_entries(request)).packets)

    assert uvloop.run(read()) == entries


def measure(count: int, entries: int, folder: Path, url: str) -> None:
    options = ("--set", "flushInterval=1000", "--set", "bookieId=bench")
    with BookieProcess(folder / f"bookie-{count}", f"{url}/{count}", *options) as bookie:
        empty = bookie.resident_bytes()
        took = uvloop.run(fill(f"{url}/{count}", bookie.bookie_id, count, entries))
        wait_for_flush(bookie)
        full = bookie.resident_bytes()
        index = (bookie.data / "index" / "data.mdb").stat().st_blocks * 512
        bookie.stop()
        begin = time.perf_counter()
        bookie.start()
        started = time.perf_counter() - begin
        wait_for_flush(bookie)
        again = bookie.resident_bytes()
        some = random.Random(count).sample(range(1, count + 1), 20)
        for ledger_id in some:
            check_read(f"{url}/{count}", bookie.bookie_id, ledger_id, entries)
    per_ledger = (again - empty) / count
    print(
        f"| {count:,} | {count * entries / took:,.0f} | {empty / 1e6:.0f} | {full / 1e6:.0f} "
        f"| {again / 1e6:.0f} | {per_ledger:,.0f} | {index / 1e6:.1f} | {started:.2f} |",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--counts", default="1000,10000,100000", help="ledgers")
    parser.add_argument("--entries", type=int, default=4, help="of each ledger")
    parser.add_argument("--folder", type=Path, help="where the bookies keep their data")
    options = parser.parse_args()
    columns = (
        *("ledgers", "entries/s written", "RSS empty MB", "RSS flushed MB", "RSS restarted MB"),
        *("bytes a ledger", "index MB", "start s"),
    )
    with scratch(options) as (folder, zookeeper):
        print(header(columns), flush=True)
        for text in options.counts.split(","):
            measure(int(text), options.entries, folder, zookeeper.url())
    return 0


if __name__ == "__main__":
    sys.exit(main())
