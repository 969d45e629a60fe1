"""How much of an export one run takes: what a kill can cost, at most. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar.pipeline.offsets import Offset, Offsets
from magnetar.pipeline.plan import EntryRange


def cut_step(
    waiting: Mapping[str, tuple[Sequence[EntryRange], Offset]], bytes_max: int
) -> tuple[Offsets, int]:
    """Where the next run ends: the same share of each partition, so that times stay together.

    Args:
        waiting: by partition what is left of it (not empty), and where that ends.
        bytes_max: of all partitions together, about. At least one entry of each is taken.
    Returns:
        End by partition, and bytes up to there, about.
    """
    total = sum(piece.size for pieces, _ in waiting.values() for piece in pieces)
    if total <= bytes_max:
        return {name: end for name, (_, end) in waiting.items()}, int(total)
    share = bytes_max / total
    ends: Offsets = {}
    taken = 0.0
    for name, (pieces, end) in waiting.items():
        room = share * sum(piece.size for piece in pieces)
        ends[name], size = _walk(pieces, end, room)
        taken += size
    return ends, int(taken)


def _walk(pieces: Sequence[EntryRange], end: Offset, room: float) -> tuple[Offset, float]:
    size = 0.0
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        entry = piece.ledger.entry_bytes
        if size + piece.size <= room:
            size += piece.size
            if is_last:
                return end, size
            continue
        fits = int((room - size) / entry) if entry else piece.entries
        if fits == 0 and size:  # at the end of the ledger before
            break
        fits = max(1, min(fits, piece.entries))
        if is_last and fits == piece.entries:
            return end, size + piece.size
        return Offset(piece.ledger.ledger_id, piece.first + fits), size + fits * entry
    before = pieces[number - 1]
    return Offset(before.ledger.ledger_id, before.end), size
