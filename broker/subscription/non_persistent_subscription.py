"""A subscription of a non-persistent topic: a consumer with permits gets an entry, or none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from magnetar.broker.dispatch import explanation
from magnetar.broker.dispatch.explanation import Explanation
from magnetar.broker.dispatch.interfaces import NotifyActive
from magnetar.broker.dispatch.non_persistent import NonPersistentDispatcher
from magnetar.broker.rate_limits.rate_sampler import RateSampler
from magnetar.broker.subscription.consumer import FAILOVER, Consumer, SubscribeRequest
from magnetar.broker.subscription.key_shared_policy import hash_of_body
from magnetar.broker.subscription.subscription import SINGLE_ACTIVE, Subscription
from magnetar.metadata.loop_turns import Steps

if TYPE_CHECKING:
    from magnetar.broker.topic.topic import Topic


class NonPersistentSubscription(Subscription):
    """No cursor and nothing pending: what comes while no consumer has permits is gone."""

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

    def _perform(self) -> None:
        assert self._core is not None
        for effect in self._core.take_effects():
            if isinstance(effect, NotifyActive):
                effect.consumer.notify_active(effect.is_active)
            else:
                effect.consumer.deliver(effect)

    def dispatch(self, heads: list[bytes], bodies: list[bytes]) -> None:
        """Fan one batch out, or drop it."""
        if self._core is not None:
            self._core.on_published(heads, cast("list[bytes | memoryview]", bodies))
            self._perform()

    @property
    def dropped_messages(self) -> int:
        """Messages that no consumer could take."""
        return self._dropped + (self._core.dropped_messages if self._core is not None else 0)

    @property
    def drop_rate(self) -> float:
        """The same a second, between the last two samples."""
        return self._drop_rate.rates[0]

    def sample_steps(self, now_ms: int, since_ms: int = 0) -> Steps[None]:
        yield from super().sample_steps(now_ms, since_ms)
        self._drop_rate.sample(now_ms, (self.dropped_messages, 0, 0, 0), since_ms)

    def _on_flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits

    def _explain(self, publishing: Explanation | None) -> Explanation:
        if self._core is None:
            return self._explain_no_consumer()
        if (found := self._core.explain()) is None:
            return publishing or explanation.passing_on()
        dropped = f"{found.message} Messages are dropped meanwhile."
        return replace(found, message=dropped)

    def stats_steps(self, now_ms: int, *, with_consumers: bool = True) -> Steps[dict[str, Any]]:
        stats = yield from self.common_stats(list(self.consumers), with_consumers=with_consumers)
        stats["msgDropRate"] = self.drop_rate
        core = self._core
        if core is not None and core.active is not None:
            stats["activeConsumerName"] = core.active.name
        return stats
