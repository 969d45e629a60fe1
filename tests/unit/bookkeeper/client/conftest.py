"""A small cluster of model bookies over the embedded metadata store."""

import random
from collections.abc import AsyncIterator

import pytest

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.store import MetadataStore
from tests.simulation.model_bookie import ModelBookie, ModelBookieClient
from tests.waiting import eventually as eventually


class Cluster:
    """Bookies b0, b1, ... and one client."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.pool = BookiePool()
        self.bookies: dict[str, ModelBookie] = {}
        self.clients: dict[str, ModelBookieClient] = {}
        rng = random.Random(7)
        self.client = BookKeeperClient(
            store, self.pool, RandomPlacement(rng), clock=lambda: 1234, rng=rng
        )

    def add_bookies(self, count: int) -> None:
        for _ in range(count):
            bookie = ModelBookie(f"b{len(self.bookies)}")
            self.bookies[bookie.bookie_id] = bookie
            self.clients[bookie.bookie_id] = ModelBookieClient(bookie)
            self.pool.add(self.clients[bookie.bookie_id])


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    store = EmbeddedMetadataStore.open(None)
    yield Cluster(store)
    await store.close()
