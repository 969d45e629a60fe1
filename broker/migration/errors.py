"""What the migration of a cluster is refused for.

MigrationError             the swap can't be done, or not now; nothing is half done
  PulsarFormatError        a stored value isn't of the form that Pulsar 4 writes
"""


class MigrationError(RuntimeError):
    """The swap can't be done, or not now. The command can be given again."""


class PulsarFormatError(MigrationError):
    """A stored value isn't of the form that brokers of Pulsar 4 write."""
