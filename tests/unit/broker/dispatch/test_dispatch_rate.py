"""Dispatch under rate limits, by a clock that the test moves."""

import random
from typing import Any, cast

import pytest

from magnetar.broker.policies.effective import Rate
from magnetar.broker.rate_limits.rate_limiter import CAUGHT_UP_ENTRIES, RateLimiter
from magnetar.broker.subscription.consumer import EXCLUSIVE, KEY_SHARED, SHARED
from tests.manual_clock import ManualLoop
from tests.unit.broker.dispatch.builders import Bench, FakeSink, settle
from tests.unit.broker.dispatch.doubles import head


def limited(sizes: list[int], rate: Rate, **settings: Any) -> tuple[Bench, ManualLoop]:
    """A subscription with a dispatch rate of its own."""
    bench, loop = Bench(sizes, **settings), ManualLoop()
    share(bench, RateLimiter(rate, cast("Any", loop)))
    return bench, loop


def share(bench: Bench, throttle: RateLimiter) -> None:
    """Put a throttle in place of the topic's."""
    bench.topic.rate_limits.dispatch = throttle
    bench.subscription.policies_changed()


def append(bench: Bench, count: int, entry_head: bytes) -> None:
    for _ in range(count):
        bench.ledger.append(entry_head)


async def pass_time(loop: ManualLoop, milliseconds: int) -> None:
    for _ in range(0, milliseconds, 10):
        loop.advance(10)
        await settle(4)


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED, KEY_SHARED])
async def test_messages_come_at_the_rate(sub_type: int) -> None:
    bench, loop = limited([500, 500], Rate(100, 0))
    _, sink = await bench.consumer(sub_type, permits=5_000)
    await settle()
    assert len(sink.got) == 100  # what a period admits may come at once
    for second in range(1, 9):
        await pass_time(loop, 1_000)
        assert 100 * second <= len(sink.got) <= 100 * (second + 1)
    await pass_time(loop, 1_500)
    assert sorted(sink.got) == bench.ledger.positions()
    events = bench.subscription.stats(0)
    assert events["dispatchThrottledMsgEventsByTopicLimit"] > 0
    assert events["dispatchThrottledBytesEventsByTopicLimit"] == 0
    assert loop.timers == 0


async def test_bytes_come_at_the_rate() -> None:
    bench, loop = limited([1_000], Rate(0, 100))
    _, sink = await bench.consumer(SHARED, permits=5_000)
    size = bench.ledger.total_bytes // 1_000 - len(head())  # bodies count, heads don't leave
    for _ in range(5):
        await pass_time(loop, 1_000)
    assert 500 <= len(sink.got) * size <= 600 + size + len(head())
    assert bench.subscription.stats(0)["dispatchThrottledBytesEventsByTopicLimit"] > 0


@pytest.mark.parametrize("by_entries", [False, True])
async def test_batches_count_by_their_messages_or_as_one(by_entries: bool) -> None:
    bench, loop = limited([], Rate(100, 0), dispatch_throttling_on_batch_message_enabled=by_entries)
    append(bench, 1_000, head(10))
    _, sink = await bench.consumer(SHARED, permits=50_000)
    await pass_time(loop, 5_000)
    expected = 500 if by_entries else 50
    # A debt of what a read brought before one knew that entries are batches is worked off.
    assert expected <= len(sink.got) <= expected + 110


@pytest.mark.parametrize("seed", range(10))
async def test_two_subscriptions_share_their_topic_s_rate(seed: int) -> None:
    rng = random.Random(seed)
    one, loop = limited([4_000], Rate(rng.randint(20, 200), 0))
    other = Bench([4_000])
    throttle = one.topic.rate_limits.dispatch
    assert throttle is not None
    share(other, throttle)
    sinks: list[FakeSink] = []
    for bench in (one, other):
        _, sink = await bench.consumer(rng.choice((EXCLUSIVE, SHARED)), permits=10_000)
        sinks.append(sink)
    for _ in range(10):
        await pass_time(loop, 1_000)
    counts = [len(sink.got) for sink in sinks]
    assert throttle.rate.messages * 10 <= sum(counts) <= throttle.rate.messages * 12
    assert min(counts) >= max(counts) // 4


async def test_readers_that_caught_up_may_be_exempt() -> None:
    bench, loop = limited(
        [],
        Rate(10, 0),
        dispatch_throttling_on_non_backlog_consumer_enabled=False,
    )
    _, sink = await bench.consumer(SHARED, permits=100_000)
    append(bench, CAUGHT_UP_ENTRIES, head())
    bench.subscription.wake()
    await settle()
    assert len(sink.got) == CAUGHT_UP_ENTRIES
    append(bench, (CAUGHT_UP_ENTRIES + 50), head())
    bench.subscription.wake()
    await settle()
    assert len(sink.got) == CAUGHT_UP_ENTRIES + 10
    for _ in range(5):
        await pass_time(loop, 1_000)
    assert len(sink.got) == 2 * CAUGHT_UP_ENTRIES + 50  # 40 by the rate, then it has caught up


async def test_a_limit_that_goes_lets_everything_out() -> None:
    bench, _ = limited([1_000], Rate(1, 0))
    _, sink = await bench.consumer(EXCLUSIVE, permits=5_000)
    await settle()
    assert len(sink.got) == 1
    bench.topic.rate_limits.apply()  # the policies name no rate
    bench.subscription.policies_changed()
    await settle()
    assert len(sink.got) == 1_000


async def test_a_consumer_that_leaves_and_comes_back_while_waiting() -> None:
    bench, loop = limited([10], Rate(1, 0))
    consumer, _ = await bench.consumer(EXCLUSIVE, permits=100)
    throttle = bench.topic.rate_limits.dispatch
    assert throttle is not None
    assert throttle.waiting == 1
    bench.subscription.remove_consumer(consumer)
    assert throttle.waiting == 0
    _, sink = await bench.consumer(EXCLUSIVE, permits=100)
    await pass_time(loop, 3_000)
    assert 3 <= len(sink.got) <= 4


async def test_an_idle_subscription_does_not_wait() -> None:
    bench, loop = limited([5], Rate(5, 0))
    _, sink = await bench.consumer(SHARED, permits=100)
    await settle()
    assert len(sink.got) == 5
    assert bench.topic.rate_limits.dispatch is not None
    assert (bench.topic.rate_limits.dispatch.waiting, loop.timers) == (0, 0)


async def test_lower_and_higher_limits_of_unacknowledged_messages() -> None:
    bench = Bench(
        [100], max_unacked_messages_per_consumer=10, dispatcher_max_round_robin_batch_size=1
    )
    consumer, sink = await bench.consumer(SHARED, permits=1_000)
    assert (len(sink.got), consumer.blocked) == (10, True)
    for per_consumer, per_subscription, expected in (
        (30, 0, 30),
        (0, 50, 50),
        (0, 80, 80),
        (20, 20, 80),
    ):
        bench.service.config = bench.service.config.with_keys(
            {
                "maxUnackedMessagesPerConsumer": per_consumer,
                "maxUnackedMessagesPerSubscription": per_subscription,
            }
        )
        bench.subscription.policies_changed()
        await settle()
        assert len(sink.got) == expected
    assert consumer.blocked
