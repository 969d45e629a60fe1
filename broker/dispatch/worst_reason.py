"""Of the reasons that partitions have, the worst. Pure; a reason as ``Explanation.as_json``."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.dispatch.explanation import Reason, is_stall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar.metadata.loop_turns import Steps

_WARNINGS: Final = frozenset(
    (Reason.NO_CONSUMER, Reason.CONSUMER_REFUSED, Reason.PRODUCER_REFUSED, Reason.RATE_LIMITED)
)
"""Of the stalls, those that may be meant."""
_WORSE: Final = ("o", "w", "e")
_PUBLISHING_MARKS: Final = MappingProxyType(
    {
        Reason.STORAGE_FAILED: "e",
        Reason.QUOTA_HELD: "e",
        Reason.STORING: "e",
        Reason.PRODUCER_REFUSED: "w",
        Reason.PUBLISH_RATE_LIMITED: "n",
        Reason.PRODUCERS_QUEUED: "n",
        Reason.DUPLICATES: "n",
        Reason.TERMINATED: "n",
    }
)
"""What is told of producers, the worst first; the other reasons need no words."""
_PUBLISHING: Final = (*_PUBLISHING_MARKS,)
_PARTITION_IDLE: Final = (
    "Other partitions have consumers: restart those, which may not know this partition or have "
    "lost it."
)


def mark_of(explained: Mapping[str, Any]) -> str:
    """Of a subscription: `o` well, `w` a stall that may be meant, `e` another one."""
    reason = explained["reason"]
    if not is_stall(reason, explained):
        return "o"
    return "w" if reason in _WARNINGS else "e"


def worst_of_subscriptions(
    explained: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> Steps[dict[str, dict[str, Any]]]:
    """Of each subscription the reason of the partition that is worst off, which is named.

    Args:
        explained: by partition and subscription.
    """
    worst: dict[str, dict[str, Any]] = {}
    consumed = set[str]()
    for partition, subscriptions in explained.items():
        for name, each in subscriptions.items():
            if each["reason"] != Reason.NO_CONSUMER:
                consumed.add(name)
            if name not in worst or _rank(each) > _rank(worst[name]):
                worst[name] = {**each, "message": in_partition(partition, each)}
            yield
    for name in consumed:
        if worst[name]["reason"] == Reason.NO_CONSUMER:
            worst[name]["next"] = _PARTITION_IDLE
    return worst


def _rank(explained: Mapping[str, Any]) -> int:
    return _WORSE.index(mark_of(explained))


def in_partition(partition: str, explained: Mapping[str, Any]) -> str:
    """Its sentence, which names the partition; "": the topic has none."""
    where = f"Partition {partition.rpartition('-partition-')[2]}: " if partition else ""
    return f"{where}{explained['message']}"


def mark_of_publishing(explained: Mapping[str, Any]) -> str | None:
    """`e` nothing is stored, `w` a warning, `n` it may be meant; None: it needs no words."""
    reason = explained["reason"]
    if reason == Reason.STORING:  # for a moment storage confirms too little of any topic
        return "e" if explained.get("missingBookies") or explained.get("overdue") else None
    return _PUBLISHING_MARKS.get(reason)


def worst_publishing(
    found: Mapping[str, Mapping[str, Any]],
) -> Steps[tuple[str, Mapping[str, Any]]]:
    """The partition that is worst off, and why; one of the first if nothing needs words.

    Args:
        found: by partition, of one at least.
    """
    worst = len(_PUBLISHING) + 1, ""
    for partition, each in found.items():
        is_told = mark_of_publishing(each) is not None
        rank = _PUBLISHING.index(each["reason"]) if is_told else len(_PUBLISHING)
        worst = min(worst, (rank, partition))
        yield
    return worst[1], found[worst[1]]
