"""Recent history: how far apart points are, which rows have them, and what they take."""

import random
from collections.abc import Mapping, Sequence
from math import isnan

import pytest

from magnetar.broker.index.history import COARSE_MS, FINE_MS, POINT_MS, POINTS_MAX, History


def add(history: History, now_ms: int, rows: Mapping[str, Sequence[float]]) -> bool:
    """Each row is worth its first figure."""
    if (draft := history.begin(now_ms)) is None:
        return False
    for key, figures in rows.items():
        draft.add(key, figures, figures[0])
    draft.end()
    return True


def test_points_come_every_ten_seconds_at_most() -> None:
    history = History(("a", "b"), 2)
    assert history.series("") is None
    assert add(history, 100, {"": (1, 0.5)})
    assert not add(history, 100 + POINT_MS - 1, {"": (2, 0.5)})
    draft = history.begin(100 + POINT_MS)
    assert draft is not None
    assert history.begin(100 + 2 * POINT_MS) is None  # that one is being filled
    draft.add("", (3, 0.25), 3)
    draft.end()
    found = history.series("")
    assert found is not None
    assert found.times_ms == [100, 100 + POINT_MS]
    assert found.values == {"a": [1, 3], "b": [0.5, 0.25]}


@pytest.mark.parametrize("step_ms", [POINT_MS, POINT_MS + 1_234, COARSE_MS, 3 * COARSE_MS])
def test_old_points_are_a_minute_apart(step_ms: int) -> None:
    history = History(("a",), 1)
    for number in range(3_000):
        add(history, number * step_ms, {"": (number,)})
    found = history.series("")
    assert found is not None
    assert [time_ms / step_ms for time_ms in found.times_ms] == found.values["a"]
    now_ms = found.times_ms[-1]
    gaps = [
        (now_ms - after, after - before)
        for before, after in zip(found.times_ms, found.times_ms[1:], strict=False)
    ]
    assert all(gap == step_ms for age, gap in gaps if age + gap <= FINE_MS)
    assert all(COARSE_MS <= gap < COARSE_MS + step_ms for age, gap in gaps if age > FINE_MS + gap)
    assert len(found.times_ms) == POINTS_MAX


def test_a_point_that_takes_too_long_is_given_up() -> None:
    history = History(("a",), 1)
    slow = history.begin(0)
    assert slow is not None
    slow.add("x", (1,), 1)
    assert add(history, COARSE_MS, {"x": (2,)})
    slow.add("x", (3,), 3)
    slow.end()
    found = history.series("x")
    assert found is not None
    assert found.values["a"] == [2]


def test_a_clock_that_is_set_back_takes_the_points_behind_it() -> None:
    history = History(("a",), 1)
    for time_ms in (0, POINT_MS, 2 * POINT_MS, POINT_MS - 1):
        assert add(history, time_ms, {"x": (time_ms,)})
    found = history.series("x")
    assert found is not None
    assert found.times_ms == [0, POINT_MS - 1]


def test_a_row_that_is_gone_leaves_its_place_but_not_its_figures() -> None:
    history = History(("a",), 1)
    add(history, 0, {"x": (1,)})
    add(history, POINT_MS, {})
    assert history.series("x") is None
    add(history, 2 * POINT_MS, {"y": (2,)})
    found = history.series("y")
    assert found is not None
    assert (found.times_ms, found.values) == ([2 * POINT_MS], {"a": [2]})


def test_the_most_important_rows_are_kept() -> None:
    rng, history = random.Random(7), History(("a",), 300)
    worth = {f"row {number}": float(number) for number in range(2_000)}
    names = list(worth)
    for number in range(20):
        rng.shuffle(names)
        add(history, number * POINT_MS, {name: (worth[name],) for name in names})
    assert len(history) == 300
    kept = sorted(value for name, value in worth.items() if history.series(name) is not None)
    assert kept[-1] == 1_999
    assert kept[0] * 1.25 >= 1_700  # of the 300 that matter most none is that much better


def test_rows_of_about_the_same_worth_do_not_take_turns() -> None:
    history = History(("a",), 1)
    for number in range(10):
        add(history, number * POINT_MS, {"x": (10 + number % 2,), "y": (11 - number % 2,)})
    found = history.series("x")
    assert found is not None
    assert len(found.times_ms) == 10
    add(history, 10 * POINT_MS, {"x": (10,), "y": (20,)})
    assert history.series("x") is None
    assert history.series("y") is not None


def test_a_row_may_come_when_the_others_have_become_idle() -> None:
    history = History(("a",), 1)
    add(history, 0, {"x": (1000,)})
    add(history, POINT_MS, {"x": (1000,), "y": (5,)})
    add(history, 2 * POINT_MS, {"x": (0,), "y": (5,)})
    add(history, 3 * POINT_MS, {"x": (0,), "y": (5,)})
    assert history.series("y") is not None


def test_rows_that_come_later_are_unknown_before() -> None:
    history = History(("a",), 3)
    add(history, 0, {"x": (1,)})
    add(history, POINT_MS, {"x": (2,), "y": (3,)})
    found = history.series("y")
    assert found is not None
    assert found.times_ms == [POINT_MS]
    draft = history.begin(2 * POINT_MS)
    assert draft is not None
    draft.add("x", (float("nan"),), 1)
    draft.end()
    found = history.series("x")
    assert found is not None
    assert isnan(found.values["a"][-1])


def test_a_sparkline_is_of_the_last_hour_and_ends_with_the_latest() -> None:
    history = History(("a", "b"), 2)
    assert history.sparkline("x", "b", 5) == []
    for number in range(200):
        add(
            history,
            number * COARSE_MS,
            {"x": (0, number), **({"y": (0, 1)} if number > 197 else {})},
        )
    assert history.sparkline("x", "b", 5) == [139, 154, 169, 184, 199]
    assert history.sparkline("y", "b", 5) == [1, 1]
    assert len(history.sparkline("x", "b", 60)) == 60
    assert len(history.sparkline("x", "b", 100)) == 61


def test_growth_is_known_after_a_minute() -> None:
    history = History(("a",), 2)
    add(history, 0, {"x": (100,)})
    assert history.growth("x", "a", 160, COARSE_MS) is None
    assert history.growth("x", "a", 160, COARSE_MS + 1) == pytest.approx(1, rel=0.01)
    add(history, COARSE_MS, {"x": (160,), "y": (5,)})
    assert history.growth("x", "a", 40, 2 * COARSE_MS) == pytest.approx(-0.5)
    assert history.growth("y", "a", 10, COARSE_MS + POINT_MS) is None
    assert history.growth("x", "a", 40, 9 * COARSE_MS) is None  # that was long ago


def test_two_thousand_topics_take_eleven_megabytes_and_few_take_little() -> None:
    """By size: an object a point would be 30 times as much."""
    history = History(("in", "out", "backlog", "stored"), 2_000)
    rows = {f"topic {number}": (1.0, 2.0, 3.0, 4.0) for number in range(2_000)}
    for number in range(POINTS_MAX + 20):
        add(history, number * COARSE_MS, rows)
    assert history.stored_bytes == 4 * 2_000 * 4 * POINTS_MAX <= 11_600_000
    small = History(("in", "out", "backlog", "stored"), 2_000)
    for number in range(POINTS_MAX):
        add(small, number * COARSE_MS, {"topic 1": rows["topic 1"]})
    assert small.stored_bytes == 4 * 4 * POINTS_MAX
