"""The metadata stores of tests refuse what the real ones refuse, before they do anything."""

from typing import Any

import pytest

from magnetar.metadata.errors import ValueTooLargeError
from magnetar.metadata.store import VALUE_BYTES_MAX
from tests.simulation.cluster.metadata_model import ClusterStore
from tests.simulation.ledger_world import SimulatedStore
from tests.unit.bookkeeper.replication.memory_store import MemoryMetadataStore
from tests.unit.managed_ledger.cursor_doubles import FakeStore

DOUBLES = [ClusterStore, FakeStore, MemoryMetadataStore, SimulatedStore]


@pytest.mark.parametrize("double", DOUBLES)
async def test_a_double_refuses_what_the_stores_refuse(double: type[Any]) -> None:
    store = object.__new__(double)  # nothing of it may be needed to refuse
    with pytest.raises(ValueTooLargeError):
        await store.put("/a", b"x" * (VALUE_BYTES_MAX + 1))
    for path in ("a", "/a/", "/a//b", "/a/../b", "/a\x00"):
        with pytest.raises(ValueError, match="not a metadata path"):
            await store.put(path, b"")
        with pytest.raises(ValueError, match="not a metadata path"):
            await store.delete(path)
    for version in (-2, -1):
        with pytest.raises(ValueError, match="expected version"):
            await store.delete("/a", version)
    with pytest.raises(ValueError, match="expected version"):
        await store.put("/a", b"", -2)
    with pytest.raises(TypeError):
        await store.put("/a", "text")
