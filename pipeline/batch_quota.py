"""How much one batch of a stream takes from each partition. Pure.

Limits count messages and bytes; what can be taken are whole entries, so a batch may exceed its
limit by what one entry of each partition holds. Every partition with something to read gets at
least one entry: none starves behind a large one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchQuota:
    """Of one partition; None: as much as there is."""

    messages: int | None = None
    size: int | None = None


def shares_of(
    available: Mapping[str, tuple[int, int]], messages_max: int, bytes_max: int
) -> dict[str, BatchQuota]:
    """Each partition's part of the limits, in proportion to what waits in it.

    Args:
        available: partition -> entries and bytes that wait.
        messages_max, bytes_max: of all together; 0: no limit.
    """
    entries = sum(count for count, _ in available.values())
    size = sum(each for _, each in available.values())
    return {
        name: BatchQuota(
            max(1, messages_max * count // entries) if messages_max and entries else None,
            max(1, bytes_max * each // size) if bytes_max and size else None,
        )
        for name, (count, each) in available.items()
    }


class EntryIterator:
    """Goes along a partition's entries until its share is used up.

    Attributes:
        entries: taken so far.
        messages, size: in them.
        is_full: the next entry isn't taken.
    """

    __slots__ = ("_share", "entries", "is_full", "messages", "size")

    def __init__(self, share: BatchQuota) -> None:
        self._share = share
        self.entries = self.messages = self.size = 0
        self.is_full = False

    def take(self, counts: Sequence[int], sizes: Sequence[int]) -> int:
        """How many of the next entries are taken: up to the one that uses up the share.

        Args:
            counts, sizes: messages and bytes of each.
        """
        messages_max, bytes_max = self._share.messages, self._share.size
        taken = 0
        for count, size in zip(counts, sizes, strict=True):
            if self.is_full:
                break
            over_messages = messages_max is not None and self.messages + count > messages_max
            over_bytes = bytes_max is not None and self.size + size > bytes_max
            if self.entries and (over_messages or over_bytes):
                self.is_full = True
                break
            self.entries += 1
            taken += 1
            self.messages += count
            self.size += size
            self.is_full = self.messages == messages_max or (
                bytes_max is not None and self.size >= bytes_max
            )
        return taken
