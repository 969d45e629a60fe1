"""Delayed entries take bounded memory: nothing lost, nothing early, and what is dead leaves."""

import asyncio
import random
import tracemalloc
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from magnetar.broker.dispatch import delayed_index
from magnetar.broker.dispatch.delayed_index import DelayedIndex
from magnetar.broker.dispatch.interfaces import ConsumerState, Deliver, DispatchLimits
from magnetar.broker.dispatch.key_selector import HashRing
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.subscription.consumer import KEY_SHARED, SHARED
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.position import Position
from tests.unit.broker.dispatch.builders import Bench
from tests.unit.broker.dispatch.doubles import MemoryLedger, head
from tests.waiting import eventually

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
TYPES = pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])


@given(st.integers(), st.sampled_from([3, 5, 1024]))
def test_it_holds_what_a_dict_holds(seed: int, run_entries: int) -> None:
    rng = random.Random(seed)
    with patch.object(delayed_index, "_RUN_ENTRIES", run_entries):
        index = DelayedIndex(80, strict=False)  # steps of 10 ms
        model: dict[Position, int] = {}
        unused = [(ledger, entry) for ledger in (3, 7, 9) for entry in range(60)]
        rng.shuffle(unused)
        now = 0
        for _ in range(rng.randrange(250)):
            kind = rng.random()
            if kind < 0.6 and unused:
                position = unused.pop()
                if index._floor < position:
                    due = now + rng.choice([5, 50, 200, 200, 300])
                    index.add(*position, due)
                    model[position] = -(-due // 10) * 10
            elif kind < 0.75:
                now += rng.randrange(60)
                most = rng.choice([1, 3, 1000])
                taken = set(index.take_due(now, most))
                assert all(model[position] <= now for position in taken), "early or dead"
                rest = [due for position, due in model.items() if position not in taken]
                assert max((model[each] for each in taken), default=0) <= min(rest, default=2**63)
                if most == 1000:
                    assert all(due > now for due in rest), "late"
                for position in taken:
                    del model[position]
            elif kind < 0.85:
                ledger, entries = rng.choice([3, 7, 9, 11]), rng.sample(range(60), 5)
                index.forget(ledger, BitMap(entries))
                unused = [at for at in unused if at[0] != ledger or at[1] not in entries]
                for entry in entries:
                    model.pop((ledger, entry), None)
            elif kind < 0.9:
                floor = (rng.choice([3, 7]), rng.randrange(10))
                index.forget_below(floor)
                model = {position: due for position, due in model.items() if position > floor}
            else:
                index.sweep(rng.choice([1, 4, 1000]))
            assert index.count >= len(model)
            assert index.count == sum(len(run.times) for run in index._runs)
            assert list(index._firsts) == [run.times[0] for run in index._runs]
            if index.sweep_at is None:
                assert index.count - len(model) <= index.count // 8
        for _ in range(400):
            index.sweep(1)
        assert index.sweep_at is None
        assert set(index.take_due(2**63, 10_000)) == set(model)
        assert index.count == index.memory_bytes == 0
        assert index.next_due_ms() is None


def test_it_tells_when_an_entry_is_due() -> None:
    index = DelayedIndex(8, strict=True)
    for number in range(3_000):  # several runs
        index.add(7, number * 3, 5_000 + number)
        index.add(8, number, 9_000 + number)
    assert index.due_ms((7, 8_997)) == 7_999
    assert index.due_ms((8, 3)) == 9_003
    assert index.due_ms((7, 4)) is None
    assert index.due_ms((9, 3)) is None


@pytest.mark.parametrize("spread_ms", [0, 126, 40_000])
def test_an_entry_takes_a_few_bytes(spread_ms: int) -> None:
    rng = random.Random(5)
    index = DelayedIndex(1000, strict=False)
    entries = 20_000
    times = [NOW + rng.randrange(spread_ms * entries + 1) for _ in range(entries)]
    tracemalloc.start()
    for entry_id, time in enumerate(times):
        index.add(10, entry_id, time)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / entries < 25
    assert abs(index.memory_bytes - taken) < taken / 10, "what statistics show, and what is limited"


class Client:
    """One consumer with permits, which acknowledges at once; the shell's part, in virtual time."""

    def __init__(self, sub_type: int, limits: DispatchLimits) -> None:
        self.core: SharedDispatcher = (
            SharedDispatcher(limits)
            if sub_type == SHARED
            else KeySharedDispatcher(limits, HashRing(), self.key_of, draining=True)
        )
        self.ledger = MemoryLedger()
        self.consumer = ConsumerState("c")
        self.core.add_consumer(self.consumer)
        self.core.on_flow(self.consumer, 10)
        self.now_ms = NOW
        self.got: list[tuple[int, int]] = []  # entry ids, and when
        self.most = 0

    @staticmethod
    def key_of(body: Buffer) -> int:
        return int(bytes(body).split(b":")[1]) % 5 * 7_919

    def turn(self) -> None:
        core = self.core
        while (request := core.next_read()) is not None:
            position = request.position or (10, 0)
            batch = self.ledger.read_nowait(position, request.entries_max, 1 << 20)
            if batch is None:
                core.on_nothing(request, position)
                if not request.replay:
                    return
                continue
            core.on_entries(request, batch, None, None, self.now_ms)
            self.most = max(self.most, core.delayed.count)
            for effect in core.take_effects():
                assert isinstance(effect, Deliver)
                picks = range(len(batch.heads)) if effect.picks is None else effect.picks
                entries = [batch.first + index for index in picks]
                self.got += [(entry, self.now_ms) for entry in entries]
                core.on_flow(self.consumer, effect.messages)
                core.on_acked(self.consumer, [(10, entry) for entry in entries])


@TYPES
def test_a_full_index_delays_the_rest_and_loses_nothing(sub_type: int) -> None:
    limit = 2_000
    client = Client(sub_type, DispatchLimits(delayed_index_bytes=limit))
    times = [NOW + (entry // 100 + 1) * 1_000 for entry in range(1_000)]
    for entry in range(1_000):
        # After each hundred that waits come ten that needn't, in order of their keys.
        client.ledger.append(head(deliver_at_ms=times[entry]))
        if entry % 100 == 99:
            for _ in range(10):
                client.ledger.append(head())
    client.turn()
    assert client.got == [], "all there is room for waits"
    assert client.core.delayed.memory_bytes >= limit
    while (deadline := client.core.next_deadline_ms()) is not None:
        assert deadline > client.now_ms, "it has nothing to do now"
        client.now_ms = deadline
        client.core.on_tick(deadline)
        client.turn()
    assert client.most <= limit // 21 + 11, "the limit, and one read by the permits of ten"
    assert sorted(entry for entry, _ in client.got) == list(range(1_100)), "each once"
    for entry, when in client.got:
        part, rest = divmod(entry, 110)
        if rest < 100:
            assert 0 <= when - (NOW + (part + 1) * 1_000) <= 125, "in time, never early"
    plain = [entry for entry, _ in client.got if entry % 110 >= 100]
    assert plain == sorted(plain), "the order of those without a delay"


def test_messages_without_a_delay_pass_while_there_is_room() -> None:
    for limit in (0, 1 << 20):
        client = Client(SHARED, DispatchLimits(delayed_index_bytes=limit))
        for _ in range(1_000):
            client.ledger.append(head(deliver_at_ms=NOW + HOUR_MS))
        client.ledger.append(head())
        client.turn()
        assert client.got == [(1_000, NOW)]


@TYPES
def test_what_is_redelivered_comes_though_the_index_is_full(sub_type: int) -> None:
    client = Client(sub_type, DispatchLimits(delayed_index_bytes=1))
    core = client.core
    client.ledger.append(head())
    client.ledger.append(head(deliver_at_ms=NOW + HOUR_MS))
    request, batch = core.next_read(), client.ledger.read_nowait((10, 0), 10, 1 << 20)
    assert request is not None
    assert batch is not None
    core.on_entries(request, batch, None, None, NOW)
    assert len(core.take_effects()) == core.delayed.count == 1
    assert core.next_read() is None, "it is full"
    core.redeliver(client.consumer, None)
    client.turn()
    assert client.got == [(0, NOW)]


@pytest.mark.parametrize("how", ["switched off", "clock ahead"])
def test_what_comes_due_at_once_is_handed_out_in_turns(how: str) -> None:
    client = Client(SHARED, DispatchLimits())
    core = client.core
    for entry in range(25_000):
        client.ledger.append(head(deliver_at_ms=NOW + HOUR_MS + entry))
    client.turn()
    assert core.delayed.count == 25_000
    if how == "switched off":
        core.set_limits(DispatchLimits(delay_enabled=False))
    else:
        client.now_ms += 2 * HOUR_MS
    left = []
    while core.delayed.count:
        deadline = core.next_deadline_ms()
        assert deadline is not None
        assert deadline <= client.now_ms, "at once"
        core.on_tick(client.now_ms)
        left.append(core.delayed.count)
    assert left == [15_000, 5_000, 0]
    assert core.next_deadline_ms() is None
    client.turn()
    assert [entry for entry, _ in client.got] == list(range(25_000))


@TYPES
@pytest.mark.parametrize("how", ["skip", "acks"])
async def test_removed_entries_make_room(sub_type: int, how: str) -> None:
    bench = Bench(delayed_delivery_max_index_size_in_bytes=2_000)
    _, sink = await bench.consumer(sub_type, permits=10)
    for _ in range(300):
        bench.ledger.append(head(deliver_at_ms=bench.service.now_ms + HOUR_MS))
    last = bench.ledger.append(head())
    subscription = bench.subscription
    subscription.wake()

    def delayed(figure: str = "msgDelayed") -> int:
        return int(subscription.stats(NOW)[figure])

    await eventually(lambda: delayed("delayedMessageIndexSizeInBytes") >= 2_000)
    assert delayed("delayedMessageIndexSizeInBytes") < 2_500
    assert sink.got == []
    if how == "skip":
        subscription.acknowledge_cumulative(None, (10, 290))
        await eventually(lambda: bool(sink.got) and delayed() == 9)
    else:
        for entry in range(300):
            subscription.acknowledge(None, [(10, entry)])
        await eventually(lambda: bool(sink.got) and delayed() == 0)
    assert sink.got == [last]


def test_it_is_held_back_until_half_of_the_index_is_free() -> None:
    client = Client(SHARED, DispatchLimits(delayed_index_bytes=2_000))
    core = client.core
    for entry in range(300):
        client.ledger.append(head(deliver_at_ms=NOW + HOUR_MS + entry))
    client.turn()
    assert core.is_held_back
    for removed, is_held_back in ((20, True), (70, False)):
        core.on_acked(None, [(10, entry) for entry in range(removed)])
        while core.next_deadline_ms() == 0:
            core.on_tick(NOW)
        assert core.next_read() is not None, "there is room"
        assert core.is_held_back is is_held_back


async def test_a_full_index_is_told_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(delayed_delivery_max_index_size_in_bytes=2_000)
    await bench.consumer(SHARED, permits=10)
    for entry in range(300):
        due = bench.service.now_ms + HOUR_MS + entry * 1_000
        bench.ledger.append(head(deliver_at_ms=due))
    bench.ledger.append(head())
    bench.subscription.wake()

    def delayed() -> int:
        return int(bench.subscription.stats(NOW)["msgDelayed"])

    await eventually(lambda: bool(caplog.messages))
    name = f"{bench.subscription.topic.name} {bench.subscription.name}"
    begin = (
        f"{name}: more delayed messages wait than delayedDeliveryMaxIndexSizeInBytes allows: "
        "nothing behind them is delivered until some are due"
    )
    assert caplog.messages == [begin]
    for entry in range(301):  # room is made one by one, and filled at once
        bench.subscription.acknowledge(None, [(10, entry)])
        for _ in range(4):
            await asyncio.sleep(0)
    end = f"{name}: few enough delayed messages wait: delivery goes on"
    await eventually(lambda: caplog.messages[-1] == end and not delayed())
    assert caplog.messages == [begin, end]


def test_ten_thousand_removed_entries_leave_in_turns() -> None:
    client = Client(SHARED, DispatchLimits())
    core = client.core
    for entry in range(25_000):
        client.ledger.append(head(deliver_at_ms=NOW + HOUR_MS + entry % 7))
    client.turn()
    core.on_mark_delete((10, 24_000))
    left = [core.delayed.count]
    while core.next_deadline_ms() == 0:
        core.on_tick(client.now_ms)
        left.append(core.delayed.count)
    assert left[0] == 25_000
    assert left[-1] == 999
    assert len(left) >= 4
    assert all(0 <= a - b <= 11_024 for a, b in pairwise(left))
