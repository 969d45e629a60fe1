"""Has an add waited too long for its quorum? Pure; costs nothing per add."""

from __future__ import annotations

from collections import deque
from typing import Final

#: Marks within one timeout: a wait is noticed at most this part of it too late.
MARKS: Final = 4


class AddDeadline:
    """Told now and then how far appends and confirmations are, it knows the age of the oldest add.

    Args:
        timeout_s: longest allowed wait.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.interval_s = timeout_s / MARKS  # how often ``check`` is to be called
        self._marks: deque[tuple[float, int]] = deque()  # (time, entries appended before it)

    def check(self, now_s: float, next_entry: int, last_confirmed: int) -> bool:
        """True if some entry was appended more than ``timeout_s`` ago and isn't confirmed."""
        marks = self._marks
        while marks and marks[0][1] <= last_confirmed + 1:
            marks.popleft()
        if next_entry > last_confirmed + 1 and (not marks or marks[-1][1] < next_entry):
            marks.append((now_s, next_entry))
        return bool(marks) and now_s - marks[0][0] >= self.timeout_s
