"""Results that take long, as walks over all topics do: they are shared, and kept for a while."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_SHARE: Final = 100
_KEPT_MAX_S: Final = 60.0


def kept_s(used_s: float) -> float:
    """How long a walk's result is good for, so that walks take a hundredth of a processor.

    Args:
        used_s: seconds of a processor that the walk took.
    """
    return min(_SHARE * used_s, _KEPT_MAX_S)


class LatestResult(Generic[T]):
    """The last result of something; all who ask while it is made share it."""

    def __init__(self, make: Callable[[], Awaitable[T]], kept_s: float) -> None:
        """``kept_s``: it is given again for so long."""
        self._make = make
        self.kept_s = kept_s
        self._task: asyncio.Task[T] | None = None
        self._until_s = 0.0

    async def get(self) -> T:
        loop = asyncio.get_running_loop()
        if self._task is None or (self._task.done() and loop.time() >= self._until_s):
            self._task = loop.create_task(self._run(self._make))
        # Whoever goes away doesn't take it from the others.
        return await asyncio.shield(self._task)

    async def renewed(self, make: Callable[[], Awaitable[T]]) -> T:
        """A new one, of somebody who makes it anyway; all who ask meanwhile share it."""
        self._task = asyncio.get_running_loop().create_task(self._run(make))
        return await asyncio.shield(self._task)

    async def _run(self, make: Callable[[], Awaitable[T]]) -> T:
        self._until_s = 0.0  # should it fail
        result = await make()
        self._until_s = asyncio.get_running_loop().time() + self.kept_s
        return result

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
