"""Where a bookie of Apache BookKeeper's is: what its registration says, or where it was."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connector import ProtocolConnector
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.service_info import ServiceInfo
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import StoreUnreachableError
from magnetar.metadata.store import MetadataStore, Versioned

LAYOUT = BookKeeperLayout()


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    opened = EmbeddedMetadataStore.open(None)
    yield opened
    await opened.close()


@pytest.fixture
def connector(store: MetadataStore) -> ProtocolConnector:
    return ProtocolConnector(store, LAYOUT, ProtocolConfig())


async def register(store: MetadataStore, port: int, *, read_only: bool = False) -> None:
    info = ServiceInfo("b:1", "", rpc_address=("host", port))
    path = LAYOUT.bookie_path("b:1", read_only=read_only)
    await store.put(path, LAYOUT.encode_bookie(info))


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_registered_bookie_is_where_it_says(
    store: MetadataStore, connector: ProtocolConnector, read_only: bool
) -> None:
    with pytest.raises(BookieUnavailableError, match="isn't registered"):
        await connector.resolve("b:1")
    connector.connect("b:1", ("old", 1))
    await register(store, 2, read_only=read_only)
    assert await connector.resolve("b:1") == ("host", 2)
    await store.delete(LAYOUT.bookie_path("b:1", read_only=read_only))
    assert await connector.resolve("b:1") == ("host", 2)


@pytest.mark.parametrize("is_silent", [False, True])
async def test_during_an_outage_it_is_where_it_was(
    store: MetadataStore,
    connector: ProtocolConnector,
    monkeypatch: pytest.MonkeyPatch,
    is_silent: bool,
) -> None:
    """Also if nobody has needed it before."""
    monkeypatch.setattr("magnetar.bookkeeper.bookie_protocol.connector._STORE_S_MAX", 0.01)

    async def down(_path: str) -> Versioned | None:
        if is_silent:
            await asyncio.Event().wait()
        raise StoreUnreachableError("zk:h", "down")

    monkeypatch.setattr(store, "get", down)
    connector.connect("b:1", ("host", 1))
    assert await connector.resolve("b:1") == ("host", 1)
