"""A trend follows the growth of a backlog, and tells when it is gone."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.index.backlog_trend import NEVER_S, STEADY, catch_up_s, is_steady, trend


def test_a_trend_follows_the_growth() -> None:
    found, backlog = 0.0, 0.0
    for _ in range(100):
        found = trend(backlog, found, backlog + 50, 5)
        backlog += 50
    assert found == pytest.approx(10)
    assert trend(backlog, found, backlog, 0) == found
    for _ in range(100):
        found = trend(backlog, found, backlog, 5)
    assert found == 0


@pytest.mark.parametrize(
    ("backlog", "growth", "seconds"),
    [
        *((0, 5.0, 0), (0, -5.0, 0), (100, 0.0, inf), (100, 3.0, inf), (100, -0.01, inf)),
        *((100, -STEADY, 2000), (6600, -1.0, 6600), (10**9, -1.0, inf)),
    ],
)
def test_when_a_backlog_is_gone(backlog: float, growth: float, seconds: float) -> None:
    assert catch_up_s(backlog, growth) == pytest.approx(seconds)


@given(st.floats(0, 1e15), st.floats(-1e9, 1e9))
def test_only_what_shrinks_is_ever_gone(backlog: float, growth: float) -> None:
    seconds = catch_up_s(backlog, growth)
    assert seconds >= 0
    assert (seconds == inf) or seconds <= NEVER_S
    if backlog > 0 and seconds < inf:
        assert growth < 0
        assert backlog + growth * seconds == pytest.approx(0, abs=max(1e-6, backlog * 1e-9))
    if is_steady(growth):
        assert seconds in (0, inf)
