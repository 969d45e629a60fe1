"""Quorum arithmetic of a striped ensemble: pure functions over (E, Qw, Qa).

Entry ``e`` lives on the Qw bookies ``e % E, e % E + 1, ...`` (modulo E) of its segment's ensemble:
its write set. The rule of absence is here too: an entry can't have, or ever get
from its writer, Qa replicas once Qf = Qw - Qa + 1 *fenced* members of its write set said "no".
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache


@lru_cache(maxsize=64)
def write_sets(ensemble_size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """The E rotations; ``write_sets(E, Qw)[entry_id % E]`` are the slots of an entry, in order."""
    return tuple(
        tuple((start + i) % ensemble_size for i in range(write_quorum))
        for start in range(ensemble_size)
    )


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Slots of the ensemble that hold the entry, in the order in which a reader tries them."""
    return write_sets(ensemble_size, write_quorum)[entry_id % ensemble_size]


@lru_cache(maxsize=256)
def neighbours(slot: int, ensemble_size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """The other slots of each write set that ``slot`` is in; equal ones once."""
    sets = {
        tuple(sorted(other for other in slots if other != slot))
        for slots in write_sets(ensemble_size, write_quorum)
        if slot in slots
    }
    return tuple(sorted(sets))


def has_entry(entry_id: int, slot: int, ensemble_size: int, write_quorum: int) -> bool:
    """True if the bookie at ``slot`` belongs to the entry's write set."""
    return (slot - entry_id) % ensemble_size < write_quorum


def entries_of(
    slot: int, first: int, end: int, ensemble_size: int, write_quorum: int
) -> range | list[int]:
    """Ids in [first, end) that the bookie at ``slot`` holds; a range when there is no striping."""
    if ensemble_size == write_quorum:
        return range(first, end)
    return [e for e in range(first, end) if (slot - e) % ensemble_size < write_quorum]


def absence_quorum(write_quorum: int, ack_quorum: int) -> int:
    """Qf: explicit negatives of fenced write set members that prove that an entry can't exist."""
    return write_quorum - ack_quorum + 1


def is_covered(
    known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int
) -> bool:
    """True if no write set can still reach Qa without one of the slots that have answered.

    Uncovered means: some rotation has at least Qa slots that did not answer, so its writer could
    go on there. Counting answers instead of silent slots waits for too many bookies when striped.
    """
    return all(
        sum(slot not in known for slot in slots) < ack_quorum
        for slots in write_sets(ensemble_size, write_quorum)
    )


@dataclass(frozen=True, slots=True)
class FaultDomainAckRule:
    """Acks must come from several zones before they make a quorum.

    Attributes:
        zones: the ensemble's slots of each zone, as bit sets.
        zones_min: so many of them, or all that a write set has if it has fewer.
    """

    zones: tuple[int, ...]
    zones_min: int

    def is_wide(self, acks: int, write_set: int) -> bool:
        """True if ``acks`` within ``write_set`` (bit sets of slots) span enough of its zones."""
        acked = acks & write_set
        spanned = possible = 0
        for zone in self.zones:
            spanned += bool(zone & acked)
            possible += bool(zone & write_set)
        return spanned >= min(self.zones_min, possible)
