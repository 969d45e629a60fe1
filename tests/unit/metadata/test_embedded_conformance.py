"""The embedded backend passes the conformance suite, in memory and in a file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.metadata.conformance import NewSession, RecipesConformance, StoreConformance


@pytest.fixture(params=["memory", "file"])
async def new_session(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NewSession]:
    path = tmp_path / "metadata.db" if request.param == "file" else None
    store = EmbeddedMetadataStore.open(path)

    async def make() -> EmbeddedMetadataStore:
        return store.new_session()

    yield make
    await store.close()


class TestStore(StoreConformance):
    pass


class TestRecipes(RecipesConformance):
    pass
