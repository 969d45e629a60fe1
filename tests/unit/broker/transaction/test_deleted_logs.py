"""A log of pending acknowledgements goes with its subscription, also if its deletion fails."""

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from magnetar.broker.errors import PersistenceError
from magnetar.broker.subscription import persistent_subscription
from magnetar.broker.transaction.deleted_logs import deleted_logs
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.errors import MetadataError
from tests.unit.broker.doubles import Broker
from tests.unit.broker.transaction.test_transactional_acks import (
    LOG,
    X,
    Y,
    ack,
    end,
    filled,
    reload,
    subscription_of,
    topic_of,
)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    yield broker
    await broker.close()


async def unsubscribed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a subscription with an open transaction, whose log can't be deleted."""
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    with monkeypatch.context() as patched:
        patched.setattr(broker.ledgers, "delete", failing)
        await (await subscription_of(broker)).delete()
    assert await broker.ledgers.exists(LOG)


async def failing(*_: object) -> None:
    raise MetadataError("for the test")


async def test_the_next_load_of_the_topic_deletes_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await unsubscribed(broker, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(broker.ledgers, "delete", failing)
        await reload(broker)
        await topic_of(broker)  # serves all the same
    assert await broker.ledgers.exists(LOG)
    await reload(broker)
    topic = await topic_of(broker)
    assert not await broker.ledgers.exists(LOG)
    assert not deleted_logs(topic.ledger)


async def test_the_topics_deletion_deletes_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await unsubscribed(broker, monkeypatch)
    await (await topic_of(broker)).delete()
    assert not await broker.ledgers.exists(LOG)


@pytest.mark.parametrize("acknowledges", [True, False])
async def test_one_of_a_new_subscription_with_the_name_is_kept(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, acknowledges: bool
) -> None:
    """If it has one: else nobody would know of what is left."""
    await unsubscribed(broker, monkeypatch)
    topic = await topic_of(broker)
    await topic.create_subscription("s", EARLIEST)
    if acknowledges:
        await ack(broker, Y, (topic.ledger.last_confirmed[0], 1))
    await reload(broker)
    topic = await topic_of(broker)
    assert await broker.ledgers.exists(LOG) == acknowledges
    assert not deleted_logs(topic.ledger)
    await end(broker, Y, commit=True)
    assert (await subscription_of(broker)).backlog == (4 if acknowledges else 5)


async def test_a_subscription_whose_cursor_stays_keeps_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    topic = await topic_of(broker)
    with monkeypatch.context() as patched:
        patched.setattr(type(topic.ledger.cursor_set), "delete", failing)
        with pytest.raises(PersistenceError, match="for the test"):
            await (await subscription_of(broker)).delete()
    await reload(broker)
    await end(broker, X, commit=True)
    assert (await subscription_of(broker)).backlog == 4
    assert not deleted_logs((await topic_of(broker)).ledger)


async def test_nothing_is_noted_of_one_that_is_gone(broker: Broker) -> None:
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    await (await subscription_of(broker)).delete()
    assert not await broker.ledgers.exists(LOG)
    assert not deleted_logs((await topic_of(broker)).ledger)


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done all the same"])
@pytest.mark.parametrize("step", ["note", "cursor", "log", "forget"])
async def test_whatever_step_fails_log_and_subscription_go_together(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    topic = await topic_of(broker)
    owner, name = {
        "note": (persistent_subscription, "note_deleted"),
        "cursor": (type(topic.ledger), "delete_cursor"),
        "log": (broker.ledgers, "delete"),
        "forget": (persistent_subscription, "forget_deleted"),
    }[step]
    original = getattr(owner, name)

    async def half(*args: object) -> None:
        if is_done:
            await original(*args)
        await failing()

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, half)
        with suppress(PersistenceError):
            await (await subscription_of(broker)).delete()
    await reload(broker)
    topic = await topic_of(broker)
    is_there = "s" in topic.subscriptions
    assert is_there == (step == "note" or (step == "cursor" and not is_done))
    assert await broker.ledgers.exists(LOG) == is_there
    assert not deleted_logs(topic.ledger)
