"""The store behind a Unix socket passes the conformance suite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.unix_socket.server import MetadataServer
from magnetar.metadata.unix_socket.store import UnixSocketStore
from tests.unit.metadata.conformance import NewSession, RecipesConformance, StoreConformance


@pytest.fixture
async def new_session(tmp_path: Path) -> AsyncIterator[NewSession]:
    main = EmbeddedMetadataStore.open(tmp_path / "metadata.db")
    server = MetadataServer(main, tmp_path / "metadata.socket")
    await server.listen()
    made: list[UnixSocketStore] = []

    async def make() -> UnixSocketStore:
        made.append(await UnixSocketStore.connect(tmp_path / "metadata.socket", 10.0, 5.0))
        return made[-1]

    yield make
    for store in made:
        await store.close()
    await server.close()
    await main.close()


class TestStore(StoreConformance):
    pass


class TestRecipes(RecipesConformance):
    pass
