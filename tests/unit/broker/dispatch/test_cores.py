"""docs/spec/wire-protocol.md, "Single active consumer" and "Shared", one rule after another."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.dispatch.delayed_index import DelayedIndex
from magnetar.broker.dispatch.interfaces import (
    ConsumerState,
    Deliver,
    DispatchLimits,
    DispatchReadRequest,
    NotifyActive,
    SkipEntries,
)
from magnetar.broker.dispatch.round_robin import RoundRobin
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.protocol.entry_header import (
    FLAG_BATCH,
    FLAG_CHUNK,
    FLAG_FIRST_CHUNK,
    FLAG_LAST_CHUNK,
    FLAG_MARKER,
    scan_headers,
)
from magnetar.managed_ledger.entry_batch import EntryBatch
from tests.unit.broker.dispatch.doubles import choose_active, head

NOW = 1_800_000_000_000


def batch_of(heads: Sequence[bytes], first: int = 0, ledger_id: int = 7) -> EntryBatch:
    return EntryBatch(ledger_id, first, list(heads), [b"x"] * len(heads))


def feed(core: SharedDispatcher, heads: Sequence[bytes], first: int = 0) -> list[Deliver]:
    """New entries arrive at the core; what it sends."""
    request = DispatchReadRequest(None, 1000, False, core.generation)
    core.on_entries(request, batch_of(heads, first), None, None, NOW)
    effects = core.take_effects()
    return [effect for effect in effects if isinstance(effect, Deliver)]


def sent(effects: Sequence[Deliver]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for effect in effects:
        picks = range(len(effect.batch.heads)) if effect.picks is None else effect.picks
        entries = [effect.batch.first + index for index in picks]
        found.setdefault(effect.consumer.name, []).extend(entries)
    return found


def shared(*permits: int, **limits: int) -> tuple[SharedDispatcher, list[ConsumerState]]:
    core = SharedDispatcher(DispatchLimits(**limits))  # type: ignore[arg-type] # only int fields
    consumers = [ConsumerState(f"c{number}") for number in range(1, len(permits) + 1)]
    for consumer, count in zip(consumers, permits, strict=True):
        core.add_consumer(consumer)
        core.on_flow(consumer, count)
    return core, consumers


# --- heads


def test_a_plain_batch_needs_no_rows() -> None:
    assert scan_headers([head(), head(flags=32), head(flags=8), head(flags=16)]) is None


@pytest.mark.parametrize(
    "entry",
    [
        head(2),
        head(1, FLAG_BATCH),
        head(flags=FLAG_MARKER),
        head(flags=FLAG_CHUNK),
        head(deliver_at_ms=NOW),
        head(deliver_at_ms=2**56),
    ],
)
def test_anything_else_needs_rows(entry: bytes) -> None:
    rows = scan_headers([head(), entry])
    assert rows is not None
    assert rows[0] == (0, 1, 0, 0)


# --- Shared


def test_the_example_of_priority_levels() -> None:
    rounds = RoundRobin()
    for name, priority, permits in [
        ("C1", 0, 2), ("C2", 0, 1), ("C3", 0, 1), ("C4", 1, 2), ("C5", 1, 1),
    ]:  # fmt: skip
        consumer = ConsumerState(name, priority)
        consumer.permits = permits
        rounds.add(consumer)
    order = []
    while (chosen := rounds.next()) is not None:
        chosen.permits -= 1
        order.append(chosen.name)
    assert order == ["C1", "C2", "C3", "C1", "C4", "C5", "C4"]


def test_turns_of_twenty_messages() -> None:
    core, _ = shared(1000, 1000)
    effects = feed(core, [head()] * 50)
    assert sent(effects) == {"c1": [*range(20), *range(40, 50)], "c2": [*range(20, 40)]}
    assert len(effects) == 2, "one delivery per consumer and turn"


def test_a_batch_may_exceed_the_permits_and_nothing_follows_until_refilled() -> None:
    core, (consumer,) = shared(10)
    assert sent(feed(core, [head(1000), head()])) == {"c1": [0]}
    assert consumer.permits == -990
    core.on_flow(consumer, 990)
    assert core.next_read() is None
    core.on_flow(consumer, 1)
    request = core.next_read()
    assert request is not None
    assert request.position == (7, 1)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60),
    st.lists(st.integers(0, 100), min_size=1, max_size=5),
    st.integers(1, 20),
)
def test_permits_are_spent_exactly(sizes: list[int], permits: list[int], quota: int) -> None:
    core, consumers = shared(*permits, round_robin_messages=quota)
    effects = feed(core, [head(size) for size in sizes])
    got = sent(effects)
    everything = sorted(entry for entries in got.values() for entry in entries)
    assert everything == list(range(len(everything))), "in order, none twice"
    for consumer, granted in zip(consumers, permits, strict=True):
        mine = got.get(consumer.name, [])
        spent = sum(sizes[entry] for entry in mine)
        assert consumer.permits == granted - spent
        assert spent - (sizes[mine[-1]] if mine else 0) < max(granted, 1), "sent without permits"
        assert consumer.unacked == spent
    if len(everything) < len(sizes):
        assert all(consumer.permits <= 0 for consumer in consumers)


def test_markers_are_skipped_for_free() -> None:
    core, (consumer,) = shared(2)
    request = DispatchReadRequest(None, 10, False, core.generation)
    core.on_entries(request, batch_of([head(), head(flags=FLAG_MARKER), head()]), None, None, NOW)
    effects = core.take_effects()
    assert effects[0] == SkipEntries([(7, 1)])
    assert isinstance(effects[1], Deliver)
    assert effects[1].picks == [0, 2]
    assert consumer.permits == 0


def test_nacks_count_and_a_leaving_consumer_does_not() -> None:
    core, (first, second) = shared(1, 100)
    feed(core, [head(), head()])
    assert core.redeliver(first, [(7, 0), (7, 1)]) == 1, "entry 1 is pending at the other"
    request = core.next_read()
    assert request is not None
    assert (request.position, request.replay) == ((7, 0), True)
    core.on_entries(request, batch_of([head()]), None, None, NOW)
    (delivery,) = core.take_effects()
    assert isinstance(delivery, Deliver)
    assert (delivery.consumer, delivery.redelivery_counts) == (second, [1])
    third = ConsumerState("c3")
    core.add_consumer(third)
    core.on_flow(third, 10)
    core.remove_consumer(second)
    request = core.next_read()
    assert request is not None
    core.on_entries(request, batch_of([head(), head()]), None, None, NOW)
    (delivery,) = core.take_effects()
    assert isinstance(delivery, Deliver)
    assert (delivery.consumer, delivery.redelivery_counts) == (third, [1, 0])


def test_a_consumer_with_too_much_unacknowledged_waits_until_half_is_done() -> None:
    core, (consumer,) = shared(1000, unacked_per_consumer=40)
    assert len(sent(feed(core, [head()] * 100))["c1"]) == 40
    assert consumer.blocked
    core.on_acked(consumer, [(7, entry) for entry in range(19)])
    assert core.next_read() is None
    core.on_acked(consumer, [(7, 19)])
    assert core.unblocked
    assert core.next_read() is not None


def test_a_subscription_with_too_much_unacknowledged_stops() -> None:
    core, consumers = shared(1000, 1000, unacked_per_subscription=30)
    feed(core, [head()] * 100)
    assert (core.unacked, core.blocked) == (30, True)
    assert core.next_read() is None
    core.on_acked(None, [(7, entry) for entry in range(16)])
    assert (core.unacked, core.blocked) == (14, False)
    assert sum(consumer.unacked for consumer in consumers) == 14


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_subscription_at_the_least_limit_goes_on(limit: int) -> None:
    core, _ = shared(1000, unacked_per_subscription=limit)
    feed(core, [head()] * 10)
    assert (core.unacked, core.blocked) == (limit, True)
    core.on_acked(None, [(7, entry) for entry in range(limit)])
    assert (core.unacked, core.blocked) == (0, False)
    assert core.next_read() is not None


def test_chunks_of_one_message_stay_together() -> None:
    core, (first, second) = shared(1, 100, round_robin_messages=1)
    chunks = [
        head(flags=FLAG_CHUNK | FLAG_FIRST_CHUNK, chunk=5),
        head(flags=FLAG_CHUNK, chunk=5),
        head(),
        head(flags=FLAG_CHUNK | FLAG_LAST_CHUNK, chunk=5),
    ]
    assert sent(feed(core, chunks)) == {"c1": [0], "c2": [2]}
    assert list(first.waiting) == [(7, 1), (7, 3)]
    core.on_flow(first, 5)
    request = core.next_read()
    assert request is not None
    assert request.replay
    core.on_entries(request, batch_of(chunks[1:], 1), None, None, NOW)
    effects = core.take_effects()
    assert sent([each for each in effects if isinstance(each, Deliver)]) == {"c1": [1, 3]}
    assert second.permits == 99


def test_chunks_move_when_their_consumer_leaves() -> None:
    core, (first, _) = shared(1, 100)
    chunks = [
        head(flags=FLAG_CHUNK | FLAG_FIRST_CHUNK, chunk=5),
        head(flags=FLAG_CHUNK | FLAG_LAST_CHUNK, chunk=5),
    ]
    feed(core, chunks)
    core.remove_consumer(first)
    request = core.next_read()
    assert request is not None
    core.on_entries(request, batch_of(chunks), None, None, NOW)
    effects = core.take_effects()
    assert sent([each for each in effects if isinstance(each, Deliver)]) == {"c2": [0, 1]}


def test_partly_acknowledged_batches_cost_what_is_left() -> None:
    core, (consumer,) = shared(10)
    request = DispatchReadRequest(None, 10, False, core.generation)
    core.on_entries(request, batch_of([head(8)]), None, lambda _: [0b11010000], NOW)
    (delivery,) = core.take_effects()
    assert isinstance(delivery, Deliver)
    assert (delivery.messages, delivery.ack_sets) == (3, {0: [0b11010000]})
    assert (consumer.permits, consumer.unacked) == (7, 3)
    core.on_batch_acked((7, 0), 1)
    assert (consumer.unacked, core.unacked) == (1, 1)
    core.on_acked(consumer, [(7, 0)])
    assert (consumer.unacked, core.unacked) == (0, 0)


def test_delayed_entries_come_when_they_are_due() -> None:
    core, _ = shared(10)
    due = NOW + 5000
    assert sent(feed(core, [head(deliver_at_ms=due), head()])) == {"c1": [1]}
    deadline = core.next_deadline_ms()
    assert deadline is not None
    assert due <= deadline <= due + 125
    core.on_tick(deadline)
    request = core.next_read()
    assert request is not None
    core.on_entries(request, batch_of([head(deliver_at_ms=due)]), None, None, deadline)
    effects = core.take_effects()
    assert sent([each for each in effects if isinstance(each, Deliver)]) == {"c1": [0]}


@given(st.lists(st.integers(NOW, NOW + 100_000), max_size=40), st.booleans())
def test_delays_are_never_early_and_hardly_late(times: list[int], strict: bool) -> None:
    index = DelayedIndex(1000, strict=strict)
    for entry_id, time in enumerate(times):
        index.add(7, entry_id, time)
    assert index.count == len(times)
    seen = set()
    while (now := index.next_due_ms()) is not None:
        for _, entry_id in index.take_due(now, 3):
            late = now - times[entry_id]
            assert 0 <= late <= (0 if strict else 125)
            seen.add(entry_id)
    assert seen == set(range(len(times)))
    assert index.count == 0


def test_what_expired_is_pending_no_more() -> None:
    core, (consumer,) = shared(100)
    feed(core, [head()] * 10)
    core.redeliver(consumer, [(7, 2), (7, 8)])
    core.on_mark_delete((7, 4))
    assert (consumer.unacked, core.unacked) == (4, 4)
    assert list(core.replay) == [(7, 8)]


def test_trimmed_replay_entries_are_forgotten() -> None:
    core, (consumer,) = shared(100)
    feed(core, [head()] * 10)
    core.redeliver(consumer, [(7, 2), (7, 8)])
    request = core.next_read()
    assert request is not None
    core.on_entries(request, batch_of([head()] * 2, 8), None, None, NOW)
    assert not core.replay
    assert sent([e for e in core.take_effects() if isinstance(e, Deliver)]) == {"c1": [8]}


# --- single active


def single(**options: object) -> SingleActiveDispatcher:
    settings = {"failover": True, "topic": "persistent://a/b/c", "partition_index": -1, **options}
    return SingleActiveDispatcher(DispatchLimits(), **settings)  # type: ignore[arg-type] # as above


def test_partitions_choose_by_index_priority_and_name() -> None:
    consumers = [ConsumerState("b"), ConsumerState("a"), ConsumerState("0", priority=1)]
    names = [choose_active(consumers, "t", index).name for index in range(4)]
    assert names == ["a", "b", "a", "b"]


def test_the_ring_does_not_depend_on_who_came_first() -> None:
    consumers = [ConsumerState(name) for name in ("x", "y", "z")]
    topics = [f"persistent://public/default/t{number}" for number in range(40)]
    chosen = [choose_active(consumers, topic, -1).name for topic in topics]
    assert chosen == [choose_active(consumers[::-1], topic, -1).name for topic in topics]
    assert set(chosen) == {"x", "y", "z"}


def test_the_first_consumer_starts_at_once_and_a_successor_after_the_delay() -> None:
    core = single(partition_index=0)
    old, new = ConsumerState("b"), ConsumerState("a")
    core.add_consumer(old, NOW)
    assert core.take_effects() == [NotifyActive(old, True)]
    core.on_flow(old, 10)
    assert core.next_read() is not None
    core.add_consumer(new, NOW)
    core.on_flow(new, 10)
    assert core.take_effects() == []
    assert core.next_read() is None
    deadline = core.next_deadline_ms()
    assert deadline == NOW + 1000
    core.on_tick(NOW + 999)
    assert core.next_read() is None
    core.on_tick(deadline)
    assert core.take_effects() == [NotifyActive(old, False), NotifyActive(new, True)]
    request = core.next_read()
    assert request is not None
    assert request.position is None, "from the first unacknowledged entry on"


def test_a_joiner_that_changes_nothing_is_told_alone() -> None:
    core = single(partition_index=0)
    core.add_consumer(ConsumerState("a"), NOW)
    core.take_effects()
    joiner = ConsumerState("b")
    core.add_consumer(joiner, NOW)
    assert core.take_effects() == [NotifyActive(joiner, False)]


def test_redelivery_rewinds_for_the_active_consumer_only() -> None:
    core = single(partition_index=0)
    active, idle = ConsumerState("a"), ConsumerState("b")
    core.add_consumer(active, NOW)
    core.add_consumer(idle, NOW)
    core.on_flow(active, 100)
    request = core.next_read()
    assert request is not None
    core.on_entries(request, batch_of([head()] * 3), None, None, NOW)
    assert core.read_position == (7, 3)
    core.redeliver(idle, None, 4)
    assert (core.read_position, idle.epoch) == ((7, 3), None)
    late = core.next_read()
    assert late is not None
    core.redeliver(active, None, 4)
    assert list(map(repr, (core.read_position, active.epoch))) == ["None", "4"]
    core.redeliver(active, None, 2)
    assert active.epoch == 4, "an epoch never goes back"
    core.take_effects()
    core.on_entries(late, batch_of([head()], 3), None, None, NOW)
    assert core.take_effects() == [], "a read from before the rewind is dropped"


def test_acknowledged_entries_and_markers_are_left_out() -> None:
    core = single(failover=False)
    consumer = ConsumerState("a")
    core.add_consumer(consumer, NOW)
    core.on_flow(consumer, 4)
    request = core.next_read()
    assert request is not None
    heads = [head(), head(flags=FLAG_MARKER), head(3), head(2), head()]
    core.on_entries(request, batch_of(heads), [0], None, NOW)
    skip, delivery = core.take_effects()
    assert skip == SkipEntries([(7, 1)])
    assert isinstance(delivery, Deliver)
    assert (delivery.picks, delivery.messages, consumer.permits) == ([2, 3], 5, -1)
    assert core.read_position == (7, 4)


def test_entries_read_for_a_consumer_whose_socket_filled_up_meanwhile_wait() -> None:
    class Stuck(ConsumerState):
        @property
        def writable(self) -> bool:
            return False

    core = SingleActiveDispatcher(DispatchLimits(), failover=False, topic="t", partition_index=-1)
    consumer = Stuck("c")
    core.add_consumer(consumer, NOW)
    core.on_flow(consumer, 10)
    core.take_effects()
    core.read_position = (7, 0)
    request = DispatchReadRequest((7, 0), 10, False, core.generation)
    core.on_entries(request, batch_of([head()] * 3), None, None, NOW)
    assert core.take_effects() == []
    assert (core.read_position, consumer.permits) == ((7, 0), 10)
