"""How coordinators of transactions reach topics of other brokers."""

import pytest

from magnetar.broker.cluster.broker_client import CALLER
from magnetar.broker.errors import CoordinatorNotFoundError, ServiceNotReadyError
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
