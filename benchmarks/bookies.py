"""What benchmarks of ledgers share: bookie processes with a real ZooKeeper, clients, tables."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.comparison_loads import text_of
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connector import ProtocolConnector
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.find_layout import open_layout
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.malloc import keep_freed_memory
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore
from tests.bookie_process import BookieProcess
from tests.zookeeper_process import ZooKeeperProcess

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

HEAD = bytes(32)  # what a broker puts in front of each entry


def now_ms() -> int:
    return int(time.time() * 1000)


def as_a_broker() -> None:
    """Set this process up as that of a broker."""
    keep_freed_memory()
    sys.setswitchinterval(0.0005)
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@contextlib.contextmanager
def scratch(options: argparse.Namespace) -> Iterator[tuple[Path, ZooKeeperProcess]]:
    """A folder, within ``options.folder`` if there is one, and a ZooKeeper server."""
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-bookies-", dir=options.folder) as name,
        ZooKeeperProcess(Path(name) / "zookeeper", tick_ms=2000) as zookeeper,
    ):
        yield Path(name), zookeeper


@contextlib.contextmanager
def servers(options: argparse.Namespace, count: int) -> Iterator[tuple[str, list[BookieProcess]]]:
    """A ZooKeeper server's URL, and so many bookies that have registered there."""
    with scratch(options) as (folder, zookeeper), contextlib.ExitStack() as stack:
        url = zookeeper.url()
        bookies = (BookieProcess(folder / f"bookie-{number}", url) for number in range(count))
        yield url, [stack.enter_context(bookie) for bookie in bookies]


@contextlib.asynccontextmanager
async def joined(url: str) -> AsyncIterator[tuple[MetadataStore, Layout]]:
    """The metadata of a cluster."""
    store = await connect_store(url)
    try:
        yield store, await open_layout(store)
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def connecting(
    store: MetadataStore, layout: Layout, *, as_apache: bool = False
) -> AsyncIterator[Callable[[str], BookieClient]]:
    """Makes clients of bookies, by their ids; ``as_apache``: as one of Apache BookKeeper's would
    be, without our login and what comes with it.
    """
    connector: BookieConnector | ProtocolConnector
    if as_apache:
        assert isinstance(layout, BookKeeperLayout)
        connector = ProtocolConnector(store, layout, ProtocolConfig())
    else:
        connector = BookieConnector(store, TransportConfig(), layout=layout)
    try:
        yield connector.connect
    finally:
        await connector.close()


@contextlib.asynccontextmanager
async def connected(url: str, *, as_apache: bool = False) -> AsyncIterator[BookKeeperClient]:
    async with (
        joined(url) as (store, layout),
        connecting(store, layout, as_apache=as_apache) as connect,
    ):
        pool, rng = BookiePool(store, connect), random.Random(1)
        await pool.start()
        try:
            yield BookKeeperClient(
                *(store, pool, RandomPlacement(rng)), clock=now_ms, rng=rng, layout=layout
            )
        finally:
            await pool.close()


def header(columns: Sequence[str]) -> str:
    """The first lines of a table."""
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


async def all_quorums(
    options: argparse.Namespace, measure: Callable[[tuple[int, int]], Awaitable[DataclassInstance]]
) -> None:
    """Those of ``--quorums`` one after the other; prints rows, and writes them to ``--json``."""
    results: list[DataclassInstance] = []
    for text in options.quorums.split(";"):
        ensemble, copies = map(int, text.split(","))
        results.append(await measure((ensemble, copies)))
        if len(results) == 1:
            print(header(list(asdict(results[0]))))
        print(row(results[-1]), flush=True)
    save(results, options)


def row(result: DataclassInstance) -> str:
    """A line of a table: a cell for each field."""
    cells = (text_of(x) if isinstance(x, float) else str(x) for x in asdict(result).values())
    return f"| {' | '.join(cells)} |"


def save(results: Sequence[DataclassInstance], options: argparse.Namespace) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
