"""Waiting for what comes soon: with a deadline that only a failure reaches."""

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable

# Shorter where a planted bug keeps what is waited for from coming (test_naive_variants.py).
DEADLINE_S = float(os.environ.get("MAGNETAR_TEST_DEADLINE_S", "90"))


def wait_until(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "it never became true",
    seconds_max: float = DEADLINE_S,
) -> None:
    """Poll until ``condition`` is true; ``what`` it is that didn't come is asked at the end."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(
                f"not in {seconds_max} s: {what if isinstance(what, str) else what()}"
            )
        time.sleep(0.02)


async def eventually(
    condition: Callable[[], object] | Callable[[], Awaitable[object]],
    what: str = "it never became true",
    seconds_max: float = DEADLINE_S,
) -> None:
    """As `wait_until`, of what the loop does meanwhile; the condition may be a coroutine's."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    while not await _value(condition):
        assert loop.time() < deadline, f"not in {seconds_max} s: {what}"
        await asyncio.sleep(0.001)


async def _value(condition: Callable[[], object]) -> object:
    found = condition()
    return await found if inspect.isawaitable(found) else found
