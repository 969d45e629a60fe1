"""Takes the points of the recent history, while others look at all topics anyway.

That is the broker's sampling of rates, once a minute, and the index's looks, while somebody asks
for lists. So a broker that nobody looks at has a history, too, and walks through its topics no
oftener for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.bookkeeper.metrics import RecentDurations
from magnetar.broker.index.history import History, PointDraft
from magnetar.broker.index.topic_figures import TOPIC_TOTALS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from magnetar.bookkeeper.metrics import Durations
    from magnetar.broker.topic.activity_mark import ActivityMark
    from magnetar.broker.topic.topic import Topic
    from magnetar.metadata.loop_turns import Steps

LATENCIES: Final = ("publishLatencyP50Ms", "publishLatencyP99Ms")
TOTALS: Final = (*TOPIC_TOTALS, *LATENCIES)
"""Of a broker."""
TOPIC_SERIES: Final = ("msgRateIn", "msgRateOut", "msgBacklog", "storageSize")
SUBSCRIPTION_SERIES: Final = ("msgBacklog",)
_SUBSCRIPTIONS_A_STEP: Final = 32
_ROWS_MAX: Final = 2_000
"""Topics, and subscriptions."""
_BACKLOG_S: Final = 60.0
"""A topic with a backlog is worth as much as one that would clear it in that time."""
TOTAL: Final = ""
"""Key of the only row of totals."""


class FigureRecorder:
    """Of one broker; nothing is written to disk."""

    def __init__(self, publish: Durations) -> None:
        """``publish``: durations from the arrival of a message until it is stored."""
        self.totals = History(TOTALS, 1)
        self.topics = History(TOPIC_SERIES, _ROWS_MAX)
        self.subscriptions = History(SUBSCRIPTION_SERIES, _ROWS_MAX)
        self._publish = RecentDurations(publish)

    def begin(self, now_ms: int) -> Recording | None:
        """Of a walk through all topics; None: there was a point just now."""
        drafts = [each.begin(now_ms) for each in (self.totals, self.topics, self.subscriptions)]
        if any(draft is None for draft in drafts):
            return None
        return Recording([draft for draft in drafts if draft is not None], self._publish)


class Recording:
    """A point of all three histories, which is there when the walk is at its end."""

    def __init__(self, drafts: Sequence[PointDraft], publish: RecentDurations) -> None:
        self._total, self._topics, self._subscriptions = drafts
        self._publish = publish
        self._sums = [0.0] * len(TOPIC_TOTALS)

    def look(self, topic: Topic) -> Steps[None]:
        """Add a topic, unless it is the system's; some subscriptions at a step."""
        if not topic.is_system:
            backlogs = dict[str, int]()
            for each in list(topic.subscriptions.values()):
                backlogs[each.name] = each.backlog
                if len(backlogs) % _SUBSCRIPTIONS_A_STEP == 0:
                    yield
            rate_in, bytes_in, rate_out, bytes_out = yield from topic.traffic()
            total = sum(backlogs.values())
            figures = rate_in, rate_out, bytes_in, bytes_out, total, topic.stored_bytes
            yield from self.add(topic.full_name, backlogs, figures)

    def add_quiet(self, topic: Topic, mark: ActivityMark) -> None:
        """Add a topic in which nothing happens: it has few subscriptions."""
        if topic.is_system:
            return
        full, stored, backlog = topic.full_name, mark[0], mark[1]
        self._sums[4] += backlog
        self._sums[5] += stored
        if self._topics.may_keep(full, backlog):
            self._topics.add(full, (0.0, 0.0, backlog, stored), backlog / _BACKLOG_S)
        for name, each in topic.subscriptions.items():
            key, found = (full, name), each.backlog if backlog else 0
            if self._subscriptions.may_keep(key, found):
                self._subscriptions.add(key, (found,), found)

    def add(
        self, full: str, backlogs: Mapping[str, float], figures: Sequence[float]
    ) -> Steps[None]:
        """
        Args:
            full: name of the topic.
            backlogs: of its subscriptions, by their names.
            figures: of the topic, in the order of ``TOPIC_TOTALS``.
        """
        sums = self._sums
        rate_in, rate_out, bytes_in, bytes_out, backlog, stored = figures
        sums[0] += rate_in
        sums[1] += rate_out
        sums[2] += bytes_in
        sums[3] += bytes_out
        sums[4] += backlog
        sums[5] += stored
        worth = rate_in + rate_out + backlog / _BACKLOG_S
        self._topics.add(full, (rate_in, rate_out, backlog, stored), worth)
        add = self._subscriptions.add
        for at, (name, each) in enumerate(backlogs.items(), 1):
            add((full, name), (each,), each)
            if at % _SUBSCRIPTIONS_A_STEP == 0:
                yield

    def end(self) -> Steps[None]:
        """All topics were added."""
        latencies = self._publish.quantiles((0.5, 0.99))
        self._total.add(TOTAL, (*self._sums, *latencies), 0.0)
        for draft in (self._total, self._topics, self._subscriptions):
            draft.end()  # a millisecond for two thousand rows
            yield
