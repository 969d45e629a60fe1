"""Where a bookie is: what its registration says, or where it was."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.cluster_bookies import open_pool
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.layout.layout import JsonLayout
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_PATH, ServiceInfo
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from magnetar.bookkeeper.transport_grpc.remote_bookie import BookieAddress, RemoteBookieClient
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import StoreUnreachableError
from magnetar.metadata.paths import encode_name
from magnetar.metadata.store import MetadataStore, Versioned


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    opened = EmbeddedMetadataStore.open(None)
    yield opened
    await opened.close()


async def register(store: MetadataStore, bookie_id: str, port: int, path: str) -> None:
    info = ServiceInfo(bookie_id, "/z/u", ("host", port), rpc_address=("host", port + 10))
    await store.put(f"{path}/{encode_name(bookie_id)}", info.encode())


async def failing_get(_path: str) -> Versioned | None:
    raise StoreUnreachableError("zk:h", "down")


async def test_a_registered_bookie_is_where_it_says(store: MetadataStore) -> None:
    connector = BookieConnector(store, TransportConfig())
    await store.put("/ledgers/INSTANCEID", b"cluster")
    await register(store, "b:1", 1, AVAILABLE_PATH)
    await register(store, "b:2", 2, READ_ONLY_PATH)
    assert await connector.resolve("b:1") == BookieAddress("host", 1, ("host", 11), "cluster")
    assert await connector.resolve("b:2") == BookieAddress("host", 2, ("host", 12), "cluster")
    assert connector.connect("b:1") is connector.connect("b:1")
    await connector.close()


async def test_a_bookie_without_registration_is_looked_for_where_it_was(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session ended, or the store doesn't answer: neither says that it is gone."""
    connector = BookieConnector(store, TransportConfig())
    await register(store, "b:1", 1, AVAILABLE_PATH)
    await register(store, "b:2", 2, AVAILABLE_PATH)
    known = await connector.resolve("b:1")
    await store.delete(f"{AVAILABLE_PATH}/{encode_name('b:1')}")
    assert await connector.resolve("b:1") == known

    monkeypatch.setattr(store, "get", failing_get)
    assert await connector.resolve("b:1") == known
    with pytest.raises(BookieUnavailableError, match="isn't registered"):
        await connector.resolve("b:2")


async def test_a_bookie_that_nobody_has_needed_before_the_outage(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool has read its registration; requests name the bookie and the cluster as ever."""
    await store.put("/ledgers/INSTANCEID", b"cluster")
    await register(store, "b:1", 1, AVAILABLE_PATH)
    async with AsyncExitStack() as stack:
        pool = await open_pool(stack, store, JsonLayout(), TransportConfig())
        monkeypatch.setattr(store, "get", failing_get)
        client = pool.client("b:1")
        assert isinstance(client, RemoteBookieClient)
        assert await client._resolve("b:1") == BookieAddress("host", 1, ("host", 11), "cluster")


async def test_a_store_that_is_silent_is_not_waited_for_long(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.transport_grpc.connector._STORE_S_MAX", 0.01)
    connector = BookieConnector(store, TransportConfig())
    await register(store, "b:1", 1, AVAILABLE_PATH)
    known = await connector.resolve("b:1")

    async def silent(_path: str) -> Versioned | None:
        await asyncio.Event().wait()
        raise AssertionError("nothing ends this wait")

    monkeypatch.setattr(store, "get", silent)
    assert await connector.resolve("b:1") == known


async def test_an_embedded_bookie_has_no_address(store: MetadataStore) -> None:
    connector = BookieConnector(store, TransportConfig())
    info = ServiceInfo("b1", "/z/u")
    await store.put(f"{AVAILABLE_PATH}/b1", info.encode())
    assert ServiceInfo.decode(info.encode()) == info
    with pytest.raises(BookieUnavailableError):
        await connector.resolve("b1")


@given(st.text(), st.text(), st.none() | st.tuples(st.text(), st.integers(0, 65535)))
def test_registrations_survive_the_store(
    bookie_id: str, location: str, address: tuple[str, int] | None
) -> None:
    info = ServiceInfo(bookie_id, location, address)
    assert ServiceInfo.decode(info.encode()) == info


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", b"[]", b"null", b"\xff", b'{"endpoints": 1}', b'{"endpoints": [{}]}'],
)
def test_an_unreadable_registration_is_no_bookie(value: bytes) -> None:
    with pytest.raises(BookieUnavailableError):
        ServiceInfo.decode(value)
