"""The judge itself: honest histories pass, and each way to lie is noticed."""

from collections.abc import Callable

import pytest

from tests.history_checker import Position, Session, check_numbers, check_sessions, check_stored

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


def session(first: int, end: int, asked: int = -1, confirmed: int = -1) -> Session:
    """Who saw the log's messages from ``first`` to before ``end``; -1: acknowledged nothing."""
    seen = [(at, LOG[at]) for at in POSITIONS[first:end]]
    return Session(seen, *(POSITIONS[n] if n >= 0 else (-1, -1) for n in (asked, confirmed)))


def test_an_honest_log_passes() -> None:
    check_stored(LOG, RECEIPTS, sent=11)
    check_stored({}, {})


def swapped(log: dict[Position, int]) -> dict[Position, int]:
    return {**log, (4, 1): 2, (4, 2): 1}


def without(number: int) -> Callable[[dict[Position, int]], dict[Position, int]]:
    return lambda log: {at: n for at, n in log.items() if n != number}


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        pytest.param(without(6), "1 acknowledged messages are lost", id="lost"),
        pytest.param(without(0), "1 acknowledged messages are lost", id="the first is lost"),
        pytest.param(without(9), "1 acknowledged messages are lost", id="the last is lost"),
        pytest.param(swapped, "out of order or doubled", id="order"),
        pytest.param(lambda log: {**log, (7, 4): 9}, "out of order or doubled", id="stored twice"),
        pytest.param(lambda log: {**log, (7, 4): 77}, "77 was never sent", id="invented"),
        pytest.param(
            lambda log: {(7, 9) if at == (7, 3) else at: n for at, n in log.items()} | {(7, 3): 11},
            "go backwards",
            id="positions",
        ),
        pytest.param(
            lambda log: {(at[0] + 1, at[1]): n for at, n in log.items()},
            "lost or moved",
            id="moved",
        ),
    ],
)
def test_a_lying_log_is_noticed(
    lie: Callable[[dict[Position, int]], dict[Position, int]], told: str
) -> None:
    with pytest.raises(AssertionError, match=told):
        check_stored(lie(LOG), RECEIPTS, sent=12)


@pytest.mark.parametrize(
    "sessions",
    [
        pytest.param([], id="nobody"),
        pytest.param([session(0, 10)], id="one"),
        pytest.param([session(0, 0), session(0, 3)], id="one that got nothing"),
        pytest.param([session(0, 6, 4, 4), session(5, 8, 7, 7), session(8, 10)], id="exact"),
        pytest.param([session(0, 6, 4, 1), session(2, 8)], id="the answer came, the write didn't"),
        pytest.param([session(0, 6, 4, 1), session(5, 8)], id="the write came, the answer didn't"),
        pytest.param([session(0, 6, 4, 1), session(3, 8)], id="in between"),
        pytest.param([session(0, 6, 4, 1), session(2, 4), session(5, 6)], id="stored later"),
    ],
)
def test_honest_consumers_pass(sessions: list[Session]) -> None:
    check_sessions(LOG, sessions)


HOLE = session(0, 8, 6, 6)
del HOLE.seen[4]
AGAIN = session(0, 4)
AGAIN.seen.append(AGAIN.seen[1])
SWAPPED = session(0, 4)
SWAPPED.seen[1:3] = reversed(SWAPPED.seen[1:3])


@pytest.mark.parametrize(
    ("sessions", "told"),
    [
        pytest.param([session(1, 4)], r"\[\(4, 0\)\] skipped", id="the first message is skipped"),
        pytest.param(
            [session(0, 6, 4, 4), session(6, 8)], r"\[\(4, 5\)\] skipped", id="one is skipped"
        ),
        pytest.param(
            [session(0, 10, 4, 4), session(9, 10)], "skipped", id="seen, and never acknowledged"
        ),
        pytest.param(
            [session(0, 8, 6, 1), session(2, 3), session(8, 9)], "skipped", id="skipped later"
        ),
        pytest.param([session(0, 6, 4, 4), session(4, 8)], "was confirmed up to", id="back"),
        pytest.param(
            [session(0, 6, 4, 4), session(5, 6), session(2, 3)], "was confirmed", id="back later"
        ),
        pytest.param([HOLE], r"\(4, 5\) comes after \(4, 3\)", id="a gap on one connection"),
        pytest.param([AGAIN], r"\(4, 1\) comes after \(4, 3\)", id="twice on one connection"),
        pytest.param([SWAPPED], "comes after", id="out of order"),
        pytest.param([Session([((4, 0), 5)])], "other content at", id="other content"),
        pytest.param([Session([((4, 9), 5)])], "was never stored", id="nothing was stored there"),
    ],
)
def test_lying_consumers_are_noticed(sessions: list[Session], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_sessions(LOG, sessions)


@pytest.mark.parametrize(
    ("asked", "confirmed"), [pytest.param(8, 8, id="not seen"), pytest.param(2, 3, id="not asked")]
)
def test_a_test_that_asks_for_what_it_has_not_got_fails(asked: int, confirmed: int) -> None:
    with pytest.raises(AssertionError):
        check_sessions(LOG, [session(0, 4, asked, confirmed)])


def test_honest_numbers_pass_and_repetitions_are_counted() -> None:
    assert check_numbers([0, 1, 2, 3], 4, window=0) == 0
    assert check_numbers([0, 1, 2, 1, 2, 3], 4, window=2) == 2
    assert check_numbers([0, 1, 2, 0, 1, 2, 3, 4], 4, window=None) == 3


@pytest.mark.parametrize(
    ("numbers", "window", "told"),
    [
        ([0, 2, 3], 1, "2 comes before 1"),
        ([1, 2, 3], None, "1 comes before 0"),
        ([0, 1, 2, 0, 3], 2, "0 again after 2"),
        ([0, 1, 1, 2, 3], 0, "1 again after 1"),
        ([0, 1, 2], None, "the end is missing: 3 of 4"),
    ],
)
def test_lying_numbers_are_noticed(numbers: list[int], window: int | None, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_numbers(numbers, 4, window)
