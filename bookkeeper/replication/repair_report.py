"""What the repair of one ledger came to, in a line for the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_STEPS_MAX: Final = 8  # told of one ledger; a long one may have a thousand segments


@dataclass(slots=True)
class RepairReport:
    """Of one ledger, over all attempts of one worker.

    Attributes:
        entries, bytes: copied, headers included; what a target had already isn't counted.
        steps: what was done, in words, in order.
    """

    entries: int = 0
    bytes: int = 0
    steps: list[str] = field(default_factory=list)

    def on_copied(self, entries: int, byte_count: int) -> None:
        """A request was confirmed by its target."""
        self.entries += entries
        self.bytes += byte_count

    def on_replaced(self, first_entry: int, gone: str, came: str) -> None:
        self.steps.append(f"segment {first_entry}: {gone} to {came}")

    def on_filled(self, first_entry: int, bookie: str) -> None:
        """It got what it missed, and stays."""
        self.steps.append(f"segment {first_entry}: {bookie} filled up")

    def on_closed(self) -> None:
        self.steps.append("closed by recovery")

    def text(self, ledger_id: int, seconds: float) -> str:
        """REQUIRES: ``steps`` isn't empty."""
        steps = "; ".join(self.steps[:_STEPS_MAX])
        if len(self.steps) > _STEPS_MAX:
            steps += f"; and {len(self.steps) - _STEPS_MAX} more"
        return (
            f"ledger {ledger_id} is repaired: {steps}; "
            f"{self.entries} entries, {self.bytes} bytes copied in {seconds:.1f} s"
        )
