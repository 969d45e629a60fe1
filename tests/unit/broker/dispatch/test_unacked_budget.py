"""``maxUnackedMessagesPerBroker``: subscriptions over memory ledgers that share one budget."""

import functools
import logging

import pytest

from magnetar.broker.dispatch.interfaces import DispatchLimits
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.unacked_budget import UnackedBudget
from magnetar.broker.subscription.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from tests.unit.broker.dispatch.builders import Bench, settle
from tests.unit.broker.dispatch.doubles import head
from tests.unit.broker.doubles import Broker

BLOCKED = "blockedSubscriptionOnUnackedMsgs"


def bench_of(budget: UnackedBudget | None, entries: int) -> Bench:
    bench = Bench([entries])
    bench.service.unacked_budget = budget
    return bench


def is_blocked(bench: Bench) -> bool:
    return bool(bench.subscription.stats(0)[BLOCKED])


def grow(bench: Bench, entries: int) -> None:
    for _ in range(entries):
        bench.ledger.append(head(key=1))
    bench.subscription.wake()


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_who_has_more_than_its_share_waits_until_the_sum_is_below_half(
    sub_type: int, caplog: pytest.LogCaptureFixture
) -> None:
    budget = UnackedBudget(100, 0.2)
    large, middle, small = (bench_of(budget, count) for count in (60, 30, 10))
    large_consumer, large_sink = await large.consumer(sub_type, permits=1000)
    middle_consumer, _ = await middle.consumer(SHARED, permits=1000)
    assert (budget.total, is_blocked(large), is_blocked(middle)) == (90, False, False)
    _, small_sink = await small.consumer(SHARED, permits=1000)
    assert [is_blocked(each) for each in (large, middle, small)] == [True, True, False]
    grow(large, 5)
    grow(small, 5)
    await settle()
    assert (len(large_sink.got), len(small_sink.got)) == (60, 15)
    middle.subscription.acknowledge(middle_consumer, [(10, entry) for entry in range(19)])
    assert is_blocked(middle), "11 are left, more than half of its share"
    middle.subscription.acknowledge(middle_consumer, [(10, 19)])
    assert [is_blocked(each) for each in (large, middle)] == [True, False]
    large.subscription.acknowledge(large_consumer, [(10, entry) for entry in range(35)])
    assert (budget.total, is_blocked(large)) == (50, True)
    middle.subscription.acknowledge(middle_consumer, [(10, 20)])
    assert not is_blocked(large), "another one's acknowledgement"
    await settle()
    assert len(large_sink.got) == 65
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "maxUnackedMessagesPerBroker=100" in record.getMessage()


async def test_at_the_limit_one_batch_is_the_last() -> None:
    budget = UnackedBudget(10, 0.5)
    bench = bench_of(budget, 8)
    _, sink = await bench.consumer(SHARED, permits=1000)
    grow(bench, 8)
    await settle()
    assert (len(sink.got), is_blocked(bench)) == (16, True)
    grow(bench, 8)
    await settle()
    assert len(sink.got) == 16


async def test_while_the_broker_is_at_its_limit_whoever_passes_its_share_waits() -> None:
    budget = UnackedBudget(100, 0.2)
    large, other = bench_of(budget, 100), bench_of(budget, 20)
    await large.consumer(SHARED, permits=1000)
    consumer, sink = await other.consumer(SHARED, permits=1000)
    assert not is_blocked(other), "as much as its share isn't more"
    grow(other, 1)
    await settle()
    assert is_blocked(other)
    grow(other, 1)
    other.subscription.redeliver(consumer, [(10, entry) for entry in range(11)])
    assert not is_blocked(other), "what has to be sent again isn't with a consumer"
    await settle()
    assert len(sink.got) == 32, "again 21, the new one waits"
    assert budget.total == 121


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER])
async def test_other_types_do_not_count(sub_type: int) -> None:
    budget = UnackedBudget(10, 0.2)
    bench = bench_of(budget, 100)
    _, sink = await bench.consumer(sub_type, permits=1000)
    assert (len(sink.got), budget.total, is_blocked(bench)) == (100, 0, False)


@pytest.mark.parametrize("how", ["leave", "close", "delete", "reset", "another type"])
async def test_what_ends_gives_its_part_back(how: str) -> None:
    budget = UnackedBudget(50, 0.2)
    gone, rest = bench_of(budget, 40), bench_of(budget, 11)
    consumer, _ = await gone.consumer(SHARED, permits=1000)
    _, sink = await rest.consumer(SHARED, permits=1000)
    assert (budget.total, is_blocked(rest)) == (51, True)
    if how == "leave":
        gone.subscription.remove_consumer(consumer)
    elif how == "close":
        await gone.subscription.close()
    elif how == "delete":
        await gone.subscription.delete(force=True)
    elif how == "reset":
        await gone.subscription.reset((10, 3))
    else:
        gone.subscription.remove_consumer(consumer)
        await gone.consumer(EXCLUSIVE, permits=1000)
    assert (budget.total, is_blocked(rest)) == (11, False)
    assert len(budget._wake_of) == 1, "what is gone is forgotten"
    grow(rest, 1)
    await settle()
    assert len(sink.got) == 12


def test_a_dispatcher_that_leaves_takes_what_is_pending_with_it() -> None:
    budget = UnackedBudget(10, 0.5)
    woken: list[str] = []
    gone, rest = SharedDispatcher(DispatchLimits()), SharedDispatcher(DispatchLimits())
    for core, count, name in ((gone, 20, "gone"), (rest, 4, "rest")):
        budget.join(core, functools.partial(woken.append, name))
        core.unacked = count
        budget.changed(core, count)
    rest.unacked = 9
    budget.changed(rest, 5)
    assert rest.waits_for_broker
    rest.unacked = 4
    budget.changed(rest, -5)
    assert rest.waits_for_broker
    budget.leave(gone)
    assert (budget.total, woken, rest.waits_for_broker) == (4, ["rest"], False)


async def test_batches_count_by_their_messages() -> None:
    budget = UnackedBudget(10, 0.5)
    bench = bench_of(budget, 0)
    bench.ledger.append(head(7))
    bench.ledger.append(head(4))
    consumer, sink = await bench.consumer(SHARED, permits=1000)
    assert (budget.total, is_blocked(bench)) == (11, True)
    bench.subscription.acknowledge_batch(consumer, (10, 0), [0b1])
    assert (budget.total, is_blocked(bench)) == (5, True)
    bench.subscription.acknowledge(consumer, [(10, 0)])
    assert (budget.total, is_blocked(bench)) == (4, False)
    assert len(sink.got) == 2


@pytest.mark.parametrize(
    ("limit", "share", "expected"),
    [(1000, 0.16, (1000, 160)), (1000, 0.5, (1000, 500)), (1000, 0.0, None), (0, 0.16, None)],
)
async def test_settings(limit: int, share: float, expected: tuple[int, int] | None) -> None:
    """As in Pulsar, a share of 0 means no limit."""
    broker = Broker(
        max_unacked_messages_per_broker=limit,
        max_unacked_messages_per_subscription_on_broker_blocked=share,
    )
    budget = broker.service.unacked_budget
    assert (budget and (budget.limit, budget.limit_of_each)) == expected
    await broker.close()


async def test_a_limit_of_one_does_not_end_dispatch() -> None:
    bench = bench_of(UnackedBudget(1, 0.16), 3)
    consumer, sink = await bench.consumer(SHARED, permits=1)
    for number in range(3):
        assert len(sink.got) == number + 1
        assert is_blocked(bench)
        bench.subscription.flow(consumer, 1)
        bench.subscription.acknowledge(consumer, [(10, number)])
        await settle()
