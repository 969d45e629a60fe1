"""A subscription of a non-persistent topic: whoever has permits gets an entry, or nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from magnetar.broker.dispatch.interfaces import Deliver, NotifyActive
from magnetar.broker.dispatch.non_persistent import NonPersistentDispatcher
from magnetar.broker.errors import TopicBusyError
from magnetar.broker.rate_limits.rates import RateSampler
from magnetar.broker.subscription.consumer import FAILOVER, Consumer, SubscribeRequest
from magnetar.broker.subscription.key_shared_policy import hash_of_body
from magnetar.broker.subscription.subscription_base import SINGLE_ACTIVE, AckDone, Subscription

if TYPE_CHECKING:
    from magnetar.broker.topic.topic import Topic
    from magnetar.managed_ledger.position import Position


class NonPersistentSubscription(Subscription):
    """No cursor and nothing pending: acknowledgments, redelivery and seek do nothing."""

    def __init__(self, topic: Topic, name: str) -> None:
        super().__init__(topic, name, durable=False)
        self._core: NonPersistentDispatcher | None = None
        self._dropped = 0
        self._drop_rate = RateSampler()

    def _start(self, sub_type: int, request: SubscribeRequest) -> None:
        name = self.topic.name
        self._core = NonPersistentDispatcher(
            single_active=sub_type in SINGLE_ACTIVE,
            failover=sub_type == FAILOVER,
            selector=self.selector,
            hash_of_body=hash_of_body,
            topic=str(name),
            partition_index=name.partition_index,
            round_robin_messages=max(
                self.topic.service.config.dispatcher_max_round_robin_batch_size, 1
            ),
        )

    def _join(self, consumer: Consumer) -> None:
        assert self._core is not None
        self._core.add_consumer(consumer)
        self._perform()

    def _leave(self, consumer: Consumer) -> None:
        if self._core is not None:
            self._core.remove_consumer(consumer)
            self._perform()
            if not self.consumers:
                self._dropped += self._core.dropped_messages
                self._core = None

    async def _ended(self) -> None:
        """Nothing was kept."""

    def _perform(self) -> None:
        assert self._core is not None
        for effect in self._core.take_effects():
            consumer = cast("Consumer", effect.consumer)
            if isinstance(effect, NotifyActive):
                if not consumer.closed:
                    consumer.sink.notify_active(consumer, effect.is_active)
            else:
                self._deliver(consumer, effect)

    def _deliver(self, consumer: Consumer, effect: Deliver) -> None:
        bodies, picks = effect.batch.bodies, effect.picks
        count = len(bodies) if picks is None else len(picks)
        consumer.entries_out += count
        consumer.messages_out += effect.messages
        consumer.chunks_out += effect.chunks
        consumer.bytes_out += (
            sum(map(len, bodies)) if picks is None else sum([len(bodies[i]) for i in picks])
        )
        now_ms = consumer.last_consumed_ms = self.last_consumed_ms = self.now_ms()
        if not consumer.first_sent_ms:
            consumer.first_sent_ms = now_ms
        consumer.sink.deliver(consumer, effect.batch, picks, None, None)

    def dispatch(self, heads: list[bytes], bodies: list[bytes]) -> None:
        if self._core is not None:
            self._core.on_published(heads, cast("list[bytes | memoryview]", bodies))
            self._perform()

    @property
    def dropped_messages(self) -> int:
        """Messages nobody could take."""
        return self._dropped + (self._core.dropped_messages if self._core is not None else 0)

    @property
    def drop_rate(self) -> float:
        """The same a second, between the last two samples."""
        return self._drop_rate.rates[0]

    def sample(self, now_ms: int) -> None:
        super().sample(now_ms)
        self._drop_rate.sample(now_ms, (self.dropped_messages, 0, 0, 0))

    def _on_flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits

    def on_writable(self, consumer: Consumer) -> None:
        """What came while the sink was full is gone."""

    def acknowledge(
        self,
        consumer: Consumer | None,
        positions: Sequence[Position],
        on_durable: AckDone | None = None,
    ) -> None:
        if on_durable is not None:
            on_durable(None)

    def acknowledge_cumulative(
        self,
        consumer: Consumer | None,
        position: Position,
        properties: Mapping[str, int] | None = None,
        on_durable: AckDone | None = None,
        *,
        ack_set: Sequence[int] = (),
    ) -> None:
        if on_durable is not None:
            on_durable(None)

    def acknowledge_batch(
        self,
        consumer: Consumer | None,
        position: Position,
        ack_set: Sequence[int],
        on_durable: AckDone | None = None,
    ) -> None:
        if on_durable is not None:
            on_durable(None)

    def redeliver(
        self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None = None
    ) -> None:
        """Nothing is kept that could be sent again."""

    async def reset(self, position: Position, ack_set: Sequence[int] = ()) -> None:
        """There is no position to move."""

    async def reset_to_time(self, publish_time_ms: int) -> None:
        """There is no position to move."""

    def on_appended(self) -> None:
        """Entries come through ``dispatch``."""

    def on_terminated(self) -> None:
        """Non-persistent topics aren't terminated."""

    async def close(self, reason: str, reconnect_url: str = "") -> None:
        self.fenced = True
        self.disconnect_all(reconnect_url)

    async def delete(self, *, force: bool = False) -> None:
        if self.consumers and not force:
            raise TopicBusyError(f"Subscription {self.name} has connected consumers")
        self.fenced = True
        self.disconnect_all()
        self.topic.forget_subscription(self.name)

    def stats(self, now_ms: int, *, with_consumers: bool = True) -> dict[str, Any]:
        stats = self.common_stats(with_consumers=with_consumers)
        stats["msgDropRate"] = self.drop_rate
        core = self._core
        if core is not None and core.active is not None:
            stats["activeConsumerName"] = core.active.name
        return stats
