"""Which of a producer's messages are stored already, by their sequence ids. Numbers only, no I/O.

A producer's ids ascend. Of each name two are remembered: the highest that was given to the log, and
the highest that is known to be in it. What comes is *stored* when its id isn't above the second,
*undecided* when it is between the two (its first copy is on its way, and may yet fail), and *new*
above both.

The ids of a transaction count only until it is aborted: then its messages may come again.
"""

from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

NEW: Final = 0
STORED: Final = 1
UNDECIDED: Final = 2

_NONE_STORED: Final = -1


class DuplicateRun(NamedTuple):
    """Neighbours of one batch with the same verdict: ``start <= index < end``."""

    verdict: int
    start: int
    end: int


@dataclass(slots=True)
class _OpenIds:
    """Of a producer with open transactions: the highest id outside of them, and in each."""

    outside: int
    inside: dict[Hashable, int] = field(default_factory=dict)


class SequenceIds:
    """The highest ids of all producers of one topic."""

    __slots__ = ("_given", "_idle_since_ms", "_open", "_stored")

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._stored: dict[str, int] = {}
        self._open: dict[str, _OpenIds] = {}  # those of transactions are in ``_stored``, too
        self._idle_since_ms: dict[str, int] = {}
        """Names without a producer; the longest idle first."""

    def __len__(self) -> int:
        return len(self._stored)

    def last(self, name: str) -> int:
        """The highest stored id of a producer; -1: none is known."""
        return self._stored.get(name, _NONE_STORED)

    def sift(
        self,
        name: str,
        lowest: Sequence[int],
        highest: Sequence[int],
        unfinished: Container[int] = (),
    ) -> list[DuplicateRun]:
        """Judge a producer's next entries and note those that are new as given to the log.

        Args:
            lowest: sequence id of each entry; of a batch message, its first message's.
            highest: of the last message of each, or 0 where that is the same.
            unfinished: indexes of chunks that aren't the last of their message. All chunks of a
                message share its id, so only the last one counts.

        Returns:
            Runs that cover all entries, in order.
        """
        stored = self._stored.get(name, _NONE_STORED)
        given = max(self._given.get(name, _NONE_STORED), stored)
        runs: list[DuplicateRun] = []
        start = verdict = 0
        for index, first in enumerate(lowest):
            if first > given:
                found = NEW
                if index not in unfinished:
                    given = max(first, highest[index])
            elif first <= stored:
                found = STORED
            else:
                found = NEW if index in unfinished else UNDECIDED
            if found != verdict:
                if index > start:
                    runs.append(DuplicateRun(verdict, start, index))
                start, verdict = index, found
        runs.append(DuplicateRun(verdict, start, len(lowest)))
        self._given[name] = given
        return runs

    def stored(self, name: str, sequence_id: int) -> None:
        """Messages of a producer up to this id are durable."""
        if sequence_id > self._stored.get(name, _NONE_STORED):
            self._stored[name] = sequence_id
        if self._open and (of_name := self._open.get(name)) is not None:
            of_name.outside = max(of_name.outside, sequence_id)

    def stored_in(self, transaction: Hashable, name: str, sequence_id: int) -> None:
        """The same of messages that an open transaction has."""
        before = self._stored.get(name, _NONE_STORED)
        of_name = self._open.setdefault(name, _OpenIds(before))
        inside = of_name.inside
        inside[transaction] = max(inside.get(transaction, _NONE_STORED), sequence_id)
        self._stored[name] = max(before, sequence_id)

    def end_transaction(self, transaction: Hashable, *, commit: bool) -> set[str]:
        """Its ids count for good, or no longer.

        Returns:
            Names of producers whose messages may come again.
        """
        names = [name for name, each in self._open.items() if transaction in each.inside]
        for name in names:
            of_name = self._open[name]
            sequence_id = of_name.inside.pop(transaction)
            if commit:
                of_name.outside = max(of_name.outside, sequence_id)
            self._stored[name] = max(of_name.outside, *of_name.inside.values(), _NONE_STORED)
            if not of_name.inside:
                del self._open[name]
        return set() if commit else set(names)

    def forget_given_of(self, name: str) -> None:
        """As `forget_given`, of one producer."""
        self._given.pop(name, None)

    def forget_given(self) -> None:
        """What was given to the log and isn't stored by now never will be: it may come again.

        REQUIRES: nothing is on its way to the log.
        """
        self._given.clear()

    # --- names come and go

    def note_users(self, names: Container[str], now_ms: int) -> None:
        """Producers of now. The others' ids are kept for some time: they may come back."""
        idle = self._idle_since_ms
        for name in self._stored:
            if name in names:
                idle.pop(name, None)
            else:
                idle.setdefault(name, now_ms)

    def evict(self, idle_before_ms: int) -> int:
        """Forget the names that were idle before then; how many."""
        gone = []
        for name, since_ms in self._idle_since_ms.items():
            if since_ms >= idle_before_ms:
                break
            gone.append(name)
        for name in gone:
            del self._idle_since_ms[name]
            self._stored.pop(name, None)
            self._given.pop(name, None)
            self._open.pop(name, None)
        return len(gone)

    # --- snapshots

    def snapshot(self, names_max: int) -> dict[str, int]:
        """The ids stored outside of open transactions, of as many names: those in use first, then
        those used last.
        """
        found = self._newest(names_max)
        return found | {
            name: of_name.outside for name, of_name in self._open.items() if name in found
        }

    def _newest(self, names_max: int) -> dict[str, int]:
        if (excess := len(self._stored) - names_max) <= 0:
            return dict(self._stored)
        dropped: set[str] = set()
        for name in self._idle_since_ms:
            if len(dropped) == excess:
                break
            if name in self._stored:
                dropped.add(name)
        kept = ((name, value) for name, value in self._stored.items() if name not in dropped)
        return dict(item for item, _ in zip(kept, range(max(0, names_max)), strict=False))
