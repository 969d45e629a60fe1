"""What a bookie is given of adds at a time, whichever connection they come by."""

from typing import Protocol


class PausedReader(Protocol):
    """A connection that reads no more for now."""

    def read_on(self) -> None:
        """There is room, or there is none yet: look."""
        ...


class AddLimits:
    """Bounds the adds that were accepted and not yet answered. Loop only.

    Attributes:
        pending_bytes: packet bytes of them.
    """

    def __init__(self, pending_bytes_max: int) -> None:
        self.pending_bytes = 0
        self._pending_bytes_max = pending_bytes_max
        self._paused: list[PausedReader] = []

    def limit(self, pending_bytes_max: int) -> None:
        self._pending_bytes_max = pending_bytes_max

    @property
    def is_full(self) -> bool:
        return self.pending_bytes > self._pending_bytes_max

    def on_answered(self, size: int) -> None:
        was_full = self.is_full
        self.pending_bytes -= size
        if was_full and not self.is_full:
            readers, self._paused = self._paused, []
            for reader in readers:
                reader.read_on()

    def read_on_later(self, reader: PausedReader) -> None:
        """Call its ``read_on`` when there is room."""
        if reader not in self._paused:
            self._paused.append(reader)

    def forget(self, reader: PausedReader) -> None:
        if reader in self._paused:
            self._paused.remove(reader)
