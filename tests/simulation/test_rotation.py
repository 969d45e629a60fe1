"""A tenth of all planted bugs, another one for each commit, and each must be noticed."""

import asyncio
import itertools
import logging
from collections.abc import Iterator

import pytest

from tests.simulation import rotation, simulator
from tests.simulation.plant import planted

TURN = rotation.turn()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("group", "name"), rotation.chosen(TURN))
def test_a_planted_bug_is_noticed(group: str, name: str) -> None:
    told = rotation.search(group, name)
    print(f"turn {TURN % rotation.TURNS} of {rotation.TURNS}: {name}: {told}")
    assert told is not None, f"{name}: nobody notices"
    assert not any(kind in told for kind in rotation.BROKEN_PLANT), f"the plant doesn't fit: {told}"


def test_every_bug_has_its_place_in_the_code() -> None:
    """Else its turn would say so, up to nine commits later."""
    for group, name in rotation.ALL:
        with planted(rotation.LISTS[group][name].plant):
            pass


def test_ten_runs_in_a_row_plant_every_bug() -> None:
    for first in (0, 7):
        planted = [each for number in range(10) for each in rotation.chosen(first + number)]
        assert sorted(planted) == sorted(rotation.ALL)


def test_what_is_noted_about_bugs_is_about_bugs() -> None:
    names = {name for _, name in rotation.ALL}
    assert len(names) == len(rotation.ALL)
    assert {*rotation.NEAR, *rotation.WORLD} <= names


def test_a_run_that_goes_on_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_TURNS_MAX", 1_000)

    async def go_on(_: simulator.Simulator) -> None:
        for second in itertools.count():
            await asyncio.sleep(second)

    with pytest.raises(AssertionError, match="not over after 1000 turns"):
        simulator.run_simulation(0, go_on)
