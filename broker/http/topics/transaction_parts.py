"""What the routes of transactions share: the coordinators, and what a topic knows."""

from typing import Annotated, Any, Final
from urllib.parse import quote

import orjson

from magnetar.broker.http.dependencies import Service
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends
from magnetar.broker.http.topics.topic_access import find_subscription, loaded
from magnetar.broker.http.topics.topic_internals import log_stats
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.service.transaction_coordinators import TransactionCoordinators
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import format_position

ROOT: Final = "/admin/v3/transactions"


async def _coordinators(service: Service) -> TransactionCoordinators:
    if service.transactions is None:
        raise ApiError(
            503, "This Broker is not configured with transactionCoordinatorEnabled=true."
        )
    return service.transactions


Coordinators = Annotated[TransactionCoordinators, Depends(_coordinators)]


def participant_path(topic: TopicName, subscription: str, transaction: TransactionId) -> str:
    """Of the call that tells what a topic, or a subscription of it, knows of a transaction."""
    kind = "transactionInPendingAckStats" if subscription else "transactionInBufferStats"
    # Names of subscriptions are decoded twice below topics.
    more = (quote(subscription, safe=""),) if subscription else ()
    parts = (*topic.namespace.split("/"), topic.local, *more)
    names = "/".join(quote(part, safe="") for part in parts)
    return f"{ROOT}/{kind}/{names}/{transaction.most}/{transaction.least}"


async def log_fields(log: ManagedLedger, *, metadata: bool) -> dict[str, Any]:
    """TransactionLogStats: these logs are trimmed all the time, so it is short."""
    pieces = [piece async for piece in log_stats(log, metadata=metadata)]
    return {
        "managedLedgerName": log.name,
        "managedLedgerInternalStats": orjson.Fragment(b"".join(pieces)),
    }


async def topic_of(service: BrokerService, name: TopicName) -> PersistentTopic:
    """The loaded topic. Raises ApiError 404."""
    found = await loaded(service, name)
    assert isinstance(found, PersistentTopic)
    return found


async def subscription_of(
    service: BrokerService, name: TopicName, subscription: str
) -> PersistentSubscription:
    """Raises ApiError 404."""
    found = find_subscription(await topic_of(service, name), subscription)
    assert isinstance(found, PersistentSubscription)
    return found


async def in_buffer_stats(
    service: BrokerService, name: TopicName, transaction: TransactionId
) -> dict[str, Any]:
    """TransactionInBufferStats. Raises ApiError 404."""
    topic = await topic_of(service, name)
    if topic.transactions is None:
        return {"aborted": False}
    buffer = topic.transactions.buffer
    if (before := buffer.open.get(transaction)) is None:
        return {"aborted": buffer.is_aborted(transaction)}
    start = format_position(topic.ledger.offsets.next_position(before))
    return {"startPosition": start, "aborted": False}


async def in_pending_acks_stats(
    service: BrokerService, name: TopicName, subscription: str, transaction: TransactionId
) -> dict[str, Any]:
    """TransactionInPendingAckStats. Raises ApiError 404."""
    found = await subscription_of(service, name, subscription)
    if found.transactions is None:
        return {}
    position = found.transactions.log.core.cumulative_of(transaction)
    return {} if position is None else {"cumulativeAckPosition": format_position(position)}
