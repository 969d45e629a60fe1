"""Messages that no consumer gets, though nothing stands still: where a caught-up subscription's
messages went. Beside `magnetar.broker.dispatch.explanation`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from magnetar.broker.dispatch.explanation import Explanation, Reason, counted, duration

if TYPE_CHECKING:
    from magnetar.broker.producer.deduplication import Duplicates

_RECENT_MS: Final = 600_000


def duplicates(dropped: Duplicates, now_ms: int) -> Explanation | None:
    """Of a topic where nothing was stored since; None: it is long ago."""
    if now_ms - dropped.at_ms >= _RECENT_MS:
        return None
    those = "was" if dropped.entries == 1 else "were"
    return Explanation(
        Reason.DUPLICATES,
        f"Producer {dropped.producer} sends, and nothing is stored: the last "
        f"{counted(dropped.entries, 'entry')} {those} taken for repeated ones, "
        f"{duration(now_ms - dropped.at_ms)} ago. Sequence id {dropped.last_id} of this producer "
        "is stored, so a message must have a higher one.",
        "That is right after a connection broke. A program that begins with low sequence ids "
        "again must go on behind the last one, which its client is told, or take another producer "
        "name (brokerDeduplicationEnabled).",
        since_ms=dropped.at_ms,
        details={"duplicates": dropped.entries, "lastSequenceId": dropped.last_id},
    )


def with_unread(
    found: Explanation, expired: int, expired_ago_ms: int, evictions: int
) -> Explanation:
    """Args:
    found: that a message, or all of them, are acknowledged.
    expired: entries that no consumer acknowledged, since the topic was loaded.
    expired_ago_ms: since the last of them did.
    evictions: how often the topic's backlog quota moved its subscriptions meanwhile.
    """
    told, details = "", dict(found.details)
    if expired:
        told = (
            f" {counted(expired, 'entry')} expired unacknowledged (message TTL, backlog quota or a "
            f"command), the last {duration(expired_ago_ms)} ago."
        )
        details["expiredEntries"] = expired
    if evictions:
        told += (
            " The topic's backlog quota moved its subscriptions past unacknowledged messages "
            f"{counted(evictions, 'time')}."
        )
        details["quotaEvictions"] = evictions
    return replace(found, message=found.message + told, details=details)


def with_dead_letters(found: Explanation, topics: list[str]) -> Explanation:
    """``topics``: of those that clients' dead letter policies name, the ones that are there."""
    if not topics:
        return found
    return replace(
        found,
        message=f"{found.message} Its consumers may have moved it: clients acknowledge what they "
        f"send to a retry letter or dead letter topic, and there is {' and '.join(topics)}.",
        details={**found.details, "letterTopics": topics},
    )
