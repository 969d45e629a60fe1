"""Which bookies are registered now, be they writable or read-only, and since which start."""

from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.service_info import (
    AVAILABLE_PATH,
    READ_ONLY_NAME,
    READ_ONLY_PATH,
)
from magnetar.metadata.paths import decode_name
from magnetar.metadata.store import MetadataStore


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


async def read_start(
    store: MetadataStore, bookie_id: str, layout: Layout | None = None
) -> tuple[int, bytes] | None:
    """What is equal as long as the bookie hasn't been started again: its cookie; None: it has none.

    A bookie that lost something has been, before it answers anything.

    Raises:
        MetadataError: the store can't tell.
    """
    found = await store.get((layout or JsonLayout()).cookie_path(bookie_id))
    return None if found is None else (found.stat.version, found.value)
