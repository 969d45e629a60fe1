"""Settings of one log's copies; frozen, a part of `ManagedLedgerConfig`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """When closed ledgers are copied where, and how long bookies keep them then."""

    driver: str = ""
    """Of new copies; empty: none are made. Copies that exist are read whatever it says."""
    location: tuple[tuple[str, str], ...] = ()
    """What the driver needs to know; stored with each copy."""
    threshold_bytes: int = -1
    """Closed ledgers are copied, oldest first, while more than this isn't; -1: not by size."""
    threshold_s: int = -1
    """Ledgers are copied so long after their close; -1: not by time."""
    deletion_lag_ms: int = 14_400_000
    """Bookies keep a copied ledger so long; negative: for ever."""
    bookies_first: bool = False
    """Where to read what is in both places."""
    block_bytes: int = 64 << 20

    @property
    def is_automatic(self) -> bool:
        return bool(self.driver) and (self.threshold_bytes >= 0 or self.threshold_s >= 0)


NO_OFFLOAD = OffloadConfig()
