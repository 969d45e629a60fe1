"""The ZooKeeper backend passes the conformance suite against a real server."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.metadata.zookeeper.settings import ZooKeeperSettings
from magnetar.metadata.zookeeper.store import ZooKeeperStore
from tests.unit.metadata.conformance import NewSession, RecipesConformance, StoreConformance
from tests.zookeeper_process import ZooKeeperProcess

_numbers = itertools.count()


@pytest.fixture
async def new_session(zookeeper: ZooKeeperProcess) -> AsyncIterator[NewSession]:
    settings = ZooKeeperSettings.parse(zookeeper.url(f"/conformance/{next(_numbers)}"))
    stores = list[ZooKeeperStore]()

    async def make() -> ZooKeeperStore:
        stores.append(await ZooKeeperStore.connect(settings))
        return stores[-1]

    yield make
    for store in stores:
        await store.close()


class TestStore(StoreConformance):
    pass


class TestRecipes(RecipesConformance):
    pass


class Written:
    """A transport whose writes are counted."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.count = 0

    def write(self, data: bytes) -> None:
        self.count += 1
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_requests_of_one_turn_of_the_loop_are_one_write(new_session: NewSession) -> None:
    store = await new_session()
    assert isinstance(store, ZooKeeperStore)
    await store.put("/batch", b"")
    written = Written(store._link._transport)
    store._link._transport = written  # type: ignore[assignment] # stands in for it
    names = [f"/batch/{number}" for number in range(100)]
    await asyncio.gather(*(store.put(name, name.encode(), -1) for name in names))
    found = await asyncio.gather(*(store.get(name) for name in names))
    assert [each and each.value for each in found] == [name.encode() for name in names]
    assert written.count < 10  # 200 requests; a ping may come between
