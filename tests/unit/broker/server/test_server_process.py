"""Which collections of garbage a server's process makes. What is frozen is no part of the tests."""

import gc
from collections.abc import Iterator

import pytest

from magnetar.broker.server.server_process import freeze_objects
from magnetar.broker.service.memory import collect_all


class Cycle:
    ended = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        Cycle.ended += 1


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    Cycle.ended = 0
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    gc.collect()


@pytest.mark.parametrize("grows", [True, False])
def test_what_was_made_lately_is_walked_unless_it_stays(*, grows: bool) -> None:
    asked = list[bool]()

    def is_growth() -> bool:
        asked.append(grows)
        return grows

    freeze_objects(is_growth)
    frozen, young_objects = gc.get_freeze_count(), gc.get_threshold()[0]
    Cycle()
    held = [[number] for number in range(young_objects + 1_000)]
    assert asked == [grows]
    assert Cycle.ended == (not grows)
    assert (gc.get_freeze_count() > frozen + young_objects // 2) == grows
    asked.clear()
    collect_all()
    assert Cycle.ended == 1, "of a frozen one, too"
    assert not any(each is held for each in gc.get_objects()), "what stays is frozen again"
    assert not asked


def test_a_process_that_has_frozen_nothing_stays_so() -> None:
    Cycle()
    collect_all()
    assert (Cycle.ended, gc.get_freeze_count()) == (1, 0)
