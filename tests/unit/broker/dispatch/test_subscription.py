"""Subscriptions over a memory ledger: admission, acknowledgments, reset, expiry, statistics."""

import asyncio

import pytest

from magnetar.broker.errors import (
    BrokerMetadataError,
    ConsumerBusyError,
    ConsumerNotFoundError,
    NotAllowedError,
    SubscriptionBusyError,
    SubscriptionFencedError,
    TopicBusyError,
)
from magnetar.broker.subscription import subscription_admin
from magnetar.broker.subscription.consumer import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Consumer,
    SubscribeRequest,
)
from magnetar.broker.subscription.persistent_subscription import start_position
from magnetar.managed_ledger.position import EARLIEST, LATEST
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.dispatch.builders import Bench, FakeSink, non_persistent, settle
from tests.unit.broker.dispatch.doubles import head
from tests.waiting import eventually


async def test_exclusive_refuses_a_second_consumer_that_lives() -> None:
    bench = Bench([3])
    await bench.consumer(EXCLUSIVE)
    with pytest.raises(ConsumerBusyError):
        await bench.consumer(EXCLUSIVE)


async def test_exclusive_replaces_one_that_is_gone() -> None:
    bench = Bench([3])
    gone, sink = await bench.consumer(EXCLUSIVE, alive=False)
    successor, successor_sink = await bench.consumer(EXCLUSIVE, permits=10)
    assert gone.closed
    assert sink.probes == 1
    assert bench.subscription.consumers == [successor]
    assert successor_sink.got == bench.ledger.positions()


async def test_types_do_not_mix_but_may_change() -> None:
    bench = Bench([3])
    consumer, _ = await bench.consumer(SHARED)
    with pytest.raises(SubscriptionBusyError):
        await bench.consumer(FAILOVER)
    bench.subscription.remove_consumer(consumer)
    await bench.consumer(FAILOVER)
    assert bench.subscription.stats(0)["type"] == "Failover"


async def test_limits_of_consumers() -> None:
    bench = Bench([3], max_consumers_per_subscription=1)
    await bench.consumer(SHARED)
    with pytest.raises(ConsumerBusyError):
        await bench.consumer(SHARED)


async def test_durability_must_match() -> None:
    bench = Bench([3])
    request = SubscribeRequest(subscription="s", durable=False)
    with pytest.raises(NotAllowedError):
        await bench.subscription.add_consumer(request, FakeSink())


async def test_exclusive_gets_all_in_order_and_new_ones_as_they_come() -> None:
    bench = Bench([3, 0, 2])
    consumer, sink = await bench.consumer(EXCLUSIVE, permits=6)
    assert sink.got == bench.ledger.positions()
    bench.ledger.append()
    bench.ledger.append()
    bench.subscription.wake()
    await settle()
    assert sink.got == bench.ledger.positions()[:6]
    bench.subscription.flow(consumer, 1)
    await settle()
    assert sink.got == bench.ledger.positions()
    assert (consumer.messages_out, consumer.permits) == (7, 0)


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED])
async def test_new_entries_are_told_to_those_who_wait_for_them_only(sub_type: int) -> None:
    bench = Bench([3])
    subscription, ledger, waiting = bench.subscription, bench.ledger, bench.topic.waiting
    consumer, sink = await bench.consumer(sub_type, permits=100)
    await eventually(lambda: len(sink.got) == 3)
    await settle()
    dispatcher = subscription.dispatcher
    assert dispatcher is not None

    def append() -> bool:
        """As the topic does it; whether the dispatcher heard of it."""
        ledger.append()
        told = dispatcher in waiting
        waiting.clear()
        if told:
            dispatcher.on_appended()
        return told

    sink.writable = False
    assert append()
    await settle()  # the turn that finds the socket full
    assert len(sink.got) == 3
    assert not append(), "its socket is full"
    sink.writable = True
    subscription.wake()
    await eventually(lambda: len(sink.got) == 5)
    await settle()
    assert append()
    await eventually(lambda: len(sink.got) == 6)
    assert sink.got == ledger.positions()
    # What is appended while a read is under way is not forgotten when that finds nothing.
    ledger.cached = False
    ledger.may_read.clear()
    assert append()
    await eventually(lambda: subscription.reading is not None)
    assert append()
    ledger.may_read.set()
    await eventually(lambda: sink.got == ledger.positions())
    assert consumer.messages_out == 8
    await settle()
    assert dispatcher in waiting
    subscription.remove_consumer(consumer)
    assert not waiting, "a dispatcher that has ended is kept by nobody"


async def test_a_cold_log_is_read_one_read_at_a_time() -> None:
    bench = Bench([30, 20])
    bench.ledger.cached = False
    _, sink = await bench.consumer(EXCLUSIVE, permits=1000)
    await eventually(lambda: len(sink.got) == 50)
    assert sink.got == bench.ledger.positions()
    assert bench.ledger.reads == 2


async def test_a_failing_read_is_tried_again() -> None:
    bench = Bench([5])
    bench.ledger.cached = False
    bench.ledger.fail_reads = 1
    _, sink = await bench.consumer(SHARED, permits=1000)
    await eventually(lambda: len(sink.got) == 5)
    assert bench.ledger.reads == 2


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED])
async def test_what_waits_and_what_is_being_read(sub_type: int) -> None:
    """What internal statistics show of a cursor's reads."""
    bench = Bench([3])
    subscription, ledger = bench.subscription, bench.ledger

    def state() -> tuple[bool, bool]:
        return subscription.is_waiting, subscription.reading is not None

    assert state() == (False, False), "nobody is there"
    consumer, sink = await bench.consumer(sub_type)
    await settle()
    assert state() == (False, False), "nobody asked for anything"
    ledger.cached = False
    ledger.may_read.clear()
    subscription.flow(consumer, 10)
    await eventually(lambda: state() == (False, True))
    assert subscription.reading is not None
    assert not subscription.reading.replay
    ledger.may_read.set()
    await eventually(lambda: len(sink.got) == 3)
    await settle()
    assert state() == (True, False), "7 more could be taken"
    subscription.flow(consumer, -7)  # as if they were
    ledger.append()
    subscription.wake()
    await settle()
    assert state() == (False, False), "what is there may not be sent"
    subscription.remove_consumer(consumer)
    assert state() == (False, False)


async def test_a_read_that_is_repeated_and_one_that_failed() -> None:
    bench = Bench([3])
    subscription, ledger = bench.subscription, bench.ledger
    consumer, sink = await bench.consumer(SHARED, permits=3)
    assert len(sink.got) == 3
    ledger.cached, ledger.fail_reads = False, 1
    ledger.may_read.clear()
    subscription.redeliver(consumer, None)
    subscription.flow(consumer, 3)
    await eventually(lambda: subscription.reading is not None)
    assert subscription.reading is not None
    assert subscription.reading.replay
    ledger.may_read.set()
    await eventually(lambda: subscription.reading is None)
    assert ledger.fail_reads == 0
    await eventually(lambda: len(sink.got) == 6)
    assert subscription.reading is None


async def test_nothing_is_sent_to_a_full_sink() -> None:
    bench = Bench([5])
    consumer, sink = await bench.consumer(SHARED)
    sink.writable = False
    bench.subscription.flow(consumer, 10)
    await settle()
    assert sink.got == []
    sink.writable = True
    consumer.subscription.wake()
    await settle()
    assert len(sink.got) == 5


async def test_a_sink_that_fails_loses_its_consumer_and_no_entry() -> None:
    bench = Bench([60])
    broken, sink = await bench.consumer(SHARED, "a")
    sink.broken = True
    _, other = await bench.consumer(SHARED, "b", permits=100)
    assert len(other.got) == 60
    bench.subscription.redeliver(bench.subscription.consumers[1], None)
    bench.subscription.flow(broken, 100)
    await settle()
    assert sink.closed == [broken]
    assert sorted(other.got[60:]) == bench.ledger.positions()[:40]
    bench.subscription.flow(bench.subscription.consumers[0], 100)
    await settle()
    assert sorted(other.got[60:]) == bench.ledger.positions()


async def test_a_turn_is_bounded_and_others_run_in_between() -> None:
    bench = Bench()
    bench.ledger.ledgers[10] = [(head(), b"x" * 600_000) for _ in range(8)]
    seen: list[int] = []
    consumer, sink = await bench.consumer(SHARED)
    bench.subscription.flow(consumer, 100)
    while len(sink.got) < 8:
        await asyncio.sleep(0)
        seen.append(len(sink.got))
    assert len(set(seen)) > 2, "everything left in one turn"


async def test_acks_free_what_is_unacknowledged_and_the_rest_comes_again() -> None:
    bench = Bench([4])
    first, sink = await bench.consumer(SHARED, permits=10)
    bench.subscription.acknowledge(first, [(10, 0), (10, 2)])
    assert first.unacked == 2
    second, other = await bench.consumer(SHARED, "d", permits=10)
    bench.subscription.remove_consumer(first)
    await settle()
    assert other.got == [(10, 1), (10, 3)]
    assert other.counts == {}
    bench.subscription.redeliver(second, [(10, 3)])
    await settle()
    assert other.got[2:] == [(10, 3)]
    assert other.counts == {(10, 3): 1}
    assert second.redelivered == 1
    assert len(sink.got) == 4


async def test_the_last_consumer_leaves_and_the_next_starts_over() -> None:
    bench = Bench([4])
    first, _ = await bench.consumer(SHARED, permits=10)
    bench.subscription.redeliver(first, [(10, 3)])
    await settle()
    bench.subscription.acknowledge(first, [(10, 1)])
    bench.subscription.remove_consumer(first)
    _, sink = await bench.consumer(SHARED, permits=10)
    assert sink.got == [(10, 0), (10, 2), (10, 3)]
    assert sink.counts == {}


async def test_cumulative_ack_on_shared_is_ignored_and_reported_as_done() -> None:
    bench = Bench([4])
    consumer, _ = await bench.consumer(SHARED, permits=10)
    answers: list[BaseException | None] = []
    bench.subscription.acknowledge_cumulative(consumer, (10, 2), None, answers.append)
    assert answers == [None]
    assert bench.cursor.acked == set()


async def test_cumulative_ack_with_an_ack_set_without_batch_index_acks() -> None:
    bench = Bench([2], acknowledgment_at_batch_index_level_enabled=False)
    bench.ledger.append(head(5))
    consumer, _ = await bench.consumer(EXCLUSIVE, permits=10)
    bench.subscription.acknowledge_cumulative(consumer, (10, 2), {"a": 1}, ack_set=[0b11000])
    assert bench.cursor.acked == {(10, 0), (10, 1)}
    assert bench.cursor.state.properties == {"a": 1}
    assert bench.cursor.partly == {}


async def test_a_cumulative_ack_beyond_the_end_fails_alone() -> None:
    bench = Bench([2])
    consumer, _ = await bench.consumer(EXCLUSIVE, permits=10)
    answers: list[BaseException | None] = []
    bench.subscription.acknowledge_cumulative(consumer, (99, 0), None, answers.append)
    assert [type(each).__name__ for each in answers] == ["InvalidPositionError"]
    assert bench.subscription.consumers == [consumer]


async def test_batch_index_acks_are_kept_only_when_switched_on() -> None:
    off = Bench(acknowledgment_at_batch_index_level_enabled=False)
    off.ledger.append(head(4))
    consumer, _ = await off.consumer(SHARED, permits=10)
    off.subscription.acknowledge_batch(consumer, (10, 0), [0b1100])
    assert (off.cursor.partly, consumer.unacked) == ({}, 4)
    off.subscription.acknowledge_batch(consumer, (10, 0), [0])
    assert off.cursor.acked == {(10, 0)}

    on = Bench()
    on.ledger.append(head(4))
    consumer, sink = await on.consumer(SHARED, permits=10)
    on.subscription.acknowledge_batch(consumer, (10, 0), [0b1100])
    assert consumer.unacked == 2
    on.subscription.redeliver(consumer, None)
    await settle()
    assert sink.ack_sets == {(10, 0): [0b1100]}
    assert consumer.permits == 10 - 4 - 2, "acknowledged indexes are not charged"
    on.subscription.acknowledge_batch(consumer, (10, 0), [0b0011])
    assert (consumer.unacked, on.cursor.acked) == (0, {(10, 0)})


async def test_failover_tells_who_is_active() -> None:
    bench = Bench(
        [4],
        topic="persistent://public/default/t-partition-0",
        active_consumer_failover_delay_time_millis=20,
    )
    first, old = await bench.consumer(FAILOVER, "b", permits=10)
    assert old.active == [True]
    assert len(old.got) == 4
    bench.subscription.acknowledge(first, [(10, 0)])
    second, new = await bench.consumer(FAILOVER, "a", permits=10)
    assert new.got == []
    bench.service.now_ms += 20
    await eventually(lambda: bool(new.got))
    assert (old.active, new.active) == ([True, False], [True])
    assert new.got == [(10, 1), (10, 2), (10, 3)]
    assert bench.subscription.stats(0)["activeConsumerName"] == "a"
    bench.subscription.remove_consumer(second)
    bench.service.now_ms += 20
    await eventually(lambda: len(old.got) == 7)


async def test_seek_closes_the_consumers_and_subscribers_wait_for_it() -> None:
    bench = Bench([5])
    consumer, sink = await bench.consumer(SHARED, permits=10)
    bench.subscription.acknowledge(consumer, [(10, entry) for entry in range(5)])
    seeking = asyncio.ensure_future(bench.subscription.reset((10, 3)))
    await asyncio.sleep(0)
    assert sink.closed == [consumer]
    again = asyncio.ensure_future(bench.consumer(SHARED, permits=10))
    with pytest.raises(SubscriptionFencedError):
        await bench.subscription.reset((10, 0))
    await seeking
    _, sink = await again
    assert sink.got == [(10, 3), (10, 4)]


@pytest.mark.parametrize(
    ("target", "left"),
    [(EARLIEST, 5), (LATEST, 0), ((10, 2), 3), ((11, 0), 2), ((10, 99), 2), ((99, 0), 0)],
)
async def test_where_a_seek_lands(target: tuple[int, int], left: int) -> None:
    bench = Bench([3, 2])
    await bench.subscription.reset(target)
    assert bench.cursor.state.backlog == left


@pytest.mark.parametrize(
    ("target", "left"), [((11, 0), {(11, 0): [0b10]}), ((10, 99), {}), ((9, 0), {})]
)
async def test_a_seek_into_a_batch_that_is_gone_leaves_the_next_one_whole(
    target: tuple[int, int], left: dict[tuple[int, int], list[int]]
) -> None:
    bench = Bench([3, 2])
    await bench.subscription.reset(target, [0b10])
    assert bench.cursor.partly == left


async def test_seek_by_time_expiry_skip_peek_and_clear() -> None:
    bench = Bench()
    for publish_ms in (100, 200, 300, 400):
        bench.ledger.append(head(publish_ms=publish_ms))
    subscription, cursor = bench.subscription, bench.cursor
    await subscription.reset_to_time(250)
    assert cursor.state.backlog == 2
    await subscription.reset_to_time(0)
    assert cursor.state.backlog == 4
    assert await subscription.expire_before(200) == 1
    assert await subscription.expire_before(200) == 0
    cursor.ack([(10, 2)])
    await subscription_admin.skip_messages(subscription, 1)
    assert cursor.state.backlog == 1
    subscription.clear_backlog()
    assert cursor.state.backlog == 0
    assert subscription.stats(0)["totalMsgExpired"] == 1


async def test_expired_entries_are_pending_no_more() -> None:
    bench = Bench([5])
    consumer, _ = await bench.consumer(SHARED, permits=3)
    assert bench.subscription.expire_upto((10, 1)) == 2
    assert consumer.unacked == 1


async def test_unsubscribe_rules() -> None:
    bench = Bench([5])
    first, _ = await bench.consumer(SHARED)
    second, sink = await bench.consumer(SHARED)
    with pytest.raises(BrokerMetadataError):
        await bench.subscription.unsubscribe(first, force=False)
    with pytest.raises(TopicBusyError):
        await bench.subscription.delete()
    await bench.subscription.unsubscribe(first, force=True)
    assert sink.closed == [second]
    assert bench.ledger.deleted == "s"
    assert bench.topic.forgotten == ["s"]
    with pytest.raises(SubscriptionFencedError):
        await bench.consumer(SHARED)


async def test_a_non_durable_subscription_ends_with_its_last_consumer() -> None:
    bench = Bench([5], durable=False)
    consumer, _ = await bench.consumer(EXCLUSIVE)
    bench.subscription.remove_consumer(consumer)
    await settle()
    assert bench.topic.forgotten == ["s"]
    assert bench.ledger.deleted == "s"


async def test_a_creation_that_was_given_up_is_undone() -> None:
    bench = Bench([5])
    request = SubscribeRequest(subscription="s", cancelled=True)
    with pytest.raises(ConsumerNotFoundError):
        await bench.subscription.add_consumer(request, FakeSink())
    assert bench.subscription.consumers == []


async def test_the_end_of_a_terminated_topic_is_told_once() -> None:
    bench = Bench([2])
    consumer, sink = await bench.consumer(SHARED, permits=10)
    bench.subscription.on_terminated()
    assert sink.ends == 0
    bench.subscription.acknowledge(consumer, [(10, 0), (10, 1)])
    bench.subscription.acknowledge(consumer, [(10, 1)])
    assert sink.ends == 1
    _, late = await bench.consumer(SHARED)
    assert late.ends == 1


async def test_close_tells_the_clients_and_flushes() -> None:
    bench = Bench([2])
    consumer, sink = await bench.consumer(SHARED, permits=10)
    await bench.subscription.close()
    assert sink.closed == [consumer]
    assert bench.cursor.closed


async def test_statistics_have_pulsars_fields() -> None:
    bench = Bench([4])
    consumer, _ = await bench.consumer(SHARED, permits=3)
    bench.subscription.acknowledge(consumer, [(10, 0)])
    stats = bench.subscription.stats(bench.service.now_ms)
    assert stats["msgBacklog"] == 3
    assert stats["backlogSize"] == bench.ledger.total_bytes * 3 // 4
    assert stats["unackedMessages"] == 2
    assert stats["msgOutCounter"] == 3
    assert stats["type"] == "Shared"
    (one,) = stats["consumers"]
    assert (one["availablePermits"], one["unackedMessages"]) == (0, 2)
    assert one["address"] == "/127.0.0.1:5"
    assert one["connectedSince"].startswith("2027-01-15T")
    bench.subscription.remove_consumer(consumer)
    assert bench.subscription.stats(0)["msgOutCounter"] == 3, "counters outlive consumers"


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED, FAILOVER])
async def test_clients_may_come_and_go_between_the_steps_of_statistics(sub_type: int) -> None:
    bench = Bench([6])
    first, _ = await bench.consumer(sub_type, "a", permits=3)
    leaver, _ = await bench.consumer(sub_type, "b", permits=3)
    steps = bench.subscription.stats_steps(bench.service.now_ms)
    sent = bench.subscription.stats(0)["msgOutCounter"]
    next(steps)
    bench.subscription.remove_consumer(leaver)
    await bench.consumer(sub_type, "c")
    stats = run_at_once(steps)
    assert [each["consumerName"] for each in stats["consumers"]] == ["a", "b"]
    assert stats["msgOutCounter"] == sent, "each counts once"
    rates = bench.subscription.sample_steps(1_000)
    next(rates)
    bench.subscription.remove_consumer(first)
    run_at_once(rates)


# --- where new cursors start


@pytest.mark.parametrize(
    ("request_", "start"),
    [
        (SubscribeRequest(subscription="s"), LATEST),
        (SubscribeRequest(subscription="s", initial_position=EARLIEST), EARLIEST),
        (SubscribeRequest(subscription="s", start_position=(10, 1)), LATEST),
        (SubscribeRequest(subscription="s", durable=False, start_position=(10, 1)), (10, 1)),
        (SubscribeRequest(subscription="s", durable=False, start_position=EARLIEST), EARLIEST),
        (SubscribeRequest(subscription="s", durable=False, start_position=(99, 1)), LATEST),
        (SubscribeRequest(subscription="s", rollback_seconds=1), (10, 2)),
        (SubscribeRequest(subscription="s", rollback_seconds=100), (10, 0)),
    ],
)
async def test_start_positions(request_: SubscribeRequest, start: tuple[int, int]) -> None:
    bench = Bench()
    for publish_ms in (5000, 8000, 9500, 9600):
        bench.ledger.append(head(publish_ms=publish_ms))
    assert await start_position(bench.ledger, request_, 10_000) == start  # type: ignore[arg-type] # memory twin


# --- non-persistent


async def test_non_persistent_topics_drop_what_nobody_can_take() -> None:
    subscription, topic = non_persistent()
    sinks = [FakeSink(), FakeSink()]
    consumers: list[Consumer] = []
    for name, sink in zip("ab", sinks, strict=True):
        request = SubscribeRequest(subscription="s", sub_type=SHARED, consumer_name=name)
        consumers.append(await subscription.add_consumer(request, sink))
        subscription.flow(consumers[-1], 30)
    run_at_once(subscription.sample_steps(1_000))
    subscription.dispatch([head()] * 70, [b"x"] * 70)
    assert [consumer.messages_out for consumer in consumers] == [30, 30]
    assert subscription.dropped_messages == 10
    run_at_once(subscription.sample_steps(6_000))
    assert subscription.stats(6_000)["msgDropRate"] == 2.0
    answers: list[BaseException | None] = []
    subscription.acknowledge(consumers[0], [(0, 0)], answers.append)
    assert answers == [None]
    await subscription.reset((0, 0))
    assert sinks[0].closed == []
    for consumer in consumers:
        subscription.remove_consumer(consumer)
    assert topic.forgotten == ["s"]
    assert subscription.dropped_messages == 10


async def test_non_persistent_failover_has_one_active_consumer() -> None:
    subscription, _ = non_persistent()
    sinks = {}
    for name in ("a", "b"):
        request = SubscribeRequest(subscription="s", sub_type=FAILOVER, consumer_name=name)
        sink = sinks[name] = FakeSink()
        subscription.flow(await subscription.add_consumer(request, sink), 10)
    subscription.dispatch([head()] * 3, [b"x"] * 3)
    active = subscription.stats(0)["activeConsumerName"]
    assert sinks[active].active[-1]
    assert {name: len(sink.got) for name, sink in sinks.items()} == {
        active: 3,
        "a" if active == "b" else "b": 0,
    }
