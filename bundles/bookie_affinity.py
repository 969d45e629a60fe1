"""Groups of bookies that a namespace's ledgers are kept on, as Pulsar stores them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PRIMARY: Final = "bookkeeperAffinityGroupPrimary"
SECONDARY: Final = "bookkeeperAffinityGroupSecondary"
"""The fields of Pulsar's BookieAffinityGroupData."""


@dataclass(frozen=True, slots=True)
class BookieAffinity:
    """Names of groups of bookies, with commas, as they were given; None: not given.

    Attributes:
        secondary: taken, too, where the primary groups have too few bookies.
    """

    primary: str | None = None
    secondary: str | None = None

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> "BookieAffinity":
        """Out of Pulsar's BookieAffinityGroupData; what is no text is as if it wasn't given."""
        names = (stored.get(field) for field in (PRIMARY, SECONDARY))
        return cls(*(name if isinstance(name, str) else None for name in names))

    def to_stored(self) -> dict[str, str]:
        names = {PRIMARY: self.primary, SECONDARY: self.secondary}
        return {field: name for field, name in names.items() if name is not None}
