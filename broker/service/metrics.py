"""What the broker counts for its metrics page alone: durations and events, cheap enough to be on.

No clock: durations are given, and periods end when they are asked for.
"""

from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.metrics import Durations, PeriodBuckets

QUOTA_CHECK_LIMITS_S: Final = (5, 10, 30, 60, 300)


@dataclass(slots=True)
class BrokerMetrics:
    """Events of the whole broker."""

    connections_created: int = 0
    connections_refused: int = 0
    connections_closed: int = 0
    lookup: Durations = field(default_factory=Durations)
    lookup_failures: int = 0
    publish: Durations = field(default_factory=Durations)
    topic_load: Durations = field(default_factory=Durations)
    topic_load_failures: int = 0
    """Storage or metadata failed, or the bundle is elsewhere; not: there is no such topic."""
    quota_check: PeriodBuckets = field(default_factory=lambda: PeriodBuckets(QUOTA_CHECK_LIMITS_S))
    """Seconds of each look at all backlogs; its period never ends."""
