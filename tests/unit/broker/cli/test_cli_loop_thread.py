"""An event loop for callers that wait."""

import asyncio
import threading

import pytest

from magnetar.broker.cli.loop_thread import LoopThread


def test_results_and_errors_are_the_callers() -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        if number < 0:
            raise ValueError(str(number))
        return number

    thread = LoopThread("loop")
    assert thread.call(work(3)) == 3
    with pytest.raises(ValueError, match="-1"):
        thread.call(work(-1))
    thread.close()


def test_what_was_begun_ends_with_it() -> None:
    ended: list[str] = []
    tasks = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(threading.current_thread().name)

    async def begin() -> None:
        tasks.append(asyncio.create_task(endless()))
        await asyncio.sleep(0)

    thread = LoopThread("loop")
    thread.call(begin())
    thread.close()
    assert ended == ["loop"]
    assert tasks[0].cancelled()
    assert "loop" not in [each.name for each in threading.enumerate()]
