"""Key_Shared: slots, ranges, draining, admission."""

import random

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.dispatch.interfaces import ConsumerState
from magnetar.broker.dispatch.key_selector import HashRing, SplitRanges, StickyRanges
from magnetar.broker.errors import ConsumerAssignError, NotAllowedError, SubscriptionBusyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.subscription.consumer import KEY_SHARED, SubscribeRequest
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.dispatch.builders import Bench, FakeSink, non_persistent, settle


def keyed(bench: Bench, *keys: str) -> None:
    """Append one message per key; an empty one has no key."""
    for number, key in enumerate(keys):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        if key:
            metadata.partition_key = key
        position = bench.ledger.append(make_header(metadata))
        entry_head, _ = bench.ledger.ledgers[position[0]][position[1]]
        bench.ledger.ledgers[position[0]][position[1]] = (entry_head, encode_body(metadata, b"x"))


def sticky(*ranges: tuple[int, int], out_of_order: bool = False) -> pb.KeySharedMeta:
    return pb.KeySharedMeta(
        keySharedMode=pb.STICKY,
        hashRanges=[pb.IntRange(start=first, end=last) for first, last in ranges],
        allowOutOfOrderDelivery=out_of_order,
    )


def test_slots_of_the_test_vectors() -> None:
    key_hash = mmh3.hash("key1", signed=False) & 0x7FFFFFFF
    assert key_hash == 462881061
    assert HashRing().slot_of(key_hash) == 462881061 % 65535 + 1
    assert StickyRanges().slot_of(key_hash) == 462881061 % 65536
    assert StickyRanges().slot_of(65536) == 1, "slot 0 is reserved"


def test_sticky_ranges_are_those_of_a_plain_search() -> None:
    """The owner of each slot, and every overlap, however ranges come, go and lie."""
    rng = random.Random(5)
    for _ in range(60):
        subject = StickyRanges()
        held: dict[ConsumerState, list[tuple[int, int]]] = {}
        for number in range(rng.randrange(1, 12)):
            brought = [
                (first, first + rng.choice((0, 1, 40, 5_000)))
                for first in (rng.randrange(65_536) for _ in range(rng.randrange(1, 5)))
            ]
            others = [each for ranges in held.values() for each in ranges]
            wrong = any(last > 65_535 for _, last in brought) or any(
                first <= other_last and other_first <= last
                for at, (first, last) in enumerate(brought)
                for other_first, other_last in [*others, *brought[:at]]
            )
            assert (subject.conflict(brought) is not None) == wrong, (brought, others)
            if not wrong:
                consumer = ConsumerState(f"c{number}")
                subject.offer(brought)
                subject.add(consumer)
                held[consumer] = brought
            elif held and rng.random() < 0.5:
                gone = rng.choice(list(held))
                subject.remove(gone)
                del held[gone]
        for slot in [rng.randrange(65_536) for _ in range(200)]:
            expected = [
                owner
                for owner, ranges in held.items()
                if any(first <= slot <= last for first, last in ranges)
            ]
            assert subject.owner(slot) is (expected[0] if expected else None)


def test_a_consumer_brings_a_bounded_number_of_ranges() -> None:
    """One SUBSCRIBE with 32,000 of them held the loop for 14 s."""
    assert StickyRanges().conflict([(2 * each, 2 * each) for each in range(4_096)]) is None
    reason = StickyRanges().conflict([(2 * each, 2 * each) for each in range(4_097)])
    assert reason == "4097 ranges, a consumer may bring 4096"


@given(
    st.sampled_from((HashRing, SplitRanges)),
    st.lists(st.sampled_from("abcd"), max_size=6),
    st.booleans(),
)
def test_the_ranges_shown_are_the_owners(
    kind: type[HashRing | SplitRanges], names: list[str], leaves: bool
) -> None:
    ring = kind()
    consumers = [ConsumerState(name) for name in names]
    for consumer in consumers:
        ring.add(consumer)
    if consumers and leaves:
        gone = consumers.pop(len(consumers) // 2)
        run_at_once(ring.ranges())
        ring.remove(gone)
    ranges = run_at_once(ring.ranges())
    assert set(ranges) == set(consumers)
    shown = sorted(
        ((each, who) for who, held in ranges.items() for each in held), key=lambda row: row[0]
    )
    ends = [first - 1 for (first, _), _ in shown[1:]]
    if consumers:
        assert shown[0][0][0] == 1
        assert [last for (_, last), _ in shown] == [*ends, 65535], "no gap, no overlap"
    for (first, last), who in shown:
        for slot in {first, (first + last) // 2, last}:
            assert ring.owner(slot) is who


def test_the_ring_moves_only_what_it_must() -> None:
    ring = HashRing()
    consumers = [ConsumerState(name) for name in ("a", "b", "b", "c")]
    for consumer in consumers[:3]:
        ring.add(consumer)
    before = [ring.owner(slot) for slot in range(1, 65536)]
    ring.add(consumers[3])
    after = [ring.owner(slot) for slot in range(1, 65536)]
    moved = [new for old, new in zip(before, after, strict=True) if new is not old]
    assert set(moved) == {consumers[3]}
    assert 8_000 < len(moved) < 26_000
    ring.remove(consumers[3])
    assert [ring.owner(slot) for slot in range(1, 65536)] == before
    assert set(before) == set(consumers[:3]), "consumers of one name have their own points"


def test_without_the_ring_two_consumers_have_a_half_each() -> None:
    split = SplitRanges()
    first, second, third = (ConsumerState("same") for _ in range(3))
    assert split.owner(1) is None
    split.add(first)
    assert run_at_once(split.ranges()) == {first: [(1, 65535)]}
    split.add(second)
    assert run_at_once(split.ranges()) == {second: [(1, 32767)], first: [(32768, 65535)]}
    split.add(third)
    assert run_at_once(split.ranges())[third] == [(32768, 49151)], "the lower half of the widest"
    split.remove(first)
    assert run_at_once(split.ranges()) == {second: [(1, 32767)], third: [(32768, 65535)]}
    split.remove(third)
    split.remove(second)
    assert split.owner(1) is None


@given(st.lists(st.integers(0, 9), max_size=40))
def test_split_ranges_cover_every_slot_whoever_leaves(steps: list[int]) -> None:
    split, consumers = SplitRanges(), list[ConsumerState]()
    for step in steps:
        before = dict(run_at_once(split.ranges()))
        if step >= len(consumers):
            consumers.append(ConsumerState("c"))
            split.add(consumers[-1])
            changed = 2 if before else 1  # who joined, and whose range was cut
        else:
            split.remove(gone := consumers.pop(step))
            del before[gone]
            changed = 1 if before else 0  # one neighbour grew
        after = run_at_once(split.ranges())
        assert set(after) == set(consumers)
        assert sum(before.get(each) != held for each, held in after.items()) == changed
        covered = sorted(each for held in after.values() for each in held)
        firsts = [first for first, _ in covered]
        assert firsts == [1, *(last + 1 for _, last in covered[:-1])][: len(covered)]
        assert not covered or covered[-1][1] == 65535


def test_a_consumer_too_many_waits_for_a_range() -> None:
    split = SplitRanges()
    split._lasts, split._owners = [1, 2], [ConsumerState("a"), ConsumerState("b")]
    late, later = ConsumerState("c"), ConsumerState("d")
    split.add(late)
    split.add(later)
    assert run_at_once(split.ranges())[late] == []
    split.remove(later)
    split.remove(split._owners[0])
    assert run_at_once(split.ranges())[late] == [(1, 1)]


async def test_the_broker_may_be_set_to_split_ranges() -> None:
    bench = Bench(subscription_key_shared_use_consistent_hashing=False)
    first, old = await bench.consumer(KEY_SHARED, "a", permits=100)
    second, new = await bench.consumer(KEY_SHARED, "b", permits=100)
    assert bench.subscription.selector is not None
    assert run_at_once(bench.subscription.selector.ranges()) == {
        first: [(32768, 65535)],
        second: [(1, 32767)],
    }
    keyed(bench, "key1", "key2", "key3")
    bench.subscription.wake()
    await settle()
    assert (len(old.got), len(new.got)) == (1, 2)


async def test_a_key_stays_with_one_consumer_in_order() -> None:
    bench = Bench()
    keyed(bench, *[f"k{number % 7}" for number in range(70)], "", "")
    sinks = [(await bench.consumer(KEY_SHARED, name))[1] for name in "abc"]
    for consumer in bench.subscription.consumers:
        bench.subscription.flow(consumer, 100)
    await settle()
    assert sorted(at for sink in sinks for at in sink.got) == bench.ledger.positions()
    for key in range(7):
        holders = [
            sink for sink in sinks if any(at[1] % 7 == key and at[1] < 70 for at in sink.got)
        ]
        assert len(holders) == 1
    assert all(sink.got == sorted(sink.got) for sink in sinks)


async def test_a_newcomer_gets_a_moved_key_only_after_the_old_owners_acks() -> None:
    bench = Bench()
    keyed(bench, *[f"k{number}" for number in range(50)])
    first, _ = await bench.consumer(KEY_SHARED, "a", permits=1000)
    second, new = await bench.consumer(KEY_SHARED, "b", permits=1000)
    keyed(bench, *[f"k{number}" for number in range(50)])
    bench.subscription.wake()
    await settle()
    assert new.got == []
    draining = bench.subscription.stats(0)["drainingHashesCount"]
    assert draining > 5
    bench.subscription.acknowledge(first, [(10, entry) for entry in range(50)])
    await settle()
    assert len(new.got) == draining
    assert second.unacked == draining
    assert bench.subscription.stats(0)["drainingHashesCount"] == 0


async def test_a_full_consumer_holds_up_only_its_own_keys() -> None:
    bench = Bench()
    full, full_sink = await bench.consumer(KEY_SHARED, "a")
    _, other = await bench.consumer(KEY_SHARED, "b", permits=1000)
    keyed(bench, *[f"k{number}" for number in range(50)])
    bench.subscription.wake()
    await settle()
    assert 0 < len(other.got) < 50
    bench.subscription.flow(full, 1000)
    await settle()
    assert len(other.got) + len(full_sink.got) == 50
    assert full_sink.got == sorted(full_sink.got)


async def test_sticky_ranges() -> None:
    bench = Bench()
    keyed(bench, "key1", "key2", "key01", "key02")
    slots = [mmh3.hash(key, signed=False) % 2**31 % 65536 for key in ("key1", "key2")]
    _, sink = await bench.consumer(
        KEY_SHARED, permits=9, key_shared_meta=sticky((slots[0], slots[0]), (slots[1], slots[1]))
    )
    assert sink.got == [(10, 0), (10, 1)], "slots nobody covers wait and block nothing else"
    for meta in (sticky(), sticky((5, 3)), sticky((0, 70_000)), sticky((slots[0], 65_535))):
        with pytest.raises(ConsumerAssignError):
            await bench.consumer(KEY_SHARED, "b", key_shared_meta=meta)
    with pytest.raises(SubscriptionBusyError):
        await bench.consumer(KEY_SHARED, "b")
    with pytest.raises(SubscriptionBusyError):
        await bench.consumer(KEY_SHARED, "b", key_shared_meta=sticky((0, 1), out_of_order=True))
    rest = [mmh3.hash(key, signed=False) % 2**31 % 65536 for key in ("key01", "key02")]
    _, late = await bench.consumer(
        KEY_SHARED, "b", permits=9, key_shared_meta=sticky(*[(slot, slot) for slot in rest])
    )
    assert late.got == [(10, 2), (10, 3)]
    assert bench.subscription.stats(0)["keySharedMode"] == "STICKY"


async def test_switched_off() -> None:
    bench = Bench(subscription_key_shared_enable=False)
    with pytest.raises(NotAllowedError):
        await bench.consumer(KEY_SHARED)


async def test_non_persistent_topics_choose_by_key_too() -> None:
    subscription, _ = non_persistent()
    sinks = [FakeSink(), FakeSink()]
    for name, sink in zip("ab", sinks, strict=True):
        request = SubscribeRequest(subscription="s", sub_type=KEY_SHARED, consumer_name=name)
        subscription.flow(await subscription.add_consumer(request, sink), 100)
    bench = Bench()
    keyed(bench, *[f"k{number}" for number in range(30)])
    entries = bench.ledger.ledgers[10]
    for _ in range(2):
        subscription.dispatch([h for h, _ in entries], [bytes(b) for _, b in entries])
    counts = [len(sink.got) for sink in sinks]
    assert sum(counts) == 60
    assert all(count > 0 and count % 2 == 0 for count in counts)
