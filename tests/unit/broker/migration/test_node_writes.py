"""Nodes that a run writes, which one that ended early may have written before."""

import pytest

from magnetar.broker.migration.node_writes import put_node
from magnetar.metadata.embedded import EmbeddedMetadataStore


@pytest.mark.parametrize("is_new", [False, True])
async def test_a_node_gets_the_value_whether_it_is_there_or_not(is_new: bool) -> None:
    store = EmbeddedMetadataStore.open(None)
    for value in (b"of a run that ended early", b"of the next one"):
        await put_node(store, "/a/b", value, is_new=is_new)
        stored = await store.get("/a/b")
        assert stored is not None
        assert stored.value == value
    await store.close()
