"""A topic with very many closed ledgers on real stores, and what the same costs with ten.

    python -m benchmarks.long_lists [--ledgers 1000000] [--zookeeper] [--offloaded] [--folder DIR]

A bookie and the log are in one process, the metadata on disk (the embedded store) or in a
ZooKeeper. Only the first and the last 1,000 ledgers are written as ever and have entries in the
bookie: a million took hours. Those between them have what the stores hold of a closed ledger: its
metadata, made by the ledger store, and its row, listed 1,000 at a time by `LedgerInfoStore.update`,
in chunks. ``--offloaded``: each row names a copy beside the bookies'; the first 100 exist.

Another process then opens the log, appends 100 entries to 100 ledgers, reads its ends, tells of
all ledgers as HTTP does, trims half of them, then all but 10,000, and deletes it with these; before
that it does the same to a log of ten ledgers. Turns of the event loop up to 10 ms aren't looked at.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import uvloop

from benchmarks.managed_ledgers import CONFIG, HEAD, append_one, now_ms, resident_bytes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata, LedgerState
from magnetar.bookkeeper.loop_stalls import LoopStalls
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.broker.http.topics.topic_internals import internal_stats
from magnetar.broker.http.topics.topic_segments import topic_segments
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.factory import FactoryConfig, ManagedLedgerFactory
from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows, PackedRows
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.managed_ledger.offload.config import FILESYSTEM, URI, OffloadConfig
from magnetar.managed_ledger.offload.context import CopyState, LedgerCopy, OffloadContext
from magnetar.managed_ledger.offload.file_store import FilesystemOffloader
from magnetar.managed_ledger.orphan_ledgers import custom_metadata
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore
from tests.unit.managed_ledger.cluster import eventually
from tests.zookeeper_process import ZooKeeperProcess

LONG: Final = "public/default/persistent/long"
SHORT: Final = "public/default/persistent/short"
REAL: Final = 1_000
COPIED: Final = 100
SHORT_LEDGERS: Final = 10
APPENDS: Final = 100
DELETED: Final = 10_000
CREATED_AT_ONCE: Final = 20_000
LISTED_AT_ONCE: Final = 1_000
SIZE: Final = 100
STALL_S: Final = 0.01
WAIT_S: Final = 36_000.0


class Place:
    """A bookie in this process, and the metadata store it shares with brokers."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self._folder, self._url = folder, url
        self.store: MetadataStore
        self._bookie: Bookie
        self._offloader: FilesystemOffloader

    async def start(self) -> None:
        if self._url is None:
            self.store = EmbeddedMetadataStore.open(self._folder / "metadata.db")
        else:
            self.store = await connect_store(self._url)
        config = BookieConfig("b0", self._folder / "bookie", disk_reserve_bytes=0)
        self._bookie = await open_bookie(config, OsFileSystem(config.data_dir), self.store)
        self._offloader = FilesystemOffloader(2, 2)

    def broker(self) -> ManagedLedgerFactory:
        pool, rng = BookiePool(), random.Random()
        pool.add(self._bookie)
        client = BookKeeperClient(self.store, pool, RandomPlacement(rng), clock=now_ms, rng=rng)
        cache = EntryCache(64 << 20)
        offloaders = [self._offloader]
        return ManagedLedgerFactory(
            client, self.store, cache, FactoryConfig(), now_ms, rng, offloaders
        )

    def config(self, *, is_offloaded: bool) -> ManagedLedgerConfig:
        location = ((URI, (self._folder / "copies").as_uri()),)
        # Bookies keep their ledgers: releasing them would be a load of its own.
        offload = OffloadConfig(FILESYSTEM, location, deletion_lag_ms=-1)
        return replace(
            CONFIG,
            ledger_entries_max=1,
            ledger_age_min_ms=0,
            offload=offload if is_offloaded else CONFIG.offload,
        )

    async def stop(self) -> None:
        self._offloader.close()
        await self._bookie.close()
        await self.store.close()


# Building


async def build(place: Place, ledgers: int, *, is_offloaded: bool) -> None:
    await place.start()
    config = place.config(is_offloaded=is_offloaded)
    for name, count in ((SHORT, SHORT_LEDGERS), (LONG, ledgers)):
        broker = place.broker()
        log = await broker.open(name, config)
        await log.open_cursor("sub", EARLIEST)
        began = time.perf_counter()
        await fill(log, min(count, REAL))
        rate = min(count, REAL) / (time.perf_counter() - began)
        print(f"{name}: {rate:,.0f} ledgers a second are written", flush=True)
        if is_offloaded:
            await offload(log, min(count, COPIED))
        await broker.close()
        if count > REAL:
            broker = place.broker()
            log = await broker.open(name, config)
            began = time.perf_counter()
            await list_closed(log, count - 2 * REAL, is_offloaded=is_offloaded)
            rate = (count - 2 * REAL) / (time.perf_counter() - began)
            print(f"{name}: {rate:,.0f} ledgers a second are listed", flush=True)
            await fill(log, REAL)
            await broker.close()
    await place.stop()


async def fill(log: ManagedLedger, ledgers: int) -> None:
    for _ in range(ledgers):
        await append_one(log, SIZE)


async def offload(log: ManagedLedger, ledgers: int) -> None:
    rows = log.lists.info.ledgers
    log.offloads.offload_before((rows[min(ledgers, len(rows) - 1)].ledger_id, 0))
    await eventually(lambda: log.offloads.status.state != "RUNNING", seconds_max=WAIT_S)
    assert log.offloads.status.state == "SUCCESS", log.offloads.status


async def list_closed(log: ManagedLedger, count: int, *, is_offloaded: bool) -> None:
    """Ledgers of one entry which no bookie has."""
    config = log.config
    location = dict(config.offload.location)
    custom, above = custom_metadata(log.name), log.lists.info.ledgers[-1].ledger_id

    async def create() -> int:
        created = await log.client.ledgers.create(
            lambda ledger_id: LedgerMetadata(
                *(ledger_id, 1, 1, 1, (EnsembleSegment(0, ("b0",)),), LedgerState.CLOSED, 0),
                length=SIZE + len(HEAD),
                custom_metadata=custom,
                created_ms=now_ms(),
                creator_token=random.getrandbits(63),
            ),
            above,
        )
        return created.metadata.ledger_id

    def row(ledger_id: int) -> LedgerInfo:
        context = None
        if is_offloaded:
            uuid = f"{random.getrandbits(128):032x}"
            copy = LedgerCopy(ledger_id, uuid, config.offload.driver, location)
            context = OffloadContext(copy, CopyState.COMPLETE, now_ms(), 2 * SIZE)
        return LedgerInfo(ledger_id, 1, SIZE + len(HEAD), now_ms(), context)

    ids: list[int] = []
    for start in range(0, count, LISTED_AT_ONCE):
        if not ids:
            number = min(CREATED_AT_ONCE, count - start)
            ids = sorted(await asyncio.gather(*(create() for _ in range(number))))
        rows, ids = [*map(row, ids[:LISTED_AT_ONCE])], ids[LISTED_AT_ONCE:]

        def listed(info: ManagedLedgerInfo, rows: list[LedgerInfo] = rows) -> ManagedLedgerInfo:
            if info.find(rows[-1].ledger_id) is not None:
                return info
            older = PackedRows.of([*info.ledgers.tail, *rows[:-1]])  # as ten that were joined
            longer = LedgerRows(rows[-1:], (*info.ledgers.segments, older))
            return log.trimmer.tidy(info.with_rows(longer))

        await log.lists.update(listed)


# Measuring


@dataclass
class Figure:
    """Of one operation on one log."""

    seconds: float
    count: int
    longest_s: float
    rss: int


class Measured:
    """Operations of one log, by name."""

    def __init__(self) -> None:
        self.metrics: dict[str, Figure] = {}

    async def __call__(self, what: str, work: Callable[[], Awaitable[object]], count: int) -> None:
        """``count``: of what it is done to."""
        stalls = LoopStalls(STALL_S)
        stalls.start()
        began = time.perf_counter()
        try:
            await work()
            seconds = time.perf_counter() - began
            await asyncio.sleep(0.05)  # a turn that was long is told by the next beat
        finally:
            stalls.close()
        longest_s = max(stalls.longest_s.values())
        self.metrics[what] = found = Figure(seconds, count, longest_s, resident_bytes())
        print(f"{what}: {found}", flush=True)  # the table comes when all is done


async def measure(place: Place, *, is_offloaded: bool) -> None:
    config = place.config(is_offloaded=is_offloaded)
    began, empty = time.perf_counter(), resident_bytes()
    await place.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # as in our processes
    took, base = time.perf_counter() - began, resident_bytes()
    print(
        f"store and bookie opened in {took:.1f} s, {(base - empty) / 1e6:,.0f} MB for them",
        flush=True,
    )
    short = await operations(place, SHORT, config)
    long = await operations(place, LONG, config)
    print_table(short, long)
    await place.stop()


async def operations(place: Place, name: str, config: ManagedLedgerConfig) -> dict[str, Figure]:
    done, broker = Measured(), place.broker()
    log: ManagedLedger

    async def open_() -> None:
        nonlocal log
        log = await broker.open(name, config)

    await done("opened", open_, 1)
    ledgers = len(log.offsets)
    done.metrics["opened"].count = ledgers

    async def append() -> None:
        await fill(log, APPENDS)
        await eventually(lambda: bool(log.lists.info.ledgers[-2].closed_ms), seconds_max=WAIT_S)

    await done("entry appended to a ledger of its own", append, APPENDS)

    async def read() -> None:
        for position in (EARLIEST, log.last_confirmed):
            assert await log.read(position, 1, 1 << 20) is not None

    await done("first and last entry read", read, 2)
    topic = cast(
        PersistentTopic, SimpleNamespace(ledger=log, subscriptions={}, name=f"persistent://{name}")
    )

    async def tell() -> None:
        size = 0
        async for piece in internal_stats(topic):
            size += len(piece)
        print(f"{name}: {size / 1e6:,.1f} MB of internal statistics", flush=True)

    await done("ledger told by internalStats", tell, ledgers)

    async def segments() -> None:
        async for _ in await topic_segments(topic, None, -1, locations=False):
            pass

    await done("ledger told by segments without locations", segments, ledgers)
    log.configure(replace(config, retention_ms=0, retention_bytes=0))

    async def trim(count: int) -> None:
        upto = log.lists.info.ledgers[count].ledger_id
        log.cursors["sub"].ack_cumulative(log.offsets.previous_position((upto, 0)))
        await eventually(lambda: log.lists.info.ledgers[0].ledger_id == upto, seconds_max=WAIT_S)
        await log.trimmer.finish()

    half = len(log.offsets) // 2
    await done("ledger trimmed, of the first half", partial(trim, half), half)
    await trim(max(0, len(log.offsets) - DELETED))
    left = len(log.offsets)
    await done("ledger deleted with the log", log.delete, left)
    await broker.close()
    return done.metrics


def print_table(short: dict[str, Figure], long: dict[str, Figure]) -> None:
    print(
        "| what | how many | seconds | ms each | with ten ledgers, ms each | longest turn, ms "
        "| RSS after, MB |\n|---|---|---|---|---|---|---|"
    )
    for what, figure in long.items():
        each, before = (x.seconds / x.count * 1e3 for x in (figure, short[what]))
        turn = f"{figure.longest_s * 1e3:.0f}" if figure.longest_s else f"< {STALL_S * 1e3:.0f}"
        print(
            f"| {what} | {figure.count:,} | {figure.seconds:,.2f} | {each:,.4f} | {before:,.4f} "
            f"| {turn} | {figure.rss / 1e6:,.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_lists")
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    parser.add_argument("--zookeeper", action="store_true", help="not the embedded metadata store")
    parser.add_argument("--offloaded", action="store_true", help="with copies elsewhere")
    parser.add_argument("--folder", type=Path, help="where the data are kept meanwhile")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--stage", choices=["build", "measure"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ledgers < 3 * REAL:
        parser.error(f"--ledgers: {3 * REAL} at least")
    if options.stage is not None:
        logging.basicConfig()
        place = Place(options.folder, options.url)
        if options.stage == "build":
            uvloop.run(build(place, options.ledgers, is_offloaded=options.offloaded))
        else:
            uvloop.run(measure(place, is_offloaded=options.offloaded))
        return
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="magnetar-long-", dir=options.folder)
            )
        )
        command = [sys.executable, "-m", "benchmarks.long_lists", "--folder", str(folder)]
        command += ["--ledgers", str(options.ledgers)]
        command += ["--offloaded"] if options.offloaded else []
        if options.zookeeper:
            zookeeper = ZooKeeperProcess(folder / "zookeeper", tick_ms=2000, heap="2g")
            command += ["--url", stack.enter_context(zookeeper).url("/long")]
        for stage in ("build", "measure"):
            subprocess.run([*command, "--stage", stage], check=True)


if __name__ == "__main__":
    main()
