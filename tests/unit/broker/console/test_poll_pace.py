"""Open pages take no more than their share of a processor, whoever looks."""

import random

import pytest

from magnetar.broker.console.poll_pace import BASE_S, FACTOR_MAX, SHARE_MAX, PollPace
from tests.simulation.simulator import seeds


def looked_at(pace: PollPace, rng: random.Random, viewers: int, cost_s: float) -> float:
    """The share of a processor in the last part of ten minutes, and longer where pages are rare."""
    end_s = 600.0 + 20 * BASE_S * FACTOR_MAX
    due = sorted((rng.uniform(0, BASE_S), number) for number in range(viewers))
    costs: list[tuple[float, float]] = []
    while due[0][0] < end_s:
        now_s, number = due.pop(0)
        cost = cost_s * rng.uniform(0.5, 1.5)
        pace.add(now_s, cost)
        costs.append((now_s, cost))
        due.append((now_s + BASE_S * pace.factor, number))
        due.sort()
    late = [cost for at_s, cost in costs if at_s > end_s / 2]
    return sum(late) / (end_s / 2)


@pytest.mark.parametrize("seed", seeds(12))
def test_many_viewers_keep_to_their_share(seed: int) -> None:
    rng = random.Random(seed)
    viewers, cost_s = rng.randrange(20, 200), rng.uniform(0.002, 0.01)
    pace = PollPace(0.0)
    share = looked_at(pace, rng, viewers, cost_s)
    assert share < 1.25 * SHARE_MAX
    assert 1 < pace.factor < FACTOR_MAX or viewers * cost_s / BASE_S < 1.25 * SHARE_MAX


def test_few_viewers_see_figures_as_often_as_ever() -> None:
    pace = PollPace(0.0)
    looked_at(pace, random.Random(1), 10, 0.005)
    assert pace.factor == 1


def test_it_is_quick_again_once_others_have_left() -> None:
    pace, rng = PollPace(0.0), random.Random(1)
    looked_at(pace, rng, 100, 0.008)
    assert pace.factor > 1
    now_s = 10_000.0
    for _ in range(200):
        now_s += BASE_S * pace.factor
        pace.add(now_s, 0.008)
    assert pace.factor == 1


def test_what_pages_use_that_are_made_at_once_counts_once() -> None:
    """A hundred that come together would else be told to wait for a minute."""
    pace = PollPace(0.0)
    for _ in range(100):
        pace.begin(1.0)
    for number in range(100):
        pace.end(20.0, 1.0 + 0.002 * (number + 1))
    assert pace.factor == 1
    pace.begin(5.0)  # nothing of what was done meanwhile
    pace.end(40.0, 5.001)
    assert pace.factor == 1
