"""Pattern sessions inside one process: limits, missed events, topics that can't be had yet."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.websocket import pattern
from magnetar.broker.http.websocket.parameters import ConsumerParameters
from magnetar.broker.http.websocket.pattern import NamePattern, PatternSession, TopicChanges
from magnetar.broker.protocol.topic_name import TopicName
from tests.unit.broker.doubles import Broker
from tests.waiting import eventually


def name_of(local: str) -> TopicName:
    return TopicName.parse(f"persistent://public/default/{local}")


class World:
    """A broker, and one session on its topics ``a.*``."""

    def __init__(self, broker: Broker) -> None:
        self.service = broker.service
        self.changes = TopicChanges(broker.service)
        self.session = PatternSession(
            broker.service,
            NamePattern("a.*"),
            "s",
            ConsumerParameters.parse({"subscriptionType": "Shared"}),
            self.changes,
            None,
        )

    async def create(self, *names: str) -> None:
        for name in names:
            await self.service.directory.create(name_of(name))

    async def delete(self, name: str) -> None:
        await self.service.directory.delete(name_of(name), force=True)

    def consumed(self) -> set[str]:
        """Loaded topics with our consumer."""
        return {
            topic.name.local
            for topic in self.service.topics.values()
            if "s" in topic.subscriptions and topic.subscriptions["s"].consumers
        }

    async def until_consumed(self, *names: str) -> None:
        await eventually(lambda: self.consumed() == set(names))


@pytest.fixture
async def world(broker: Broker) -> AsyncIterator[World]:
    world = World(broker)
    yield world
    world.session.close()
    await eventually(lambda: not world.session._busy)


async def test_topics_come_and_go(world: World) -> None:
    await world.create("a1", "b1")
    await world.session.open("127.0.0.1:1", "test")
    assert world.consumed() == {"a1"}
    await world.create("a2", "b2")
    await world.until_consumed("a1", "a2")
    await world.delete("a1")
    await world.until_consumed("a2")
    await world.create("a1")
    await world.until_consumed("a1", "a2")
    world.session.close()
    assert world.consumed() == set()
    await world.create("a3")
    await asyncio.sleep(0)
    assert world.consumed() == set()


async def test_more_topics_than_a_socket_takes(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pattern, "TOPICS_MAX", 2)
    await world.create("a1", "a2", "a3")
    with pytest.raises(ApiError, match="matches 3 topics, 2 at most") as refused:
        await world.session.open("127.0.0.1:1", "test")
    assert refused.value.status == 400
    world.session.close()
    assert world.consumed() == set()


async def test_a_topic_too_many_waits_until_another_goes(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pattern, "TOPICS_MAX", 2)
    await world.create("a1", "a2")
    await world.session.open("127.0.0.1:1", "test")
    await world.create("a3", "a4")
    await eventually(lambda: "more than 2 topics match" in caplog.text)
    assert world.consumed() == {"a1", "a2"}
    await world.delete("a4")
    await world.delete("a1")
    await world.until_consumed("a2")
    world.session._compare_soon()  # as the timer does once a minute
    await world.until_consumed("a2", "a3")


async def test_what_was_missed_is_found_by_comparing(world: World) -> None:
    await world.create("a1", "a2")
    await world.session.open("127.0.0.1:1", "test")
    world.changes.close()
    await world.create("a3")
    await world.delete("a1")
    world.changes._listeners["public/default"].copy().pop()(None, True)  # a session was lost
    await world.until_consumed("a2", "a3")


async def test_a_topic_that_cannot_be_had_yet(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await world.session.open("127.0.0.1:1", "test")
    get_topic, refused = world.service.loader.load, 0

    async def busy(name: TopicName, **options: Any) -> Any:
        nonlocal refused
        if refused < 2 and name.local == "a1" and "forced" not in options:
            refused += 1
            raise ServiceNotReadyError("being moved")
        return await get_topic(name, **options)

    monkeypatch.setattr(world.service.loader, "load", busy)
    await world.create("a1", "a2")
    await world.until_consumed("a1", "a2")
    assert "a1 can't be consumed yet: being moved" in caplog.text


async def test_an_unloaded_topic_is_taken_up_again(world: World) -> None:
    await world.create("a1")
    await world.session.open("127.0.0.1:1", "test")
    before = world.service.topics[str(name_of("a1"))]
    await world.service.loader.unload(str(name_of("a1")))
    await world.until_consumed("a1")
    assert world.service.topics[str(name_of("a1"))] is not before


async def test_one_watch_for_all_listeners(world: World) -> None:
    heard: list[tuple[str, bool]] = []

    def hear(name: TopicName | None, exists: bool) -> None:
        heard.append(("" if name is None else name.local, exists))

    world.changes.add("public/default", hear)
    world.changes.add("public/other", hear)
    await world.create("x")
    await world.delete("x")
    await eventually(lambda: len(heard) == 2)
    assert heard == [("x", True), ("x", False)]
    world.changes.remove("public/default", hear)
    await world.create("y")
    world.changes.remove("public/other", hear)
    assert world.changes._watches == ()
    assert len(heard) == 2
