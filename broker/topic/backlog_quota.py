"""Backlog quotas: what is exceeded, and how far a subscription is moved. Pure.

A quota of size counts what the slowest durable subscription has still to acknowledge, a quota of
age how long ago its oldest unacknowledged message was published. Readers don't count: nothing is
kept for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from magnetar.broker.policies.effective import BacklogQuota

SIZE: Final = "destination_storage"
AGE: Final = "message_age"
HOLD: Final = "producer_request_hold"
EVICTION: Final = "consumer_backlog_eviction"


@dataclass(frozen=True, slots=True)
class OldestMessage:
    """The message that some durable subscription has waited longest to acknowledge."""

    subscription: str
    publish_time_ms: int

    def age_s(self, now_ms: int) -> int:
        """Whole seconds; a publish time in the future counts as now."""
        return max(0, now_ms - self.publish_time_ms) // 1000


def limits_size(quotas: Mapping[str, BacklogQuota]) -> bool:
    """Whether there is a limit of size; 0 is one, which nothing satisfies."""
    return quotas[SIZE].limit_bytes >= 0


def limits_age(quotas: Mapping[str, BacklogQuota]) -> bool:
    """Whether there is a limit of age."""
    return quotas[AGE].limit_s > 0


def exceeded(
    quotas: Mapping[str, BacklogQuota], backlog_bytes: int, oldest_age_s: int | None
) -> str | None:
    """Which quota the backlog exceeds, its size before its age; None: none.

    Args:
        oldest_age_s: None: nothing is unacknowledged, or the age isn't known.
    """
    if limits_size(quotas) and backlog_bytes >= quotas[SIZE].limit_bytes:
        return SIZE
    if limits_age(quotas) and oldest_age_s is not None and oldest_age_s > quotas[AGE].limit_s:
        return AGE
    return None


def used(
    quotas: Mapping[str, BacklogQuota], backlog_bytes: int, oldest_age_s: int | None
) -> float | None:
    """How much of a limit the backlog takes, 1.0: all of it; the greater one of two limits.

    None: there is no limit. See ``exceeded`` for the arguments.
    """
    shares = list[float]()
    if limits_size(quotas):
        limit_bytes = quotas[SIZE].limit_bytes
        shares.append(backlog_bytes / limit_bytes if limit_bytes else 1.0)
    if limits_age(quotas):
        shares.append((oldest_age_s or 0) / quotas[AGE].limit_s)
    return max(shares, default=None)


def eviction_target(limit_bytes: int) -> int:
    """Bytes of backlog that an eviction leaves: a tenth below the limit, as in Pulsar.

    Evicting down to the limit itself would make every next message another eviction.
    """
    return max(0, limit_bytes) * 9 // 10
