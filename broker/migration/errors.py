"""What the migration of a cluster is refused for.

MigrationError             the swap can't be done, or not now; nothing is half done
  SwapRefusedError         something isn't carried as it should be
    LossRefusedError         something would be lost, and nobody has accepted it
  PulsarFormatError        a stored value isn't of the form that Pulsar 4 writes
"""


class MigrationError(RuntimeError):
    """The swap can't be done, or not now. The command can be given again."""


class SwapRefusedError(MigrationError):
    """Something isn't carried as it should be; nothing was changed.

    Attributes:
        lines: of the report that tells it.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("something isn't carried as it should be")
        self.lines = lines


class LossRefusedError(SwapRefusedError):
    """Something would be lost, and nobody has accepted it."""


class PulsarFormatError(MigrationError):
    """A stored value isn't of the form that brokers of Pulsar 4 write."""
