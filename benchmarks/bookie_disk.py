"""One bookie against the bare disk; bytes and CPU of every stage; reads of cold ledgers.

    python benchmarks/bookie_disk.py [--seconds 4] [--rounds 5] [--folder DIR]
    python benchmarks/bookie_disk.py --costs
    python benchmarks/bookie_disk.py --reads

The first form compares entries of 64 KiB, every one of them synced before it counts: a bare loop
(write, fdatasync, at the end of a new file) and a bookie in this process, flushes to entry logs
included, in turns; the ratio of the sums is what counts. ``--over-old`` lets the bare loop write
over blocks that exist already, which no log can do for ever: an upper bound.
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
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from magnetar.bookkeeper.transport import ReadRequest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

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
ENTRY_BYTES = 64 << 10
WINDOW_BYTES = 16 << 20
WINDOW_REQUESTS = 4000
STORAGE = StorageConfig(journal_segment_bytes=64 << 20)  # as a bookie process sets it
# What is read is older than what the bookie has left in the page cache.
COLD = replace(STORAGE, entry_log_cached_bytes=8 << 20)
COSTS = (
    (100, 1),
    (100, 100),
    (1024, 1),
    (1024, 16),
    (65536, 1),
)  # payload bytes, entries a request
READ_LEDGERS = 8


@contextlib.contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="magnetar-disk-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path)


# ---- the bare disk


def bare_loop(folder: Path, seconds: float, *, over_old: bool = False) -> float:
    """Bytes a second of the simplest durable log there is."""
    path = folder / "bare"
    block = memoryview(os.urandom(ENTRY_BYTES))
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        if over_old:
            for at in range(2048):
                os.pwrite(fd, block, at * ENTRY_BYTES)
            os.fdatasync(fd)
        offset, begin = 0, time.perf_counter()
        while (took := time.perf_counter() - begin) < seconds:
            os.pwrite(fd, block, offset % (2048 * ENTRY_BYTES) if over_old else offset)
            os.fdatasync(fd)
            offset += ENTRY_BYTES
    finally:
        os.close(fd)
        path.unlink()
    return offset / took


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


async def compare(options: argparse.Namespace, folder: Path) -> None:
    print("| round | bare loop MB/s | one bookie MB/s | ratio |\n|---|---|---|---|")
    sums = [0.0, 0.0]
    async with fresh_bookie(folder) as bookie:
        client = Client(bookie, ENTRY_BYTES, 1)
        await client.run(1.0)  # the journal has its segments then, as at any other time
        for number in range(options.rounds):
            bare = bare_loop(folder, options.seconds, over_old=options.over_old)
            before = client.entries
            took = await client.run(options.seconds)
            ours = (client.entries - before) * ENTRY_BYTES / took
            sums = [sums[0] + bare, sums[1] + ours]
            print(row(str(number + 1), bare, ours), flush=True)
            assert client.refused == 0
    print(row("all", sums[0] / options.rounds, sums[1] / options.rounds))


def row(name: str, bare: float, ours: float) -> str:
    return f"| {name} | {bare / 1e6:.0f} | {ours / 1e6:.0f} | {ours / bare:.2f} |"


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
    def take(cls, bookie: Bookie, threads: list[int]) -> "Snapshot":
        index = (bookie.config.data_dir / "index" / "data.mdb").stat()
        io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return cls(
            bookie.metrics.journal_bytes,
            sum(log.end for log in bookie.storage.logs.logs.values()),
            index.st_blocks * 512,
            int(io["write_bytes"]),
            [_thread_s(thread) for thread in threads],
        )


def _thread_s(thread: int) -> float:
    """CPU seconds of a thread, kernel included."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def _thread_ids(bookie: Bookie) -> list[int]:
    """Loop, journal, maintenance."""
    workers = (bookie._threads[0].worker, bookie.maintenance)
    ids = [worker._thread.native_id for worker in workers]
    return [os.getpid(), *(number for number in ids if number is not None)]


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
            threads = _thread_ids(bookie)
            count, before = client.entries, Snapshot.take(bookie, threads)
            took = await client.run(options.seconds)
            await bookie.flush()
            after = Snapshot.take(bookie, threads)
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


# ---- cold reads


def forget_pages(folder: Path) -> None:
    """Let the page cache forget a bookie's entry logs, as if they were old.

    They are synced. To sync and forget the journal as well would keep writes waiting, in which
    reading has no part.
    """
    for path in folder.rglob("*.log"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


async def read_all(bookie: Bookie, ledger: int, entries: int, count_max: int) -> int:
    """Payload bytes of a whole ledger, read in order."""
    first = total = 0
    while first < entries:
        reply = await bookie.read_entries(ReadRequest(ledger, first, count_max, 1 << 20))
        assert reply.code == codes.OK, reply
        total += sum(map(len, reply.packets))
        first += len(reply.packets)
    return total


async def reads(options: argparse.Namespace, folder: Path) -> None:
    columns = ("payload B", "entries a request", "readers", "entries/s", "MB/s", "disk MB/s")
    print("Whole ledgers in order, nothing in memory; entry logs hold several ledgers mixed:\n")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for entry_bytes in (1024, 65536):
        async with fresh_bookie(folder, COLD) as bookie:
            client = Client(bookie, entry_bytes, 1 if entry_bytes > 4096 else 16, READ_LEDGERS)
            await client.run(600.0, options.read_bytes // entry_bytes)
            await bookie.flush()
            held = [bookie.storage.ledgers[number].last_entry + 1 for number in range(READ_LEDGERS)]
            for count_max, readers in ((1, 1), (100, 1), (1000, 1), (1000, READ_LEDGERS)):
                forget_pages(folder)
                before = _read_bytes()
                begin = time.perf_counter()
                chosen = range(readers) if count_max > 1 else range(1)
                sizes = await asyncio.gather(
                    *(read_all(bookie, number, held[number], count_max) for number in chosen)
                )
                took = time.perf_counter() - begin
                count = sum(held[number] for number in chosen)
                fetched = _read_bytes() - before
                print(
                    f"| {entry_bytes} | {count_max} | {readers} | {count / took:,.0f} "
                    f"| {sum(sizes) / took / 1e6:.0f} | {fetched / took / 1e6:.0f} |",
                    flush=True,
                )


def _read_bytes() -> int:
    """Bytes this process had fetched from disks."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise AssertionError("the kernel tells no read_bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--over-old", action="store_true", help="bare loop over existing blocks")
    parser.add_argument("--costs", action="store_true", help="bytes and CPU per entry")
    parser.add_argument("--reads", action="store_true", help="reads of cold ledgers")
    parser.add_argument("--read-bytes", type=int, default=512 << 20, help="payload to be read")
    options = parser.parse_args()
    keep_freed_memory()
    sys.setswitchinterval(0.0005)
    with scratch(options.folder) as folder:
        work = costs if options.costs else reads if options.reads else compare
        uvloop.run(work(options, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
