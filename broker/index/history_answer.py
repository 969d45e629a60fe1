"""Recent history as it is answered; that of several brokers or partitions becomes one. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from math import isnan, nan
from typing import Any, Final

from magnetar.broker.index.figure_recorder import (
    LATENCIES,
    SUBSCRIPTION_SERIES,
    TOTAL,
    FigureRecorder,
)
from magnetar.broker.index.history import SAME_START_MS, History, Series
from magnetar.metadata.loop_turns import Steps, run_at_once

_ROWS_AT_ONCE: Final = 8
_OF_TOPICS: Final = ("msgRateIn", "msgBacklog")
"""Of a list's rows."""
_DIGITS: Final = 3
"""Behind the point: points are 32-bit floats."""


def history_json(history: History, key: object) -> dict[str, Any]:
    """Since when, times and values of a row; empty if it isn't kept."""
    found = history.series(key) or Series([], {field: [] for field in history.fields})
    return _series_json(found)


def broker_history(recorder: FigureRecorder, broker: str) -> dict[str, Any]:
    """The answer of one broker."""
    found = history_json(recorder.totals, TOTAL)
    latest = {field: values[-1] for field, values in found["series"].items() if values}
    return {**found, "brokers": {broker: {"since": found["since"], **latest}}}


def topic_history(
    recorder: FigureRecorder, topic: str, names: Iterable[str]
) -> Steps[dict[str, Any]]:
    """Of a topic and its subscriptions, which have these names."""
    subscriptions = dict[str, dict[str, Any]]()
    for name in list(names):
        subscriptions[name] = history_json(recorder.subscriptions, (topic, name))
        yield
    return {**history_json(recorder.topics, topic), "subscriptions": subscriptions}


class HistoryScan:
    """Gives rows of a page their ``history``, a few at a time."""

    def __init__(
        self, recorder: FigureRecorder, rows: Sequence[dict[str, Any]], points: int
    ) -> None:
        self._recorder, self._points = recorder, points
        self._left = iter(rows)

    def step(self) -> bool:
        """Add it to the next rows; False: those were the last."""
        some = list(islice(self._left, _ROWS_AT_ONCE))
        for row in some:
            row["history"] = self._lines(row["topic"], row.get("subscription"))
        return len(some) == _ROWS_AT_ONCE

    def _lines(self, topic: str, subscription: str | None) -> dict[str, list[float]]:
        key: Hashable
        fields: Sequence[str]
        if subscription is None:
            history, key, fields = self._recorder.topics, topic, _OF_TOPICS
        else:
            history, key = self._recorder.subscriptions, (topic, subscription)
            fields = SUBSCRIPTION_SERIES
        return {
            field: [round(each, 1) for each in history.sparkline(key, field, self._points)]
            for field in fields
        }


def merged_brokers(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the cluster; latencies are those of the slowest broker. REQUIRES: an answer."""
    brokers = {name: each for answer in answers for name, each in answer["brokers"].items()}
    return {**run_at_once(_merged(answers, LATENCIES)), "brokers": brokers}


def merged_partitions(answers: Sequence[Mapping[str, Any]]) -> Steps[dict[str, Any]]:
    """Sums of the partitions, which may be ten thousand. REQUIRES: an answer."""
    by_name, subscriptions = dict[str, list[Mapping[str, Any]]](), dict[str, dict[str, Any]]()
    for answer in answers:
        for name, each in answer["subscriptions"].items():
            by_name.setdefault(name, []).append(each)
            yield
    for name, found in by_name.items():
        subscriptions[name] = yield from _merged(found)
    return {**(yield from _merged(answers)), "subscriptions": subscriptions}


def _merged(
    answers: Sequence[Mapping[str, Any]], greatest: Collection[str] = ()
) -> Steps[dict[str, Any]]:
    """Sums, at the times of the answer that has most of them.

    The others are what they were at their last point before; before their first one they count
    nothing, which ``since`` of a broker tells. Those that began together begin at the same point:
    earlier ones are left out, as sums of a part would look like a rise.
    """
    longest = max(answers, key=lambda answer: len(answer["times"]))
    times_ms: list[int] = longest["times"]
    times_ms = times_ms[bisect_left(times_ms, _whole_since_ms(answers)) :]
    values: dict[str, list[float]] = {field: [nan] * len(times_ms) for field in longest["series"]}
    for answer in answers:
        places = [bisect_right(answer["times"], time_ms) - 1 for time_ms in times_ms]
        for field, found in values.items():
            series = answer["series"][field]
            add = max if field in greatest else _sum
            for at, place in enumerate(places):
                if place >= 0 and (value := series[place]) is not None:
                    found[at] = value if isnan(found[at]) else add(found[at], value)
        yield
    return _series_json(Series(times_ms, values))


def _whole_since_ms(answers: Sequence[Mapping[str, Any]]) -> int:
    """When all that began with the first had a point."""
    begins_ms = [answer["times"][0] for answer in answers if answer["times"]]
    until_ms = min(begins_ms, default=0) + SAME_START_MS
    return max((each for each in begins_ms if each <= until_ms), default=0)


def _sum(one: float, other: float) -> float:
    return one + other


def _series_json(found: Series) -> dict[str, Any]:
    return {
        "since": found.times_ms[0] if found.times_ms else None,
        "times": found.times_ms,
        "series": {
            field: [None if isnan(each) else round(each, _DIGITS) for each in values]
            for field, values in found.values.items()
        },
    }
