"""Which bookies are registered now, be they writable or read-only."""

from __future__ import annotations

from bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_NAME, READ_ONLY_PATH
from metadata.paths import decode_name
from metadata.store import MetadataStore


async def read_registered(store: MetadataStore) -> frozenset[str]:
    """Ids of all registered bookies, read now.

    Raises:
        MetadataError: the store can't tell; that proves nothing about bookies.
    """
    # A bookie that turns read-only registers there before it leaves here: in this order of reads
    # it is seen twice, not never. One that turns back is looked for once more.
    names = set(await store.children(AVAILABLE_PATH))
    names.update(await store.children(READ_ONLY_PATH))
    names.update(await store.children(AVAILABLE_PATH))
    names.discard(READ_ONLY_NAME)
    return frozenset(map(decode_name, names))
