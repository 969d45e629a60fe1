"""Managed ledgers on a real bookie and metadata on disk, in one process; a part each:

    python -m benchmarks.managed_ledgers costs                   an append, a tail read; no bookie
    python -m benchmarks.managed_ledgers idle [--count 10000]    memory of idle logs, opening them
    python -m benchmarks.managed_ledgers topics [--count 10000]  of a whole standalone process
    python -m benchmarks.managed_ledgers cold [--mb 256]         reads of what no cache holds
    python -m benchmarks.managed_ledgers holes                   cursors with 1,000,000 of them
    python -m benchmarks.managed_ledgers all --json FILE         each in a process, then a table

``--json FILE`` adds a line for each figure; ``table --json FILE`` prints them as Markdown.
"""

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
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

import httpx
import orjson
import psutil
from pyroaring import BitMap

from benchmarks.micro import managed_ledger as micro
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import Cursor, load_or_create_cursor
from magnetar.managed_ledger.cursor.cursor_format import encode_snapshot
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.factory import FactoryConfig, ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import EARLIEST, LATEST
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.standalone_process import StandaloneProcess

CONFIG = ManagedLedgerConfig(retention_ms=-1, retention_bytes=-1)
HEAD = bytes(32)
AT_ONCE = 256
UNACKED_BYTES_MAX = 8 << 20
SETTLE_S = 10.0
"""What a server may need to let go of what the requests left behind."""


class Report:
    """Prints figures, and adds them to a file if there is one."""

    def __init__(self, path: Path | None, part: str) -> None:
        self._path, self._part = path, part

    def __call__(self, what: str, value: float, unit: str) -> None:
        print(f"{self._part:7} {what:55} {value:12,.2f} {unit}", flush=True)
        if self._path is not None:
            line = {"part": self._part, "what": what, "value": round(value, 4), "unit": unit}
            with self._path.open("ab") as out:
                out.write(
                    orjson.dumps({**line, "at_ms": now_ms()}, option=orjson.OPT_APPEND_NEWLINE)
                )


class Site:
    """A data directory with a bookie; brokers come and go."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.store: EmbeddedMetadataStore
        self.bookie: Bookie

    async def start(self) -> None:
        self.store = EmbeddedMetadataStore.open(self._directory / "metadata.db")
        config = BookieConfig("b0", self._directory / "bookie", disk_reserve_bytes=0)
        self.bookie = await open_bookie(config, OsFileSystem(config.data_dir), self.store)

    def broker(self, cache_bytes: int = 64 << 20) -> ManagedLedgerFactory:
        pool, rng = BookiePool(), random.Random(1)
        pool.add(self.bookie)
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


async def idle_stage(told: Report, stage: str, folder: Path, count: int) -> None:
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
        told(f"{count} logs {what}: resident memory each", (resident_bytes() - base) / count, "B")
        told(f"{count} logs {what}: time", seconds, "s")

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


def idle(count: int, json: Path | None) -> None:
    """Each log has a cursor; resident memory above the start's."""
    with tempfile.TemporaryDirectory(prefix="magnetar-logs-") as folder:
        for stage in ("make", "a kill", "a clean end"):
            command = [sys.executable, "-m", "benchmarks.managed_ledgers", "idle"]
            command += ["--count", str(count), "--stage", stage, "--folder", folder]
            command += [] if json is None else ["--json", str(json)]
            subprocess.run(command, check=True)


def topics(told: Report, count: int) -> None:
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
            told(f"{count} topics {what}: resident memory each", each, "B")
            told(f"{count} topics {what}: time", took, "s")
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


async def cold(told: Report, mb: int) -> None:
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
            told(f"entries of {size} B: payload", total / seconds / 1e6, "MB/s")
            told(f"entries of {size} B: time of each", seconds / count * 1e6, "us")
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


async def costs(told: Report) -> None:
    """Of the managed ledger alone: ledgers confirm at the end of the tick, and keep nothing."""
    store = EmbeddedMetadataStore.open(None)
    factory = micro.make_factory(store)
    config = ManagedLedgerConfig(ledger_entries_max=10**9, ledger_bytes_max=10**15)
    for size in (100, 1024):
        for per_append in (1, 8, 64):
            log = await factory.open(f"t/n/persistent/{size}-{per_append}", config)
            cost = await micro.append_cost(log, per_append, bytes(size))
            told(f"append of {per_append} entries of {size} B: each", cost, "us")
            await log.close()
    log = await factory.open("t/n/persistent/read", config)
    await log.open_cursor("reader", EARLIEST)
    await micro.append_cost(log, 8, bytes(1024))
    for entries_max in (1, 10, 100):
        cost = micro.read_cost(log, entries_max)
        told(f"tail read of {entries_max} entries of 1 KiB: each", cost, "us")
    await factory.close()
    await store.close()


LEDGER = 50_000
HOLES = 1_000_000
BATCHES = 200_000


def patterns() -> dict[str, dict[int, BitMap]]:
    """What is acknowledged, a million runs of it, by ledgers of the usual size."""
    rng = random.Random(7)
    found: dict[str, dict[int, BitMap]] = {}
    for few in (2, 9, 64, 1024):
        ledgers = range(1, HOLES * few // LEDGER + 1)
        found[f"one in {few}"] = {n: BitMap(range(1, LEDGER, few)) for n in ledgers}
    for few in (2, 9, 16, 64, 1024):
        each = LEDGER // few
        ledgers = range(1, round(HOLES / each / (1 - 1 / few)) + 1)
        found[f"one in {few}, at random"] = {
            n: BitMap(rng.sample(range(1, LEDGER), each)) for n in ledgers
        }
    found["all but one in 64, at random"] = {
        n: BitMap(range(1, LEDGER)) - gaps for n, gaps in found["one in 64, at random"].items()
    }
    return found


def acknowledge_batches(cursor: Cursor) -> None:
    """A million messages of 200,000 batches of ten, at random."""
    rng = random.Random(7)
    for ledger_id in range(1, BATCHES // LEDGER + 1):
        for entry in range(1, LEDGER):
            cursor.ack_batch((ledger_id, entry), [rng.randrange(1, 1 << 10)])


async def holes(told: Report) -> None:
    """What storing a million holes as a whole takes, durably and with a new cursor ledger, and
    loading them.
    """
    with tempfile.TemporaryDirectory(prefix="magnetar-holes-") as folder:
        site = Site(Path(folder))
        await site.start()
        for name, acked in patterns().items():
            await stored_and_loaded(told, site, name, acked)
        await stored_and_loaded(told, site, "half of batches of ten, at random", {})
        await site.stop()


async def stored_and_loaded(told: Report, site: Site, name: str, acked: dict[int, BitMap]) -> None:
    """``acked``: empty for batches."""
    # Each write begins a new cursor ledger, and so is a snapshot of everything.
    config = dataclasses.replace(CONFIG, cursor_ledger_entries_max=1)
    log = await site.broker().open(f"public/default/persistent/{name.replace(' ', '-')}", config)
    last = max(acked, default=BATCHES // LEDGER) + 1
    log.offsets = LedgerOffsets((n, LEDGER) for n in range(1, last + 1))  # never read
    cursor = await log.open_cursor("sub", EARLIEST)
    if not acked:
        acknowledge_batches(cursor)
    for ledger_id, entries in acked.items():
        cursor.ack([(ledger_id, entry) for entry in entries])
        await asyncio.sleep(0)
    await cursor.flush()
    times, pauses, cpu_times = [], [], []
    for entry in range(5):
        began, cpu_began = time.perf_counter(), time.process_time()
        cursor.ack([(last, 2 * entry + 1)])
        pauses.append(await longest_pause(cursor.flush()))
        times.append((time.perf_counter() - began) * 1000)
        cpu_times.append((time.process_time() - cpu_began) * 1000)
    if acked:
        size = sum(map(len, encode_snapshot(CursorImage((0, 0), acked), -1)))
        told(f"{name}: bytes of a snapshot", size, "B")
    told(f"{name}: stored, best of five", min(times), "ms")
    told(f"{name}: stored, worst of five", max(times), "ms")
    told(f"{name}: stored, CPU of the process with its bookie, best of five", min(cpu_times), "ms")
    told(f"{name}: longest pause of the loop meanwhile", max(pauses), "ms")
    times, pauses = [], []
    for _ in range(5):
        began = time.perf_counter()
        pauses.append(await longest_pause(load_or_create_cursor(log, "sub", (1, -1))))
        times.append((time.perf_counter() - began) * 1000)
    told(f"{name}: loaded, best of five", min(times), "ms")
    told(f"{name}: longest pause of the loop meanwhile, loaded", max(pauses), "ms")


async def longest_pause(work: Coroutine[object, object, object]) -> float:
    """Milliseconds between two turns of the loop until it is done."""
    task = asyncio.ensure_future(work)
    longest, last = 0.0, time.perf_counter()
    while not task.done():
        await asyncio.sleep(0)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    task.result()
    return longest * 1000


PARTS = ("costs", "idle", "topics", "cold", "holes")


def all_parts(options: argparse.Namespace) -> None:
    """Each in a process of its own, so that none has another's memory."""
    command = [sys.executable, "-m", "benchmarks.managed_ledgers"]
    shared = ["--count", str(options.count), "--mb", str(options.mb), "--json", str(options.json)]
    for part in PARTS:
        subprocess.run([*command, part, *shared], check=True)
    print_table(options.json)


def print_table(path: Path) -> None:
    """As Markdown; of a figure that was taken more than once the lowest and the highest."""
    metrics: dict[tuple[str, str, str], list[float]] = {}
    for line in path.read_bytes().splitlines():
        row = orjson.loads(line)
        metrics.setdefault((row["part"], row["what"], row["unit"]), []).append(row["value"])
    print("| part | what | figure |\n|---|---|---|")
    for (part, what, unit), values in metrics.items():
        shown = " to ".join(dict.fromkeys(map(figure_text, (min(values), max(values)))))
        print(f"| {part} | {what} | {shown} {unit} |")


def figure_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.managed_ledgers")
    parser.add_argument("part", choices=[*PARTS, "all", "table"])
    parser.add_argument("--count", type=int, default=10_000, help="logs or topics")
    parser.add_argument("--mb", type=int, default=256, help="of each size to read")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    told = Report(options.json, options.part)
    match options.part:
        case "all" | "table" if options.json is None:
            parser.error("all and table need --json FILE")
        case "all":
            all_parts(options)
        case "table":
            print_table(options.json)
        case "idle" if options.stage:
            asyncio.run(idle_stage(told, options.stage, options.folder, options.count))
        case "idle":
            idle(options.count, options.json)
        case "cold":
            asyncio.run(cold(told, options.mb))
        case "holes":
            asyncio.run(holes(told))
        case "costs":
            asyncio.run(costs(told))
        case _:
            topics(told, options.count)


if __name__ == "__main__":
    main()
