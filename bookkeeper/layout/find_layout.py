"""Which layout a cluster has: its metadata tell.

``LAYOUT`` names Apache BookKeeper's; every process of BookKeeper's refuses another name than its
own. Where there is none, ours is told by its values. A new cluster has neither.
"""

import asyncio
from contextlib import suppress
from typing import Final

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.layout.under_replication_format import TextUnderReplication
from magnetar.bookkeeper.service_info import (
    COOKIES_PATH,
    LEDGERS_ROOT,
    READ_ONLY_PATH,
    UNDER_REPLICATION_ROOT,
)
from magnetar.metadata.errors import BadVersionError
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

LAYOUT_PATH: Final = f"{LEDGERS_ROOT}/LAYOUT"
CONVERSION_PATH: Final = f"{LEDGERS_ROOT}/conversion"
"""There while ``convert_metadata.py`` hasn't come to its end."""
LAYOUT_VALUE: Final = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
_READS: Final = 64  # at a time


async def find_layout(store: MetadataStore) -> Layout | None:
    """The cluster's; None: nothing in it tells.

    Raises:
        LedgerMetadataError: one that isn't supported. MetadataError: the store failed.
    """
    found = await store.get(LAYOUT_PATH)
    if await store.exists(CONVERSION_PATH):
        raise LedgerMetadataError(
            f"{CONVERSION_PATH}: a conversion was cut short; `magnetar metadata convert` ends it"
        )
    if found is not None:
        _check(found.value)
        return BookKeeperLayout()
    counter = await store.get(f"{LEDGERS_ROOT}/idgen")
    if counter is not None and counter.value:
        return JsonLayout()
    names = await store.children(COOKIES_PATH)
    for start in range(0, len(names), _READS):
        part = names[start : start + _READS]
        nodes = await asyncio.gather(*(store.get(f"{COOKIES_PATH}/{name}") for name in part))
        for node in nodes:
            if node is not None and node.value:
                return JsonLayout() if node.value.startswith(b"{") else BookKeeperLayout()
    return None


async def open_layout(store: MetadataStore) -> Layout:
    """The cluster's; a new one gets BookKeeper's, as the first of BookKeeper's processes makes it.

    Raises:
        LedgerMetadataError: one that isn't supported. MetadataError: the store failed.
    """
    layout = await find_layout(store)
    if layout is None or isinstance(layout, BookKeeperLayout):
        await make_bookkeeper_nodes(store)
        layout = layout or BookKeeperLayout()
    return layout


async def make_bookkeeper_nodes(store: MetadataStore) -> None:
    """What BookKeeper's processes want to find, where it is absent."""
    for path, value in (
        (READ_ONLY_PATH, b""),
        (f"{UNDER_REPLICATION_ROOT}/LAYOUT", TextUnderReplication.layout_value),
        (LAYOUT_PATH, LAYOUT_VALUE),
    ):
        if not await store.exists(path):
            with suppress(BadVersionError):  # another process was first
                await store.put(path, value, CREATE_ONLY)


def _check(value: bytes) -> None:
    expected, _, _ = LAYOUT_VALUE.partition(b":")
    if value.partition(b":")[0] != expected:
        raise LedgerMetadataError(f"{LAYOUT_PATH}: {value!r} is not supported, {LAYOUT_VALUE!r} is")
