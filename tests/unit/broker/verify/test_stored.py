"""The checks themselves: honest histories pass, and each planted fault is named."""

from collections.abc import Callable

import pytest

from magnetar.broker.verify.history import Rule
from magnetar.broker.verify.stored import check_numbers, check_stored
from tests.history import history_of
from tests.raw_client import Position

#: Ten messages in two ledgers; number 3 was sent, and is not stored.
LOG: dict[Position, int] = {
    (ledger, entry): number
    for (ledger, entry), number in zip(
        [(4, n) for n in range(6)] + [(7, n) for n in range(4)],
        [0, 1, 2, 4, 5, 6, 7, 8, 9, 10],
        strict=True,
    )
}
POSITIONS = list(LOG)
RECEIPTS = {number: at for at, number in LOG.items() if number not in (2, 10)}


def test_an_honest_log_passes() -> None:
    assert check_stored(history_of(LOG, RECEIPTS, sent=11)).violations == []
    assert check_stored(history_of({}, {})).violations == []


def swapped(log: dict[Position, int]) -> dict[Position, int]:
    return {**log, (4, 1): 2, (4, 2): 1}


def without(number: int) -> Callable[[dict[Position, int]], dict[Position, int]]:
    return lambda log: {at: n for at, n in log.items() if n != number}


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        pytest.param(without(6), Rule.LOST, id="lost"),
        pytest.param(without(0), Rule.LOST, id="the first is lost"),
        pytest.param(without(9), Rule.LOST, id="the last is lost"),
        pytest.param(swapped, Rule.REORDERED, id="order"),
        pytest.param(lambda log: {**log, (7, 4): 9}, Rule.DUPLICATED, id="stored twice"),
        pytest.param(lambda log: {**log, (7, 4): 77}, Rule.INVENTED, id="invented"),
        pytest.param(
            lambda log: {(7, 9) if at == (7, 3) else at: n for at, n in log.items()} | {(7, 3): 11},
            Rule.REORDERED,
            id="positions",
        ),
        pytest.param(
            lambda log: {(at[0] + 1, at[1]): n for at, n in log.items()}, Rule.MOVED, id="moved"
        ),
    ],
)
def test_a_fault_in_the_log_is_named(
    fault: Callable[[dict[Position, int]], dict[Position, int]], rule: Rule
) -> None:
    violations = check_stored(history_of(fault(LOG), RECEIPTS, sent=12)).violations
    assert rule in {each.rule for each in violations}


def test_what_was_damaged_is_named() -> None:
    history = history_of(LOG, {})
    history.stored[3] = (history.stored[3][0], None)
    (violation,) = check_stored(history).violations
    assert (violation.rule, violation.position) == (Rule.DAMAGED, (4, 3))


def test_what_was_sent_again_may_be_stored_twice_unless_deduplicated() -> None:
    log = {(1, n): number for n, number in enumerate([0, 1, 2, 1, 2, 3])}
    history = history_of(log, {n: (1, (0, 3, 4, 5)[n]) for n in range(4)})
    history.window = 2
    verdict = check_stored(history)
    assert (verdict.violations, verdict.repeated) == ([], 2)
    history.window = 0
    assert {each.rule for each in check_stored(history).violations} == {Rule.DUPLICATED}


def test_a_duplicate_that_was_dropped_has_to_be_stored_once() -> None:
    history = history_of({(1, 0): 0}, {0: (1, 0)}, sent=2)
    history.receipts += [(("sender", 0), None)]
    assert check_stored(history).violations == []
    history.receipts += [(("sender", 1), None)]
    assert [each.rule for each in check_stored(history).violations] == [Rule.LOST]


def test_honest_numbers_pass_and_repetitions_are_counted() -> None:
    for numbers, window, repeated in (
        ([0, 1, 2, 3], 0, 0),
        ([0, 1, 2, 1, 2, 3], 2, 2),
        ([0, 1, 2, 0, 1, 2, 3, 4], None, 3),
    ):
        verdict = check_numbers(numbers, range(4), window)
        assert (verdict.violations, verdict.repeated) == ([], repeated)


@pytest.mark.parametrize(
    ("numbers", "window", "rule"),
    [
        ([0, 2, 3], 1, Rule.LOST),
        ([1, 2, 3], None, Rule.LOST),
        ([0, 2, 1, 3], None, Rule.REORDERED),
        ([0, 1, 2, 0, 3], 2, Rule.DUPLICATED),
        ([0, 1, 1, 2, 3], 0, Rule.DUPLICATED),
        ([0, 1, 2], None, Rule.LOST),
    ],
)
def test_a_fault_in_numbers_is_named(numbers: list[int], window: int | None, rule: Rule) -> None:
    assert [each.rule for each in check_numbers(numbers, range(4), window).violations] == [rule]
