"""Fixtures of the managed ledger's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.managed_ledger.cluster import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    await made.close()
