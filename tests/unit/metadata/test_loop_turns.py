"""Long work lets others run: no turn takes more than half a millisecond and one item."""

import asyncio
from collections import Counter

import pytest

from magnetar.metadata import loop_turns
from magnetar.metadata.loop_turns import (
    TURN_S,
    Steps,
    in_turns,
    next_turn,
    run_at_once,
    run_in_turns,
)


@pytest.mark.parametrize("item_s", [0.00004, 0.0002, 0.01])
async def test_a_turn_is_half_a_millisecond_and_one_item(item_s: float) -> None:
    now_s = 0.0
    turns: list[float] = []
    ends_s = 100 * item_s

    def clock() -> float:
        return now_s

    async def others() -> None:
        """One turn of the loop after the other, as a heartbeat gets them."""
        while now_s < ends_s - item_s / 2:
            turns.append(now_s)
            await asyncio.sleep(0)

    beside = asyncio.get_running_loop().create_task(others())
    found = []
    async for number in in_turns(range(100), clock):
        found.append(number)
        now_s += item_s
    await beside
    assert found == list(range(100))
    assert len(turns) > 1
    held_s = [after - before for before, after in zip(turns, [*turns[1:], now_s], strict=True)]
    assert max(held_s) <= TURN_S + item_s + 1e-9


def counted(done: list[int], count: int) -> Steps[int]:
    for number in range(count):
        done.append(number)
        yield
    return count


async def test_others_have_turns_between_steps_until_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_turns, "TURN_S", 0.0)  # each turn is over at once
    done, seen = list[int](), list[int]()
    work = asyncio.get_running_loop().create_task(run_in_turns(counted(done, 5)))
    while not work.done():
        await asyncio.sleep(0)
        seen.append(len(done))
    assert seen == [1, 2, 3, 4, 5, 5]
    assert work.result() == run_at_once(counted([], 5)) == 5


async def test_an_error_between_two_steps_is_that_of_the_whole() -> None:
    def broken() -> Steps[None]:
        yield
        raise LookupError

    with pytest.raises(LookupError):
        await run_in_turns(broken())
    with pytest.raises(LookupError):
        run_at_once(broken())


async def test_of_many_that_work_one_goes_on_in_a_turn_of_the_loop() -> None:
    turn, went_on = 0, list[tuple[int, int]]()
    loop = asyncio.get_running_loop()

    async def work(number: int) -> None:
        for _ in range(3):
            await next_turn()
            went_on.append((turn, number))

    tasks = [loop.create_task(work(number)) for number in range(10)]
    while not all(task.done() for task in tasks):
        turn += 1
        await asyncio.sleep(0)
    by_turn = Counter(each for each, _ in went_on)
    assert max(by_turn.values()) == 1
    assert [number for _, number in went_on[:10]] == [*range(10)], "each of them before any again"


async def test_who_leaves_while_waiting_leaves_its_place() -> None:
    loop, done = asyncio.get_running_loop(), list[int]()

    async def work(number: int) -> None:
        await next_turn()
        done.append(number)

    tasks = [loop.create_task(work(number)) for number in range(8)]
    await asyncio.sleep(0)
    for number in (1, 2, 4):
        tasks[number].cancel()
    await asyncio.wait(tasks)
    assert done == [0, 3, 5, 6, 7]
    await next_turn()
