"""What a process counts of its copies, for metrics. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class OffloadMetrics:
    """Totals since the start."""

    copies: int = 0
    copied_bytes: int = 0
    copy_errors: int = 0
    reads: int = 0
    read_bytes: int = 0
    read_errors: int = 0
    deleted: int = 0
    """Copies, complete or not."""

    def copied(self, size: int) -> None:
        self.copies += 1
        self.copied_bytes += size
