"""What an idle topic costs in memory (issue 7: under 8 KB), traced: the same on every machine."""

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from magnetar.broker.protocol.topic_name import TopicName
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker

TOPICS = 400
BYTES_MAX = 7_000
"""It is 6,600 just made, and 5,400 loaded."""
SHARED_MAX = 200
"""Bytes that a mean over so many topics may show of what isn't theirs."""


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def make(broker: Broker, kind: str, count: int) -> None:
    """Topics with one durable subscription each."""

    async def one(number: int) -> None:
        name = TopicName.parse(f"persistent://public/default/{kind}-{number}")
        topic = await broker.service.loader.load(name, create=True)
        if "sub" not in topic.subscriptions:
            await topic.create_subscription("sub")

    for start in range(0, count, 50):
        await asyncio.gather(*map(one, range(start, min(start + 50, count))))


async def cost_of_one(broker: Broker) -> float:
    """Bytes. Of two times as many topics the smaller one: a table of the process, which other tests
    have filled, may grow while it is measured, and does so once.
    """
    costs = list[float]()
    for kind in ("idle", "more"):
        before = traced_bytes()
        await make(broker, kind, TOPICS)
        costs.append((traced_bytes() - before) / TOPICS)
    return min(costs)


async def test_an_idle_topic_is_small(broker: Broker, traced: None) -> None:
    await make(broker, "warm", 50)
    assert await cost_of_one(broker) < BYTES_MAX
    before = traced_bytes()

    for now_ms in (1_000, 61_000, 121_000):
        for topic in broker.service.topics.values():
            run_at_once(topic.sample_steps(now_ms))
    assert all(topic.quiet_mark() for topic in broker.service.topics.values())
    sampled = (traced_bytes() - before) / len(broker.service.topics)
    assert sampled < SHARED_MAX, "its rates were sampled"


async def test_an_idle_topic_is_small_when_it_was_loaded(broker: Broker, traced: None) -> None:
    await make(broker, "idle", TOPICS)
    await make(broker, "more", TOPICS)
    for name in list(broker.service.topics):
        await broker.service.loader.unload(str(TopicName.parse(name)))
    await make(broker, "warm", 50)
    assert await cost_of_one(broker) < BYTES_MAX
    assert len(broker.service.topics) == 2 * TOPICS + 50
