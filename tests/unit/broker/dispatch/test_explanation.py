"""Planted stalls: each is named right, of the subscription and of a message that waits."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pyroaring import BitMap

from magnetar.broker.dispatch import explanation, key_shared
from magnetar.broker.dispatch.explanation import STALLS, Explanation, Reason, counted, duration
from magnetar.broker.dispatch.interfaces import ConsumerState
from magnetar.broker.dispatch.never_delivered import with_unread
from magnetar.broker.dispatch.pending_ages import SAMPLES_MAX, PendingAges
from magnetar.broker.dispatch.unacked_budget import UnackedBudget
from magnetar.broker.policies.effective import Rate
from magnetar.broker.protocol.entry_header import FLAG_CHUNK, FLAG_FIRST_CHUNK, FLAG_MARKER
from magnetar.broker.rate_limits.rate_limiter import RateLimiter
from magnetar.broker.subscription.consumer import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Consumer,
    SubscribeRequest,
)
from magnetar.broker.subscription.message_explanation import explain_message
from magnetar.managed_ledger.position import Position
from magnetar.metadata.loop_turns import run_at_once
from tests.manual_clock import ManualLoop
from tests.unit.broker.dispatch.builders import Bench, FakeSink, non_persistent, settle
from tests.unit.broker.dispatch.doubles import head
from tests.unit.broker.dispatch.test_key_shared import keyed, sticky

ROOT = Path(__file__).parents[4]
_TYPES = [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED]


def now(bench: Bench, publishing: Explanation | None = None) -> Explanation:
    return bench.subscription.explain(publishing)


async def of(bench: Bench, *position: int) -> Explanation:
    return await explain_message(bench.subscription, cast("Position", position))


async def both(bench: Bench, *position: int) -> Explanation:
    """The reason that a stall of all is also that of an entry which waits."""
    found, one = now(bench), await of(bench, *position)
    assert (one.reason, one.consumer) == (found.reason, found.consumer)
    return found


def test_words() -> None:
    assert [counted(n, "entry") for n in (0, 1, 50_000)] == [
        "0 entries",
        "1 entry",
        "50,000 entries",
    ]
    times = [-5, 450, 1_000, 61_000, 3_600_000, 3_612_000, 90_000_000, 86_400_000]
    words = ["0 ms", "450 ms", "1 s", "1 min 1 s", "1 h", "1 h", "1 d 1 h", "1 d"]
    assert [duration(ms) for ms in times] == words


def test_the_answer_leaves_out_what_is_not_known() -> None:
    found = explanation.caught_up(0)
    assert found.as_json() == {
        "reason": "caughtUp",
        "message": "Every message is acknowledged.",
        "next": "The next message that is published is delivered.",
    }
    assert Reason.NO_PERMITS in STALLS
    assert Reason.CAUGHT_UP not in STALLS


def test_the_page_lists_every_reason() -> None:
    page = (ROOT / "docs/operate/explain.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.M) == ["reason"] + [
        reason.value for reason in Reason
    ]


def test_the_commands_that_it_recommends_exist() -> None:
    commands = json.loads((ROOT / "broker/cli/admin_commands.json").read_text())
    text = re.sub(r'"\s+f?"', "", (ROOT / "broker/dispatch/explanation.py").read_text())
    named = re.findall(r"\((topics|topicPolicies|namespaces) ([a-z-]+)\)", text)
    assert len(named) >= 3
    for group, command in named:
        assert command in commands[group]["commands"], f"{group} {command}"


def test_samples_keep_no_more_than_is_pending() -> None:
    ages, consumer = PendingAges(), ConsumerState("c")
    for now_ms in range(1, 100):
        consumer.pending.add(7, range(now_ms * 10, now_ms * 10 + 10))
        ages.sample([consumer], now_ms)
    assert ages.since_ms(consumer, (7, 15)) == 1
    assert len(ages.samples_of(consumer)) == SAMPLES_MAX
    consumer.pending.take(7, BitMap(range(11, 10_000)))
    ages.sample([consumer], 200)
    assert next((ms, list(had)) for ms, had in ages.samples_of(consumer)) == (1, [(7, 10)])
    assert all(len(had) == 1 for _, had in ages.samples_of(consumer))
    consumer.pending.clear()
    ages.sample([consumer], 201)
    assert not ages.samples_of(consumer)


# --- one message


@pytest.mark.parametrize("sub_type", _TYPES)
async def test_a_message_through_its_life(sub_type: int) -> None:
    bench = Bench([3, 2])
    assert (await both(bench, 10, 0)).reason is Reason.NO_CONSUMER
    consumer, _ = await bench.consumer(sub_type, permits=2)
    sent_ms = bench.service.now_ms
    bench.service.now_ms += 7_500_000
    found = await of(bench, 10, 1)
    assert (found.reason, found.consumer, found.since_ms) == (Reason.PENDING, "c", sent_ms)
    told = "Consumer c at 127.0.0.1:5 has it and has not acknowledged it for at least 2 h 5 min."
    if sub_type in (SHARED, KEY_SHARED):  # the others don't know what a consumer has
        told += " In all it has 2 messages unacknowledged."
        assert found.details["consumerUnackedMessages"] == 2
    assert found.message == told
    assert (await of(bench, 10, 2)).reason is Reason.NO_PERMITS
    bench.subscription.acknowledge(consumer, [(10, 1)])
    assert (await of(bench, 10, 1)).reason is Reason.ACKNOWLEDGED
    bench.subscription.flow(consumer, 100)
    await settle()
    found = now(bench)
    assert (found.reason, found.details["messageId"]) == (Reason.PENDING, "10:0")
    assert "sent or is delayed. The oldest one without an acknowledgment is 10:0." in found.message
    bench.subscription.acknowledge(consumer, bench.ledger.positions())
    assert now(bench).reason is Reason.CAUGHT_UP


@pytest.mark.parametrize("sub_type", _TYPES)
async def test_since_when_a_consumer_has_a_message(sub_type: int) -> None:
    bench = Bench([1])
    consumer, _ = await bench.consumer(sub_type, permits=500)
    sent_ms, known = bench.service.now_ms, list[int | None]()
    for minute in range(1, 200):
        bench.service.now_ms += 60_000
        run_at_once(bench.subscription.sample_steps(bench.service.now_ms))
        bench.ledger.append()
        bench.subscription.wake()
        await settle(4)
        if minute in (1, 199):
            known += [(await of(bench, 10, entry)).since_ms for entry in (0, minute)]
    assert [(ms or 0) - sent_ms for ms in known] == [60_000, 60_000, 60_000, 199 * 60_000]
    since_ms = (await of(bench, 10, 100)).since_ms or 0
    age_ms, known_ms = 99 * 60_000, bench.service.now_ms - since_ms
    assert age_ms / 3 < known_ms <= age_ms, "the longer ago, the less exact, never too long"
    bench.service.now_ms += 30_000
    bench.subscription.redeliver(consumer, None)
    await settle()
    assert (await of(bench, 10, 0)).since_ms == bench.service.now_ms


async def test_a_consumer_without_a_name_is_called_by_its_address() -> None:
    bench = Bench([2])
    await bench.consumer(EXCLUSIVE, "", permits=1)
    assert now(bench).message.startswith("Consumer at 127.0.0.1:5 has no permits")


async def test_redeliveries_and_what_is_left_of_a_batch_are_told() -> None:
    bench = Bench()
    bench.ledger.append(head(5))
    consumer, _ = await bench.consumer(SHARED, permits=100)
    bench.subscription.redeliver(consumer, None)
    await settle()
    bench.subscription.acknowledge_batch(consumer, (10, 0), [0b00110])
    answer = (await of(bench, 10, 0)).as_json()
    assert (answer["redeliveryCount"], answer["unackedMessages"]) == (1, 2)
    assert "has 2 messages of it and has not acknowledged them" in answer["message"]
    assert "In all" not in answer["message"]
    of_each = [await explain_message(bench.subscription, (10, 0), n) for n in (0, 1, 2, 4, 5, 64)]
    assert [found.reason.value for found in of_each] == [
        *("acknowledged", "pending", "pending", "acknowledged"),
        *("notFound", "notFound"),
    ]
    assert of_each[-1].message == "There is no such message: 10:0 has 5 messages."


async def test_the_end_of_a_long_batch_is_acknowledged() -> None:
    bench = Bench()
    bench.ledger.append(head(100))
    consumer, _ = await bench.consumer(SHARED, permits=100)
    bench.subscription.acknowledge_batch(consumer, (10, 0), [2**64 - 1])  # words of 0 are left out
    of_each = [await explain_message(bench.subscription, (10, 0), n) for n in (63, 64, 99)]
    assert [found.reason.value for found in of_each] == ["pending", "acknowledged", "acknowledged"]


async def test_a_delayed_message_without_a_consumer() -> None:
    bench = Bench()
    due_ms = bench.service.now_ms + 3_600_000
    bench.ledger.append(head(deliver_at_ms=due_ms))
    found = await of(bench, 10, 0)
    assert (found.reason, found.until_ms) == (Reason.NO_CONSUMER, due_ms)
    assert found.message == (
        "No consumer is connected. Its producer asked for a later delivery: it is due in 1 h."
    )
    bench.service.now_ms = due_ms
    found = await of(bench, 10, 0)
    assert (found.message, found.until_ms) == ("No consumer is connected.", None)


async def test_messages_that_are_not_there() -> None:
    bench = Bench([3, 2])
    bench.ledger.ledgers[14] = bench.ledger.ledgers.pop(11)
    assert [
        (await of(bench, *position)).reason
        for position in ((9, 0), (11, 0), (10, 3), (14, 2), (15, 0))
    ] == [Reason.TRIMMED, Reason.TRIMMED, Reason.NOT_FOUND, Reason.PAST_END, Reason.PAST_END]
    assert "of another topic" not in (await of(bench, 14, 2)).next
    assert "of another topic" in (await of(bench, 15, 0)).next
    assert (await of(Bench(), 0, 0)).reason is Reason.PAST_END


async def test_a_consumer_that_never_asked_for_a_message() -> None:
    bench = Bench([2])
    connected_ms = bench.service.now_ms
    await bench.consumer(SHARED, permits=0)
    found = await both(bench, 10, 0)
    assert (found.reason, found.since_ms) == (Reason.NO_PERMITS, connected_ms)
    assert "its client has asked for no message since it connected" in found.message


async def test_a_delay_in_another_unit_than_milliseconds() -> None:
    bench = Bench()
    bench.ledger.append(head(deliver_at_ms=bench.service.now_ms * 1_000))
    await bench.consumer(SHARED)
    found = await of(bench, 10, 0)
    assert "Was its time meant in another unit than ms?" in found.message


async def test_who_gets_everything_of_a_failover_subscription() -> None:
    bench = Bench([1], active_consumer_failover_delay_time_millis=0)
    active, _ = await bench.consumer(FAILOVER, "a", permits=9, priority_level=0)
    await bench.consumer(FAILOVER, "b", priority_level=1)
    told = "Consumer a at 127.0.0.1:5 is the active one: 1 other consumer gets nothing until it"
    assert told in now(bench).message
    bench.subscription.acknowledge(active, bench.ledger.positions())
    found = now(bench)
    assert (found.reason, found.details["standbyConsumers"]) == (Reason.CAUGHT_UP, 1)
    assert told in found.message


async def test_a_marker_is_for_no_client() -> None:
    bench = Bench([1])
    bench.ledger.append(head(flags=FLAG_MARKER))
    await bench.consumer(SHARED)
    assert (await of(bench, 10, 1)).reason is Reason.FILTERED


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_a_delayed_message(sub_type: int) -> None:
    bench = Bench()
    due_ms = bench.service.now_ms + 3_600_000
    bench.ledger.append(head(deliver_at_ms=due_ms))
    consumer, _ = await bench.consumer(sub_type)
    assert (await of(bench, 10, 0)).until_ms == due_ms, "not read by the dispatcher"
    bench.subscription.flow(consumer, 10)
    await settle()
    found = await both(bench, 10, 0)
    assert (found.reason, found.until_ms) == (Reason.DELAYED, due_ms)
    assert "due in 1 h." in found.message
    assert found.details["messageId"] == "10:0"


async def test_what_waits_in_turn() -> None:
    bench = Bench([10])
    bench.ledger.cached = False
    bench.ledger.may_read.clear()
    await bench.consumer(SHARED, permits=100)
    assert now(bench).reason is Reason.READING
    bench.ledger.may_read.set()
    await settle()
    assert now(bench).reason is Reason.PENDING
    for _ in range(3):
        bench.ledger.append()
    bench.ledger.cached = True
    answer = (await of(bench, 10, 12)).as_json()
    assert (answer["reason"], answer["entriesBefore"]) == ("delivering", 2)
    assert now(bench).reason is Reason.DELIVERING


# --- stalls


async def test_readers_that_do_not_ask() -> None:
    bench = Bench([5])
    for name in ("a", "b"):
        await bench.consumer(SHARED, name, permits=1)
    found = await both(bench, 10, 4)
    assert found.reason is Reason.NO_PERMITS
    assert found.message == "None of 2 consumers can take a message: 2 with no permits."
    assert found.next.startswith("Delivery goes on when one of them asks for more")
    names = [each["consumer"] for each in found.as_json()["consumers"]]
    assert names == ["a", "b"]


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_a_consumer_that_does_not_acknowledge(sub_type: int) -> None:
    bench = Bench([50], max_unacked_messages_per_consumer=3)
    await bench.consumer(sub_type, permits=100)
    found = await both(bench, 10, 49)
    assert found.reason is Reason.CONSUMER_UNACKED_LIMIT
    assert (found.consumer, found.details["limit"]) == ("c", 3)


async def test_a_consumer_at_its_limit_that_does_not_ask_either() -> None:
    bench = Bench([20], max_unacked_messages_per_consumer=20)
    await bench.consumer(SHARED, permits=20)
    bench.ledger.append()
    found = await both(bench, 10, 20)
    assert found.reason is Reason.CONSUMER_UNACKED_LIMIT
    assert found.message.endswith("the limit is 20 and has no permits.")


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_a_subscription_that_does_not_acknowledge(sub_type: int) -> None:
    bench = Bench([5], max_unacked_messages_per_subscription=3)
    await bench.consumer(sub_type, permits=100)
    assert (await both(bench, 10, 4)).reason is Reason.SUBSCRIPTION_UNACKED_LIMIT


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_a_broker_with_too_much_unacknowledged(sub_type: int) -> None:
    bench = Bench([5])
    bench.service.unacked_budget = UnackedBudget(5, 0.2)
    await bench.consumer(sub_type, permits=100)
    bench.ledger.append()
    assert (await both(bench, 10, 5)).reason is Reason.BROKER_UNACKED_LIMIT


@pytest.mark.parametrize("sub_type", _TYPES)
async def test_a_client_that_does_not_read(sub_type: int) -> None:
    bench = Bench([5])
    consumer, sink = await bench.consumer(sub_type)
    sink.writable = False
    bench.subscription.flow(consumer, 10)
    await settle()
    assert (await both(bench, 10, 4)).reason is Reason.CONNECTION_FULL


@pytest.mark.parametrize("sub_type", _TYPES)
async def test_a_dispatch_rate(sub_type: int) -> None:
    bench, loop = Bench([20]), ManualLoop()
    bench.topic.rate_limits.dispatch = RateLimiter(Rate(5, 0), cast("Any", loop))
    bench.subscription.policies_changed()
    await bench.consumer(sub_type, permits=100)
    found = await both(bench, 10, 19)
    assert (found.reason, found.details["scope"]) == (Reason.RATE_LIMITED, "topic")
    assert found.until_ms is not None
    assert 0 < found.until_ms - bench.service.now_ms <= 1000


@pytest.mark.parametrize("sub_type", _TYPES)
async def test_storage_that_does_not_answer(sub_type: int) -> None:
    bench = Bench([3])
    bench.ledger.cached, bench.ledger.fail_reads = False, 1
    await bench.consumer(sub_type, permits=100)
    found = now(bench)
    assert found.reason is Reason.READ_FAILED
    assert "no bookie answers" in found.message


async def draining_bench() -> tuple[Bench, str]:
    """Two keys; those of the new consumer ``b`` wait for what ``a`` has."""
    bench = Bench()
    keyed(bench, *[f"key{number}" for number in range(20)])
    await bench.consumer(KEY_SHARED, "a", permits=100)
    await bench.consumer(KEY_SHARED, "b", permits=100)
    keyed(bench, *[f"key{number}" for number in range(20)])
    bench.subscription.wake()
    await settle()
    return bench, "a"


async def test_a_hash_that_moves() -> None:
    bench, former = await draining_bench()
    waiting = [
        (10, n) for n in range(20, 40) if (await of(bench, 10, n)).reason is not Reason.PENDING
    ]
    assert waiting
    assert now(bench).reason is Reason.DRAINING_HASH
    for position in waiting:
        found = await of(bench, *position)
        assert (found.reason, found.consumer) == (Reason.DRAINING_HASH, former)
        assert found.details["nextConsumer"] == "b"
        assert found.details["unackedEntries"] == 1


async def test_a_hash_whose_consumer_has_no_permits() -> None:
    bench = Bench()
    await bench.consumer(KEY_SHARED, "a", permits=100)
    await bench.consumer(KEY_SHARED, "b")
    keyed(bench, *[f"key{number}" for number in range(20)])
    bench.subscription.wake()
    await settle()
    found = now(bench)
    assert (found.reason, found.consumer) == (Reason.NO_PERMITS, "b")
    assert found.message.startswith(f"Key hash {found.details['hash']} waits: Consumer b at ")


async def test_a_hash_that_nobody_wants() -> None:
    bench = Bench()
    await bench.consumer(KEY_SHARED, permits=100, key_shared_meta=sticky((1, 2)))
    keyed(bench, "key1")
    bench.subscription.wake()
    await settle()
    assert (await both(bench, 10, 0)).reason is Reason.HASH_WITHOUT_CONSUMER


async def test_too_many_entries_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_shared, "_LOOK_AHEAD_PER_CONSUMER", 2)
    bench = Bench()
    await bench.consumer(KEY_SHARED, permits=1, key_shared_meta=sticky((1, 2)))
    keyed(bench, *["key1"] * 9)
    bench.subscription.wake()
    await settle()
    found = await both(bench, 10, 8)
    assert (found.reason, found.details["firstReason"]) == (
        Reason.LOOK_AHEAD_LIMIT,
        "hashWithoutConsumer",
    )


async def test_parts_of_a_message_wait_for_the_consumer_of_the_first() -> None:
    bench = Bench()
    await bench.consumer(SHARED, "a", permits=1)
    bench.ledger.append(head(flags=FLAG_CHUNK | FLAG_FIRST_CHUNK, chunk=7))
    bench.subscription.wake()
    await settle()
    await bench.consumer(SHARED, "b", permits=10)
    bench.ledger.append(head(flags=FLAG_CHUNK, chunk=7))
    bench.subscription.wake()
    await settle()
    found = await both(bench, 10, 1)
    assert (found.reason, found.consumer) == (Reason.NO_PERMITS, "a")


async def test_delayed_messages_that_take_too_much_memory() -> None:
    bench = Bench(delayed_delivery_max_index_size_in_bytes=1)
    later_ms = bench.service.now_ms + 60_000
    await bench.consumer(SHARED, permits=100)
    bench.ledger.append(head(deliver_at_ms=later_ms))
    bench.subscription.wake()
    await settle()
    bench.ledger.append()
    bench.subscription.wake()
    await settle()
    found = await both(bench, 10, 1)
    assert (found.reason, found.until_ms) == (Reason.DELAYED_INDEX_LIMIT, later_ms)


async def test_an_active_consumer_that_waits_for_the_former_one() -> None:
    bench = Bench([5])
    await bench.consumer(FAILOVER, "b", permits=1, priority_level=1)
    await bench.consumer(FAILOVER, "a", permits=10, priority_level=0)
    found = await both(bench, 10, 4)
    assert (found.reason, found.consumer) == (Reason.FAILOVER_DELAY, "a")
    assert found.until_ms == bench.service.now_ms + 1_000


async def test_nothing_is_published() -> None:
    bench = Bench()
    await bench.consumer(SHARED, permits=1)
    held = explanation.quota_held(
        "destination_storage", "slow", 2_000, 1_000, is_held=True, consumers=0
    )
    assert held.message == (
        "Producers wait: the backlog of subscription slow, which has no consumer, is 2,000 bytes, "
        "the backlog quota destination_storage is 1,000 bytes."
    )
    for publishing in (held, explanation.terminated(), explanation.no_producer()):
        found = now(bench, publishing)
        assert found.reason is publishing.reason
        assert found.message == f"Every message is acknowledged. {publishing.message}"
    bench.ledger.append()
    assert now(bench, held).reason is Reason.DELIVERING, "there is something to deliver"
    bench.subscription.wake()
    await settle()
    found = now(bench, held)
    assert (found.reason, found.details["publishing"]) == (Reason.PENDING, "quotaHeld")
    assert found.message.endswith(held.message)


@pytest.mark.parametrize("sub_type", [SHARED, FAILOVER])
async def test_a_consumer_that_nothing_arrives_from(sub_type: int) -> None:
    """A publish rate holds the connection that its permits and acknowledgments come over."""
    bench = Bench([2])
    _, sink = await bench.consumer(sub_type, permits=1)
    assert "does not read" not in now(bench).message
    sink.unheard = "a publish rate holds its producers"
    assert now(bench).message.endswith(f"acknowledges on it: {sink.unheard}.")
    assert (await of(bench, 10, 0)).message.endswith(f"acknowledges on it: {sink.unheard}.")


async def test_a_consumer_that_holds_others_off() -> None:
    bench = Bench([2], active_consumer_failover_delay_time_millis=0)
    await bench.consumer(FAILOVER, "a")
    assert "standbyConsumers" in now(bench).details
    assert "active one" not in now(bench).message
    await bench.consumer(FAILOVER, "b")
    found = await both(bench, 10, 0)
    assert (found.reason, found.consumer) in [(Reason.NO_PERMITS, name) for name in "ab"]
    assert found.details["standbyConsumers"] == 1
    assert "It is the active one: 1 other consumer gets nothing until" in found.message
    alone = Bench([2])
    await alone.consumer(EXCLUSIVE, "a")
    assert now(alone).message.endswith("admits no other consumer meanwhile.")


async def test_a_subscription_that_moves_or_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, seen = Bench([5]), list[Reason]()
    move = bench.cursor.reset

    async def reset(
        position: Position, ack_set: Sequence[int] = (), properties: Any = None
    ) -> None:
        seen.append((await both(bench, 10, 4)).reason)
        await move(position, ack_set, properties or {})

    monkeypatch.setattr(bench.cursor, "reset", reset)
    await bench.subscription.reset((10, 2))
    assert seen == [Reason.RESETTING]
    await bench.subscription.close()
    assert (await both(bench, 10, 4)).reason is Reason.CLOSING


async def test_without_storage_messages_are_dropped() -> None:
    subscription, _ = non_persistent()
    assert subscription.explain(None).reason is Reason.NO_CONSUMER
    consumer, _ = await add(subscription, SHARED)
    found = subscription.explain(None)
    assert found.reason is Reason.NO_PERMITS
    assert found.message.endswith("Messages are dropped meanwhile.")
    subscription.flow(consumer, 5)
    assert subscription.explain(None).reason is Reason.DELIVERING


async def add(subscription: Any, sub_type: int) -> tuple[Consumer, FakeSink]:
    sink = FakeSink()
    request = SubscribeRequest(subscription="s", sub_type=sub_type, consumer_name="c")
    return await subscription.add_consumer(request, sink), sink


def test_what_is_acknowledged_without_a_consumer_is_told() -> None:
    nothing = with_unread(explanation.caught_up(0), 0, 0, 0)
    assert nothing == explanation.caught_up(0)
    told = with_unread(explanation.acknowledged(), 2_000, 5_000, 1)
    assert told.details == {"expiredEntries": 2_000, "quotaEvictions": 1}
    assert "2,000 entries expired unacknowledged (message TTL, backlog quota or a " in told.message
    assert told.message.endswith("past unacknowledged messages 1 time.")


def test_of_a_batch_one_message_may_be_missing() -> None:
    consumer = ConsumerState("c")
    known = {"since_ms": 0, "redeliveries": 0}
    of_batch = explanation.pending(consumer, 0, messages=10, **known)
    assert "one message of it may be all that is missing" in of_batch.message
    assert "one message" not in explanation.pending(consumer, 0, messages=1, **known).message
