"""Which ledgers trimming takes."""

import pytest

from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.trim_path import Retention, last_is_due, ledgers_to_trim

LEDGERS = LedgerRows(
    [
        LedgerInfo(1, 10, 100, 1000),
        LedgerInfo(2, 10, 100, 2000),
        LedgerInfo(3, 10, 100, 3000),
        LedgerInfo(4),
    ]
)
ALL = 2**63


@pytest.mark.parametrize(
    ("slowest", "keep_from", "retention", "now_ms", "expected"),
    [
        (None, ALL, Retention(), 5000, [1, 2, 3]),
        (None, 3, Retention(), 5000, [1, 2]),
        (None, 1, Retention(), 5000, []),
        ((1, 8), ALL, Retention(), 5000, []),
        ((1, 9), ALL, Retention(), 5000, [1]),
        ((2, 8), ALL, Retention(), 5000, [1]),
        ((4, 3), ALL, Retention(), 5000, [1, 2, 3]),
        ((4, 3), ALL, Retention(2500, -1), 5000, [1, 2]),
        ((4, 3), ALL, Retention(-1, -1), 5000, []),
        ((4, 3), ALL, Retention(-1, 250), 5000, [1]),
        ((4, 3), ALL, Retention(-1, 1000), 5000, []),
        ((4, 3), ALL, Retention(4000, 150), 5000, [1, 2]),
        ((4, 3), ALL, Retention(1, -1), 500, []),  # the clock went back: nothing is old
        ((1, 9), ALL, Retention(1, -1), 5000, [1]),
    ],
)
def test_trim(
    slowest: Position | None,
    keep_from: int,
    retention: Retention,
    now_ms: int,
    expected: list[int],
) -> None:
    assert ledgers_to_trim(LEDGERS, slowest, keep_from, retention, now_ms) == expected


def test_the_last_ledger_and_unclosed_ones_stay() -> None:
    closed = LedgerRows([LedgerInfo(1, 1, 1, 1), LedgerInfo(2, 1, 1, 1)])
    assert ledgers_to_trim(closed, None, ALL, Retention(), 9) == [1]
    unclosed = LedgerRows([LedgerInfo(1), LedgerInfo(2), LedgerInfo(3)])
    assert ledgers_to_trim(unclosed, None, ALL, Retention(), 9) == []
    assert ledgers_to_trim(LedgerRows(), None, ALL, Retention(), 9) == []


@pytest.mark.parametrize(
    ("last", "slowest", "retention", "now_ms", "is_due"),
    [
        (LedgerInfo(1, 10, 100, 1000), None, Retention(), 1000, True),
        (LedgerInfo(1, 10, 100, 1000), (1, 9), Retention(500, -1), 1500, True),
        (LedgerInfo(1, 10, 100, 1000), (1, 9), Retention(500, -1), 1499, False),
        (LedgerInfo(1, 10, 100, 1000), (1, 8), Retention(), 5000, False),  # a backlog
        (LedgerInfo(1, 10, 100, 1000), None, Retention(-1, -1), 5000, False),
        (LedgerInfo(1, 0, 0, 1000), None, Retention(), 5000, False),  # nothing to free
        (LedgerInfo(1), None, Retention(), 5000, False),
    ],
)
def test_the_last_ledger_is_due_as_others_are(
    last: LedgerInfo,
    slowest: Position | None,
    retention: Retention,
    now_ms: int,
    is_due: bool,
) -> None:
    assert last_is_due(LedgerRows([last]), slowest, retention, now_ms) is is_due
    two = LedgerRows([last, LedgerInfo(2, 1, 1, 1000)])
    assert not last_is_due(two, slowest, retention, now_ms)
    if is_due:
        assert ledgers_to_trim(two, slowest, ALL, retention, now_ms) == [1]
