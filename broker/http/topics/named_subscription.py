"""The subscription that a request names, of a topic or of each of its partitions."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from magnetar.broker.http.dependencies import Service, SubscriptionName, Topic
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends
from magnetar.broker.http.routing.scatter_gather import ScatterGather, ScatterResults, Spread
from magnetar.broker.http.topics.topic_access import (
    find_subscription,
    loaded,
    no_subscription,
    persistent,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription import Subscription

T = TypeVar("T")


class NamedSubscription:
    def __init__(
        self, service: BrokerService, topic: TopicName, name: str, spread: ScatterGather
    ) -> None:
        self.service, self.topic, self.name, self._spread = service, topic, name, spread

    def require_persistent(self, refusal: str) -> None:
        """Raises ApiError 405."""
        if not self.topic.is_persistent:
            raise ApiError(405, refusal)

    async def parts(
        self, act: Callable[[Subscription], Awaitable[T]], *, body: Any = None
    ) -> ScatterResults[T]:
        """``act`` on it where it is served: of the topic, or of every partition; 404 of those
        without it. See ``ScatterGather.parts``.
        """

        async def one(name: TopicName) -> T:
            return await act(find_subscription(await loaded(self.service, name), self.name))

        return await self._spread.parts(self.topic, one, body=body)

    async def found_parts(
        self, act: Callable[[Subscription], Awaitable[T]], *, body: Any = None
    ) -> list[T]:
        """The same; some partition has it. Raises ApiError 404."""
        missing = no_subscription(self.name, self.topic)
        return (await self.parts(act, body=body)).found(missing).values

    async def single(self, partitioned: str) -> Subscription:
        """It, of a topic without partitions.

        Args:
            partitioned: the refusal for others.
        Raises:
            ApiError: 405 partitioned, 404 missing.
        """
        if await self.service.directory.partitions(self.topic) is not None:
            raise ApiError(405, partitioned)
        return find_subscription(await loaded(self.service, self.topic), self.name)

    async def stored(self, what: str, partitioned: str | None = None) -> PersistentSubscription:
        """The same of a persistent topic; see ``persistent``."""
        topic = await persistent(self.service, self.topic, what, partitioned)
        found = find_subscription(topic, self.name)
        assert isinstance(found, PersistentSubscription)
        return found


async def _named(
    service: Service, topic: Topic, subscription: SubscriptionName, spread: Spread
) -> NamedSubscription:
    return NamedSubscription(service, topic, subscription, spread)


OneSubscription = Annotated[NamedSubscription, Depends(_named)]
