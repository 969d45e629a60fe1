"""What an entry costs one bookie in this process: bytes and CPU of every stage.

    python -m benchmarks.bookie_costs [--seconds 4] [--folder DIR]

What it writes and reads beside the bare disk: ``bookie_rates.py``.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvloop

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig, StorageConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.malloc import keep_freed_memory
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.bookkeeper.transport import AddRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore

KEY = bytes(20)
HEAD = bytes(32)  # what a broker puts in front of each entry
WINDOW_BYTES = 16 << 20
WINDOW_REQUESTS = 4000
STORAGE = StorageConfig(journal_segment_bytes=64 << 20)  # as a bookie process sets it
COSTS = (
    (100, 1),
    (100, 100),
    (1024, 1),
    (1024, 16),
    (65536, 1),
)  # payload bytes, entries a request


@contextlib.contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="magnetar-disk-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path)


# ---- a bookie


class Client:
    """Keeps a window of requests pending over ``ledgers`` ledgers."""

    def __init__(self, bookie: Bookie, entry_bytes: int, batch: int, ledgers: int = 1) -> None:
        self.entries = 0
        self.refused = 0
        self._bookie = bookie
        self._batch = batch
        body = os.urandom(entry_bytes)
        self._bodies = [body] * batch
        self._next = [0] * ledgers
        self._request_bytes = (entry_bytes + len(HEAD) + packet.PACKET_HEADER_BYTES) * batch
        self._pending = 0
        self._until = 0.0
        self._entries_max = 0
        self._ended = asyncio.Event()

    async def run(self, seconds: float, entries_max: int = 1 << 62) -> float:
        """Seconds it took; what was sent is durable."""
        begin = time.perf_counter()
        self._until, self._entries_max = begin + seconds, self.entries + entries_max
        self._ended.clear()
        window = min(WINDOW_REQUESTS, max(1, WINDOW_BYTES // self._request_bytes))
        for number in range(window):
            self._send(number % len(self._next))
        await self._ended.wait()
        return time.perf_counter() - begin

    def _send(self, ledger: int) -> None:
        first = self._next[ledger]
        end = self._next[ledger] = first + self._batch
        heads = [
            packet.encode_head(ledger, entry_id, entry_id - 1, 0, HEAD, self._bodies[0])
            for entry_id in range(first, end)
        ]
        self._pending += 1
        ids = range(first, end)
        request = AddRequest(
            ledger, KEY, ids, heads, list(self._bodies), self._request_bytes, False, self._on_done
        )
        self._bookie.add_entries(request)

    def _on_done(self, request: AddRequest, code: int) -> None:
        self._pending -= 1
        if code == codes.OK:
            self.entries += len(request.entry_ids)
        else:
            self.refused += 1
        if time.perf_counter() < self._until and self.entries < self._entries_max:
            self._send(request.ledger_id)
        elif self._pending == 0:
            self._ended.set()


@contextlib.asynccontextmanager
async def fresh_bookie(folder: Path, storage: StorageConfig = STORAGE) -> AsyncIterator[Bookie]:
    """A fresh one; its directory goes with it."""
    path = folder / "bookie"
    store = EmbeddedMetadataStore.open(None)
    bookie = await open_bookie(BookieConfig("bench", path, storage), OsFileSystem(path), store)
    try:
        yield bookie
    finally:
        await bookie.close()
        await store.close()
        shutil.rmtree(path)


# ---- what an entry costs


@dataclass(slots=True)
class Snapshot:
    """Counters of the process and of its threads."""

    journal_bytes: int
    log_bytes: int
    index_bytes: int
    written_bytes: int
    thread_s: list[float]

    @classmethod
    def take(cls, bookie: Bookie) -> "Snapshot":
        index = (bookie.config.data_dir / "index" / "data.mdb").stat()
        io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return cls(
            bookie.metrics.journal_bytes,
            sum(log.end for log in bookie.storage.logs.logs.values()),
            index.st_blocks * 512,
            int(io["write_bytes"]),
            [sum(map(_thread_s, threads)) for threads in _threads(bookie)],
        )


def _thread_s(thread: int) -> float:
    """CPU seconds of a thread, kernel included."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def _threads(bookie: Bookie) -> tuple[list[int], ...]:
    """Ids of the loop's, the journal's, and the maintenance thread."""
    names = {path: path.read_text() for path in Path("/proc/self/task").glob("*/comm")}
    compiled = [int(path.parent.name) for path, name in names.items() if name == "journal\n"]
    workers = (bookie._threads[0]._worker, bookie.maintenance)
    journal, maintenance = (worker._thread.native_id or 0 for worker in workers)
    return [os.getpid()], [journal, *compiled], [maintenance]


async def costs(options: argparse.Namespace, folder: Path) -> None:
    columns = (
        *("payload B", "entries a request", "entries/s", "journal B", "entry log B", "index B"),
        *("written B in all", "loop us", "journal us", "flush and index us"),
    )
    print("Bytes and CPU (kernel included) per entry; bytes beside the payload come to:\n")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for entry_bytes, batch in COSTS:
        async with fresh_bookie(folder) as bookie:
            client = Client(bookie, entry_bytes, batch, ledgers=4)
            await client.run(0.5)
            await bookie.flush()
            count, before = client.entries, Snapshot.take(bookie)
            took = await client.run(options.seconds)
            await bookie.flush()
            after = Snapshot.take(bookie)
            count = client.entries - count
            cpu = [b - a for a, b in zip(before.thread_s, after.thread_s, strict=True)]
            metrics = (
                (after.journal_bytes - before.journal_bytes) / count,
                (after.log_bytes - before.log_bytes) / count,
                (after.index_bytes - before.index_bytes) / count,
                (after.written_bytes - before.written_bytes) / count,
            )
            print(
                f"| {entry_bytes} | {batch} | {count / took:,.0f} "
                f"| {metrics[0]:,.0f} | {metrics[1]:,.0f} | {metrics[2]:.1f} | {metrics[3]:,.0f} "
                f"| {' | '.join(f'{each / count * 1e6:.2f}' for each in cpu)} |",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    options = parser.parse_args()
    keep_freed_memory()
    sys.setswitchinterval(0.0005)
    with scratch(options.folder) as folder:
        uvloop.run(costs(options, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
