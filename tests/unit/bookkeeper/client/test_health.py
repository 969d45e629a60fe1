"""Failures are counted and forgotten; too many of them mean quarantine."""

import random

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.config import HealthConfig
from magnetar.bookkeeper.client.health import BookieHealth

CONFIG = HealthConfig(
    enabled=True,
    error_threshold=3,
    interval_ms=1_000,
    quarantine_ms=10_000,
    failure_memory_ms=5_000,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def make(config: HealthConfig = CONFIG, seed: int = 1) -> tuple[BookieHealth, Clock]:
    clock = Clock()
    return BookieHealth(config, clock, random.Random(seed)), clock


def fail(health: BookieHealth, bookie: str, times: int) -> None:
    for _ in range(times):
        health.note_error(bookie)


def test_the_threshold_within_an_interval_means_quarantine_and_time_ends_it() -> None:
    health, clock = make()
    fail(health, "a", 2)
    fail(health, "b", 1)
    assert not health.is_quarantined("a")
    clock.now += 999
    fail(health, "a", 1)
    assert health.is_quarantined("a")
    assert health.quarantined() == {"a"}
    assert not health.is_quarantined("b")
    clock.now += 9_999
    assert health.quarantined() == {"a"}
    clock.now += 1
    assert health.quarantined() == frozenset()
    assert not health.is_quarantined("a")


def test_errors_of_an_earlier_interval_do_not_count() -> None:
    health, clock = make()
    for _ in range(10):
        fail(health, "a", 2)
        clock.now += 1_000
    assert not health.is_quarantined("a")


def test_more_errors_in_quarantine_make_it_longer_in_the_next_interval_only() -> None:
    health, clock = make()
    fail(health, "a", 30)
    clock.now += 5_000
    fail(health, "a", 3)
    clock.now += 9_999
    assert health.is_quarantined("a")
    clock.now += 1
    assert not health.is_quarantined("a")


def test_failures_are_remembered_for_a_while() -> None:
    health, clock = make()
    assert health.last_failure_ms("a") is None
    health.note_error("a")
    failed_at = clock.now
    clock.now += 4_999
    assert health.last_failure_ms("a") == failed_at
    clock.now += 1
    assert health.last_failure_ms("a") is None
    assert health.last_failure_ms("a") is None


def test_forgetting_a_failure_does_not_end_a_quarantine() -> None:
    health, clock = make()
    fail(health, "a", 3)
    clock.now += 5_000
    assert health.last_failure_ms("a") is None
    assert health.quarantined() == {"a"}


def test_a_short_memory_keeps_the_count_of_the_interval() -> None:
    health, clock = make(
        HealthConfig(enabled=True, error_threshold=2, interval_ms=1_000, failure_memory_ms=10)
    )
    health.note_error("a")
    clock.now += 20
    assert health.last_failure_ms("a") is None
    health.note_error("a")
    assert health.is_quarantined("a")


def test_another_process_is_not_in_quarantine_for_the_former_one() -> None:
    health, _ = make()
    health.note_restarted("a")  # nothing to end, and nothing used up
    fail(health, "a", 3)
    fail(health, "b", 3)
    health.note_restarted("a")
    assert health.quarantined() == {"b"}
    assert health.last_failure_ms("a") is not None
    assert health.recent_failures("a") == 0
    fail(health, "a", 2)
    assert health.quarantined() == {"b"}
    fail(health, "a", 1)
    assert health.quarantined() == {"a", "b"}


def test_failures_below_the_threshold_are_those_of_the_former_process_too() -> None:
    health, clock = make()
    fail(health, "a", 2)
    health.note_restarted("a")
    fail(health, "a", 2)
    assert not health.is_quarantined("a")
    health.note_restarted("a")  # within the time of quarantine: they count
    fail(health, "a", 1)
    assert health.is_quarantined("a")
    clock.now += 10_000
    fail(health, "a", 1)
    clock.now += 1_000  # an interval that is over counts for nothing, and uses nothing up
    health.note_restarted("a")
    fail(health, "a", 3)
    assert health.is_quarantined("a")
    health.note_restarted("a")
    assert not health.is_quarantined("a")


def test_who_keeps_coming_and_failing_stays_in_quarantine() -> None:
    health, clock = make()
    for _ in range(10):  # each time as if for the first time
        fail(health, "a", 3)
        health.note_restarted("a")
        first_end = clock.now + 10_000
        assert not health.is_quarantined("a")
        while clock.now < first_end - 1_000:
            clock.now += 1_000
            fail(health, "a", 3)
            assert health.last_failure_ms("b") is None
            health.note_restarted("a")
            assert health.is_quarantined("a")
        clock.now += 1_000


def test_a_used_excuse_outlives_the_memory_of_failures() -> None:
    health, clock = make()
    fail(health, "a", 3)
    health.note_restarted("a")
    clock.now += 9_000
    assert health.last_failure_ms("a") is None
    fail(health, "a", 3)
    health.note_restarted("a")
    assert health.is_quarantined("a")
    clock.now += 10_000
    assert not health.is_quarantined("a")
    assert health.last_failure_ms("a") is None
    fail(health, "a", 3)
    health.note_restarted("a")
    assert not health.is_quarantined("a")


def test_release_all() -> None:
    health, _ = make()
    fail(health, "a", 3)
    fail(health, "b", 3)
    health.release_all()
    assert health.quarantined() == frozenset()
    assert health.last_failure_ms("a") is not None


def test_an_operator_switches_it_off_and_on() -> None:
    health, clock = make()
    told: list[tuple[str, int]] = []
    health.on_quarantine = lambda bookie, for_ms: told.append((bookie, for_ms))
    fail(health, "a", 3)
    health.switch(on=False)
    assert health.quarantined() == frozenset()
    clock.now += 1_000
    fail(health, "a", 3)
    assert health.quarantined() == frozenset()
    health.switch(on=True)
    clock.now += 1_000
    fail(health, "a", 4)
    assert health.quarantined() == {"a"}
    assert told == [("a", 10_000)] * 2
    never, _ = make(HealthConfig(enabled=False, error_threshold=1))
    never.switch(on=True)
    fail(never, "a", 1)
    assert not never.is_quarantined("a")


def test_switched_off_it_only_remembers() -> None:
    health, _ = make(HealthConfig(enabled=False, error_threshold=1))
    fail(health, "a", 10)
    assert health.quarantined() == frozenset()
    assert health.last_failure_ms("a") is not None


def test_the_ratio_is_the_share_of_quarantines() -> None:
    config = HealthConfig(enabled=True, error_threshold=1, quarantine_ratio=0.25)
    health, _ = make(config, seed=11)
    rng = random.Random(11)
    expected = {f"b{n}" for n in range(400) if rng.random() < 0.25}
    for n in range(400):
        fail(health, f"b{n}", 5)
    assert health.quarantined() == expected
    assert 60 < len(expected) < 140


def test_only_answers_of_an_ill_bookie_count() -> None:
    health, _ = make(HealthConfig(enabled=True, error_threshold=1))
    for code, name in enumerate(codes.CODE_NAMES):
        health.note_code(name, code)
    assert health.quarantined() == {"UNAVAILABLE", "IO_ERROR", "TOO_MANY_REQUESTS"}


@pytest.mark.parametrize(
    "bad", [{"error_threshold": 0}, {"interval_ms": -1}, {"quarantine_ratio": 1.5}]
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"health|ratio"):
        HealthConfig(**bad)  # type: ignore[arg-type]  # fields by name
