"""How coordinators of transactions reach topics of other brokers."""

import pytest

from magnetar.broker.cluster.broker_client import CALLER
from magnetar.broker.errors import (
    CoordinatorNotFoundError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.transaction.transaction_id import TransactionId
from tests.unit.broker.doubles import Broker
from tests.unit.managed_ledger.cluster import eventually


@pytest.mark.parametrize(
    ("proxies", "role"), [("", "gate"), ("gate", "admin"), ("gate,admin", None)]
)
async def test_other_brokers_are_asked_in_a_superusers_name(
    monkeypatch: pytest.MonkeyPatch, proxies: str, role: str | None
) -> None:
    """Whoever's request it is that ends the transaction."""
    broker = await Broker(
        transaction_coordinator_enabled=True, super_user_roles="gate,admin", proxy_roles=proxies
    ).start()
    roles = []

    async def serving(_: TopicName) -> None:
        roles.append(CALLER.get())
        raise ServiceNotReadyError("not now")

    monkeypatch.setattr(broker.service.broker_client, "serving", serving)
    coordinators = broker.service.transactions
    assert coordinators is not None
    name, topic = TransactionId(0, 0), "persistent://public/default/t"
    CALLER.set("joe")
    with pytest.raises(ServiceNotReadyError):
        await coordinators.end_partition(topic, name, commit=True, low_watermark=-1)
    CALLER.set("joe")
    with pytest.raises(ServiceNotReadyError):
        await coordinators.end_subscription(topic, "s", name, commit=True, low_watermark=-1)
    assert roles == [role] * 2
    await broker.close()


async def test_coordinators_are_opened_without_a_client() -> None:
    """What a client left open when all brokers went would hold up its topics for ever."""
    broker = await Broker(transaction_coordinator_enabled=True).start()
    service = broker.service
    coordinators = service.transactions
    assert coordinators is not None
    with pytest.raises(CoordinatorNotFoundError):
        coordinators.get(0)
    service.background_tasks.on_sweep(service.clock() + 1_000)

    def is_open() -> bool:
        try:
            return not coordinators.get(0).is_closed
        except CoordinatorNotFoundError:
            return False

    await eventually(is_open)
    await broker.close()


@pytest.mark.parametrize("of_subscription", [False, True])
@pytest.mark.parametrize("name", ["t", "t-partition-2"])
async def test_what_is_no_topic_any_more_takes_every_end(name: str, of_subscription: bool) -> None:
    """Deleted, and made again with fewer partitions, or as a partitioned topic."""
    broker = await Broker(transaction_coordinator_enabled=True).start()
    coordinators = broker.service.transactions
    assert coordinators is not None
    await broker.service.resources.create_partitioned(TopicName.parse("t"), 2)
    topic, ended = TopicName.parse(name), TransactionId(0, 0)
    if of_subscription:
        await coordinators.end_subscription(topic.full, "s", ended, commit=True, low_watermark=-1)
    else:
        await coordinators.end_partition(topic.full, ended, commit=True, low_watermark=-1)
    assert not await broker.service.resources.is_stored(topic)
    await broker.close()


async def test_a_log_of_transactions_is_no_participant() -> None:
    """It is stored, and can't be loaded as a topic: the end would be sent again for ever."""
    broker = await Broker(transaction_coordinator_enabled=True).start()
    coordinators = broker.service.transactions
    assert coordinators is not None
    await coordinators.connect(0)
    log = "persistent://pulsar/system/__transaction_log_0"
    await coordinators.end_partition(log, TransactionId(0, 0), commit=True, low_watermark=-1)
    await broker.close()


async def test_a_stored_topic_that_may_not_be_loaded_now_is_asked_again() -> None:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    service, name = broker.service, TopicName.parse("t")
    assert service.transactions is not None
    topic = await service.loader.load(name, create=True)
    await service.loader.unload(topic.full_name)
    object.__setattr__(service.config, "enable_persistent_topics", False)
    with pytest.raises(NotAllowedError):
        await service.transactions.end_partition(
            name.full, TransactionId(0, 0), commit=True, low_watermark=-1
        )
    await broker.close()
