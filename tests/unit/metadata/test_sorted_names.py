"""Names in order, and how much of the work a turn of the loop does."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.metadata import sorted_names
from magnetar.metadata.sorted_names import sort_in_turns


@given(st.lists(st.text(max_size=3)), st.integers(1, 9))
def test_names_are_sorted(names: list[str], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_names, "_AT_ONCE", at_once)
        assert asyncio.run(sort_in_turns([*names])) == sorted(names)


def test_many_turns_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of names in any order, and of those that the embedded store has sorted."""
    names = [f"orders-{number:05}" for number in range(30_000)]
    shuffled = random.Random(7).sample(names, len(names))
    turns: list[float] = []

    async def sleep(seconds: float) -> None:
        turns.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(sort_in_turns(shuffled)) == names
    assert 50 <= len(turns) <= 100
    turns.clear()
    assert asyncio.run(sort_in_turns([*names])) == names
    assert len(turns) == 30, "nothing is merged"
