"""Positions in a managed ledger: which entry, as ``(ledger id, entry id)``.

A position compares lexicographically, because the ledger ids of one managed ledger only grow. A
position doesn't have to exist: between the last entry of one ledger and the first of the next
there are infinitely many, and all questions of the list (`managed_ledger.managed_ledger_info`) are
answered for them too. The entry id -1 means "before the first entry of the ledger".
"""

from typing import Final, TypeAlias

Position: TypeAlias = tuple[int, int]
"""(ledger id, entry id)."""

InitialPosition: TypeAlias = Position
"""Where a new cursor starts: the first position it delivers; EARLIEST and LATEST are the usual
ones.
"""

EARLIEST: Final[Position] = (-1, -1)
"""Before every entry; also the last confirmed position of a log that never had a ledger."""

LATEST: Final[Position] = (2**63 - 1, 2**63 - 1)
"""After every entry that will ever exist."""


def format_position(position: Position) -> str:
    """Text form ``ledger:entry``, as operators know it from Pulsar's statistics."""
    return f"{position[0]}:{position[1]}"
