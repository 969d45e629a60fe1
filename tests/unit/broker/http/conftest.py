"""Fixtures of tests of HTTP."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker


@pytest.fixture
async def authorized() -> AsyncIterator[Broker]:
    async with authorized_broker() as broker:
        yield broker
