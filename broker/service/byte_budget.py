"""A bound that several holders of memory have in common."""

from dataclasses import dataclass


@dataclass(slots=True)
class ByteBudget:
    """What all holders of one broker hold together; only code of its loop counts here."""

    bytes_max: int
    used: int = 0

    @property
    def full(self) -> bool:
        return self.used > self.bytes_max
