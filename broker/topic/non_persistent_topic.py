"""A topic that stores nothing: entries go to connected consumers with permits, or nowhere."""

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar.broker.errors import NotAllowedError, TopicFencedError
from magnetar.broker.producer.producer import PublishBatch
from magnetar.broker.subscription.consumer import SubscribeRequest
from magnetar.broker.subscription.non_persistent_subscription import NonPersistentSubscription
from magnetar.broker.subscription.subscription import Subscription
from magnetar.broker.topic.topic import Topic
from magnetar.managed_ledger.position import LATEST, Position
from magnetar.metadata.loop_turns import Steps


class NonPersistentTopic(Topic):
    """Fans entries out at once; every receipt carries the id (0, 0)."""

    def publish(self, batches: Sequence[PublishBatch]) -> None:
        for batch in batches:
            self._publish(batch)

    def _publish(self, batch: PublishBatch) -> None:
        if self.fenced:
            self._refuse(batch, TopicFencedError(f"Topic {self.full_name} is fenced"))
            return
        self._count(batch)
        for subscription in list(self.subscriptions.values()):
            assert isinstance(subscription, NonPersistentSubscription)
            subscription.dispatch(batch.heads, batch.bodies)
        count = len(batch.sequence_ids)
        batch.answered = count
        batch.producer.sink.publish_done(batch, 0, count, 0, 0)

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
        subscription = NonPersistentSubscription(self, name)
        self.subscriptions[name] = subscription
        return subscription

    def storage_stats(self) -> Steps[dict[str, Any]]:
        rates = (
            subscription.drop_rate
            for subscription in self.subscriptions.values()
            if isinstance(subscription, NonPersistentSubscription)
        )
        return {**(yield from super().storage_stats()), "msgDropRate": sum(rates, 0.0)}
