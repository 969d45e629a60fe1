"""Token buckets under simulated time: what may pass, and that nothing waits longer than it must."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.rate_limits.token_bucket import (
    UNLIMITED,
    SubscribeRateLimiter,
    TokenBucket,
    TokenBuckets,
)

rates = st.integers(1, 1_000_000)
periods = st.integers(1, 60_000)


@given(rates, periods, st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 2_000_000))))
def test_no_more_passes_than_the_rate_a_burst_and_one_piece(
    rate: int, period_ms: int, steps: list[tuple[int, int]]
) -> None:
    """Whoever waits until there is room, and only then takes a piece, keeps the bound."""
    bucket, now_ms, taken, largest = TokenBucket(rate, period_ms, 0), 0, 0, 0
    for pause_ms, piece in steps:
        now_ms += pause_ms + bucket.wait_ms(now_ms + pause_ms)
        before_ms, before = now_ms, taken
        bucket.take(piece, now_ms)
        taken += piece
        largest = max(largest, piece)
        assert before <= rate * before_ms / period_ms + rate + largest


@given(rates, periods, st.integers(0, 3_000_000), st.integers(0, 100_000))
def test_the_wait_is_exactly_long_enough(
    rate: int, period_ms: int, piece: int, later_ms: int
) -> None:
    bucket = TokenBucket(rate, period_ms, 0)
    bucket.take(piece, 0)
    wait_ms = bucket.wait_ms(later_ms)
    assert (wait_ms == 0) == (bucket.room(later_ms) >= 1)
    if wait_ms:
        assert bucket.room(later_ms + wait_ms - 1) < 1
        assert bucket.room(later_ms + wait_ms) >= 1


@given(rates, periods, st.integers(0, 10**9))
def test_an_idle_bucket_holds_one_period(rate: int, period_ms: int, idle_ms: int) -> None:
    bucket = TokenBucket(rate, period_ms, 0)
    assert bucket.room(idle_ms) == rate
    assert bucket.is_full(idle_ms)


def test_the_mean_rate_is_reached_and_not_exceeded() -> None:
    """An hour of greed in pieces of up to 700 at 1,000 a second, and at one in 7 seconds."""
    for rate, period_ms in ((1_000, 1_000), (1, 7_000)):
        rng, bucket = random.Random(rate), TokenBucket(rate, period_ms, 0)
        now_ms = taken = piece = 0
        while now_ms < 3_600_000:
            piece = rng.randint(1, 700)
            bucket.take(piece, now_ms)
            taken += piece
            now_ms += bucket.wait_ms(now_ms)
        allowed = rate * now_ms / period_ms
        assert allowed - rate - 700 <= taken <= allowed + rate + 700


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    bucket = TokenBucket(10, 1_000, 50_000)
    bucket.take(10, 50_000)
    assert bucket.room(40_000) == 0
    assert bucket.room(50_000) == 0
    assert bucket.room(50_100) == 1


def test_a_changed_rate_keeps_the_debt() -> None:
    bucket = TokenBucket(100, 1_000, 0)
    bucket.take(300, 0)
    bucket.change(1_000, 1_000, 0)
    assert bucket.room(0) == -200
    assert bucket.wait_ms(0) == 201
    bucket.change(10, 10_000, 0)  # ten times the period, the tokens stay tokens
    assert bucket.room(0) == -200
    assert bucket.room(200_000) == 0


def test_a_lower_rate_takes_the_burst_with_it() -> None:
    bucket = TokenBucket(1_000, 1_000, 0)
    bucket.change(10, 1_000, 0)
    assert bucket.room(0) == 10


def test_the_tighter_of_messages_and_bytes_counts() -> None:
    limiter = TokenBuckets(10, 1_000, 1_000, 0)
    limiter.take(1, 3_000, 0)
    assert limiter.room(0) == (9, -2_000)
    assert limiter.wait_ms(0) == 2_001
    limiter.take(100, 0, 0)
    assert limiter.wait_ms(0) == 9_200  # 91 messages owed, and one more to go on


def test_no_limit_means_room_for_everything() -> None:
    limiter = TokenBuckets(0, 0, 1_000, 0)
    limiter.take(10**12, 10**15, 0)
    assert limiter.room(0) == (UNLIMITED, UNLIMITED)
    assert limiter.wait_ms(0) == 0


def test_a_limit_that_comes_and_goes() -> None:
    limiter = TokenBuckets(5, 0, 1_000, 0)
    limiter.take(6, 0, 0)
    limiter.change(5, 100, 1_000, 0)
    assert limiter.room(0) == (-1, 100)
    limiter.change(0, 100, 1_000, 0)
    assert limiter.wait_ms(0) == 0
    limiter.change(5, 100, 1_000, 0)
    assert limiter.room(0) == (5, 100)  # a new limit begins without the old one's debt


def test_each_consumer_subscribes_at_its_own_rate() -> None:
    limiter = SubscribeRateLimiter(2, 30_000)
    assert [limiter.admit("a", 0) for _ in range(3)] == [True, True, False]
    assert limiter.admit("b", 0)
    assert not limiter.admit("a", 14_999)
    assert limiter.admit("a", 15_000)
    assert not limiter.admit("a", 15_000)
    limiter.change(2, 1_000, 15_000)
    assert limiter.admit("a", 15_500)


@pytest.mark.parametrize("clients", [1_000, 50_000])
def test_identities_that_went_are_forgotten(clients: int) -> None:
    limiter = SubscribeRateLimiter(1, 1_000)
    for number in range(clients):
        assert limiter.admit(number, number)  # one a millisecond: a thousand are not full again
    assert len(limiter._buckets) <= 2_100
    assert not limiter.admit(clients - 1, clients)
