"""Durations and buckets behind the metrics page."""

import math
import random

import pytest

from magnetar.bookkeeper.metrics import LATENCY_LIMITS_MS, SIZE_LIMITS, Durations, RecentDurations
from magnetar.broker.topic.publish_metrics import PublishMetrics


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_are_right_to_within_a_step(seed: int) -> None:
    rng, durations = random.Random(seed), Durations()
    values = sorted(max(rng.lognormvariate(0, 2), 0.001) for _ in range(1000))
    for value in values:
        durations.record(value)
    wanted = [0.0, 0.5, 0.95, 0.99, 0.999, 1.0]
    found = durations.quantiles(wanted, 10.0, 60.0)
    for share, shown in zip(wanted, found, strict=True):
        true = values[max(math.ceil(share * 1000) - 1, 0)]
        assert true <= shown * (1 + 1e-9) <= true * 2 ** (1 / 8) * (1 + 1e-9)
    assert durations.count == 1000
    assert durations.sum_ms == pytest.approx(sum(values))


def test_quantiles_forget_after_two_periods() -> None:
    durations = Durations()
    durations.record(100.0)
    assert durations.quantiles([1.0], 0.5, 60.0)[0] >= 100
    durations.record(1.0, 5)
    assert durations.quantiles([1.0], 59.0, 60.0)[0] >= 100
    assert durations.quantiles([1.0], 61.0, 60.0)[0] == pytest.approx(1.0, rel=0.1)
    assert math.isnan(durations.quantiles([1.0], 122.0, 60.0)[0])
    durations.record(7.0)
    assert math.isnan(durations.quantiles([1.0], 500.0, 60.0)[0]), "recorded before the silence"
    assert durations.count == 7


def test_recent_quantiles_are_of_what_came_since_the_last_question() -> None:
    durations = Durations()
    durations.record(100.0)
    recent = RecentDurations(durations)
    assert math.isnan(recent.quantiles([0.5])[0]), "recorded before"
    durations.record(1.0, 99)
    assert durations.quantiles([1.0], 10.0, 60.0)[0] >= 100
    durations.record(8.0)
    assert recent.quantiles([0.5, 0.99, 1.0]) == pytest.approx([1, 1, 8], rel=0.1)
    assert math.isnan(recent.quantiles([0.5])[0])
    assert durations.quantiles([1.0], 20.0, 60.0)[0] >= 100, "nobody took these away"


@pytest.mark.parametrize("ms", [0.0, -1.0, 1e-9, 1e12])
def test_any_duration_is_taken(ms: float) -> None:
    durations = Durations()
    durations.record(ms)
    assert durations.quantiles([0.5], 0.0, 60.0)[0] > 0


def test_latency_buckets_include_their_limit() -> None:
    metrics = PublishMetrics()
    for limit in LATENCY_LIMITS_MS:
        metrics.stored(limit, 1)
        metrics.stored(limit * 1.001, 2)
    latency, total_ms, _, _ = metrics.period(0.0, 60.0)
    assert latency == [1, *[3] * (len(LATENCY_LIMITS_MS) - 1), 2]
    assert total_ms == pytest.approx(sum(LATENCY_LIMITS_MS) * 3.002)


def test_entry_sizes_of_a_mixed_batch() -> None:
    metrics = PublishMetrics()
    sizes = [1, *(limit + extra for limit in SIZE_LIMITS for extra in (0, 1))]
    metrics.published([b"x" * size for size in sizes], sum(sizes))
    metrics.published([b"x"] * 10, 10)
    _, _, counts, total = metrics.period(0.0, 60.0)
    assert counts == [12, *[2] * (len(SIZE_LIMITS) - 1), 1]
    assert total == sum(sizes) + 10


def test_a_period_shows_the_last_whole_one() -> None:
    metrics = PublishMetrics()
    metrics.stored(1.0, 3)
    assert sum(metrics.period(0.0, 60.0)[0]) == 3, "the running one, while there is no other"
    metrics.stored(1.0, 2)
    assert sum(metrics.period(60.0, 60.0)[0]) == 5
    metrics.stored(1.0, 1)
    assert sum(metrics.period(90.0, 60.0)[0]) == 5
    assert sum(metrics.period(120.0, 60.0)[0]) == 1
    assert sum(metrics.period(180.0, 60.0)[0]) == 0
