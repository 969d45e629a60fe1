"""Managed ledgers on a real bookie and metadata on disk, in one process; a part each:

    python -m benchmarks.managed_ledgers idle [--count 10000]    memory of idle logs, opening them
    python -m benchmarks.managed_ledgers topics [--count 10000]  of a whole standalone process
    python -m benchmarks.managed_ledgers cold [--mb 256]         reads of what no cache holds
    python -m benchmarks.managed_ledgers holes                   a cursor with 1,000,000 of them

What an append and a tail read cost per entry is ``benchmarks.micro.managed_ledger``.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import dataclasses
import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import psutil

from bookkeeper.bookie.bookie import Bookie
from bookkeeper.bookie.config import BookieConfig
from bookkeeper.bookie.in_process_client import InProcessBookieClient
from bookkeeper.client.client import BookKeeperClient
from bookkeeper.client.placement import RandomPlacement
from bookkeeper.client.pool import BookiePool
from bookkeeper.storage.os_file_system import OsFileSystem
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor.cursor import Cursor
from managed_ledger.entry_batch import Buffer
from managed_ledger.entry_cache import EntryCache
from managed_ledger.factory import FactoryConfig, ManagedLedgerFactory
from managed_ledger.ledger_list import LedgerList
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.position import EARLIEST, LATEST
from metadata.embedded import EmbeddedMetadataStore
from tests.standalone_process import StandaloneProcess

CONFIG = ManagedLedgerConfig(retention_ms=-1, retention_bytes=-1)
HEAD = bytes(CONFIG.head_bytes)
AT_ONCE = 256
UNACKED_BYTES_MAX = 8 << 20
SETTLE_S = 10.0
"""What a server may need to let go of what the requests left behind."""


class Site:
    """A data directory with a bookie; brokers come and go."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.store: EmbeddedMetadataStore
        self.bookie: Bookie

    async def start(self) -> None:
        self.store = EmbeddedMetadataStore.open(self._directory / "metadata.db")
        config = BookieConfig("b0", self._directory / "bookie", disk_reserve_bytes=0)
        self.bookie = await Bookie.open(config, OsFileSystem(config.data_dir), self.store)

    def broker(self, cache_bytes: int = 64 << 20) -> ManagedLedgerFactory:
        pool, rng = BookiePool(), random.Random(1)
        pool.add(InProcessBookieClient(self.bookie))
        client = BookKeeperClient(self.store, pool, RandomPlacement(rng), clock=now_ms, rng=rng)
        cache = EntryCache(cache_bytes)
        return ManagedLedgerFactory(client, self.store, cache, FactoryConfig(), now_ms, rng)

    async def stop(self) -> None:
        await self.bookie.close()
        await self.store.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def resident_bytes() -> int:
    """Of this process, without what its allocator only keeps at hand."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def name_of(number: int) -> str:
    return f"public/default/persistent/idle-{number}"


async def all_of(count: int, each: Callable[[int], Awaitable[object]]) -> float:
    """Seconds for all numbers below ``count``, ``AT_ONCE`` at a time."""
    began = time.perf_counter()
    for start in range(0, count, AT_ONCE):
        await asyncio.gather(*(each(n) for n in range(start, min(start + AT_ONCE, count))))
    return time.perf_counter() - began


async def append_one(log: ManagedLedger, size: int = 100) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(ledger_id: int, first: int, count: int, error: BaseException | None) -> None:
        done.set_exception(error) if error is not None else done.set_result(None)

    log.append([HEAD], [bytes(size)], on_done)
    await done


async def idle_stage(stage: str, folder: Path, count: int) -> None:
    """One process's life: it makes and writes the logs and dies, or opens them and closes."""
    site = Site(folder)
    await site.start()
    broker = site.broker()

    async def make(number: int) -> None:
        log = await broker.open(name_of(number), CONFIG)
        await log.open_cursor("sub", LATEST)

    async def write(number: int) -> None:
        log = await broker.open(name_of(number), CONFIG)
        await append_one(log)
        log.cursors["sub"].ack([log.last_confirmed])
        await log.cursors["sub"].flush()

    def report(what: str, seconds: float) -> None:
        for _ in range(40):
            broker.cache.sweep()
        each = (resident_bytes() - base) / count
        print(f"{what:45} {seconds:6.2f} s  {each:7,.0f} bytes each", flush=True)

    for number in range(AT_ONCE):  # code has run, threads and files are there
        await append_one(await broker.open(f"public/default/persistent/{stage}-{number}", CONFIG))
    base = resident_bytes()
    if stage == "make":
        report("created", await all_of(count, make))
        report("written and acknowledged once", await all_of(count, write))
        os._exit(0)
    report(f"opened after {stage}", await all_of(count, make))
    await broker.close()
    await site.stop()


def idle(count: int) -> None:
    print(f"{count} logs with a cursor each; resident memory above the start's")
    with tempfile.TemporaryDirectory(prefix="magnetar-logs-") as folder:
        for stage in ("make", "a kill", "a clean end"):
            command = [sys.executable, "-m", "benchmarks.managed_ledgers", "idle"]
            command += ["--count", str(count), "--stage", stage, "--folder", folder]
            subprocess.run(command, check=True)


def topics(count: int) -> None:
    """By HTTP: a topic is made, subscribed to, and loaded by asking for its statistics."""
    paths = [f"/admin/v2/persistent/public/default/idle-{n}" for n in range(count)]
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-topics-") as folder,
        StandaloneProcess(Path(folder) / "data") as process,
    ):
        for create, what in (
            (True, "made, with a subscription"),
            (False, "loaded after a restart"),
        ):
            warm = [f"{paths[0]}-{create}-{n}" for n in range(32)]
            asyncio.run(request_all(process.admin_url, warm, create=True))
            base = process.resident_bytes()
            took = asyncio.run(request_all(process.admin_url, paths, create=create))
            time.sleep(SETTLE_S)
            each = (process.resident_bytes() - base) / count
            print(f"{count} topics {what}: {took:.1f} s, {each:,.0f} bytes each", flush=True)
            process.stop()
            if create:
                process.start()


async def request_all(url: str, paths: list[str], *, create: bool) -> float:
    began = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def one(path: str) -> None:
            if create:
                (await client.put(path)).raise_for_status()
                (await client.put(f"{path}/subscription/sub")).raise_for_status()
            else:
                (await client.get(f"{path}/stats")).raise_for_status()

        for start in range(0, len(paths), 32):
            await asyncio.gather(*map(one, paths[start : start + 32]))
    return time.perf_counter() - began


async def cold(mb: int) -> None:
    with tempfile.TemporaryDirectory(prefix="magnetar-cold-") as folder:
        site = Site(Path(folder))
        await site.start()
        broker = site.broker()
        for size, per_append in ((100, 64), (1024, 64), (65536, 4)):
            log = await broker.open(f"public/default/persistent/cold-{size}", CONFIG)
            await fill(log, size, per_append, (mb << 20) // (8 if size == 100 else 1))
        await broker.close()
        await site.stop()  # all is in entry logs, and they have left the page cache
        await site.start()
        for size in (100, 1024, 65536):
            log = await site.broker().open(f"public/default/persistent/cold-{size}", CONFIG)
            count, total, position = 0, 0, EARLIEST
            began = time.perf_counter()
            while (batch := await log.read(position, 1000, 1 << 20)) is not None:
                count += len(batch)
                total += sum(map(len, batch.bodies))
                position = (batch.ledger_id, batch.last + 1)
            seconds = time.perf_counter() - began
            print(
                f"{size:6} B: {total / seconds / 1e6:7.1f} MB/s, "
                f"{count / seconds:9,.0f} entries/s, {seconds / count * 1e6:6.2f} us per entry",
                flush=True,
            )
        await site.stop()


async def fill(log: ManagedLedger, size: int, per_append: int, total: int) -> None:
    body, left = bytes(size), total // size // per_append * per_append
    moved = asyncio.Event()

    def on_done(ledger_id: int, first: int, count: int, error: BaseException | None) -> None:
        nonlocal left
        left -= count
        moved.set()
        if error is not None:
            raise error

    for _ in range(left // per_append):
        bodies: list[Buffer] = [body] * per_append
        log.append([HEAD] * per_append, bodies, on_done)
        while log.pending_bytes > UNACKED_BYTES_MAX:
            moved.clear()
            await moved.wait()
    while left:
        moved.clear()
        await moved.wait()


async def holes() -> None:
    """Every second of 2,000,000 entries is acknowledged; what storing that as a whole takes."""
    with tempfile.TemporaryDirectory(prefix="magnetar-holes-") as folder:
        site = Site(Path(folder))
        await site.start()
        # Each write begins a new cursor ledger, and so is a snapshot of everything.
        config = dataclasses.replace(CONFIG, cursor_ledger_entries_max=1)
        log = await site.broker().open("public/default/persistent/holes", config)
        log.ledgers = LedgerList((n, 50_000) for n in range(1, 41))  # of which nothing is read
        cursor = await log.open_cursor("sub", EARLIEST)
        for ledger_id in range(1, 41):
            cursor.ack([(ledger_id, n) for n in range(1, 50_000, 2)])
        await cursor.flush()
        times: list[float] = []
        for number in range(0, 20, 2):
            began = time.perf_counter()
            cursor.ack([(20, 25_000 + number)])
            await cursor.flush()
            times.append((time.perf_counter() - began) * 1000)
        size = cursor.bitmap_bytes
        held = await longest_pause(cursor)
        print(
            f"{cursor.acked_above:,} holes, {size / 1e6:.2f} MB of bitmaps; stored durably, with a "
            f"new ledger, in {min(times):.1f} to {max(times):.1f} ms; the loop was held for "
            f"{held:.1f} ms at most"
        )
        await log.close()
        await site.stop()


async def longest_pause(cursor: Cursor) -> float:
    """Milliseconds between two turns of the loop while a snapshot is written."""
    cursor.ack([(30, 30_000)])
    storing = asyncio.ensure_future(cursor.flush())
    longest, last = 0.0, time.perf_counter()
    while not storing.done():
        await asyncio.sleep(0)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    return longest * 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.managed_ledgers")
    parser.add_argument("part", choices=["idle", "topics", "cold", "holes"])
    parser.add_argument("--count", type=int, default=10_000, help="logs or topics")
    parser.add_argument("--mb", type=int, default=256, help="of each size to read")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        asyncio.run(idle_stage(options.stage, options.folder, options.count))
    elif options.part == "idle":
        idle(options.count)
    elif options.part == "cold":
        asyncio.run(cold(options.mb))
    elif options.part == "holes":
        asyncio.run(holes())
    else:
        topics(options.count)


if __name__ == "__main__":
    main()
