"""The order in which passwords are checked, and which checks the queue refuses; pure.

A check takes milliseconds on purpose, so guesses of unauthenticated clients keep more checks
waiting than can be computed. Places are bounded, and turns go round: first by address, then by the
name of the user as it was shown (whether there is such a user makes no difference, or waiting would
tell). When all places are taken, the address with most of them loses its last one to one that has
fewer. Those whose credentials were good before are trusted: they wait only for each other.
"""

from collections import Counter, deque
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


class PasswordQueue(Generic[Check]):
    """Up to ``PLACES_MAX`` checks, and those of trusted clients."""

    def __init__(self, places_max: int = PLACES_MAX, address_max: int = ADDRESS_MAX) -> None:
        self._places_max = places_max
        self._address_max = address_max
        self._trusted: deque[Check] = deque()
        # By address and name, both in the order of their turns; none is empty
        self._waiting: dict[str, dict[str, deque[Check]]] = {}
        self._counts: Counter[str] = Counter()  # by address; none is 0

    def __len__(self) -> int:
        return self._counts.total() + len(self._trusted)

    def has_room(self, each: QueuedCheck) -> bool:
        """Whether ``add`` would take it."""
        return each.is_trusted or self._loser(each) is not _NEWCOMER

    def add(self, each: Check) -> Check | None:
        """The check that has lost its place by that: another, ``each`` itself, or none (None)."""
        if each.is_trusted:
            self._trusted.append(each)
            return None
        loser = self._loser(each)
        if loser is _NEWCOMER:
            return each
        pushed_out = None if loser is None else self._drop(loser)
        self._waiting.setdefault(each.address, {}).setdefault(each.name, deque()).append(each)
        self._counts[each.address] += 1
        return pushed_out

    def take(self) -> Check | None:
        """The next check; None: none waits."""
        if self._trusted:
            return self._trusted.popleft()
        if not self._waiting:
            return None
        address = next(iter(self._waiting))
        names = self._waiting.pop(address)
        name = next(iter(names))
        queue = names.pop(name)
        each = queue.popleft()
        if queue:
            names[name] = queue  # behind the others
        if names:
            self._waiting[address] = names  # the same
        self._count_down(address)
        return each

    def put_back(self, each: Check) -> None:
        """It was taken, and could not be done: it is the next one again."""
        self._trusted.appendleft(each)

    def clear(self) -> list[Check]:
        """Empty the queue; answers the checks that waited."""
        found = []
        while (each := self.take()) is not None:
            found.append(each)
        return found

    def _loser(self, each: QueuedCheck) -> str | None:
        """The address that loses a place to a newcomer; None: there is room; or ``_NEWCOMER``."""
        count = self._counts[each.address]
        if count < self._address_max or not each.address:
            if self._counts.total() < self._places_max:
                return None
            [(largest, most)] = self._counts.most_common(1)
            if count + 1 < most:
                return largest
        # Among themselves: a name that has fewer places takes one of the name that has most.
        own = {name: len(queue) for name, queue in self._waiting.get(each.address, {}).items()}
        if own and own.get(each.name, 0) + 1 < max(own.values()):
            return each.address
        return _NEWCOMER

    def _drop(self, address: str) -> Check:
        """The last one of the name that has most."""
        names = self._waiting[address]
        name = max(names, key=lambda name: len(names[name]))
        dropped = names[name].pop()
        if not names[name]:
            del names[name]
        if not names:
            del self._waiting[address]
        self._count_down(address)
        return dropped

    def _count_down(self, address: str) -> None:
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]


_NEWCOMER: Final = "\0"  # no address
