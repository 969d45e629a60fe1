"""Thousands of consumers of one subscription: who is chosen stays the same, and costs little."""

import random
from collections.abc import Sequence

import mmh3
import pytest

from magnetar.broker.dispatch import active_consumer
from magnetar.broker.dispatch.active_consumer import ActiveConsumerSelector
from magnetar.broker.dispatch.interfaces import ConsumerState
from magnetar.broker.dispatch.key_selector import _POINTS_A_STEP, HashRing
from magnetar.metadata.loop_turns import run_at_once


def _hash(text: str) -> int:
    return mmh3.hash(text, signed=False) & 0x7FFFFFFF


def plainly_chosen(
    consumers: Sequence[ConsumerState], topic: str, partition_index: int
) -> ConsumerState:
    """The whole ring, as Pulsar makes it for each change."""
    best = min(consumer.priority for consumer in consumers)
    candidates = sorted(
        (each for each in consumers if each.priority == best), key=lambda each: each.name
    )
    if partition_index >= 0:
        return candidates[partition_index % len(candidates)]
    ring = {_hash(f"{each.name}{point}"): each for each in candidates for point in range(100)}
    target = _hash(topic)
    return ring[min((point for point in ring if point >= target), default=min(ring))]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("partition_index", [-1, 0, 3])
def test_the_choice_is_that_of_the_whole_ring(seed: int, partition_index: int) -> None:
    rng = random.Random(seed)
    topic = f"persistent://public/default/t{rng.randrange(1000)}"
    choice, present = ActiveConsumerSelector(topic, partition_index), list[ConsumerState]()
    for step in range(120):
        if not present or rng.random() < 0.6:
            name = rng.choice((f"c{step}", "same", f"c{rng.randrange(5)}"))
            consumer = ConsumerState(name, rng.choice((0, 0, 0, 1, 2)))
            present.append(consumer)
            choice.add(consumer)
        else:
            consumer = present.pop(rng.randrange(len(present)))
            choice.remove(consumer)
        if present:
            assert choice.choose() is plainly_chosen(present, topic, partition_index)


def test_who_joins_costs_a_hundred_hashes_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3,000 Failover consumers on one connection stopped the broker for minutes. One that is alone,
    as of each Exclusive subscription, costs none."""
    count, real = 0, active_consumer._hash

    def counted(text: str) -> int:
        nonlocal count
        count += 1
        return real(text)

    choice = ActiveConsumerSelector("t", -1)
    monkeypatch.setattr(active_consumer, "_hash", counted)
    consumers = [ConsumerState(f"c{number}") for number in range(500)]
    for consumer in consumers:
        choice.add(consumer)
        choice.choose()
        assert (count == 0) is (consumer is consumers[0])
    for consumer in consumers[:-1]:
        choice.remove(consumer)
        choice.choose()
    assert count == 500 * 100


@pytest.mark.parametrize("seed", range(3))
def test_a_ring_that_grows_and_shrinks_is_one_made_anew(seed: int) -> None:
    rng, ring, present = random.Random(seed), HashRing(), list[ConsumerState]()
    for step in range(300):
        if not present or rng.random() < 0.55:
            consumer = ConsumerState(f"c{step}")
            present.append(consumer)
            ring.add(consumer)
        else:
            ring.remove(present.pop(rng.randrange(len(present))))
        if step % 50 == 49:
            anew = HashRing()
            for consumer in present:
                anew.add(consumer)
            slots = [rng.randrange(1, 65_536) for _ in range(300)]
            assert [ring.owner(slot) for slot in slots] == [anew.owner(slot) for slot in slots]
            assert run_at_once(ring.ranges()) == run_at_once(anew.ranges())


def test_the_ranges_of_a_ring_are_cut_in_steps() -> None:
    """Those of thousands of consumers held the loop for 50 ms. A ring that changes meanwhile is
    told without who came, and cut again for who asks next."""
    ring = HashRing()
    for number in range(100):
        ring.add(ConsumerState(f"c{number}"))
    found = ring.ranges()
    next(found)
    ring.add(late := ConsumerState("late"))
    ring.remove(gone := next(iter(ring._mine)))
    assert late not in run_at_once(found)
    assert sum(1 for _ in ring.ranges()) == len(ring._order) // _POINTS_A_STEP
    now = run_at_once(ring.ranges())
    assert now[late]
    assert gone not in now
    assert list(ring.ranges()) == []  # as last asked
