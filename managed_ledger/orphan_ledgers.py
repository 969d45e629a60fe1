"""Finds leaked ledgers: a process created them and crashed before metadata named them.

Other ledgers can't leak: before a log deletes a ledger, its list marks the ledger as doomed. A
ledger that isn't listed may be new, so the search deletes it only if no process can list it any
more. That is certain if its log lists a ledger with a higher id (ids only grow), or if its log
doesn't exist (a log's list is created before its ledgers).

A cursor ledger has a token: only the writer with this token may name it in the cursor's node. The
ledger is leaked if the node has another writer's token and names another ledger, because the node
then refuses all writes of the first writer. It is also leaked if there is no node, because a node
is created before the ledgers of its cursor.

A compacted ledger is leaked if a later compaction has named its own in the properties of its
cursor, or if there is no log.

The name of a chunk of a list says which list may name it: see `managed_ledger.ledger_info_chunks`.

A ledger names its owner as Pulsar's do, so that BookKeeper's tools tell it. Beside these keys
are ours: a ledger without them isn't ours to delete, whatever shares the bookies with us.

Several clusters of brokers may have their ledgers on the same bookies. Then the logs of one aren't
in the metadata of another, and none may take the other's ledgers for leaked: each ledger has the id
of its owner.
"""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.managed_ledger.cursor.cursor_store import decode_node
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.ledger_info_chunks import (
    CHUNKS_ROOT,
    LedgerInfoChunks,
    delete_leaked_chunks,
)
from magnetar.managed_ledger.logger import logger
from magnetar.managed_ledger.managed_ledger_info import decode_list_node
from magnetar.metadata.errors import BadVersionError, MetadataError
from magnetar.metadata.item_errors import Item
from magnetar.metadata.paths import decode_name, encode_name, join
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

FAILURES_MAX = 10
"""The search ends after so many failed reads in a row: the store fails, not single ledgers."""
APPLICATION = "application"
APPLICATION_VALUE = b"pulsar"
COMPONENT = "component"
COMPONENT_VALUE = b"managed-ledger"
PULSAR_LOG_NAME = "pulsar/managed-ledger"
PULSAR_CURSOR_NAME = "pulsar/cursor"
LOG_NAME = "managed-ledger"
CURSOR_VALUE = b"cursor"
COMPACTED_VALUE = b"compacted-ledger"
CURSOR_NAME = "cursor"
CURSOR_WRITER = "cursor-writer"
COMPACTION_CURSOR = "__compaction"
COMPACTED_LEDGER = "CompactedTopicLedger"
"""Property of that cursor: the ledger that the last compaction of the log has left."""
OWNER = "owner"
OWNER_PATH = "/ledger-owner"


async def read_owner(store: MetadataStore, new_id: Callable[[], str]) -> bytes:
    """Id of the brokers with this metadata store, for ``BookKeeperClient.custom_metadata``.

    It is made once. Brokers whose bookies belong to the same metadata store need none.

    Raises:
        MetadataError: the store failed.
    """
    while (found := await store.get(OWNER_PATH)) is None:
        with suppress(BadVersionError):  # another broker was first
            await store.put(OWNER_PATH, new_id().encode(), CREATE_ONLY)
    return found.value


def custom_metadata(name: str) -> dict[str, bytes]:
    """Return the custom metadata of a log's ledgers."""
    return {COMPONENT: COMPONENT_VALUE, **_names(name)}


def cursor_metadata(log_name: str, cursor_name: str, writer: str) -> dict[str, bytes]:
    """Return the custom metadata of a cursor's ledgers; ``writer``: token of the cursor's node."""
    return {
        COMPONENT: CURSOR_VALUE,  # Pulsar has the other one: earlier releases would delete it
        **_names(log_name),
        PULSAR_CURSOR_NAME: encode_name(cursor_name).encode(),
        CURSOR_NAME: cursor_name.encode(),
        CURSOR_WRITER: writer.encode(),
    }


def compacted_metadata(log_name: str, topic: str, upto: str) -> dict[str, bytes]:
    """Return the custom metadata of a ledger that holds what compaction left of a topic.

    Args:
        upto: the last position that was looked at.
    """
    return {
        APPLICATION: APPLICATION_VALUE,
        COMPONENT: COMPACTED_VALUE,
        "pulsar/compactedTopic": topic.encode(),
        "pulsar/compactedTo": upto.encode(),
        LOG_NAME: log_name.encode(),
    }


def _names(log_name: str) -> dict[str, bytes]:
    name = log_name.encode()
    return {APPLICATION: APPLICATION_VALUE, PULSAR_LOG_NAME: name, LOG_NAME: name}


def log_of(metadata: LedgerMetadata) -> str | None:
    """Name of the log whose entries a ledger holds, or what a compaction left of them; None:
    something else, or not ours.
    """
    if metadata.custom_metadata.get(COMPONENT) not in (COMPONENT_VALUE, COMPACTED_VALUE):
        return None
    name = metadata.custom_metadata.get(LOG_NAME)
    return None if name is None else name.decode()


async def collect_leaked_ledgers(
    client: BookKeeperClient, store: MetadataStore, root: str, item: Item = nullcontext
) -> list[int]:
    """Deletes leaked ledgers of all logs below ``root``; reads the metadata of every ledger.

    Args:
        item: entered for each page of ledgers.

    Returns:
        The ids that were deleted.

    Raises:
        MetadataError: the store failed for many in a row; what was deleted so far stays deleted.
    """
    deleted: list[int] = []
    failures = 0
    async for found in client.ledgers.ranges(item):
        for ledger_id in found.ledger_ids:
            try:
                if await _is_leaked(client, store, root, ledger_id):
                    await client.delete_ledger(ledger_id)
                    deleted.append(ledger_id)
                failures = 0
            except MetadataError as error:
                failures += 1
                if failures == FAILURES_MAX:
                    raise
                logger.debug("ledger %d: can't tell whether it is leaked: %s", ledger_id, error)
            except (LedgerError, ManagedLedgerError) as error:
                logger.warning("ledger %d: can't tell whether it is leaked: %s", ledger_id, error)
            await asyncio.sleep(0)
    return deleted


async def collect_leaked_chunks(
    store: MetadataStore, root: str, item: Item = nullcontext
) -> list[str]:
    """Deletes chunks of lists below ``root`` that crashed owners left; their names.

    Args:
        item: entered for each log that has chunks.

    Raises:
        MetadataError: the logs that have chunks can't be listed.
    """
    deleted: list[str] = []
    for name in await store.children(CHUNKS_ROOT):
        with item(f"chunks of {decode_name(name)}"):
            deleted += await delete_leaked_chunks(store, join(root, decode_name(name)))
    return deleted


async def _is_leaked(
    client: BookKeeperClient, store: MetadataStore, root: str, ledger_id: int
) -> bool:
    # The ledger first: a log's node is older than its ledgers, so one that isn't there after its
    # ledger was seen is gone.
    metadata = await client.read_ledger_metadata(ledger_id)
    if metadata is None:
        return False
    if metadata.custom_metadata.get(OWNER) != client.custom_metadata.get(OWNER):
        return False  # others may list it
    if metadata.custom_metadata.get(COMPONENT) == CURSOR_VALUE:
        return await _is_leaked_by_cursor(store, root, metadata)
    if metadata.custom_metadata.get(COMPONENT) == COMPACTED_VALUE:
        return await _is_leaked_by_compaction(store, root, metadata)
    if (log_name := log_of(metadata)) is None:
        return False
    path = f"{root}/{log_name}"
    stored = await store.get(path)
    if stored is None:
        return True
    node = decode_list_node(stored.value, path)
    rows = node.info.ledgers
    if rows.has(ledger_id) or ledger_id in node.info.doomed:
        return False
    for ref in node.chunks:
        if ref.first <= ledger_id <= ref.last:
            chunks = LedgerInfoChunks(store, path)
            # One that isn't there: the list has just changed; another round will tell.
            is_there = await chunks.load([ref]) is None
            return is_there and not chunks.whole(replace(node, chunks=(ref,))).ledgers.has(
                ledger_id
            )
    last = rows[-1].ledger_id if rows else max((x.last for x in node.chunks), default=-1)
    return ledger_id < last


async def _is_leaked_by_cursor(store: MetadataStore, root: str, metadata: LedgerMetadata) -> bool:
    fields = {name: value.decode() for name, value in metadata.custom_metadata.items()}
    if CURSOR_WRITER not in fields:
        return False  # of an earlier release: there is no proof
    path = join(f"{root}/{fields[LOG_NAME]}", encode_name(fields[CURSOR_NAME]))
    stored = await store.get(path)
    if stored is None:
        return True
    node, writer = decode_node(stored.value, path)
    return node.ledger_id != metadata.ledger_id and writer != fields[CURSOR_WRITER]


async def _is_leaked_by_compaction(
    store: MetadataStore, root: str, metadata: LedgerMetadata
) -> bool:
    log_name = metadata.custom_metadata.get(LOG_NAME)
    if log_name is None:
        return False  # Pulsar's: there is no proof
    path = f"{root}/{log_name.decode()}"
    if await store.get(path) is None:
        return True
    stored = await store.get(join(path, encode_name(COMPACTION_CURSOR)))
    if stored is None:
        return True  # the cursor is made before its ledgers, and deleted before them
    node, _ = decode_node(stored.value, path)
    current = node.cursor_properties.get(COMPACTED_LEDGER)
    return current is not None and metadata.ledger_id < int(current)
