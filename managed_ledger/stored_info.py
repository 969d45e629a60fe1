"""Reads the stored metadata of a log and its cursors without opening the log."""

import asyncio
from dataclasses import dataclass

from magnetar.managed_ledger.cursor.cursor_store import CursorNode, decode_node
from magnetar.managed_ledger.ledger_info_chunks import read_list
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.metadata.paths import decode_name, join
from magnetar.metadata.store import MetadataStore, Stat

ROOT = "/managed-ledgers"
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class StoredCursor:
    """A cursor's node; while it names a cursor ledger, the position in it is the last resort's."""

    node: CursorNode
    stat: Stat


@dataclass(frozen=True, slots=True)
class StoredManagedLedger:
    """A log's node and the nodes of its cursors, by name."""

    info: ManagedLedgerInfo
    stat: Stat
    cursors: dict[str, StoredCursor]


async def read_stored(
    store: MetadataStore, name: str, *, with_cursors: bool = True
) -> StoredManagedLedger | None:
    """Reads the stored metadata of the log ``name``; None: no such log. Fences, changes nothing.

    Args:
        with_cursors: false reads none of them.
    Raises:
        MetadataError, ManagedLedgerFormatError, CursorFormatError.
    """
    path = f"{ROOT}/{name}"
    found = await read_list(store, path)
    if found is None:
        return None
    cursors: dict[str, StoredCursor] = {}
    names = await store.children(path) if with_cursors else []
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        nodes = await asyncio.gather(*(store.get(join(path, each)) for each in some))
        for each, stored in zip(some, nodes, strict=True):
            if stored is not None:  # else deleted meanwhile
                node, _ = decode_node(stored.value, stored.path)
                cursors[decode_name(each)] = StoredCursor(node, stored.stat)
    return StoredManagedLedger(found.info, found.stat, cursors)
