"""Statistics of all topics of a broker: those of a topic are taken when they are sent."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from fastapi import Request
from starlette.responses import StreamingResponse

from magnetar.broker.http.routes import broker_stats
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic.topic import Topic
from tests.unit.broker.doubles import Broker

TOPICS = 300  # some 2 KB each, and an answer above 256 KiB is sent by pieces


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker().start()
    yield broker
    await broker.close()


async def answer_of(broker: Broker) -> Any:
    request = Request({"type": "http", "http_version": "1.1", "state": {}})
    return await broker_stats.topics(request, broker.service)


async def test_without_topics_it_is_empty(broker: Broker) -> None:
    assert bytes((await answer_of(broker)).body) == b"{}"


async def test_statistics_are_taken_when_they_are_sent(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, stats_in_turns = list[str](), Topic.stats_in_turns

    def noted(topic: Topic) -> Any:
        taken.append(topic.full_name)
        return stats_in_turns(topic)

    expected: dict[str, Any] = {}
    for number in range(TOPICS):
        domain = "persistent" if number % 3 else "non-persistent"
        name = TopicName.parse(f"{domain}://public/default/t{number}")
        topic = await broker.service.loader.load(name, create=True)
        bundle = (await broker.service.bundles.bundle_of(str(name))).rpartition("/")[2]
        of_bundle = expected.setdefault("public/default", {}).setdefault(bundle, {})
        of_bundle.setdefault(domain, {})[str(name)] = topic.stats()
    monkeypatch.setattr(Topic, "stats_in_turns", noted)
    answer = await answer_of(broker)
    assert isinstance(answer, StreamingResponse)
    assert 0 < len(taken) < TOPICS
    pieces = [bytes(each) async for each in answer.body_iterator]  # type: ignore[arg-type]
    assert orjson.loads(b"".join(pieces)) == expected
    assert len(taken) == TOPICS
