"""Finds ledgers that a crash left without a log: created, but never listed.

Everything else that a log lets go of is doomed in its list first. A ledger that was just created
isn't a leak though: its owner may be about to list it. Two things prove that nobody ever will:
its log lists a later ledger (ids only grow), or its log doesn't exist (it is older than them).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookkeeper.errors import LedgerError
from managed_ledger.ledger_list import decode_info
from managed_ledger.logger import logger
from metadata.store import MetadataStore

if TYPE_CHECKING:
    from bookkeeper.client.client import BookKeeperClient

COMPONENT = "component"
COMPONENT_VALUE = b"managed-ledger"
LOG_NAME = "managed-ledger"


def custom_metadata(name: str) -> dict[str, bytes]:
    """What every ledger of a log bears."""
    return {COMPONENT: COMPONENT_VALUE, LOG_NAME: name.encode()}


async def collect_leaked_ledgers(
    client: BookKeeperClient, store: MetadataStore, root: str
) -> list[int]:
    """Deletes leaked ledgers of all logs below ``root``; reads the metadata of every ledger.

    Returns:
        The ids that were deleted.

    Raises:
        MetadataError: the store failed; what was deleted so far stays deleted.
    """
    deleted: list[int] = []
    async for found in client.ledgers.ranges():
        for ledger_id in found.ledger_ids:
            try:
                if await _is_leaked(client, store, root, ledger_id):
                    await client.delete_ledger(ledger_id)
                    deleted.append(ledger_id)
            except LedgerError as error:
                logger.warning("ledger %d: can't tell whether it is leaked: %s", ledger_id, error)
            await asyncio.sleep(0)
    return deleted


async def _is_leaked(
    client: BookKeeperClient, store: MetadataStore, root: str, ledger_id: int
) -> bool:
    # The ledger first: a log's node is older than its ledgers, so one that isn't there after its
    # ledger was seen is gone.
    metadata = await client.read_ledger_metadata(ledger_id)
    if metadata is None or metadata.custom_metadata.get(COMPONENT) != COMPONENT_VALUE:
        return False
    path = f"{root}/{metadata.custom_metadata[LOG_NAME].decode()}"
    stored = await store.get(path)
    if stored is None:
        return True
    info = decode_info(stored.value, path)
    listed = [x.ledger_id for x in info.ledgers]
    if ledger_id in listed or ledger_id in info.doomed:
        return False
    return bool(listed) and ledger_id < listed[-1]
