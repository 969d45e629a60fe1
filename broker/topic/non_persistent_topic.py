"""A topic that stores nothing: entries go to whoever is connected and has permits, or nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar.broker.errors import NotAllowedError, TopicFencedError
from magnetar.broker.subscription.non_persistent_subscription import NonPersistentSubscription
from magnetar.broker.subscription.subscription import open_subscription
from magnetar.broker.topic.topic import Topic
from magnetar.managed_ledger.position import LATEST, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar.broker.producer.producer import Producer, PublishBatch
    from magnetar.broker.subscription.consumer import SubscribeRequest
    from magnetar.broker.subscription.subscription_base import Subscription


class NonPersistentTopic(Topic):
    """Fans entries out at once; every receipt carries the id (0, 0)."""

    def publish(self, producer: Producer, batch: PublishBatch) -> None:
        if self.fenced:
            self._refuse(batch, TopicFencedError(f"Topic {self.full_name} is fenced"))
            return
        self._count(batch)
        for subscription in list(self.subscriptions.values()):
            subscription.dispatch(batch.heads, batch.bodies)
        count = len(batch.sequence_ids)
        batch.answered = count
        producer.sink.publish_done(batch, 0, count, 0, 0)

    async def _open_subscription(self, request: SubscribeRequest) -> Subscription:
        if request.read_compacted:
            raise NotAllowedError("readCompacted is not possible on a non-persistent topic")
        return self._register(request.subscription)

    async def create_subscription(
        self,
        name: str,
        initial: Position = LATEST,
        properties: Mapping[str, str] | None = None,
    ) -> Subscription:
        self._check_open()
        return self.subscriptions.get(name) or self._register(name)

    def _register(self, name: str) -> Subscription:
        subscription = open_subscription(self, name, None, durable=False)
        self.subscriptions[name] = subscription
        return subscription

    async def _store_epoch(self, epoch: int) -> None:
        """The epoch of a topic without storage lives as long as the topic is loaded."""

    async def _settle(self) -> None:
        """Every entry is answered at once."""

    async def _close_storage(self) -> None:
        """There is none."""

    async def _delete_storage(self) -> None:
        """There is none."""

    def storage_stats(self) -> dict[str, Any]:
        rates = (
            subscription.drop_rate
            for subscription in self.subscriptions.values()
            if isinstance(subscription, NonPersistentSubscription)
        )
        return {**super().storage_stats(), "msgDropRate": sum(rates, 0.0)}
