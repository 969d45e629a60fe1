"""What the tests of bundles share."""

import pytest

from magnetar.metadata.embedded import EmbeddedMetadataStore


@pytest.fixture
async def base() -> EmbeddedMetadataStore:
    store = EmbeddedMetadataStore.open(None)
    await store.put("/admin/policies/t/n", b"{}")
    return store
