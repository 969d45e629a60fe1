"""What an idle topic costs in memory (issue 7: under 8 KB), traced: the same on every machine."""

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from magnetar.broker.protocol import topic_name
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker

TOPICS = 400
BYTES_MAX = 7_000
"""It is 5,900; tables that all topics share grow in steps, so it isn't quite proportional."""
SHARED_MAX = 200
"""Bytes that a mean over so many topics may show of what isn't theirs."""


@pytest.fixture
def traced() -> Iterator[None]:
    # The process keeps names that it has read, also of tests before this one: that table may grow
    # meanwhile, by 500 bytes for each topic.
    topic_name._parse.cache_clear()
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


async def test_an_idle_topic_is_small(broker: Broker, traced: None) -> None:
    await make(broker, "warm", 50)
    before = traced_bytes()
    await make(broker, "idle", TOPICS)
    each = (traced_bytes() - before) / TOPICS
    assert each < BYTES_MAX, "just made"

    for now_ms in (1_000, 61_000, 121_000):
        for topic in broker.service.topics.values():
            run_at_once(topic.sample_steps(now_ms))
    assert all(topic.quiet_mark() for topic in broker.service.topics.values())
    sampled = (traced_bytes() - before) / TOPICS
    assert sampled < each + SHARED_MAX, "its rates were sampled"


async def test_an_idle_topic_is_small_when_it_was_loaded(broker: Broker, traced: None) -> None:
    await make(broker, "idle", TOPICS)
    for name in list(broker.service.topics):
        await broker.service.loader.unload(str(TopicName.parse(name)))
    await make(broker, "warm", 50)
    before = traced_bytes()
    await make(broker, "idle", TOPICS)
    assert len(broker.service.topics) == TOPICS + 50
    last = (traced_bytes() - before) / TOPICS
    assert last < BYTES_MAX
