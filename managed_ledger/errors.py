"""Errors of the managed ledger package.

::

    ManagedLedgerError
    ├── ManagedLedgerFencedError        another owner has taken over: unload, never retry here
    ├── ManagedLedgerClosedError        closed by this process (or being deleted)
    ├── ManagedLedgerTerminatedError    the log is sealed: it can be read, not appended to
    ├── ManagedLedgerNotFoundError      no such log, and the call doesn't create one
    ├── ManagedLedgerFormatError        the stored metadata doesn't parse: says what and where
    ├── AppendFailedError               storage can't take entries now; retry later
    ├── OpenFailedError                 recovery met an error that may pass, or another opener
    │                                   was faster; retry later
    ├── CursorClosedError               the cursor was closed or deleted
    └── InvalidPositionError            a position that can't be acknowledged or reset to
"""


class ManagedLedgerError(Exception):
    """Base of every error of this package."""


class ManagedLedgerFencedError(ManagedLedgerError):
    """Another owner fenced a ledger or changed the metadata: this owner must unload and never
    write again.
    """


class ManagedLedgerClosedError(ManagedLedgerError):
    """The managed ledger was closed or deleted by this process."""


class ManagedLedgerTerminatedError(ManagedLedgerError):
    """The managed ledger was terminated: no append will succeed any more."""


class ManagedLedgerNotFoundError(ManagedLedgerError):
    """There is no managed ledger of that name and the caller didn't ask to create it."""


class ManagedLedgerFormatError(ManagedLedgerError):
    """Stored metadata is damaged or of an unknown format version."""


class AppendFailedError(ManagedLedgerError):
    """Entries couldn't be written, and will never be confirmed by this owner; the next append
    tries again.
    """


class OpenFailedError(ManagedLedgerError):
    """Recovery met an error that may pass, or another opener was faster; no data was dropped.
    Retry later.
    """


class CursorClosedError(ManagedLedgerError):
    """The cursor was closed or deleted."""


class InvalidPositionError(ManagedLedgerError):
    """A position outside of what the operation may touch."""
