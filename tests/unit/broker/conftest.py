from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.doubles import Broker
from tests.unit.managed_ledger.conftest import cluster as cluster


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker().start()
    yield broker
    await broker.close()
