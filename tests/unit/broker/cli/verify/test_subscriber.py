"""Consumers of ``magnetar verify`` that come while their connections are cut."""

import asyncio
import random
from typing import Any, cast

import pytest

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


def made(
    client: Client, history: SubscriptionHistory, seed: int = 1, sought_in_parts: bool = True
) -> Subscriber:
    return Subscriber(
        cast("Any", client),
        TopicName.parse("persistent://public/default/t"),
        history,
        random.Random(seed),
        0.0,
        in_parts=True,
        sought_in_parts=sought_in_parts,
        cumulative=False,
        begin=None,
    )


def opened(*, cut: bool) -> tuple[Subscriber, SubscriptionHistory]:
    async def work() -> None:
        if cut:
            client.connection.cut = subscriber.cut
        await subscriber.open("consumer-0")

    client, history = Client(), SubscriptionHistory("s", SubscriptionType.SHARED)
    subscriber = made(client, history)
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


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_where_parts_and_seeks_do_not_go_together_each_is_done_somewhere(
    kind: SubscriptionType,
) -> None:
    def drawn(seed: int, *, sought_in_parts: bool) -> tuple[bool, bool]:
        subscriber = made(Client(), SubscriptionHistory("s", kind), seed, sought_in_parts)
        return subscriber.may_seek, subscriber.acknowledges_parts

    seeds = range(20)
    assert {drawn(seed, sought_in_parts=True) for seed in seeds} == {(True, True)}
    assert {drawn(seed, sought_in_parts=False) for seed in seeds} == {(True, False), (False, True)}
