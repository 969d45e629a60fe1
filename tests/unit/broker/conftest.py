from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.doubles import Broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker().start()
    yield broker
    await broker.close()
