"""The rate limits of one topic: made, changed and ended as its policies say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from magnetar.broker.errors import NotAllowedError
from magnetar.broker.policies.effective import Rate
from magnetar.broker.rate_limits.rate_limiter import (
    DispatchRateLimiter,
    PublishRateLimiter,
    RateLimiter,
    renewed,
)
from magnetar.broker.rate_limits.token_bucket import SubscribeRateLimiter
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.broker.subscription.consumer import ConsumerSink, SubscribeRequest
    from magnetar.broker.topic.topic import Topic

_NO_EVENTS: Final[Mapping[str, int]] = MappingProxyType({})


class TopicRateLimiters:
    """What limits one topic's traffic; nothing where the policies name no limit.

    System topics are exempt: what the broker itself needs must not wait.
    """

    __slots__ = ("_subscribe", "_topic", "dispatch", "limited_before", "publish")

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.publish: PublishRateLimiter | None = None
        """Looked at for each batch."""
        self.dispatch: RateLimiter | None = None
        """Of all subscriptions together."""
        self.limited_before = 0  # by publish limits that are gone
        self._subscribe: SubscribeRateLimiter | None = None
        self.apply()

    @property
    def publish_limited_times(self) -> int:
        """How often a publisher had to wait since the topic was loaded."""
        return self.limited_before + (self.publish.times if self.publish is not None else 0)

    def apply(self) -> None:
        """The policies are new."""
        topic = self._topic
        if topic.name.is_system:
            return
        policies = topic.policies
        self._set_publish(policies.publish_rate)
        self.dispatch = renewed(self.dispatch, policies.dispatch_rate, RateLimiter)
        subscribe = policies.subscribe_rate
        period_ms = subscribe.period_s * 1000
        if subscribe.per_consumer <= 0:
            self._subscribe = None
        elif self._subscribe is None:
            self._subscribe = SubscribeRateLimiter(subscribe.per_consumer, period_ms)
        else:
            self._subscribe.change(subscribe.per_consumer, period_ms, self._now_ms())

    def _set_publish(self, rate: Rate) -> None:
        before, self.publish = self.publish, None
        self.publish = renewed(before, rate, PublishRateLimiter)
        if before is not None and self.publish is None:
            self.limited_before += before.times

    def _now_ms(self) -> int:
        return int(self._topic.service.loop.time() * 1000)

    def check_subscribe(self, request: SubscribeRequest, sink: ConsumerSink) -> None:
        """Count one attempt of a consumer to subscribe.

        Raises:
            NotAllowedError: it comes too often.
        """
        if self._subscribe is None:
            return
        identity = (sink.remote, request.consumer_name, request.consumer_id)
        if not self._subscribe.admit(identity, self._now_ms()):
            raise NotAllowedError("Subscribe limited by subscribe rate limit per consumer.")

    def sample(self) -> None:
        """Adjust dispatch rates that are relative to the publish rate, after it was measured."""
        add_publish_rate(self.dispatch, self._topic)

    def close(self) -> None:
        """Remove all limits: the topic is unloaded, and no client may wait for it."""
        self._set_publish(Rate(0, 0))
        if self.dispatch is not None:
            self.dispatch.close()
            self.dispatch = None


def add_publish_rate(throttle: RateLimiter | None, topic: Topic) -> None:
    """Adjust a dispatch rate that is relative to the topic's publish rate."""
    if throttle is not None and throttle.rate.relative_to_publish:
        _, messages, size, _ = topic.rates.rates
        period_s = throttle.rate.period_s
        throttle.change(throttle.rate, int(messages * period_s), int(size * period_s))


class SubscriptionRateLimiters:
    """The dispatch limits of one persistent subscription: its own and those above it."""

    __slots__ = ("_name", "_topic", "events", "own")

    def __init__(self, topic: Topic, name: str) -> None:
        self._topic, self._name = topic, name
        self.own: RateLimiter | None = None
        self.events: Mapping[str, int] = _NO_EVENTS
        """How often dispatch had to wait, by the field of the statistics."""

    def limiter(self, entries_behind: Callable[[Position], int]) -> DispatchRateLimiter | None:
        """What a dispatcher obeys under the policies of now; None: nothing.

        Args:
            entries_behind: how many entries there are from a position to the end.
        """
        topic, service = self._topic, self._topic.service
        if topic.name.is_system:
            return None
        rate = topic.policies.subscription_dispatch_rate(self._name)
        self.own = renewed(self.own, rate, RateLimiter)
        scopes = (
            ("Broker", service.dispatch_throttle),
            ("Topic", topic.rate_limits.dispatch),
            ("Subscription", self.own),
        )
        throttles = [(scope, throttle) for scope, throttle in scopes if throttle is not None]
        if not throttles:
            return None
        # From now on the throttle counts in it; what was counted before stays.
        self.events = events = dict(self.events)
        config = service.config
        all_readers = config.dispatch_throttling_on_non_backlog_consumer_enabled
        return DispatchRateLimiter(
            throttles,
            by_entries=config.dispatch_throttling_on_batch_message_enabled,
            entries_behind=None if all_readers else entries_behind,
            events=events,
        )

    def sample(self) -> None:
        """The topic's publish rate was measured."""
        add_publish_rate(self.own, self._topic)

    def close(self) -> None:
        """The subscription ends."""
        if self.own is not None:
            self.own.close()
            self.own = None
