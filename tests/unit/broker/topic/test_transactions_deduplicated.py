"""Transactions of a topic with de-duplication: what was aborted may come again."""

from collections.abc import AsyncIterator

import pytest

from magnetar.broker.topic.persistent_topic import PersistentTopic
from tests.unit.broker.doubles import Broker, Client, receipts
from tests.unit.broker.topic.test_deduplication import NOT_STORED, connected, reload, topic_of
from tests.unit.broker.topic.test_transactions import end, sent


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(
        broker_deduplication_enabled=True,
        broker_deduplication_entries_interval=3,
        transaction_coordinator_enabled=True,
    ).start()
    yield broker
    await broker.close()


async def stored(client: Client, *frames: bytes) -> list[bool]:
    """Whether each was stored, and is no duplicate."""
    client.feed(b"".join(frames))
    return [tuple(at) != NOT_STORED for _, *at in receipts(await client.receive(len(frames)))]


def last(topic: PersistentTopic) -> int:
    return topic.last_sequence_id("p")


@pytest.mark.parametrize("is_loaded_again", [False, True])
async def test_what_an_aborted_transaction_stored_comes_again(
    broker: Broker, *, is_loaded_again: bool
) -> None:
    client, _ = await connected(broker)
    assert await stored(client, sent(1), sent(2, 1), sent(3, 2), sent(4, 1)) == [True] * 4
    assert await stored(client, sent(2), sent(4, 2)) == [False, False], "while it is open"
    topic = await topic_of(broker)
    if is_loaded_again:
        topic = await reload(broker)
        client, known = await connected(broker, port=5001)
        assert known == 4
    await end(topic, 1, commit=False)
    assert last(topic) == 3
    assert await stored(client, sent(3), sent(4)) == [False, True]
    await end(topic, 2, commit=False)
    assert last(topic) == 4
    assert await stored(client, sent(4), sent(5)) == [False, True]


@pytest.mark.parametrize("is_loaded_again", [False, True])
async def test_what_a_committed_transaction_stored_stays_known(
    broker: Broker, *, is_loaded_again: bool
) -> None:
    client, _ = await connected(broker)
    assert await stored(client, sent(1), sent(2, 1), sent(3, 1)) == [True] * 3
    await end(await topic_of(broker), 1, commit=True)
    if is_loaded_again:
        await reload(broker)
        client, _ = await connected(broker, port=5001)
    assert await stored(client, sent(3), sent(4)) == [False, True]


async def test_all_of_a_log_with_an_end_in_it_is_read_again(broker: Broker) -> None:
    """An end behind the snapshot is taken from the log."""
    client, _ = await connected(broker)
    await stored(client, sent(1), sent(2, 1))
    await end(await topic_of(broker), 1, commit=False)
    topic = await topic_of(broker)
    assert topic.deduplication is not None
    topic.deduplication.snapshot = lambda: None  # type: ignore[method-assign]
    topic = await reload(broker)
    client, known = await connected(broker, port=5001)
    assert known == 1
    assert await stored(client, sent(2)) == [True]


async def test_an_id_on_its_way_while_another_transaction_is_aborted(broker: Broker) -> None:
    client, _ = await connected(broker)
    await stored(client, sent(1, 1))
    topic = await topic_of(broker)
    client.feed(sent(2))
    await end(topic, 1, commit=False)
    assert [number for number, *_ in receipts(await client.receive(1))] == [2]
    assert last(topic) == 2
    assert await stored(client, sent(2), sent(3)) == [False, True]
