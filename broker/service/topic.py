"""What every topic is: a name, producers, subscriptions; storage is the subclasses' matter.

``PersistentTopic`` (persistent_topic.py) appends to a managed ledger, ``NonPersistentTopic``
(non_persistent_topic.py) hands entries straight to its subscriptions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from managed_ledger.position import LATEST, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.protocol.topic_name import TopicName
    from broker.service.broker_service import BrokerService
    from broker.service.consumer import Consumer, ConsumerSink, SubscribeRequest
    from broker.service.producer import Producer, ProducerRequest, PublishBatch
    from broker.service.subscription import Subscription

__all__ = ["Topic"]


class Topic(ABC):
    """A loaded topic. One loop owns it; only its own methods change it.

    A ``Subscription`` is made by ``broker.service.subscription.open_subscription(topic, name, cursor,
    durable=...)`` (cursor None: non-persistent topic) and offers ``async add_consumer(request, sink)``,
    ``consumers``, ``on_appended()`` (persistent), ``dispatch(heads, bodies)`` (non-persistent),
    ``async close(reason)`` (fence, tell the consumers to reconnect, close the cursor),
    ``async delete(force)``, ``stats(now_ms)``, and calls ``topic.forget_subscription(name)`` when it ends itself.
    """

    persistent: bool
    service: BrokerService
    name: TopicName
    producers: dict[str, Producer]
    subscriptions: dict[str, Subscription]
    terminated: bool
    fenced: bool
    """No new producers, consumers or entries: being closed, deleted or re-opened."""

    @abstractmethod
    def publish(self, producer: Producer, batch: PublishBatch) -> None:
        """Take entries; every one is answered through ``producer.sink``, in order."""

    @abstractmethod
    async def add_producer(self, request: ProducerRequest) -> Producer:
        """Register a producer (checks, access mode, epoch).

        Raises:
            BrokerError: as wire-protocol 4.4 lists.
        """

    @abstractmethod
    def remove_producer(self, producer: Producer) -> None:
        """Forget a producer; promotes a waiting one. Unknown producers are ignored."""

    @abstractmethod
    async def subscribe(self, request: SubscribeRequest, sink: ConsumerSink) -> Consumer:
        """Create or open the subscription and add a consumer to it.

        Raises:
            BrokerError: as wire-protocol 4.6 lists.
        """

    @abstractmethod
    async def create_subscription(
        self,
        name: str,
        initial: Position = LATEST,
        properties: Mapping[str, str] | None = None,
    ) -> Subscription:
        """Create a durable subscription whose first delivered entry is at ``initial``.

        Raises:
            AlreadyExistsError: it exists.
        """

    @abstractmethod
    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Delete a subscription and its cursor.

        Raises:
            SubscriptionNotFoundError: there is none.
            TopicBusyError: consumers are connected and ``force`` is false.
        """

    @abstractmethod
    async def close(self, *, reconnect_url: str | None = None) -> None:
        """Unload: fence, disconnect all clients, flush cursors, close storage."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """TopicStats in Pulsar's shape (http-api 3.4)."""
