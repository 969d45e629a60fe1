"""Consumers of ``magnetar verify`` that come while their connections are cut."""

import asyncio
import random
from typing import Any, cast

from magnetar.broker.cli.verify.subscriber import Subscriber
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.verify.history import End, Ended, SubscriptionHistory, SubscriptionType


class Connection:
    """Lets everybody in; a cut reaches it before the caller goes on."""

    def __init__(self) -> None:
        self.users: dict[Any, Any] = {}
        self.closed = False
        self.cut: Any = lambda: None

    def next_id(self) -> int:
        return 1

    def tell(self, command: object) -> None:
        """Nobody listens."""

    async def register(self, kind: str, id_: int, user: object, command: object) -> None:
        self.cut()


class Client:
    def __init__(self) -> None:
        self.connection = Connection()

    async def owner(self, topic: TopicName) -> Connection:
        return self.connection

    def close(self) -> None:
        self.connection.users.clear()
        self.connection.closed = True


def opened(*, cut: bool) -> tuple[Subscriber, SubscriptionHistory]:
    async def work() -> None:
        if cut:
            client.connection.cut = subscriber.cut
        await subscriber.open("consumer-0")

    client, history = Client(), SubscriptionHistory("s", SubscriptionType.SHARED)
    subscriber = Subscriber(
        cast("Any", client),
        TopicName.parse("persistent://public/default/t"),
        history,
        random.Random(1),
        0.0,
        in_parts=False,
        cumulative=False,
        begin=None,
    )
    asyncio.run(work())
    return subscriber, history


def test_a_consumer_is_there_until_something_ends_it() -> None:
    subscriber, _ = opened(cut=False)
    assert [each.name for each in subscriber.open_receivers()] == ["consumer-0"]


def test_a_cut_just_when_a_consumer_is_let_in_ends_it() -> None:
    """Else it would wait for ever, and the broker seem to have forgotten it."""
    subscriber, history = opened(cut=True)
    assert subscriber.open_receivers() == []
    assert [each.why for each in history.events if isinstance(each, Ended)] == [End.CUT]
