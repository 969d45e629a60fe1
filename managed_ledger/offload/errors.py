"""Errors of copies elsewhere.

::

    ManagedLedgerError
    +-- OffloadError            a copy can't be made or deleted now; the ledger stays where it is
        +-- NoOffloaderError    no such driver in this process
        +-- OffloadBusyError    an offload of this log is under way
    LedgerError
    +-- OffloadedReadError      the copy can't be read now
        +-- CopyDamagedError    its bytes aren't what was written; says which object and where
"""

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger.errors import ManagedLedgerError


class OffloadError(ManagedLedgerError):
    """A copy can't be made or deleted now; nothing was taken from bookies for it."""


class NoOffloaderError(OffloadError):
    """This process has no offloader of that driver."""


class OffloadBusyError(OffloadError):
    """An offload of this log is under way."""


class OffloadedReadError(LedgerError):
    """The copy can't be read. The entry still exists: a reader must not skip it."""

    code = codes.IO_ERROR


class CopyDamagedError(OffloadedReadError):
    """Bytes of a copy that were not written so, or a part of it that is gone."""
