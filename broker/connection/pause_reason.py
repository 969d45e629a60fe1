"""Why a connection isn't read. It is read again when no reason is left."""

from __future__ import annotations

from enum import IntEnum


class PauseReason(IntEnum):
    """Bits of one number."""

    IN_FLIGHT = 1
    """Its messages that aren't stored yet take too much memory."""
    PROCESS = 2
    """Those of all connections do."""
    OUTGOING = 4
    """It doesn't read what it is sent."""
    TASKS = 8
    """Too many of its requests are under way."""
    RATE = 16
    """A publish limit."""
    ACCESS = 32
    """Its rights are being looked up."""
    TURN = 64
    """One read has brought more commands than a turn of the loop has time for."""
