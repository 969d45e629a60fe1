"""Keeps the list, shared by all leaders, of moved bundles and the times of their moves. Pure.

A bundle is in cooldown after a move, also under the next leader, and two brokers may both believe
that they lead. So a leader orders a move only after it entered the bundle in a list that both
share, by compare-and-set: the second leader finds it there. Times are those of the store's clock
(``StoreClock``): the clocks of brokers differ by minutes, or jump.

A leader replaces a list that it can't parse by an empty one: at worst a bundle moves again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

_MOVED: Final = "moved"
_WRITER: Final = "writer"
_FRAME_BYTES: Final = 200
_TIME_BYTES: Final = 20  # quotes, colon, comma, and milliseconds since 1970


class StoreClock:
    """The time by the store's clock, told by the times of its nodes and a clock that never jumps.

    Exact but for the duration of a write once ``learn`` was called; before that it may be late,
    as what was written last was written some time ago.
    """

    def __init__(self) -> None:
        self.is_exact = False
        self._ahead_ms: float | None = None  # of our own clock

    def learn(self, modified_ms: int, now_s: float) -> None:
        """A write was just answered; its node has this time."""
        self._ahead_ms, self.is_exact = modified_ms - now_s * 1000, True

    def see(self, modified_ms: int, now_s: float) -> None:
        """A node has this time; it was written some time ago."""
        ahead_ms = modified_ms - now_s * 1000
        if self._ahead_ms is None or (not self.is_exact and ahead_ms > self._ahead_ms):
            self._ahead_ms = ahead_ms

    def now_ms(self, now_s: float) -> int:
        """REQUIRES: ``learn`` or ``see`` was called."""
        assert self._ahead_ms is not None
        return int(self._ahead_ms + now_s * 1000)

    def age_s(self, modified_ms: int, now_s: float) -> float:
        """How long ago a node was written, at least; never below zero."""
        return max(0.0, (self.now_ms(now_s) - modified_ms) / 1000)


@dataclass(frozen=True, slots=True)
class UnloadCooldowns:
    """
    Attributes:
        moved_ms: by bundle, when its last move was ordered.
    """

    moved_ms: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes | None) -> "UnloadCooldowns":
        """Of a node's value; None: there is no node."""
        try:
            document = orjson.loads(value or b"{}")
        except orjson.JSONDecodeError:
            return cls()
        moved = document.get(_MOVED) if isinstance(document, dict) else None
        if not isinstance(moved, dict):
            return cls()
        return cls({name: at for name, at in moved.items() if isinstance(at, int)})

    def encode(self, writer: str) -> bytes:
        """``writer``: of this one write, so that it is known again if its answer gets lost."""
        return orjson.dumps({_WRITER: writer, _MOVED: self.moved_ms})

    def ages_s(self, now_ms: int) -> dict[str, float]:
        """Seconds since each move; one that lies in the future (the clock went back): none."""
        return {name: max(0, now_ms - at) / 1000 for name, at in self.moved_ms.items()}

    def claim(
        self, bundles: Sequence[str], now_ms: int, grace_s: float, bytes_max: int
    ) -> "tuple[UnloadCooldowns, list[str]]":
        """Enters those that are not in cooldown.

        Args:
            bytes_max: of the encoded list; what doesn't fit waits until the cooldown of others is
            over.
        Returns:
            The list without those whose cooldown is over, and the bundles that were entered.
        """
        since_ms = now_ms - grace_s * 1000
        moved = {name: at for name, at in self.moved_ms.items() if at > since_ms}
        left = bytes_max - _FRAME_BYTES - sum(map(_entry_bytes, moved))
        claimed = [
            name
            for name in dict.fromkeys(bundles)
            if name not in moved and (left := left - _entry_bytes(name)) >= 0
        ]
        moved.update(dict.fromkeys(claimed, now_ms))
        return UnloadCooldowns(moved), claimed


def _entry_bytes(bundle: str) -> int:
    return len(bundle.encode()) + _TIME_BYTES
