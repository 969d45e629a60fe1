"""The ZooKeeper backend passes the conformance suite against a real server."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from metadata.zookeeper.settings import ZooKeeperSettings
from metadata.zookeeper.store import ZooKeeperStore
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
