"""Long work lets others run: no turn takes more than half a millisecond and one item."""

import asyncio

import pytest

from magnetar.metadata import loop_turns
from magnetar.metadata.loop_turns import TURN_S, Steps, in_turns, run_at_once, run_in_turns


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
