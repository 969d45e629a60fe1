"""Names of transactions."""

from typing import NamedTuple


class TransactionId(NamedTuple):
    """Printed as Pulsar prints it: ``(coordinator,sequence)``.

    Attributes:
        most: the coordinator's number.
        least: counts up in each coordinator, from 0.
    """

    most: int
    least: int

    def __str__(self) -> str:
        return f"({self.most},{self.least})"
