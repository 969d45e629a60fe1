"""A set of positions as one bitmap per ledger: a few bits per entry, whole runs in one call."""

from collections.abc import Iterator, Sequence

from pyroaring import BitMap

from magnetar.managed_ledger.position import Position

ENTRY_ID_END = 2**32
"""Entry ids a bitmap holds are below this; ledgers are closed long before."""


class PositionSet:
    """Positions, ascending when read. Invariant: no bitmap in ``ledgers`` is empty."""

    __slots__ = ("ledgers",)

    def __init__(self) -> None:
        self.ledgers: dict[int, BitMap] = {}

    def __bool__(self) -> bool:
        return bool(self.ledgers)

    def __len__(self) -> int:
        return sum(map(len, self.ledgers.values()))

    def __contains__(self, position: object) -> bool:
        assert isinstance(position, tuple)
        bits = self.ledgers.get(position[0])
        return bits is not None and position[1] in bits

    def __iter__(self) -> Iterator[Position]:
        for ledger_id in sorted(self.ledgers):
            for entry_id in self.ledgers[ledger_id]:
                yield (ledger_id, entry_id)

    def add(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """Add entries of one ledger; ``entry_ids`` may be a range with step 1."""
        if not entry_ids:
            return
        if (bits := self.ledgers.get(ledger_id)) is None:
            bits = self.ledgers[ledger_id] = BitMap()
        if type(entry_ids) is range:
            bits.add_range(entry_ids.start, entry_ids.stop)
        else:
            bits.update(entry_ids)

    def add_bits(self, ledger_id: int, entries: BitMap) -> None:
        """Add a bitmap of entries of one ledger; the set doesn't keep it."""
        if (bits := self.ledgers.get(ledger_id)) is None:
            self.ledgers[ledger_id] = entries.copy()
        else:
            bits |= entries

    def update(self, other: "PositionSet") -> None:
        """Add every position of another set."""
        for ledger_id, entries in other.ledgers.items():
            self.add_bits(ledger_id, entries)

    def discard(self, ledger_id: int, entry_id: int) -> bool:
        """Remove one position; whether it was there."""
        bits = self.ledgers.get(ledger_id)
        if bits is None or entry_id not in bits:
            return False
        bits.discard(entry_id)
        if not bits:
            del self.ledgers[ledger_id]
        return True

    def take(self, ledger_id: int, entries: BitMap) -> BitMap | None:
        """Remove those of ``entries`` that are there and return them; None: none of them is."""
        if (bits := self.ledgers.get(ledger_id)) is None:
            return None
        taken = bits & entries
        if not taken:
            return None
        bits -= taken
        if not bits:
            del self.ledgers[ledger_id]
        return taken

    def common(self, other: "PositionSet") -> "PositionSet":
        """A new set of what both have."""
        found = PositionSet()
        for ledger_id in self.ledgers.keys() & other.ledgers.keys():
            if bits := self.ledgers[ledger_id] & other.ledgers[ledger_id]:
                found.ledgers[ledger_id] = bits
        return found

    def remove_range(self, first: Position, end: Position) -> None:
        """Remove every position in ``[first, end)``."""
        for ledger in [known for known in self.ledgers if first[0] <= known <= end[0]]:
            bits = self.ledgers[ledger]
            low = first[1] if ledger == first[0] else 0
            high = end[1] if ledger == end[0] else ENTRY_ID_END
            bits.remove_range(max(low, 0), min(max(high, 0), ENTRY_ID_END))
            if not bits:
                del self.ledgers[ledger]

    def remove_below(self, position: Position) -> None:
        """Remove every position lower than ``position``."""
        self.remove_range((-1, -1), position)

    def first(self) -> Position | None:
        """Lowest position; None when empty."""
        if not self.ledgers:
            return None
        ledger_id = min(self.ledgers)
        return (ledger_id, self.ledgers[ledger_id].min())

    def clear(self) -> None:
        self.ledgers.clear()
