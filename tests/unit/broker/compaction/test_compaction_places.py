"""Turns and pace of the compactions of a broker, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from magnetar.broker.compaction.compaction_places import (
    LARGE_BYTES,
    PAUSE_PIECES,
    PAUSE_S,
    CompactionPlaces,
)
from tests.simulation.simulator import Simulator, run_simulation

SMALL, LARGE = LARGE_BYTES, LARGE_BYTES + 1


def _simulated(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run(_: Simulator) -> None:
        await scenario()

    run_simulation(0, run)


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ([SMALL, SMALL, SMALL], [1, 1, 2]),
        ([LARGE, LARGE, SMALL, SMALL], [1, 2, 1, 2]),
        ([LARGE, LARGE, LARGE, SMALL], [1, 2, 3, 1]),
        ([SMALL, LARGE, LARGE], [1, 1, 2]),
    ],
)
def test_two_at_a_time_and_one_of_them_large(sizes: list[int], seconds: list[float]) -> None:
    async def scenario() -> None:
        places, loop = CompactionPlaces(lambda: 0), asyncio.get_running_loop()
        ends = [0.0] * len(sizes)

        async def run(number: int) -> None:
            async with places.place(sizes[number]):
                await asyncio.sleep(1)
                ends[number] = loop.time()

        await asyncio.gather(*map(run, range(len(sizes))))
        assert ends == pytest.approx(seconds)

    _simulated(scenario)


def test_one_that_fails_or_is_cancelled_gives_its_place_back() -> None:
    async def scenario() -> None:
        places = CompactionPlaces(lambda: 0)
        holding = asyncio.Event()

        async def run() -> None:
            async with places.place(LARGE):
                holding.set()
                await asyncio.Event().wait()

        first, second = asyncio.create_task(run()), asyncio.create_task(run())
        await holding.wait()
        second.cancel()
        first.cancel()
        await asyncio.wait([first, second])
        with pytest.raises(ZeroDivisionError):
            async with places.place(LARGE):
                raise ZeroDivisionError
        async with asyncio.timeout(1), places.place(LARGE), places.place(SMALL):
            pass

    _simulated(scenario)


def test_all_runs_together_read_no_faster_than_the_limit() -> None:
    async def scenario() -> None:
        places, loop = CompactionPlaces(lambda: 1000), asyncio.get_running_loop()

        async def read(pieces: int) -> None:
            for _ in range(pieces):
                await places.pace(700)

        await asyncio.gather(read(30), read(30))
        # The bucket was full at the beginning.
        assert loop.time() == pytest.approx((60 * 700 - 1000) / 1000, abs=0.01)

    _simulated(scenario)


def test_a_limit_is_changed_while_a_run_waits_for_it() -> None:
    async def scenario() -> None:
        limit = 1
        places, loop = CompactionPlaces(lambda: limit), asyncio.get_running_loop()
        waiting = asyncio.create_task(places.pace(1024 * 1024))
        await asyncio.sleep(10)
        assert not waiting.done()
        limit = 0
        await waiting
        assert loop.time() < 12
        await places.pace(1 << 40)
        assert loop.time() < 12, "no limit"

    _simulated(scenario)


def test_the_loop_is_others_now_and_then() -> None:
    async def scenario() -> None:
        places, loop = CompactionPlaces(lambda: 0), asyncio.get_running_loop()
        for _ in range(100):
            await places.pace(1)
        assert loop.time() == pytest.approx(100 // PAUSE_PIECES * PAUSE_S)

    _simulated(scenario)
