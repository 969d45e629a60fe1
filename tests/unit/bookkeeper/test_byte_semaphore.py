"""The bound on bytes in memory."""

import asyncio

import pytest

from magnetar.bookkeeper.byte_semaphore import ByteSemaphore


async def _ticks(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_finds_no_room_waits_in_line() -> None:
    gate = ByteSemaphore(10)
    await gate.acquire(6)
    order: list[str] = []

    async def enter(name: str, size: int) -> None:
        await gate.acquire(size)
        order.append(name)

    large = asyncio.create_task(enter("large", 8))
    await _ticks()
    small = asyncio.create_task(enter("small", 1))  # would fit, but is behind
    await _ticks()
    assert order == []
    gate.release(6)
    await asyncio.gather(large, small)
    assert order == ["large", "small"]
    assert gate.used == 9


async def test_one_too_large_for_the_gate_gets_in_alone() -> None:
    gate = ByteSemaphore(10)
    await gate.acquire(100)
    other = asyncio.create_task(gate.acquire(1))
    await _ticks()
    assert not other.done()
    gate.release(100)
    await other


async def test_a_charge_that_shrinks_lets_others_in() -> None:
    gate = ByteSemaphore(10)
    await gate.acquire(10)
    other = asyncio.create_task(gate.acquire(5))
    await _ticks()
    gate.grow(-8)
    await other
    assert gate.used == 7


async def test_cancelled_waiters_leave_no_charge_behind() -> None:
    gate = ByteSemaphore(10)
    await gate.acquire(10)
    first, second = (asyncio.create_task(gate.acquire(10)) for _ in range(2))
    await _ticks()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.release(10)
    await second
    third = asyncio.create_task(gate.acquire(10))
    await _ticks()
    gate.release(10)  # lets the third in ...
    third.cancel()  # ... which is cancelled before it runs
    with pytest.raises(asyncio.CancelledError):
        await third
    assert gate.used == 0
