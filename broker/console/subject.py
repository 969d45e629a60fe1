"""What a step is about, read from a cluster: of the console, and of ``magnetar top``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from magnetar.broker.console.actions import Subject
from magnetar.broker.console.admin_api import AdminApi, AdminError, get
from magnetar.broker.console.topic_view import listed_subscriptions

if TYPE_CHECKING:
    from magnetar.broker.console.topic_path import TopicPath


async def topic_stats(api: AdminApi, topic: TopicPath) -> tuple[int, Any]:
    """How many partitions there are, and the statistics of all, without what only the console has
    subscribed. Raises AdminError.
    """
    partitions = await partition_count(api, topic)
    if partitions:
        call = get(
            api,
            f"{topic.rest}/partitioned-stats",
            perPartition=True,
            getEarliestTimeInBacklog=True,
        )
    else:
        call = get(api, f"{topic.rest}/stats", getEarliestTimeInBacklog=True)
    stats = await call
    return partitions, {**stats, "subscriptions": listed_subscriptions(stats)}


async def partition_count(api: AdminApi, topic: TopicPath) -> int:
    """0: it has none. Raises AdminError."""
    return int((await get(api, f"{topic.rest}/partitions")).get("partitions", 0))


async def read_subject(api: AdminApi, topic: TopicPath, subscription: str) -> Subject:
    """
    Args:
        subscription: empty: the step is about the topic.
    Raises:
        AdminError: no such topic or subscription.
    """
    partitions, stats = await topic_stats(api, topic)
    if subscription and subscription not in stats.get("subscriptions", {}):
        raise AdminError(404, f"there is no subscription {subscription}")
    return Subject(topic, partitions, stats, subscription)


async def with_places(api: AdminApi, subject: Subject) -> Subject:
    """With where the topic's other subscriptions are. Raises AdminError."""
    tail = "partitioned-internalStats" if subject.partitions else "internalStats"
    found = await get(api, f"{subject.topic.rest}/{tail}")
    parts = found["partitions"] if subject.partitions else {"": found}
    names = listed_subscriptions(subject.stats).keys() - {subject.subscription}
    cursors = {name.rpartition("-partition-")[2]: each["cursors"] for name, each in parts.items()}
    places = {
        name: {
            number: each[name]["markDeletePosition"]
            for number, each in cursors.items()
            if name in each
        }
        for name in names
    }
    return replace(subject, places=places)
