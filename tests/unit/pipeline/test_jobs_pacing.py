"""Rows leave at the rate that was asked for, and no faster after a pause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.jobs.replay import RowRateLimiter


def test_first_rows_leave_at_once() -> None:
    pace = RowRateLimiter(10)
    assert pace.wait_s(100.0, 5) == 0
    assert pace.wait_s(100.0, 5) == pytest.approx(0.5)
    assert pace.wait_s(100.5, 5) == pytest.approx(0.5)


def test_a_pause_is_not_made_up_for() -> None:
    pace = RowRateLimiter(10)
    pace.wait_s(0.0, 1)
    assert pace.wait_s(60.0, 10) == 0
    assert pace.wait_s(60.0, 10) == pytest.approx(1.0)


@given(
    rate=st.floats(min_value=0.1, max_value=1e6),
    steps=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 1000)), min_size=1, max_size=50),
)
def test_never_faster(rate: float, steps: list[tuple[float, int]]) -> None:
    pace, now_s, rows = RowRateLimiter(rate), 0.0, 0
    for idle_s, count in steps:
        now_s += idle_s
        now_s += pace.wait_s(now_s, count)
        assert rows / rate <= now_s + 1e-6
        rows += count
