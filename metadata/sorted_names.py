"""Sorts names of many nodes without holding up the loop: ZooKeeper lists children in no order.

Nor are 100,000 names copied or freed at once, which takes a millisecond each time.
"""

import asyncio
from bisect import bisect_left
from typing import Final

_AT_ONCE: Final = 1_000
"""Names that are sorted before others get their turn on the loop."""
_SAMPLED: Final = 1_000


async def sort_in_turns(names: list[str]) -> list[str]:
    """The names, sorted; the list of the caller is used up. At once, 100,000 would take 40 ms."""
    runs: list[list[str]] = []
    names.reverse()
    while names:
        run = sorted(names[-_AT_ONCE:])
        del names[-_AT_ONCE:]
        if runs and runs[-1][-1] <= run[0]:  # they were in order, as of the embedded store
            runs[-1] += run
        else:
            runs.append(run)
        await asyncio.sleep(0)
    return await _merged(runs) if len(runs) > 1 else runs[0] if runs else []


async def _merged(runs: list[list[str]]) -> list[str]:
    """By ranges of names, of about ``_AT_ONCE`` each, the last one first; uses the runs up."""
    count = sum(map(len, runs))
    sample = sorted(name for run in runs for name in run[:: max(50, count // _SAMPLED)])
    bounds = sample[:: max(1, len(sample) * _AT_ONCE // count)]
    found: list[str] = []
    for bound in (*bounds[:0:-1], ""):
        piece: list[str] = []
        for run in runs:
            first = bisect_left(run, bound)
            piece += run[first:]
            del run[first:]
        piece.sort(reverse=True)
        found += piece
        await asyncio.sleep(0)
    found.reverse()
    return found
