"""An ordered map from bytes to bytes whose changes commit in atomic, durable groups."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class StoreTransaction:
    """One transaction. Applied in this order: range deletes, deletes, puts."""

    puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    deletes: list[bytes] = field(default_factory=list)
    delete_ranges: list[tuple[bytes, bytes]] = field(default_factory=list)  # first, end (not in it)

    def __bool__(self) -> bool:
        return bool(self.puts or self.deletes or self.delete_ranges)


class OrderedStore(Protocol):
    """Reads see the last commit; any thread may read, one thread at a time commits."""

    def get(self, key: bytes) -> bytes | None: ...

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The item with the greatest key that is not above ``key``."""
        ...

    def range(
        self, first: bytes, end: bytes, items_max: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Items with ``first <= key < end`` in order, at most ``items_max``, of one moment."""
        ...

    def commit(self, changes: StoreTransaction, sync_point: str | None) -> None:
        """Apply all changes, or none after a crash; durable on return.

        Without ``sync_point`` the caller doesn't rely on that: a crash may undo the commit, and
        those after it, up to the next one with a sync point. (LMDB syncs either way; the store
        in memory doesn't, and so proves that nobody relies on it.)

        Raises:
            OSError: nothing can be said about what was applied; the caller must stop using it.
        """
        ...

    def close(self) -> None: ...


def iterate(
    store: OrderedStore, first: bytes, end: bytes, page_items: int = 1000
) -> Iterator[tuple[bytes, bytes]]:
    """``range`` in pages, so that no long transaction is held; not of one moment."""
    while page := store.range(first, end, page_items):
        yield from page
        first = page[-1][0] + b"\0"
