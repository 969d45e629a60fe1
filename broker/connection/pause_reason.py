"""Why a connection isn't read. It is read again when no reason is left."""

from __future__ import annotations

from enum import IntEnum


class PauseReason(IntEnum):
    """Bits of one number."""

    IN_FLIGHT = 1  # too many bytes of it aren't stored yet
    PROCESS = 2  # or of all connections together
    OUTGOING = 4  # it doesn't read what it is sent
    TASKS = 8  # too many of its requests are under way
    RATE = 16  # a publish limit
    ACCESS = 32  # its rights are being looked up
    TURN = 64  # one read has brought more commands than a turn of the loop has time for
