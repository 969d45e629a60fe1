"""Whose turn it is: shares by cost, no topic that waits for all of another's, nobody forgotten."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable

import pytest

from magnetar.broker.dispatch.async_turn_queue import AsyncTurnQueue
from magnetar.broker.dispatch.turn_queue import TurnQueue


class Load:
    """Turns by name and number; those that were taken, in order."""

    def __init__(self, queue: TurnQueue) -> None:
        self.queue = queue
        self.asked: dict[str, int] = defaultdict(int)
        self.taken: list[str] = []
        self.done: dict[str, int] = defaultdict(int)

    def ask(self, topic: str, count: int = 1) -> None:
        for _ in range(count):
            self.queue.add(topic, self._turn(topic, self.asked[topic]))
            self.asked[topic] += 1

    def _turn(self, topic: str, number: int) -> Callable[[], None]:
        def turn() -> None:
            assert self.done[topic] == number, "not in the order in which they came"
            self.done[topic] += 1
            self.taken.append(topic)

        return turn

    def take(self, cost_of: Callable[[str], float]) -> str:
        self.queue.take()()
        self.queue.charge(cost_of(self.taken[-1]))
        return self.taken[-1]


@pytest.mark.parametrize("seed", range(100))
def test_shares_are_even_and_a_topic_that_costs_little_waits_for_one_turn_of_each_other(
    seed: int,
) -> None:
    rng = random.Random(seed)
    load, others = Load(TurnQueue()), [f"t{number}" for number in range(rng.randint(1, 6))]
    costs = {each: rng.choice((0.1, 1.0, 5.0)) for each in others} | {"quiet": 0.001}
    spent = dict.fromkeys(others, 0.0)
    for each in others:
        load.ask(each, 2)  # of each there is always a turn that waits
    passed: list[str] | None = None  # turns since the quiet one asked
    for _ in range(500):
        if passed is None and rng.random() < 0.05:
            load.ask("quiet")
            passed = []
        topic = load.take(costs.__getitem__)
        if topic == "quiet":
            assert passed is not None
            assert len(passed) == len(set(passed)), passed
            passed = None
            continue
        if passed is not None:
            passed.append(topic)
        spent[topic] += costs[topic]
        load.ask(topic)
        for each in others:
            assert abs(spent[topic] - spent[each]) <= costs[topic] + costs[each]
    while load.queue.size:
        load.take(costs.__getitem__)
    assert load.done == load.asked


@pytest.mark.parametrize("seed", range(100))
def test_turns_that_come_and_go_are_all_taken(seed: int) -> None:
    """Topics that ask again and again pass nobody over for ever."""
    rng = random.Random(seed)
    load, waiting = Load(TurnQueue()), 0
    for _ in range(1_000):
        if rng.random() < 0.5:
            load.ask(f"t{rng.randrange(20)}", rng.randint(1, 3))
        if load.queue.size:
            load.take(lambda _: rng.random())
            waiting = 0 if load.done["victim"] == load.asked["victim"] else waiting + 1
            assert waiting < 200
        if load.done["victim"] == load.asked["victim"] and rng.random() < 0.1:
            load.ask("victim")
    while load.queue.size:
        load.take(lambda _: 1.0)
    assert load.done == load.asked


async def test_other_work_of_the_loop_comes_between_turns_that_take_long() -> None:
    now, order = 0.0, list[str]()

    def turn() -> None:
        nonlocal now
        now += 0.0002
        order.append("turn")

    turns = AsyncTurnQueue(asyncio.get_running_loop(), lambda: now)
    for _ in range(4):
        turns.add("t", turn)
    for _ in range(3):
        await asyncio.sleep(0)
        order.append("other")
    assert order == ["turn", "turn", "other", "turn", "turn", "other", "other"]


async def test_a_turn_that_fails_keeps_no_other_from_being_taken() -> None:
    loop, taken, told = asyncio.get_running_loop(), list[str](), list[object]()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    error = RuntimeError("our bug")

    def fail() -> None:
        raise error

    turns = AsyncTurnQueue(loop)
    turns.add("a", fail)
    turns.add("a", lambda: taken.append("a"))
    turns.add("b", lambda: taken.append("b"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert sorted(taken) == ["a", "b"]
    assert told == [error]
