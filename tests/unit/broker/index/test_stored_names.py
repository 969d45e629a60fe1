"""Names that come and go while they are listed, and afterwards."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.broker.index.stored_names import StoredNames
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.resources.resources import MANAGED_LEDGERS
from magnetar.metadata import loop_turns
from magnetar.metadata.store import EventType, MetadataEvent
from tests.unit.broker.doubles import Broker

PREFIX = "persistent://public/default/"


class Told:
    """What was told, and what happens when the first name is."""

    def __init__(self, broker: Broker, *first: tuple[EventType, str]) -> None:
        self.names: list[str] = []
        self._first = first
        self.stored = StoredNames(
            broker.service.resources, added=self.added, removed=self.names.remove
        )

    def added(self, full: str, namespace: str) -> None:
        assert namespace == "public/default"
        self.names.append(full)
        first, self._first = self._first, ()
        for kind, name in first:
            self.event(kind, name)

    def event(self, kind: EventType, full: str) -> None:
        path = f"{MANAGED_LEDGERS}/{TopicName.parse(full).ml_name}"
        self.stored._on_event(MetadataEvent(kind, path))


async def put(broker: Broker, *names: str) -> None:
    for name in names:
        path = f"{MANAGED_LEDGERS}/{TopicName.parse(name).ml_name}"
        await broker.service.store.put(path, b"")


async def test_all_that_are_stored_but_the_system_s(broker: Broker) -> None:
    await put(broker, "b", "a %?", "__change_events", "a")
    told = Told(broker)
    await told.stored.open()
    told.stored.close()
    assert told.names == [f"{PREFIX}{name}" for name in ("a", "a %?", "b")]


async def test_a_topic_that_is_deleted_while_they_are_listed_is_not_told(broker: Broker) -> None:
    await put(broker, "a", "b", "c")
    gone, back = f"{PREFIX}b", f"{PREFIX}c"
    told = Told(
        broker, (EventType.CREATED, gone), (EventType.DELETED, gone), (EventType.CREATED, back)
    )
    await told.stored.open()
    told.stored.close()
    assert set(told.names) == {f"{PREFIX}a", back}


async def test_nothing_is_kept_of_topics_that_are_deleted_later(broker: Broker) -> None:
    told = Told(broker)
    await told.stored.open()
    for number in range(3):
        told.event(EventType.CREATED, f"{PREFIX}{number}")
        told.event(EventType.DELETED, f"{PREFIX}{number}")
    told.stored.close()
    assert not told.names
    assert not told.stored._deleted_meanwhile


async def test_others_have_their_turn_between_namespaces_without_topics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand of them in one turn held the loop for 30 ms."""
    monkeypatch.setattr(loop_turns, "TURN_S", 0.0)
    await put(broker, "a")
    told, walk, turns = Told(broker), broker.service.resources.walk_stored_topics, [0]

    def walked(namespace: str) -> AsyncIterator[str]:
        turns.append(turns[0])
        return walk(namespace)

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(broker.service.resources, "walk_stored_topics", walked)
    for number in range(3):
        await broker.service.resources.create_namespace(f"public/n{number}", ["c"], 1)
    task = asyncio.create_task(others())
    await told.stored.open()
    task.cancel()
    told.stored.close()
    assert len(turns) == 6, "five namespaces, one of them the system's"
    assert len({*turns[1:]}) == 5
