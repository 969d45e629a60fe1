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
    began = time.monotonic()
    while not condition():
        if (waited_s := time.monotonic() - began) >= seconds_max:
            raise AssertionError(
                f"not in {seconds_max} s: {what if isinstance(what, str) else what()}"
            )
        time.sleep(_pause_s(waited_s))


async def eventually(
    condition: Callable[[], object] | Callable[[], Awaitable[object]],
    what: str = "it never became true",
    seconds_max: float = DEADLINE_S,
) -> None:
    """As `wait_until`, of what the loop does meanwhile; the condition may be a coroutine's."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not await _value(condition):
        waited_s = loop.time() - began
        assert waited_s < seconds_max, f"not in {seconds_max} s: {what}"
        await asyncio.sleep(_pause_s(waited_s))


def _pause_s(waited_s: float) -> float:
    """Longer and longer: looking a thousand times a second keeps a core from what is waited for."""
    return min(max(waited_s / 10, 0.001), 0.1)


async def _value(condition: Callable[[], object]) -> object:
    found = condition()
    return await found if inspect.isawaitable(found) else found
