"""Which quota a backlog exceeds."""

import pytest

from magnetar.broker.config import BrokerConfig
from magnetar.broker.policies.effective import BacklogQuota, EffectivePolicies
from magnetar.broker.topic.backlog_quota import (
    AGE,
    HOLD,
    SIZE,
    OldestMessage,
    eviction_target,
    exceeded,
    limits_age,
    limits_size,
    used,
)


def quotas(limit_bytes: int = -1, limit_s: int = -1) -> dict[str, BacklogQuota]:
    return {
        SIZE: BacklogQuota(limit_bytes, 1, HOLD),  # its time and the other's size mean nothing
        AGE: BacklogQuota(1, limit_s, HOLD),
    }


@pytest.mark.parametrize(
    ("limit_bytes", "limit_s", "size", "age_s", "expected"),
    [
        (-1, -1, 10**15, 10**9, None),
        (1_000, -1, 999, 10**9, None),
        (1_000, -1, 1_000, None, SIZE),
        (0, -1, 0, None, SIZE),  # as Pulsar: nothing at all is allowed
        (-1, 60, 10**15, 60, None),
        (-1, 60, 0, 61, AGE),
        (-1, 60, 0, None, None),
        (-1, 0, 0, 10**9, None),
        (1_000, 60, 1_000, 61, SIZE),
    ],
)
def test_what_is_exceeded(
    limit_bytes: int, limit_s: int, size: int, age_s: int | None, expected: str | None
) -> None:
    found = quotas(limit_bytes, limit_s)
    assert exceeded(found, size, age_s) == expected
    assert limits_size(found) == (limit_bytes >= 0)
    assert limits_age(found) == (limit_s > 0)


@pytest.mark.parametrize(
    ("limit_bytes", "limit_s", "size", "age_s", "expected"),
    [
        (-1, -1, 10**9, 10**9, None),
        (1_000, -1, 800, 10**9, 0.8),
        (0, -1, 0, None, 1.0),
        (-1, 60, 10**9, 30, 0.5),
        (-1, 60, 0, None, 0.0),
        (1_000, 60, 900, 30, 0.9),
    ],
)
def test_how_much_is_used(
    limit_bytes: int, limit_s: int, size: int, age_s: int | None, expected: float | None
) -> None:
    assert used(quotas(limit_bytes, limit_s), size, age_s) == expected


def test_an_eviction_leaves_a_tenth_of_room() -> None:
    assert eviction_target(10_000) == 9_000
    assert eviction_target(0) == 0


def test_the_age_of_a_message_from_the_future_is_nothing() -> None:
    assert OldestMessage("s", 10_000).age_s(9_000) == 0
    assert OldestMessage("s", 10_000).age_s(71_999) == 61


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, -1),
        ({"backlogQuotaDefaultLimitBytes": "1000"}, 1_000),
        ({"backlogQuotaDefaultLimitBytes": "1000", "backlogQuotaDefaultLimitGB": "1.5"}, 3 << 29),
        ({"backlogQuotaDefaultLimitGB": "-1"}, -1),
        ({"backlogQuotaDefaultLimitGB": "inf"}, 1 << 60),
    ],
)
def test_the_broker_s_default_by_gigabytes_or_bytes(
    settings: dict[str, str], expected: int
) -> None:
    config = BrokerConfig.load(environment={}, overrides=settings)
    assert EffectivePolicies({}, config).backlog_quotas[SIZE].limit_bytes == expected
    assert "backlogQuotaDefaultLimitGB" in config.as_keys()
