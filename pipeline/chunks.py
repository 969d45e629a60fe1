"""Messages that were stored in pieces, joined for readers of ranges. Pure.

A chunk is an entry with a slice of one message; the chunks of a message share a uuid and are stored
in order, with entries of other producers between them. The message is where its last chunk is. The
rules are those of Pulsar's consumers: a first chunk begins (again), the next one continues, one
that was there already is ignored (a producer sends again what it has no receipt for), and one after
a gap ends the message. So whether an entry completes a message depends only on what was stored
since the nearest first chunk before it, and readers of any ranges agree.

A range may begin behind the first chunks of a message, and chunks that wait too long in memory are
forgotten. `ChunkJoiner` then tells what is `Missing`, and `ChunkLookback` collects it from entries
before the range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Chunk", "ChunkLookback", "Missing"]


class Chunk(NamedTuple):
    """One stored slice; ``payload`` is empty where the same slice was stored before."""

    chunk_id: int
    payload: bytes


class Missing(NamedTuple):
    """A last chunk was read whose beginning was not.

    The reader looks for it backwards from ``ledger_id:entry_id`` (that entry not included), over
    ledgers, with a `ChunkLookback`.
    """

    uuid: str
    chunk_count: int
    ledger_id: int
    entry_id: int
    publish_time_ms: int
    """Of the message: when its producer built it."""


class ChunkLookback:
    """Collects the beginning of one message from entries before those that were read.

    Usage::

        lookback = ChunkLookback(decoder.missing)
        while not lookback.done and (window := the entries before the last window):
            lookback.add(window.heads, window.bodies)
        decoder.resolve(lookback.chunks())
    """

    def __init__(
        self, missing: Missing, *, entries_max: int = 1 << 20, bytes_max: int = 1 << 30
    ) -> None:
        """
        Args:
            entries_max: so many entries without a first chunk: the message counts as gone.
            bytes_max: of slices held.
        """
        raise AssertionError

    @property
    def done(self) -> bool:
        """No earlier entry is of interest: the first chunk is found, or the limit is reached."""
        raise AssertionError

    def add(self, heads: Sequence[bytes], bodies: Sequence[bytes | memoryview]) -> None:
        """Look at one window: consecutive entries in ascending order, that end where the window
        before began (the first one: before `Missing`'s entry).

        Raises:
            UndecodableError: a broken entry.
        """
        raise AssertionError

    def chunks(self) -> list[Chunk] | None:
        """For `EntryDecoder.resolve`: from the first chunk on; None: it was not found."""
        raise AssertionError
