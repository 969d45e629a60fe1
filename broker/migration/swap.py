"""The two ways of a cluster between Apache Pulsar's brokers and ours, over the same bookies."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from magnetar.bookkeeper.ledgers import connect_ledgers
from magnetar.broker.migration.backward import Backward
from magnetar.broker.migration.errors import MigrationError
from magnetar.broker.migration.forward import Forward
from magnetar.broker.migration.ledger_access import BookKeeperAccess
from magnetar.broker.migration.pulsar_cluster import PulsarCluster
from magnetar.broker.migration.swap_report import SwapReport
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore

CHROOT: Final = "/magnetar"
"""Below the root of Pulsar's metadata: where ours are."""
_LEDGERS: Final = "/ledgers"
_SCHEME: Final = "zk:"
Advance: TypeAlias = Callable[[int], None]


def _nobody(_: int) -> None:
    """Nobody waits."""


class SwapPlace(NamedTuple):
    """Where a cluster is, as the settings of a broker name it.

    Attributes:
        pulsar: root of Pulsar's metadata.
        ours: ``metadataStoreUrl`` of our brokers.
        ledgers: their ``bookkeeperMetadataServiceUri``.
    """

    pulsar: str
    ours: str
    ledgers: str

    @classmethod
    def of(cls, metadata_store_url: str) -> "SwapPlace":
        """
        Args:
            metadata_store_url: Pulsar's setting of that name.

        Raises:
            MigrationError: not a ZooKeeper.
        """
        url = metadata_store_url.removeprefix("metadata-store:").rstrip("/")
        scheme, colon, rest = url.partition(":")
        if url.startswith(_SCHEME):
            servers = url.removeprefix(_SCHEME)
        elif not colon or rest.partition("/")[0].partition(",")[0].isdigit():
            servers = url  # Pulsar takes host:port for a ZooKeeper, too
        else:
            raise MigrationError(f"metadata in {scheme} can't be swapped; those in ZooKeeper can")
        if not servers:
            raise MigrationError("no ZooKeeper is named: zk:HOST:PORT")
        return cls(
            f"{_SCHEME}{servers}",
            f"{_SCHEME}{servers}{CHROOT}",
            f"zk+hierarchical://{servers}{_LEDGERS}",
        )


@asynccontextmanager
async def _connect(
    place: SwapPlace, config: Path | None, advance: Advance, *, write: bool
) -> AsyncIterator[tuple[PulsarCluster, MetadataStore]]:
    async with connect_ledgers(place.ledgers, metadata_config=config) as ledgers:
        pulsar = PulsarCluster(ledgers.store, BookKeeperAccess(ledgers, recover=write), advance)
        ours = await connect_store(place.ours, config)
        try:
            yield pulsar, ours
        finally:
            await ours.close()


async def swap(
    place: SwapPlace,
    config: Path | None = None,
    advance: Advance = _nobody,
    *,
    back: bool = False,
    write: bool = True,
    accept_loss: bool = False,
) -> SwapReport:
    """Gives a cluster to our brokers; may be repeated after any failure.

    Args:
        advance: see `PulsarCluster`.
        back: to Pulsar's brokers.
        write: False: it is only told what would be carried and what not. Nothing is changed but the
            empty node of our chroot.

    Raises:
        MigrationError, LossRefusedError: see `Forward`. MetadataError, OSError: a store can't.
    """
    how = {"write": write, "accept_loss": accept_loss}
    async with _connect(place, config, advance, write=write) as (pulsar, ours):
        if back:
            return await Backward(pulsar, ours, pulsar.ledgers, _now_ms, **how).run()
        return await Forward(pulsar, ours, _now_ms, **how).run()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
