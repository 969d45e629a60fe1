"""Asking one replica after the other, the next one early when the first is slow.

The first good answer wins. Losers are cancelled, which a transport may use to stop
the request, and never heard again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from magnetar.bookkeeper.client.config import SpeculationConfig

A = TypeVar("A")
T = TypeVar("T")


@dataclass(slots=True)
class SpeculativeRead:
    """What one race was like.

    Attributes:
        speculative: replicas that were asked before the one before them had answered.
        winner: place among the candidates; -1: none gave a good answer.
    """

    speculative: int = 0
    winner: int = -1


async def first_good(
    candidates: Sequence[T],
    ask: Callable[[T], Coroutine[Any, Any, A | None]],
    config: SpeculationConfig,
    race: SpeculativeRead,
) -> A | None:
    """The first answer that isn't None; None: every candidate was asked and none had one.

    Args:
        ask: gives None when the candidate has no good answer; raises only bugs.
        race: is filled in.
    """
    if len(candidates) == 1 or not config.first_ms:
        # Nobody to race with: no task, no timer.
        for place, candidate in enumerate(candidates):
            answer = await ask(candidate)
            if answer is not None:
                race.winner = place
                return answer
        return None
    return await _race(candidates, ask, config, race)


async def _race(
    candidates: Sequence[T],
    ask: Callable[[T], Coroutine[Any, Any, A | None]],
    config: SpeculationConfig,
    race: SpeculativeRead,
) -> A | None:
    loop = asyncio.get_running_loop()
    pauses = config.pauses_s()
    running: dict[asyncio.Task[A | None], int] = {}
    asked = 0
    try:
        while True:
            if asked < len(candidates):
                running[loop.create_task(ask(candidates[asked]))] = asked
                asked += 1
            if not running:
                return None
            pause_s = next(pauses) if asked < len(candidates) else None
            done, _ = await asyncio.wait(
                running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
            )
            race.speculative += not done  # none has failed, and the next one is asked, too
            # In the order of asking: of two good answers the preferred replica's counts.
            for task in sorted(done, key=running.__getitem__):
                place = running.pop(task)
                if (answer := task.result()) is not None:
                    race.winner = place
                    return answer
    finally:
        for task in running:
            task.cancel()
