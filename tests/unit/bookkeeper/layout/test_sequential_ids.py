"""Ledger ids as BookKeeper's clients take them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.layout.bookkeeper_layout import SequentialNodeIds
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.store import MetadataStore
from tests.waiting import eventually

ROOT = "/ledgers"


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    store = EmbeddedMetadataStore.open(None)
    yield store
    await store.close()


async def test_short_ids_leave_nothing_behind(store: MetadataStore) -> None:
    one, other = SequentialNodeIds(store, ROOT), SequentialNodeIds(store, ROOT)
    found = await asyncio.gather(*(each.next_id() for each in [one, other] * 20))
    assert sorted(found) == list(range(40))

    async def is_empty() -> bool:
        return await store.children("/ledgers/idgen") == []

    await eventually(is_empty)
    assert not await store.exists("/ledgers/idgen-long")


async def test_long_ids_once_somebody_has_begun_with_them(store: MetadataStore) -> None:
    ids = SequentialNodeIds(store, ROOT)
    assert await ids.next_id() == 0
    await store.put("/ledgers/idgen-long", b"")
    assert [await ids.next_id() for _ in range(2)] == [1 << 32, (1 << 32) + 1]
    assert await SequentialNodeIds(store, ROOT).next_id() == (1 << 32) + 2
    await store.put("/ledgers/idgen-long/HOB-0000000005", b"")  # another client's were used up
    assert [await ids.next_id() for _ in range(2)] == [5 << 32, (5 << 32) + 1]


async def test_ids_that_are_used_up(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    take = SequentialNodeIds._take
    used_up = {"/ledgers/idgen", "/ledgers/idgen-long/HOB-0000000001"}

    async def _take(self: SequentialNodeIds, directory: str) -> int:
        number = await take(self, directory)
        return -(2**31) if directory in used_up else number

    monkeypatch.setattr(SequentialNodeIds, "_take", _take)
    ids = SequentialNodeIds(store, ROOT)
    assert await ids.next_id() == 2 << 32
    assert await SequentialNodeIds(store, ROOT).next_id() == (2 << 32) + 1


async def test_a_counter_that_was_set_back_is_told(store: MetadataStore) -> None:
    with pytest.raises(LedgerMetadataError, match="not above 7"):
        await SequentialNodeIds(store, ROOT).next_id(above=7)
