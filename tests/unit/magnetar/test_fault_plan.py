"""Which message meets which fault: by seed, and for each kind by itself."""

from datetime import timedelta

import pytest

from magnetar.duration import Duration, milliseconds
from magnetar.fault_injection import FaultPlan, FaultRates


def met(plan: FaultPlan, fault: str, count: int = 200) -> list[int]:
    return [number for number in range(count) if plan.meets(fault)]


def test_the_same_seed_makes_the_same_faults() -> None:
    plan = FaultPlan()
    assert met(plan, "fence") == []
    assert not plan.is_active
    plan.set(7, FaultRates(fence=0.1))
    first = met(plan, "fence")
    assert 5 < len(first) < 40
    plan.set(7, FaultRates(fence=0.1, unload=0.5))
    assert met(plan, "unload") != first
    assert met(plan, "fence") == first
    plan.set(8, FaultRates(fence=0.1))
    assert met(plan, "fence") != first
    plan.set(8, FaultRates(fence=1))
    assert met(plan, "fence", 5) == [0, 1, 2, 3, 4]


def test_a_message_is_delivered_again_once() -> None:
    plan = FaultPlan()
    plan.set(0, FaultRates(duplicate=1))
    assert plan.is_delivered_again("s", (1, 0))
    assert not plan.is_delivered_again("s", (1, 0))
    assert plan.is_delivered_again("other", (1, 0))
    plan.set(0, FaultRates(duplicate=1))
    assert plan.is_delivered_again("s", (1, 0))


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(ValueError, match="slow_disk="):
        FaultRates(slow_disk=rate)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("2h", 7_200_000),
        ("1d 12h", 129_600_000),
        ("1h30m", 5_400_000),
        ("500ms", 500),
        ("1.5s", 1500),
        (90, 90_000),
        (0.0001, 1),
        (timedelta(days=1), 86_400_000),
        (0, 0),
    ],
)
def test_durations(duration: Duration, expected: int) -> None:
    assert milliseconds(duration) == expected


@pytest.mark.parametrize(
    "duration",
    [
        "",
        "2",
        "2 hours",
        "-1h",
        "1h,",
        -1,
        timedelta(-1),
        float("inf"),
        float("nan"),
        "9" * 400 + "h",
    ],
)
def test_what_is_no_duration(duration: Duration) -> None:
    with pytest.raises(ValueError, match=r"duration|back"):
        milliseconds(duration)


def test_the_next_process_goes_on_where_a_kill_ended_the_one_before() -> None:
    rates = FaultRates(kill=0.3, unload=0.4)
    whole, before, after = FaultPlan(), FaultPlan(), FaultPlan()
    whole.set(7, rates)
    before.set(7, rates)
    expected = [(whole.meets("kill"), whole.meets("unload")) for _ in range(40)]
    met = [(before.meets("kill"), before.meets("unload")) for _ in range(15)]
    after.set(7, rates, drawn=before.drawn)
    met += [(after.meets("kill"), after.meets("unload")) for _ in range(25)]
    assert met == expected
