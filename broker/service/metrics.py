"""What the broker counts for its metrics page alone: durations and events, cheap enough to be on.

No clock: durations are given, and periods end when they are asked for.
"""

from __future__ import annotations

from typing import Final

from magnetar.bookkeeper.metrics import Durations, PeriodBuckets

QUOTA_CHECK_LIMITS_S: Final = (5, 10, 30, 60, 300)


class BrokerMetrics:
    """Events of the whole broker."""

    __slots__ = (
        "connections_closed",
        "connections_created",
        "connections_refused",
        "lookup",
        "lookup_failures",
        "publish",
        "quota_check",
        "topic_load",
        "topic_load_failures",
    )

    def __init__(self) -> None:
        self.connections_created = 0
        self.connections_refused = 0
        self.connections_closed = 0
        self.lookup = Durations()
        self.lookup_failures = 0
        self.publish = Durations()
        self.topic_load = Durations()
        self.topic_load_failures = 0
        """Storage or metadata failed, or the bundle is elsewhere; not: there is no such topic."""
        self.quota_check = PeriodBuckets(QUOTA_CHECK_LIMITS_S)
        """Seconds of each look at all backlogs; its period never ends."""
