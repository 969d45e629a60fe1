"""Metadata and the bookie in a data directory, of a standalone or of the storage process.

Imports nothing of the broker but its settings: the storage process starts, and comes back, sooner.
"""

import dataclasses
from contextlib import AsyncExitStack
from pathlib import Path

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig, GarbageCollectionConfig, StorageConfig
from magnetar.bookkeeper.bookie.cookie import FILE as COOKIE_FILE
from magnetar.bookkeeper.bookie.cookie import read_instance_id
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector, MetadataFreshnessCheck
from magnetar.bookkeeper.bookie.integrity.integrity_service import (
    IntegrityService,
    IntegrityServiceConfig,
)
from magnetar.bookkeeper.bookie.open_bookie import BeforeRegister, open_bookie
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.storage.file_system import FileSystem
from magnetar.broker.config import BrokerConfig
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import DatabaseError
from magnetar.metadata.log_format import find_segments
from magnetar.metadata.store import MetadataStore

_MIB = 1024 * 1024
_BOOKIE_ID = "embedded"


def with_place_of_copies(config: BrokerConfig) -> BrokerConfig:
    """There is one machine: copies of ledgers may be where the ledgers are."""
    if config.file_system_uri:
        return config
    place = config.data_path.absolute() / "offloaded"
    return dataclasses.replace(config, file_system_uri=place.as_uri())


async def open_only_bookie(
    stack: AsyncExitStack,
    store: MetadataStore,
    settings: BookieConfig,
    files: FileSystem,
    *,
    collect_s: float,
    before_register: BeforeRegister | None = None,
) -> tuple[Bookie, GarbageCollector]:
    """The bookie beside an embedded store, with what looks after its disk; ``stack`` closes them.

    Args:
        collect_s: pause between collections of garbage.
    Raises:
        As ``open_bookie``.
    """
    bookie = await open_bookie(settings, files, store, before_register=before_register)
    stack.push_async_callback(bookie.close)
    current = MetadataFreshnessCheck(store, bookie.bookie_id, await read_instance_id(store))
    collector = GarbageCollector(bookie, LedgerStore(store), before_listing=current.check)
    stack.push_async_callback(collector.close)
    collector.start(collect_s)
    # Damage is told; there is no other copy.
    integrity_service = IntegrityService(bookie, None, IntegrityServiceConfig())
    stack.push_async_callback(integrity_service.close)
    integrity_service.start()
    return bookie, collector


def open_embedded(data: Path) -> EmbeddedMetadataStore:
    """Raises DatabaseError; also if a new store would be made beside a bookie that has worked."""
    path, cookie = data / "metadata" / "metadata.sqlite", data / "bookie" / COOKIE_FILE
    if cookie.exists() and not path.exists() and not find_segments(path):
        raise DatabaseError(path, f"the file is missing, but {cookie.parent} has data")
    return EmbeddedMetadataStore.open(path)


def bookie_config(config: BrokerConfig) -> BookieConfig:
    """The embedded bookie's settings out of the broker's."""
    return BookieConfig(
        bookie_id=_BOOKIE_ID,
        data_dir=config.data_path / "bookie",
        storage=StorageConfig(
            journal_segment_bytes=config.journal_max_size_mb * _MIB,
            journal_group_bytes_max=config.journal_max_group_bytes,
            # Twice what the broker lets producers have in flight: a refusal would end the ledger.
            journal_queue_bytes_max=2 * config.max_message_publish_buffer_size_in_mb * _MIB,
            flush_bytes=config.db_storage_write_cache_max_size_mb * _MIB,
            entry_log_bytes=config.entry_log_size_limit_mb * _MIB,
        ),
        flush_interval_s=config.flush_interval_ms / 1000,
        disk_usage_max=config.disk_usage_threshold,
        # Trimming leaves half-empty logs behind all the time, and nobody else uses the disk.
        collection=GarbageCollectionConfig(
            minor_ratio=0.5, minor_interval_s=config.gc_wait_time_ms / 1000
        ),
    )
