"""Errors of the cursor package, below those of the managed ledger.

::

    ManagedLedgerError
    ├── CursorFencedError      another owner wrote the cursor's node: this one never writes again
    ├── CursorFormatError      a stored cursor doesn't parse: names cursor, place and reason
    ├── CursorBusyError        a reset is under way: acks and a second reset are refused
    └── CursorWriteError       the position isn't durable; still in memory, the next ack retries
"""

from magnetar.managed_ledger.errors import ManagedLedgerError, ManagedLedgerFormatError


class CursorFencedError(ManagedLedgerError):
    """The node shows another owner's value, or is gone: this owner must stop using the cursor."""


class CursorFormatError(ManagedLedgerFormatError):
    """Stored cursor bytes are damaged or of an unknown version."""


class CursorBusyError(ManagedLedgerError):
    """A reset of this cursor is under way; retry when it is done."""


class CursorWriteError(ManagedLedgerError):
    """Neither the cursor ledger nor the metadata node took the position.

    The acknowledgements stay applied in memory and go out with the next write.
    """
