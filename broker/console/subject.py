"""What a step is about, read from a cluster: of the console, and of ``magnetar top``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from magnetar.broker.console.actions import Subject
from magnetar.broker.console.admin_api import AdminApi, AdminError, get
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.topic_view import listed_subscriptions


async def topic_stats(
    api: AdminApi, topic: TopicPath, *, per_partition: bool = True, **part: str | int | bool
) -> tuple[int, Any]:
    """How many partitions there are, and the statistics of all, without what only the console has
    subscribed.

    Args:
        per_partition: whether those of each partition are there, too; else some facts are missing
            that Pulsar doesn't add up.
        part: of a topic without partitions: parameters of ``stats``, which leave something out.
    Raises:
        AdminError.
    """
    partitions = await partition_count(api, topic)
    if partitions:
        call = get(
            api,
            f"{topic.rest}/partitioned-stats",
            perPartition=per_partition,
            getEarliestTimeInBacklog=True,
        )
    else:
        call = get(api, f"{topic.rest}/stats", getEarliestTimeInBacklog=True, **part)
    stats = await call
    found = listed_subscriptions(stats)
    for name, each in found.items() if partitions and per_partition else ():
        parts = [
            part
            for of_one in stats.get("partitions", {}).values()
            if (part := of_one.get("subscriptions", {}).get(name)) is not None
        ]
        found[name] = _with_facts(each, parts)
    stats = {**stats, "subscriptions": found}
    if partitions and per_partition:
        parts = list(stats.get("partitions", {}).values())
        stats["publishers"] = [*_publishers(stats.get("publishers", ()), parts)]
    return partitions, stats


def _publishers(
    whole: Sequence[Mapping[str, Any]], parts: Sequence[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Producers of all partitions: Pulsar adds up those of one place in the lists of partitions,
    and names a sum by none of them.
    """
    for at, each in enumerate(whole):
        lists = [part.get("publishers", ()) for part in parts]
        first: Mapping[str, Any] = next((found[at] for found in lists if len(found) > at), {})
        yield {**{key: first[key] for key in ("producerName", *_FACTS) if key in first}, **each}


_LAST: Final = ("lastAckedTimestamp", "lastConsumedTimestamp")
_FACTS: Final = ("address", "clientVersion", "connectedSince")


def _with_facts(whole: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A subscription of all partitions, with what Pulsar tells of each partition alone."""
    clients: dict[str, list[Mapping[str, Any]]] = {}
    for each in (consumer for part in parts for consumer in part.get("consumers", ())):
        clients.setdefault(each.get("consumerName") or "", []).append(each)
    consumers = []
    for each in whole.get("consumers", ()):
        same = clients.get(each.get("consumerName") or "", [])
        facts = {key: same[0][key] for key in _FACTS if same and same[0].get(key)}
        consumers.append({**each, **facts, **_latest(same)})
    return {**whole, **_latest(parts), "consumers": consumers}


def _latest(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: max((each.get(key) or 0 for each in found), default=0) for key in _LAST}


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
    partitions, stats = await topic_stats(api, topic, per_partition=False)
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
