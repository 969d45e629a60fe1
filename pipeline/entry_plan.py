"""Which rows of a task travel in one entry. Pure, and the same for the same rows.

A broker that drops repeated messages judges a batch by its first sequence id alone: if an attempt
dies while an entry is on its way, and the next attempt cuts its rows into other entries, one that
begins with a row of the former and ends with a new one is dropped as a whole. So where entries are
cut must not depend on time, on receipts, or on how many rows are left out because they are stored
already: all rows of a task are counted here, sent or not.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import mmh3

from magnetar.broker.protocol.java_hash import java_string_hash
from magnetar.pipeline.errors import WriteError

ROW_OVERHEAD_BYTES: Final = 64
"""Of a message's own metadata in a batch, besides what the row brings; generous."""

_NONE: Final[tuple[int, ...]] = ()


class EntryPlan:
    """Counts the rows of a task by target, a topic partition; targets are numbered from 0.

    Invariants: an open entry holds at most ``messages_max`` rows and ``entry_bytes_max`` bytes, all
    open ones together at most ``pending_messages_max`` and ``pending_bytes_max``.
    """

    __slots__ = ("_bytes", "_counts", "_limits", "_total_bytes", "_total_count")

    def __init__(
        self,
        messages_max: int,
        entry_bytes_max: int,
        pending_messages_max: int,
        pending_bytes_max: int,
    ) -> None:
        self._limits = (messages_max, entry_bytes_max, pending_messages_max, pending_bytes_max)
        self._counts: dict[int, int] = {}  # open entries only
        self._bytes: dict[int, int] = {}
        self._total_count = self._total_bytes = 0

    def place(self, target: int, size: int, alone: bool) -> tuple[tuple[int, ...], bool]:
        """Count the next row.

        Args:
            size: bytes of all that the row brings.
            alone: it must be an entry of its own. Clients send a delayed message at once, past the
                open batch, which the broker would then drop for its lower sequence ids.
        Returns:
            The targets whose entries end before this row, and whether its own ends behind it.
        """
        messages_max, entry_bytes_max, pending_messages_max, pending_bytes_max = self._limits
        size += ROW_OVERHEAD_BYTES
        alone = alone or size > entry_bytes_max
        before = _NONE
        if (
            self._total_count >= pending_messages_max
            or self._total_bytes + min(size, entry_bytes_max) > pending_bytes_max
        ):
            before = tuple(self._counts)
            self._counts.clear()
            self._bytes.clear()
            self._total_count = self._total_bytes = 0
        count, held = self._counts.get(target, 0), self._bytes.get(target, 0)
        if count and (alone or held + size > entry_bytes_max):
            before = (*before, target)
            self._end(target)
            count = held = 0
        if alone or count + 1 >= messages_max:
            self._end(target)
            return before, True
        self._counts[target], self._bytes[target] = count + 1, held + size
        self._total_count += 1
        self._total_bytes += size
        return before, False

    def _end(self, target: int) -> None:
        self._total_count -= self._counts.pop(target, 0)
        self._total_bytes -= self._bytes.pop(target, 0)


Hash = Callable[[str], int]
_POSITIVE: Final = 0x7FFF_FFFF


def murmur3_32_hash(text: str) -> int:
    """MurmurHash3 of the UTF-8 bytes with seed 0, without its sign."""
    return mmh3.hash(text, 0, signed=False) & _POSITIVE


HASHES: Final[dict[str, Hash]] = {
    # Those of Pulsar's Java client: a key is in the same partition as other clients' messages.
    # Keys come again and again, and a hash by hand costs 50 ns a character.
    "JavaStringHash": lru_cache(maxsize=16_384)(java_string_hash),
    "Murmur3_32Hash": murmur3_32_hash,
}
"""By the value of the option ``hashingScheme``."""


def choose_partition(key: str | None, asked: int | None, row: int, count: int, hashed: Hash) -> int:
    """Which partition a row goes to: the same one in every attempt.

    Args:
        key: None or "": none.
        asked: what the row says itself; None: nothing.
        row: tells rows without a key apart, which go to one partition after the other.
        count: partitions of the topic, above 0.
    Raises:
        WriteError: there is no such partition.
    """
    if asked is not None:
        if not 0 <= asked < count:
            raise WriteError(f"no partition {asked}, there are {count}")
        return asked
    if key:
        return hashed(key) % count
    return row % count
