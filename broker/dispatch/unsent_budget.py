"""How much output may wait in memory for clients that don't read, on a whole broker.

A socket takes some hundred KiB for a client that reads nothing; what it doesn't take stays with the
broker. Dispatch hands a connection one piece at a time, and none while more than
``connectionWriteBufferHighBytes`` wait, here ``high``; pieces are smaller while much waits in all.
So, with ``n`` connections, and but for entries larger than a piece, there wait

- of one connection at most ``PIECE_BYTES`` + 2 * ``high``;
- of the broker at most ``BUDGET_BYTES`` + ``PIECE_BYTES`` + n * (``LEAST_PIECE_BYTES`` + 2 *
  ``high``).

What a WebSocket consumer's session has decoded and not sent counts as well: none is handed to it
while that is ``webSocketBufferBytes``, or while its socket takes nothing.

A turn of dispatch ends after half a piece. So it is short, too, while much waits: beside consumers
that are handed messages and read none, others wait for a turn of theirs in each tick of the loop.

A connection whose socket takes what it gets always gets another piece, however much waits for
others. Answers to commands aren't counted: they end by the client not being read any more.
"""

from typing import Final

PIECE_BYTES: Final = 256 * 1024
LEAST_PIECE_BYTES: Final = 16 * 1024
BUDGET_BYTES: Final = 8 * 1024 * 1024


class UnsentBudget:
    """The sum of what waits for those connections of which more than ``high`` does."""

    __slots__ = ("piece_bytes", "total", "turn_bytes")

    def __init__(self) -> None:
        self.total = 0
        self.piece_bytes = PIECE_BYTES
        """Bytes of entries that a connection may be handed next; one entry may exceed it."""
        self.turn_bytes = PIECE_BYTES // 2
        """A turn that has handed over so much ends: with its first piece, unless that is short."""

    def changed(self, change: int) -> None:
        """So many more bytes wait, or fewer."""
        self.total += change
        self.piece_bytes = PIECE_BYTES if self.total <= BUDGET_BYTES else LEAST_PIECE_BYTES
        self.turn_bytes = self.piece_bytes // 2
