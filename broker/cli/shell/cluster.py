"""The cluster a shell talks to: its metadata, its bookies, a ledger client over both."""

import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, PlacementRandom
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.pool_placement import placement_for
from magnetar.bookkeeper.cluster_bookies import open_pool
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.find_layout import find_layout
from magnetar.bookkeeper.layout.metadata_service_uri import store_url_of
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.broker.bookie_client_settings import check_placement, placement_config
from magnetar.broker.cli.errors import CliError
from magnetar.broker.config import BrokerConfig
from magnetar.broker.server.bookie_transport_settings import transport_config
from magnetar.broker.server.cluster_broker import (
    protocol_config,
    tls_files,
)
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore


class ShellOutput:
    """Prints the results of an action: text for people, or JSON, an object a line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def say(self, text: str, **facts: Any) -> None:
        """``facts`` are the same as ``text``, for programs."""
        print(json.dumps(facts) if self._as_json else text, flush=True)


@dataclass(frozen=True, slots=True)
class ShellContext:
    """Everything an action may need."""

    store: MetadataStore
    bookies: BookiePool
    ledgers: LedgerStore
    client: BookKeeperClient
    placement: EnsemblePlacementPolicy
    markers: UnderReplicationStore
    rng: PlacementRandom


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def open_cluster(config: BrokerConfig) -> AsyncIterator[ShellContext]:
    """Sessions and connections of one shell.

    Raises:
        CliError: the settings name no cluster.
        MetadataError: it can't be reached.
    """
    if not config.metadata_store_url:
        raise CliError("which cluster? --metadata zk:HOST:PORT/CHROOT, or --config")
    check_placement(config)
    rng = random.SystemRandom()
    async with AsyncExitStack() as stack:
        store = await _open_store(config)
        stack.push_async_callback(store.close)
        layout = await find_layout(store) or BookKeeperLayout()
        pool = await open_pool(
            *(stack, store, layout, transport_config(config), tls_files(config)),
            protocol=protocol_config(config),
        )
        placement = await stack.enter_async_context(
            placement_for(placement_config(config), pool, rng)
        )
        client = BookKeeperClient(store, pool, placement, clock=clock_ms, rng=rng, layout=layout)
        yield ShellContext(
            store,
            pool,
            client.ledgers,
            client,
            placement,
            UnderReplicationStore(store, clock_ms, layout),
            rng,
        )


async def _open_store(config: BrokerConfig) -> MetadataStore:
    """Where the ledgers are, which may be another cluster than the broker's own.

    With the broker's TLS and login: what is written here must not be open to everybody.
    """
    path = config.metadata_store_config_path
    try:
        url = config.apache_store_url or store_url_of(config.metadata_store_url)
        return await connect_store(
            url or config.metadata_store_url,
            Path(path) if path else None,
            session_timeout_s=config.metadata_store_session_timeout_millis / 1000,
            operation_timeout_s=float(config.metadata_store_operation_timeout_seconds),
        )
    except ValueError as error:
        raise CliError(f"metadataStoreUrl, metadataStoreConfigPath: {error}") from error
