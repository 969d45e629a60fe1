"""Zones by watermark: hysteresis, settle time, an operator's release."""

import pytest

from magnetar.bookkeeper.replication.zones import ZoneConfig, ZonePhase, Zones, zone_of

CONFIG = ZoneConfig(low_watermark=0.5, high_watermark=0.8, settle_ms=1000)


def _up(**counts: tuple[int, int]) -> Zones:
    zones = Zones(CONFIG, {})
    assert zones.on_counts(0, counts) == []
    return zones


def test_a_zone_is_down_once_its_ratio_was_low_for_the_settle_time() -> None:
    zones = _up(a=(10, 10), b=(10, 10))
    assert zones.on_counts(100, {"a": (4, 10), "b": (10, 10)}) == []
    assert zones.is_blocked("a")  # nothing is repaired while it settles
    assert not zones.is_blocked("b")
    assert zones.next_deadline_ms() == 1100
    assert zones.advance(1099) == []
    (change,) = zones.advance(1100)
    assert (change.zone, change.phase, change.available, change.total) == (
        "a",
        ZonePhase.DOWN,
        4,
        10,
    )
    assert zones.phases() == {"a": ZonePhase.DOWN}
    assert zones.next_deadline_ms() is None


def test_a_short_dip_is_forgotten() -> None:
    zones = _up(a=(10, 10))
    zones.on_counts(100, {"a": (4, 10)})
    assert zones.on_counts(1000, {"a": (5, 10)}) == []  # the low watermark itself isn't below it
    assert not zones.is_blocked("a")
    zones.on_counts(1050, {"a": (4, 10)})
    assert zones.advance(1100) == []  # the time begins anew
    assert zones.advance(2050) != []


def test_between_the_watermarks_a_zone_stays_what_it_is() -> None:
    zones = _up(a=(10, 10), b=(10, 10))
    zones.on_counts(0, {"a": (0, 10), "b": (7, 10)})
    zones.advance(1000)
    zones.on_disabled()
    for now_ms, available in ((2000, 7), (4000, 5), (6000, 7)):
        assert zones.on_counts(now_ms, {"a": (available, 10), "b": (available, 10)}) == []
        assert zones.advance(now_ms + 1500) == []
    assert zones.phases() == {"a": ZonePhase.HELD}
    assert zones.on_counts(8000, {"a": (8, 10), "b": (8, 10)}) == []
    assert zones.is_blocked("a")
    (change,) = zones.advance(9000)
    assert (change.zone, change.phase) == ("a", ZonePhase.UP)
    assert not zones.is_blocked("a")


def test_one_lost_bookie_is_no_outage_however_small_the_zone() -> None:
    zones = _up(a=(1, 1), b=(2, 2))
    zones.on_counts(0, {"a": (0, 1), "b": (2, 2)})
    assert zones.advance(10_000) == []
    strict = Zones(ZoneConfig(losses_min=1, settle_ms=0), {})
    assert [each.zone for each in strict.on_counts(0, {"a": (0, 1)})] == ["a"]


def test_a_release_holds_until_the_zone_is_back() -> None:
    zones = _up(a=(3, 3), b=(3, 3))
    zones.on_counts(0, {"a": (0, 3), "b": (3, 3)})
    zones.advance(1000)
    assert zones.on_enabled() == []  # its switch-off isn't proven: this can't be an answer to it
    assert zones.on_disabled()
    (change,) = zones.on_enabled()
    assert change.phase is ZonePhase.RELEASED
    assert not zones.is_blocked("a")
    assert zones.advance(100_000) == []
    assert zones.on_counts(200_000, {"a": (3, 3), "b": (3, 3)}) == []
    zones.advance(201_000)
    assert zones.phases() == {}
    zones.on_counts(300_000, {"a": (0, 3), "b": (3, 3)})
    assert zones.advance(301_000)[0].phase is ZonePhase.DOWN  # the next outage is another one


def test_all_zones_down_blocks_even_what_has_no_zone() -> None:
    zones = _up(a=(3, 3), b=(3, 3))
    assert not zones.is_blocked(None)
    zones.on_counts(0, {"a": (0, 3), "b": (1, 3)})
    assert zones.all_blocked
    assert zones.is_blocked(None)


def test_an_empty_zone_has_no_state() -> None:
    zones = Zones(CONFIG, {"a": ZonePhase.HELD, "b": ZonePhase.HELD})
    (change,) = zones.on_counts(0, {"b": (0, 3)})
    assert (change.zone, change.phase) == ("a", ZonePhase.UP)
    assert zones.on_counts(0, {"b": (0, 0)})[0].phase is ZonePhase.UP
    assert not zones.all_blocked


@pytest.mark.parametrize(
    "values",
    [
        {"low_watermark": 0.0},
        {"low_watermark": 0.7, "high_watermark": 0.7},
        {"high_watermark": 1.1},
        {"settle_ms": -1},
        {"losses_min": 0},
    ],
)
def test_settings_that_make_no_sense(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"watermarks|settle"):
        ZoneConfig(**values)  # type: ignore[arg-type]  # names by parametrize


def test_zone_of_a_place() -> None:
    assert zone_of("/eu-1a/ud3") == "eu-1a"
    assert zone_of("eu-1a") == "eu-1a"
    assert zone_of("/") == ""
