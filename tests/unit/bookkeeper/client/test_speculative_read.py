"""Races of replicas: who is asked when, who wins, and what becomes of the others."""

import asyncio
from itertools import islice

import pytest

from magnetar.bookkeeper.client.config import SpeculationConfig
from magnetar.bookkeeper.client.speculative_read import SpeculativeRead, first_good
from tests.unit.bookkeeper.client.conftest import eventually

FAST = SpeculationConfig(5, 20, 2.0)
SLOW = SpeculationConfig(60_000, 60_000)
OFF = SpeculationConfig()


class Replicas:
    """Candidates by number; each answers when the test says so."""

    def __init__(self, count: int) -> None:
        self.answers = [asyncio.get_running_loop().create_future() for _ in range(count)]
        self.asked: list[int] = []
        self.cancelled: list[int] = []

    async def ask(self, number: int) -> str | None:
        self.asked.append(number)
        try:
            answer: str | None = await self.answers[number]
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        return answer

    async def wait_for(self, asked: int) -> None:
        await eventually(lambda: len(self.asked) >= asked)


def start(
    replicas: Replicas, config: SpeculationConfig, race: SpeculativeRead
) -> asyncio.Task[str | None]:
    count = len(replicas.answers)
    return asyncio.create_task(first_good(range(count), replicas.ask, config, race))


def test_pauses_back_off_up_to_a_limit() -> None:
    assert list(islice(SpeculationConfig(10, 25, 2.0).pauses_s(), 4)) == [0.01, 0.02, 0.025, 0.025]
    # A first pause above the limit is what was asked for.
    assert list(islice(SpeculationConfig(50, 10, 2.0).pauses_s(), 2)) == [0.05, 0.05]


async def test_a_slow_replica_gets_a_rival_and_loses() -> None:
    replicas, race = Replicas(3), SpeculativeRead()
    running = start(replicas, FAST, race)
    await replicas.wait_for(2)
    replicas.answers[1].set_result("second")
    assert await running == "second"
    assert (race.winner, replicas.asked[:2]) == (1, [0, 1])
    assert race.speculative >= 1
    await asyncio.sleep(0)
    assert 0 in replicas.cancelled


async def test_the_first_one_may_still_win() -> None:
    replicas, race = Replicas(2), SpeculativeRead()
    running = start(replicas, FAST, race)
    await replicas.wait_for(2)
    replicas.answers[0].set_result("first")
    assert await running == "first"
    assert (race.winner, race.speculative) == (0, 1)


async def test_a_failure_asks_the_next_at_once() -> None:
    replicas, race = Replicas(3), SpeculativeRead()
    running = start(replicas, SLOW, race)
    replicas.answers[0].set_result(None)
    await replicas.wait_for(2)
    replicas.answers[1].set_result(None)
    await replicas.wait_for(3)
    replicas.answers[2].set_result("third")
    assert await running == "third"
    assert (race.winner, race.speculative) == (2, 0)


async def test_a_failure_of_the_rival_leaves_the_first_one_running() -> None:
    replicas, race = Replicas(2), SpeculativeRead()
    running = start(replicas, FAST, race)
    await replicas.wait_for(2)
    replicas.answers[1].set_result(None)
    await asyncio.sleep(0.001)
    assert not running.done()
    replicas.answers[0].set_result("first")
    assert await running == "first"


@pytest.mark.parametrize("config", [OFF, FAST])
async def test_all_fail(config: SpeculationConfig) -> None:
    replicas, race = Replicas(3), SpeculativeRead()
    for answer in replicas.answers:
        answer.set_result(None)
    assert await start(replicas, config, race) is None
    assert (race.winner, replicas.asked) == (-1, [0, 1, 2])


async def test_of_two_answers_the_preferred_counts() -> None:
    replicas, race = Replicas(2), SpeculativeRead()
    running = start(replicas, FAST, race)
    await replicas.wait_for(2)
    replicas.answers[1].set_result("second")
    replicas.answers[0].set_result("first")
    assert await running == "first"


@pytest.mark.parametrize(("count", "config"), [(1, FAST), (3, OFF)])
async def test_without_a_race_there_is_no_task_and_no_timer(
    count: int, config: SpeculationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()

    def never(*_args: object, **_options: object) -> object:
        raise AssertionError("a race was begun")

    async def ask(number: int) -> int:
        return number

    with monkeypatch.context() as patch:
        for name in ("create_task", "call_later", "call_at"):
            patch.setattr(loop, name, never)
        assert await first_good(range(count), ask, config, SpeculativeRead()) == 0


async def test_giving_up_cancels_all() -> None:
    replicas = Replicas(2)
    running = start(replicas, FAST, SpeculativeRead())
    await replicas.wait_for(2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.sleep(0)
    assert sorted(replicas.cancelled) == [0, 1]
