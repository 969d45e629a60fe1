"""Core: when open transactions time out."""

import heapq
from typing import Final

_STEP_MS: Final = 64
_EMPTY_MAX: Final = 1000


class TransactionDeadlines:
    """Sequences by deadline, rounded up to 64 ms: each call takes the same time for a million."""

    def __init__(self) -> None:
        self._sequences: dict[int, set[int]] = {}  # by deadline, in steps; may be empty
        self._steps: list[int] = []  # heap of the keys
        self._empty = 0

    def add(self, sequence: int, deadline_ms: int) -> None:
        step = -(-deadline_ms // _STEP_MS)
        if (sequences := self._sequences.get(step)) is None:
            self._sequences[step] = {sequence}
            heapq.heappush(self._steps, step)
            return
        self._empty -= not sequences
        sequences.add(sequence)

    def remove(self, sequence: int, deadline_ms: int) -> None:
        """Of one that was added with that deadline and not yet taken."""
        sequences = self._sequences[-(-deadline_ms // _STEP_MS)]
        sequences.remove(sequence)
        self._empty += not sequences
        if self._empty > _EMPTY_MAX and self._empty * 2 > len(self._sequences):
            self._sequences = {step: each for step, each in self._sequences.items() if each}
            self._steps = sorted(self._sequences)
            self._empty = 0

    def next_ms(self) -> int | None:
        """Not later than the first deadline; None: there is none."""
        return self._steps[0] * _STEP_MS if self._steps else None

    def take(self, now_ms: int, count_max: int) -> list[int]:
        """Remove sequences that are due, at most so many."""
        taken = list[int]()
        while self._steps and self._steps[0] * _STEP_MS <= now_ms and len(taken) < count_max:
            sequences = self._sequences[self._steps[0]]
            if sequences:
                taken.append(sequences.pop())
            else:
                self._empty -= 1
            if not sequences:
                del self._sequences[heapq.heappop(self._steps)]
        return taken
