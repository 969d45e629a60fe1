"""Every error that bookkeeper/ raises.

::

    BookkeeperError
    +-- LedgerError                    of one ledger or one request; ``code`` as in codes.py
    |   +-- LedgerFencedError          another client recovers or recovered the ledger: stop writing
    |   +-- LedgerClosedError          the handle or the ledger is closed
    |   +-- NoSuchLedgerError
    |   |   +-- OtherCreatorError      a bookie holds another ledger with the same id
    |   +-- EntryDiffersError          a bookie holds the entry with another payload or length
    |   +-- NoSuchEntryError
    |   +-- LedgerRecoveryError        recovery could not decide where the ledger ends: retry later
    |   +-- LedgerMetadataError        stored metadata can't be read, or a transition isn't allowed
    |   +-- NotEnoughBookiesError      placement found fewer bookies than the ensemble needs
    |   +-- PlacementRuleError         quorums that the placement policy can't place in any cluster
    |   +-- BookieUnavailableError     no answer: says nothing about what the bookie holds
    |   +-- EntryDigestError           bytes don't fit their digest
    |   +-- UnauthorizedAccessError    wrong password
    |   +-- BookieReadOnlyError
    |   +-- BookieIoError              the bookie met a failed disk or corrupt bytes
    |   +-- UnknownLedgerStateError    limbo: the bookie may have lost data of this ledger
    |   +-- TooManyRequestsError       back-pressure
    |   +-- BadRequestError
    |   +-- WriteFailedError           appends failed for good, with the last cause chained
    |   +-- AddQuorumTimeoutError      an append waited too long for its quorum
    +-- FrameError                     a frame can't be what the other side meant to send
    +-- StorageError                   of a bookie's disks
        +-- CorruptFileError           bytes on disk that weren't written; names file and offset
        +-- MissingFileError           a file that the bookie's own records promise is gone
        +-- DirectoryLockedError       another process serves this data directory
        +-- CookieMismatchError        the directory belongs to another bookie or instance
        +-- BookieClosedError          the bookie is closed or ended by a fatal error
"""

from typing import ClassVar

from magnetar.bookkeeper import codes


class BookkeeperError(Exception):
    """Root of the package's errors."""


class LedgerError(BookkeeperError):
    """A request about a ledger failed; ``code`` is the bookie's result code that it stands for."""

    code: ClassVar[int] = codes.UNAVAILABLE


class LedgerFencedError(LedgerError):
    """Another client recovers or recovered the ledger: this writer must stop for good."""

    code = codes.FENCED


class LedgerClosedError(LedgerError):
    """The handle is closed, or the ledger's metadata says CLOSED."""

    code = codes.FENCED


class NoSuchLedgerError(LedgerError):
    """The ledger does not exist (metadata), or the bookie never held an entry of it."""

    code = codes.NO_LEDGER


class OtherCreatorError(NoSuchLedgerError):
    """Two ledgers share an id, and the bookie holds the other one: nothing of this one is there.

    Ids are given out twice only if the metadata store went back to an older state.
    """

    code = codes.OTHER_CREATOR


class EntryDiffersError(LedgerError):
    """The bookie holds this entry with another payload or length, which stays as it is."""

    code = codes.ENTRY_DIFFERS


class NoSuchEntryError(LedgerError):
    """The ledger is known, the entry is not."""

    code = codes.NO_ENTRY


class LedgerRecoveryError(LedgerError):
    """Recovery could not decide where the ledger ends; retry when more bookies answer."""


class LedgerMetadataError(LedgerError):
    """Stored ledger metadata can't be read, or a state transition is not allowed."""


class NotEnoughBookiesError(LedgerError):
    """Fewer usable bookies than the ensemble or the quorum needs; retry when some come back."""


class PlacementRuleError(LedgerError):
    """No number of bookies could satisfy the placement policy with these quorums."""

    code = codes.BAD_REQUEST


class BookieUnavailableError(LedgerError):
    """No answer from a bookie; says nothing about what it holds."""


class EntryDigestError(LedgerError):
    """An entry's bytes don't fit their digest on every replica that answered."""

    code = codes.IO_ERROR


class UnauthorizedAccessError(LedgerError):
    """The password is not the ledger's."""

    code = codes.UNAUTHORIZED


class BookieReadOnlyError(LedgerError):
    """The bookie accepts no writes for now."""

    code = codes.READ_ONLY


class BookieIoError(LedgerError):
    """The bookie met a failed disk or corrupt bytes."""

    code = codes.IO_ERROR


class UnknownLedgerStateError(LedgerError):
    """The bookie may have lost data of this ledger, so it can't say "no"."""

    code = codes.UNKNOWN_LEDGER_STATE


class BookieTooManyRequestsError(LedgerError):
    """Back-pressure: nothing was accepted; retry later."""

    code = codes.TOO_MANY_REQUESTS


class BadRequestError(LedgerError):
    """A malformed request: a bug of the caller or a lying peer."""

    code = codes.BAD_REQUEST


class WriteFailedError(LedgerError):
    """Appends failed for good; entries above the last confirmed one have an unknown fate."""


class AddQuorumTimeoutError(LedgerError):
    """An append waited longer for its quorum than the client allows: its fate is unknown."""


class FrameError(BookkeeperError):
    """A truncated, oversized or senseless frame; the call that carried it ends with this text."""


class StorageError(BookkeeperError):
    """A bookie's disk, directory or file is not as it must be."""


class CorruptFileError(StorageError):
    """Bytes on disk that can't be what the bookie wrote.

    Attributes:
        path: the file.
        offset: where in it the unreadable record begins, in bytes.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: {reason} at offset {offset}")
        self.path = path
        self.offset = offset
        self.reason = reason


class MissingFileError(StorageError):
    """A file that the bookie's own records promise is gone."""


class JournalFullError(StorageError):
    """No space for the next journal group: none of its bytes were written, it may be tried again.

    Attributes:
        path: the segment that found no space.
    """

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"{path}: {error.strerror}")
        self.path = path


class DirectoryLockedError(StorageError):
    """Another process serves this data directory."""


class CookieMismatchError(StorageError):
    """The data directory belongs to another bookie or another cluster."""


class StaleMetadataError(StorageError):
    """The embedded metadata are older than the data directory, or another's."""


class BookieClosedError(StorageError):
    """The bookie is closed, or a fatal disk error ended it."""


_BY_CODE: dict[int, type[LedgerError]] = {
    codes.NO_LEDGER: NoSuchLedgerError,
    codes.NO_ENTRY: NoSuchEntryError,
    codes.FENCED: LedgerFencedError,
    codes.UNAUTHORIZED: UnauthorizedAccessError,
    codes.READ_ONLY: BookieReadOnlyError,
    codes.IO_ERROR: BookieIoError,
    codes.UNKNOWN_LEDGER_STATE: UnknownLedgerStateError,
    codes.TOO_MANY_REQUESTS: BookieTooManyRequestsError,
    codes.BAD_REQUEST: BadRequestError,
    codes.UNAVAILABLE: BookieUnavailableError,
    codes.OTHER_CREATOR: OtherCreatorError,
    codes.ENTRY_DIFFERS: EntryDiffersError,
}


_TWO_LEDGERS = frozenset({codes.OTHER_CREATOR, codes.ENTRY_DIFFERS})


def error_for_code(code: int, message: str) -> LedgerError:
    """The error that stands for a bookie's answer; ``code`` must not be OK."""
    assert code != codes.OK, "OK is no error"
    error_type = _BY_CODE.get(code, BookieUnavailableError)
    if code in _TWO_LEDGERS:
        message = f"{message}: two ledgers share the id; was the metadata store restored?"
    return error_type(f"{message}: {codes.code_name(code)}")
