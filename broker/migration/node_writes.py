"""Writes of nodes that may be repeated."""

from contextlib import suppress

from magnetar.metadata.errors import BadVersionError
from magnetar.metadata.store import CREATE_ONLY, MetadataStore


async def put_node(store: MetadataStore, path: str, value: bytes, *, is_new: bool = True) -> None:
    """As a plain ``put``, which asks first for a node that is there.

    Args:
        is_new: it isn't, unless a run that ended early has made it. ZooKeeper logs and syncs also
            the refusal of a write that finds no node, and topics and cursors are very many.
    """
    if is_new:
        with suppress(BadVersionError):
            await store.put(path, value, CREATE_ONLY)
            return
    await store.put(path, value)
