"""Which layout a cluster has."""

from collections.abc import AsyncIterator

import pytest

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.cookie_format import Cookie, Directories
from magnetar.bookkeeper.layout.find_layout import LAYOUT_PATH, find_layout, open_layout
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.metadata.embedded import EmbeddedMetadataStore

HIERARCHICAL = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedMetadataStore]:
    store = EmbeddedMetadataStore.open(None)
    yield store
    await store.close()


async def test_a_new_cluster_gets_bookkeepers(store: EmbeddedMetadataStore) -> None:
    assert await find_layout(store) is None
    for _ in range(2):
        assert isinstance(await open_layout(store), BookKeeperLayout)
    found = await store.get(LAYOUT_PATH)
    assert found is not None
    assert (found.value, found.stat.version) == (HIERARCHICAL, 0)
    assert await store.exists("/ledgers/available/readonly")
    assert await store.exists("/ledgers/underreplication/LAYOUT")
    assert isinstance(await find_layout(store), BookKeeperLayout)


@pytest.mark.parametrize("layout", [JsonLayout(), BookKeeperLayout()])
async def test_the_cookies_tell(store: EmbeddedMetadataStore, layout: Layout) -> None:
    value = layout.encode_cookie(Cookie("b1", "cluster", "x"), "/z/u", Directories())
    await store.put(layout.cookie_path("b1"), value)
    assert type(await find_layout(store)) is type(layout)
    assert type(await open_layout(store)) is type(layout)
    # Pulsar's driver makes no LAYOUT; BookKeeper's does, where there is none.
    assert await store.exists(LAYOUT_PATH) == isinstance(layout, BookKeeperLayout)


async def test_ids_that_were_given_tell(store: EmbeddedMetadataStore) -> None:
    await JsonLayout().ids(store).next_id()
    assert isinstance(await open_layout(store), JsonLayout)


async def test_ids_of_bookkeeper_don_t(store: EmbeddedMetadataStore) -> None:
    await BookKeeperLayout().ids(store).next_id()
    assert await find_layout(store) is None


@pytest.mark.parametrize(
    "value", [HIERARCHICAL.replace(b"Hier", b"LongHier"), b"1\nhierarchical:1", b"", b"\xff"]
)
async def test_other_layouts_are_refused(store: EmbeddedMetadataStore, value: bytes) -> None:
    await store.put(LAYOUT_PATH, value)
    with pytest.raises(LedgerMetadataError, match="HierarchicalLedgerManagerFactory:1' is"):
        await open_layout(store)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ReadOnly", "a%3A1"])
def test_ids_of_bookies_that_bookkeeper_has_not(name: str) -> None:
    with pytest.raises(ValueError, match="not an id of a bookie"):
        BookKeeperLayout().node_name(name)
