"""The menu: where its entries lead to, and how many there are of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from magnetar.broker.console.source import Source

_WAIT_S: Final = 0.1
"""A page waits so long for counts; else it has those of before, or none."""
_FRESH_S: Final = 10.0
_SHARE: Final = 50.0
"""Counts are kept this many times as long as they took."""
_KNOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of the menu."""

    key: str
    path: str
    title: str
    short: str = ""


MENU: Final = (
    (
        "Cluster",
        (
            Link("overview", "", "Overview", "Overview"),
            Link("brokers", "brokers", "Brokers"),
            Link("bookies", "bookies", "Bookies"),
        ),
    ),
    (
        "Data",
        (
            Link("namespaces", "namespaces", "Namespaces"),
            Link("topics", "topics", "Topics", "Topics"),
            Link("subscriptions", "subscriptions", "Subscriptions", "Subs"),
            Link("messages", "messages", "Messages", "Messages"),
            Link("schemas", "schemas", "Schemas"),
            Link("transactions", "transactions", "Transactions"),
        ),
    ),
    (
        "Access",
        (
            Link("roles", "roles", "Roles"),
            Link("settings", "settings", "Settings"),
            Link("audit", "audit", "Audit"),
        ),
    ),
)


class MenuCounts:
    """Counts by keys of the menu, as each visitor may see them, read again by and by."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._known: dict[str, tuple[Mapping[str, int], float]] = {}  # and until when
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def of(self, who: str, source: Source) -> Mapping[str, int]:
        """The last ones.

        Args:
            source: the cluster, as ``who`` may see it.
        """
        _, end_s = self._known.get(who, ({}, 0.0))
        if self._clock_s() >= end_s:
            if (task := self._reading.get(who)) is None:
                task = self._reading[who] = asyncio.create_task(self._read(who, source))
            await asyncio.wait({task}, timeout=_WAIT_S)
        return self._known.get(who, ({}, 0.0))[0]

    async def close(self) -> None:
        """Ends what is being read."""
        reading = list(self._reading.values())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    async def _read(self, who: str, source: Source) -> None:
        began_s = self._clock_s()
        try:
            found = await source.counts()
        finally:
            del self._reading[who]
        now_s = self._clock_s()
        self._known.pop(who, None)
        self._known[who] = found, now_s + max(_FRESH_S, _SHARE * (now_s - began_s))
        while len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]
