"""Who looks after the data of a bookie, as the bookie itself sees it (``integrity_service.py``)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class IntegrityMetrics:
    """Counted since the start; for metrics."""

    scrubbed_bytes: int = 0
    scrub_passes: int = 0
    damaged_entries: int = 0  # ever found
    repaired_entries: int = 0
    restored_entries: int = 0  # missing ones that were copied from other bookies
    restored_bytes: int = 0


class DataIntegrityListener(Protocol):
    """Told of damage; called on the loop."""

    @property
    def metrics(self) -> IntegrityMetrics: ...

    @property
    def damaged_now(self) -> int:
        """Entries that are known to be damaged and aren't repaired."""
        ...

    def on_damaged(self, ledger_id: int, entry_id: int) -> None:
        """A read met a damaged record of the bookie's own."""
        ...

    def on_damaged_logs(self, log_ids: Iterable[int]) -> None:
        """Compaction met damage in these entry logs, and left them as they are."""
        ...

    def on_report(self, ledger_id: int, entry_id: int) -> bool:
        """Somebody else says that an entry is damaged here; False: too many such reports."""
        ...

    def check(self, *, scrub: bool, integrity: bool) -> str:
        """Begin checks, if they don't run yet; what is known, as JSON."""
        ...
