"""What one bookie writes and reads beside a bare sequential writer and reader of the same disk.

    python -m benchmarks.bookie_rates [--seconds 4] [--rounds 5] [--folder DIR]

For entries of 64 KiB and 1 MiB, in turns:

* the bytes that the bookie writes, journal and entry log together, from the first entry until all
  of them are synced, beside a loop that appends blocks of 1 MiB to a new file and syncs it once at
  the end;
* whole ledgers read in order, one and eight at once, with nothing in the page cache, beside a loop
  that reads the same entry logs in blocks of 1 MiB;
* the p99 of entries that are sent at a fixed rate, alone and while such reads go on, beside that of
  a loop that writes as many to a file, each of them synced, alone and while a bare reader reads.
"""

import argparse
import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvloop

from benchmarks.bookie_costs import HEAD, KEY, STORAGE, Client, fresh_bookie, scratch
from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.malloc import keep_freed_memory
from magnetar.bookkeeper.transport import AddRequest, ReadRequest

# What is read is older than what the bookie has left in the page cache.
COLD = replace(STORAGE, entry_log_cached_bytes=8 << 20)
READ_LEDGERS = 8
BLOCK_BYTES = 1 << 20
ENTRY_BYTES = (64 << 10, 1 << 20)
PACED_BYTES = 32 << 20  # a second, in the part about writes beside reads
PACED_LEDGER = 1000


def written_bare(folder: Path, seconds: float) -> float:
    """Bytes a second of a loop that appends and syncs at the end."""
    path = folder / "bare"
    block = os.urandom(BLOCK_BYTES)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            count += os.write(fd, block)
        os.fdatasync(fd)
        return count / (time.perf_counter() - begin)
    finally:
        os.close(fd)
        path.unlink()


async def written_by_bookie(bookie: Bookie, client: Client, seconds: float) -> float:
    """Bytes a second of journal and entry log, both of them synced."""
    before, begin = _written(bookie), time.perf_counter()
    await client.run(seconds)
    await bookie.flush()
    return (_written(bookie) - before) / (time.perf_counter() - begin)


def _written(bookie: Bookie) -> int:
    logs = sum(log.end for log in bookie.storage.logs.logs.values())
    return bookie.metrics.journal_bytes + logs


async def writes(options: argparse.Namespace, folder: Path) -> None:
    print("| entry, KiB | bare MB/s | bookie, journal and entry log MB/s | ratio | in rounds |")
    print("|---|---|---|---|---|")
    for entry_bytes in ENTRY_BYTES:
        rounds = []
        async with fresh_bookie(folder) as bookie:
            client = Client(bookie, entry_bytes, 1)
            await written_by_bookie(bookie, client, 1.0)  # the journal has its segments then
            for _ in range(options.rounds):
                bare = written_bare(folder, options.seconds)
                rounds.append((bare, await written_by_bookie(bookie, client, options.seconds)))
            assert client.refused == 0
        _print_ratios(str(entry_bytes >> 10), rounds)


def _print_ratios(name: str, rounds: list[tuple[float, float]]) -> None:
    """A row of a table: medians of the rounds, and the ratio of each."""
    bare, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratios = [of / to for to, of in rounds]
    print(
        f"| {name} | {bare / 1e6:.0f} | {ours / 1e6:.0f} | {statistics.median(ratios):.2f} "
        f"| {min(ratios):.2f} to {max(ratios):.2f} |",
        flush=True,
    )


async def reads(options: argparse.Namespace, folder: Path) -> None:
    print("\n| entry, KiB; readers | bare MB/s | bookie MB/s | ratio | in rounds |")
    print("|---|---|---|---|---|")
    for entry_bytes in ENTRY_BYTES:
        async with fresh_bookie(folder, COLD) as bookie:
            held = await _fill(bookie, entry_bytes, options.read_bytes)
            for readers in (1, READ_LEDGERS):
                rounds = []
                for _ in range(options.rounds):
                    forget_pages(folder)
                    bare = read_bare(bookie)
                    forget_pages(folder)
                    begin, sizes = time.perf_counter(), list[int]()
                    await asyncio.gather(
                        *(read_all(bookie, each, held[each], sizes) for each in range(readers))
                    )
                    rounds.append((bare, sum(sizes) / (time.perf_counter() - begin)))
                _print_ratios(f"{entry_bytes >> 10}; {readers}", rounds)


async def _fill(bookie: Bookie, entry_bytes: int, total: int) -> list[int]:
    """Write ``READ_LEDGERS`` ledgers mixed; the entries of each."""
    client = Client(bookie, entry_bytes, 1, READ_LEDGERS)
    await client.run(600.0, total // entry_bytes)
    await bookie.flush()
    return [bookie.storage.ledgers[number].last_entry + 1 for number in range(READ_LEDGERS)]


def read_bare(bookie: Bookie) -> float:
    """Bytes a second of a loop over the entry logs."""
    buffer = bytearray(BLOCK_BYTES)
    total, begin = 0, time.perf_counter()
    for path in sorted(bookie.config.data_dir.rglob("*.log")):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total / (time.perf_counter() - begin)


async def writes_beside_reads(options: argparse.Namespace, folder: Path) -> None:
    print("\n| entry, KiB | p99 alone, ms | beside reads, ms | ratio | in rounds | reads MB/s |")
    print("|---|---|---|---|---|---|")
    for entry_bytes in ENTRY_BYTES:
        async with fresh_bookie(folder, COLD) as bookie:
            held = await _fill(bookie, entry_bytes, options.read_bytes)
            paced, bare = PacedWriter(bookie, entry_bytes), BarePair(bookie, folder, entry_bytes)
            await paced.p99(1.0)
            rounds, rates = [], []
            for _ in range(options.rounds):
                await asyncio.to_thread(bare.run, options.seconds)
                alone = await paced.p99(options.seconds)
                reading = asyncio.create_task(_read_on(bookie, folder, held))
                beside = await paced.p99(options.seconds)
                reading.cancel()
                rates.append(await reading)
                rounds.append((alone, beside))
        _print_p99(f"{entry_bytes >> 10}, bare", bare.rounds, bare.rates)
        _print_p99(f"{entry_bytes >> 10}", rounds, rates)


def _print_p99(name: str, rounds: list[tuple[float, float]], rates: list[float]) -> None:
    alone, beside = (statistics.median(column) * 1e3 for column in zip(*rounds, strict=True))
    ratios = [of / to for to, of in rounds]
    print(
        f"| {name} | {alone:.1f} | {beside:.1f} | {statistics.median(ratios):.2f} "
        f"| {min(ratios):.2f} to {max(ratios):.2f} | {statistics.median(rates) / 1e6:.0f} |",
        flush=True,
    )


async def _read_on(bookie: Bookie, folder: Path, held: list[int]) -> float:
    """Read cold ledgers until cancelled; bytes a second."""
    begin, sizes = time.perf_counter(), list[int]()
    try:
        while True:
            await asyncio.to_thread(forget_pages, folder)
            await asyncio.gather(
                *(read_all(bookie, number, count, sizes) for number, count in enumerate(held))
            )
    except asyncio.CancelledError:
        return sum(sizes) / (time.perf_counter() - begin)


async def read_all(bookie: Bookie, ledger: int, entries: int, sizes: list[int]) -> None:
    """A whole ledger in order; ``sizes`` gets the bytes of each reply."""
    first = 0
    while first < entries:
        reply = await bookie.read_entries(ReadRequest(ledger, first, 1000, 1 << 20))
        assert reply.code == codes.OK, reply
        sizes.append(sum(map(len, reply.packets)))
        first += len(reply.packets)


def forget_pages(folder: Path) -> None:
    """Let the page cache forget a bookie's entry logs, as if they were old.

    They are synced. To sync and forget the journal as well would keep writes waiting, in which
    reading has no part.
    """
    for path in folder.rglob("*.log"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class BarePair:
    """What the disk does with synced writes at a fixed rate, alone and beside a bare reader.

    Attributes:
        rounds: p99 in seconds, of writes alone and beside reads.
        rates: bytes a second that were read.
    """

    def __init__(self, bookie: Bookie, folder: Path, entry_bytes: int) -> None:
        self.rounds: list[tuple[float, float]] = []
        self.rates: list[float] = []
        self._bookie, self._folder = bookie, folder
        self._body = os.urandom(entry_bytes)
        self._gap_s = entry_bytes / PACED_BYTES
        self._rate = 0.0

    def run(self, seconds: float) -> None:
        """One round."""
        alone = self._p99(seconds)
        end = time.perf_counter() + seconds
        reader = threading.Thread(target=self._read, args=(end,))
        reader.start()
        beside = self._p99(seconds)
        reader.join()
        self.rounds.append((alone, beside))

    def _read(self, end: float) -> None:
        rates = []
        while time.perf_counter() < end:
            forget_pages(self._folder)
            rates.append(read_bare(self._bookie))
        self.rates.append(statistics.median(rates))

    def _p99(self, seconds: float) -> float:
        path, latencies, at = self._folder / "bare", list[float](), 0
        fd = os.open(path, os.O_CREAT | os.O_RDWR)
        try:
            os.pwrite(fd, bytes(2 * PACED_BYTES), 0)
            os.fsync(fd)
            due = time.perf_counter()
            end = due + seconds
            while due < end:
                time.sleep(max(0.0, due - time.perf_counter()))
                # All that are due, as in a journal's group.
                count = int((time.perf_counter() - due) / self._gap_s) + 1
                count = min(count, PACED_BYTES // len(self._body))
                at = at if at + count * len(self._body) <= 2 * PACED_BYTES else 0
                os.pwritev(fd, [self._body] * count, at, os.RWF_DSYNC)
                at += count * len(self._body)
                now = time.perf_counter()
                latencies += [now - due - number * self._gap_s for number in range(count)]
                due += count * self._gap_s
        finally:
            os.close(fd)
            path.unlink()
        return statistics.quantiles(latencies, n=100)[98]


class PacedWriter:
    """Sends entries of a ledger at a fixed rate, whatever the answers do."""

    def __init__(self, bookie: Bookie, entry_bytes: int) -> None:
        self._bookie = bookie
        self._body = os.urandom(entry_bytes)
        self._gap_s = entry_bytes / PACED_BYTES
        self._entry_id = 0
        self._latencies: list[float] = []

    async def p99(self, seconds: float) -> float:
        """Seconds between the moment an entry was due and its answer: the 99th percentile."""
        self._latencies.clear()
        loop = asyncio.get_running_loop()
        due, end = loop.time(), loop.time() + seconds
        count, all_answered = 0, asyncio.Event()

        def answered(due: float, _: AddRequest, code: int) -> None:
            assert code == codes.OK, code
            self._latencies.append(loop.time() - due)
            if len(self._latencies) == count:
                all_answered.set()

        while due < end:
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            count += 1
            all_answered.clear()
            self._send(partial(answered, due))
            due += self._gap_s
        await all_answered.wait()
        return statistics.quantiles(self._latencies, n=100)[98]

    def _send(self, done: Callable[[AddRequest, int], None]) -> None:
        entry_id = self._entry_id
        self._entry_id += 1
        head = packet.encode_head(PACED_LEDGER, entry_id, entry_id - 1, 0, HEAD, self._body)
        size = packet.PACKET_HEADER_BYTES + len(HEAD) + len(self._body)
        ids = range(entry_id, entry_id + 1)
        self._bookie.add_entries(
            AddRequest(PACED_LEDGER, KEY, ids, [head], [self._body], size, False, done)
        )


PARTS: dict[str, Callable[[argparse.Namespace, Path], Coroutine[object, object, None]]] = {
    "writes": writes,
    "reads": reads,
    "both": writes_beside_reads,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=tuple(PARTS), help="one instead of all")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--read-bytes", type=int, default=1 << 30, help="payload to be read")
    options = parser.parse_args()
    keep_freed_memory()
    sys.setswitchinterval(0.0005)  # as a bookie process sets it
    with scratch(options.folder) as folder:
        for part in [options.part] if options.part else PARTS:
            uvloop.run(PARTS[part](options, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
