"""Stands for a producer or consumer that is still being created."""

from __future__ import annotations


class PendingCreation:
    """Stands in a connection's ``producers`` or ``consumers`` until the creation has ended."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False
        """The client closed it meanwhile: undo the creation when it ends."""
