"""Whose password is checked next, and who is not let into the queue; pure.

A check takes milliseconds on purpose, so unauthenticated clients who guess keep more checks waiting
than anybody can compute. Places are bounded, and turns go round: first by address, then by the name
of the user as it was shown (whether there is such a user makes no difference, or waiting would
tell). When all places are taken, whoever has most of them loses his last one to a newcomer who has
fewer. Those whose credentials were good before are trusted: they wait for nobody but each other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

PLACES_MAX: Final = 256
ADDRESS_MAX: Final = PLACES_MAX // 2


@dataclass(slots=True, eq=False)
class QueuedCheck:
    """One check."""

    address: str  # "": of the broker itself
    name: str
    is_trusted: bool


Check = TypeVar("Check", bound=QueuedCheck)


class _Address(Generic[Check]):
    """What waits for one address: by name, in the order of their turns; no deque is empty."""

    __slots__ = ("by_name", "count")

    def __init__(self) -> None:
        self.by_name: dict[str, deque[Check]] = {}
        self.count = 0

    def add(self, each: Check) -> None:
        self.by_name.setdefault(each.name, deque()).append(each)
        self.count += 1

    def take(self) -> Check:
        name = next(iter(self.by_name))
        queue = self.by_name.pop(name)
        each = queue.popleft()
        if queue:
            self.by_name[name] = queue  # behind the others
        self.count -= 1
        return each

    def most(self) -> int:
        return max(map(len, self.by_name.values()))

    def count_of(self, name: str) -> int:
        return len(self.by_name.get(name, ()))

    def drop(self) -> Check:
        """The last one of the name that has most."""
        name = max(self.by_name, key=lambda name: len(self.by_name[name]))
        queue = self.by_name[name]
        each = queue.pop()
        if not queue:
            del self.by_name[name]
        self.count -= 1
        return each


class PasswordQueue(Generic[Check]):
    """Up to ``PLACES_MAX`` checks, and those of who is trusted."""

    def __init__(self, places_max: int = PLACES_MAX, address_max: int = ADDRESS_MAX) -> None:
        self._places_max = places_max
        self._address_max = address_max
        self._trusted: deque[Check] = deque()
        self._addresses: dict[
            str, _Address[Check]
        ] = {}  # in the order of their turns; none is empty
        self._count = 0

    def __len__(self) -> int:
        return self._count + len(self._trusted)

    def has_room(self, each: QueuedCheck) -> bool:
        """Whether ``add`` would take it."""
        return each.is_trusted or self._loser(each) is not _NEWCOMER

    def add(self, each: Check) -> Check | None:
        """Who has lost a place by that: another one, ``each`` itself, or nobody (None)."""
        if each.is_trusted:
            self._trusted.append(each)
            return None
        loser = self._loser(each)
        if loser is _NEWCOMER:
            return each
        pushed_out = None if loser is None else self._drop(loser)
        self._addresses.setdefault(each.address, _Address()).add(each)
        self._count += 1
        return pushed_out

    def take(self) -> Check | None:
        """Whose turn it is; None: nobody waits."""
        if self._trusted:
            return self._trusted.popleft()
        if not self._addresses:
            return None
        name = next(iter(self._addresses))
        address = self._addresses.pop(name)
        each = address.take()
        if address.count:
            self._addresses[name] = address  # behind the others
        self._count -= 1
        return each

    def put_back(self, each: Check) -> None:
        """It was taken, and could not be done: it is the next one again."""
        self._trusted.appendleft(each)

    def clear(self) -> list[Check]:
        """Nobody waits any more; who did."""
        found = []
        while (each := self.take()) is not None:
            found.append(each)
        return found

    def _loser(self, each: QueuedCheck) -> str | None:
        """The address that loses a place to a newcomer; None: there is room; or ``_NEWCOMER``."""
        own = self._addresses.get(each.address)
        own_count = 0 if own is None else own.count
        if own_count < self._address_max or not each.address:
            if self._count < self._places_max:
                return None
            largest = max(self._addresses, key=lambda name: self._addresses[name].count)
            if own_count + 1 < self._addresses[largest].count:
                return largest
        # Among themselves: a name that has fewer places takes one of the name that has most.
        if own is not None and own.count_of(each.name) + 1 < own.most():
            return each.address
        return _NEWCOMER

    def _drop(self, name: str) -> Check:
        address = self._addresses[name]
        dropped = address.drop()
        if not address.count:
            del self._addresses[name]
        self._count -= 1
        return dropped


_NEWCOMER: Final = "\0"  # no address
