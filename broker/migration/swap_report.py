"""What a swap says of things that have no counterpart, and of its counts. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from magnetar.broker.migration.errors import LossRefusedError, SwapRefusedError


class Kind(Enum):
    """What becomes of a thing."""

    REFUSED = "refused"
    """It would be served wrongly. Nobody can accept that."""
    LOST = "lost"
    """Messages or positions can't be served after the swap."""
    LEFT = "left"
    """It stays where it is, and is there again after the way back."""
    NOTE = "note"
    """It is carried, and worth knowing."""


@dataclass(frozen=True, slots=True)
class SwapFinding:
    kind: Kind
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.subject}: {self.text}"


@dataclass(slots=True)
class SwapReport:
    """Counts of what was found, and what has no counterpart."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[SwapFinding] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    """What was read back and isn't what it should be."""

    def add(self, findings: Iterable[SwapFinding]) -> None:
        self.findings += findings

    @property
    def losses(self) -> list[SwapFinding]:
        return [each for each in self.findings if each.kind is Kind.LOST]

    def is_refused(self, *, accept_loss: bool) -> bool:
        """Whether there is something that nobody has accepted, or nobody can."""
        accepted = (Kind.NOTE, Kind.LEFT, Kind.LOST) if accept_loss else (Kind.NOTE, Kind.LEFT)
        return any(each.kind not in accepted for each in self.findings)

    def refuse(self, *, accept_loss: bool) -> None:
        """
        Raises:
            SwapRefusedError: there is something that can't be accepted. LossRefusedError: a loss.
        """
        if self.is_refused(accept_loss=True):
            raise SwapRefusedError(self.lines())
        if self.is_refused(accept_loss=accept_loss):
            raise LossRefusedError(self.lines())

    def lines(self) -> list[str]:
        """For a terminal: what counts most comes last."""
        order = (Kind.NOTE, Kind.LEFT, Kind.LOST, Kind.REFUSED)
        lines = [str(each) for kind in order for each in self.findings if each.kind is kind]
        lines += [f"wrong: {each}" for each in self.mismatches]
        lines.append(", ".join(f"{count} {what}" for what, count in self.counts.items()))
        return lines
