"""Errors of auto-recovery.

::

    ReplicationError               (a BookkeeperError) a repair can't go on now; the text says why
    +-- UnreadableEntryError       no replica gave an intact copy: the marker stays
    +-- NoTargetError              there is no other bookie for a slot
    +-- TargetFailedError          the bookie that was to get the copies failed
    +-- FragmentChangedError       the segment or the target changed meanwhile: look again
    +-- RepairStoppedError         lock lost, auto-recovery switched off, or the worker closes
    +-- BookieRegisteredError      decommission of a bookie that still runs
"""

from magnetar.bookkeeper.errors import BookkeeperError


class ReplicationError(BookkeeperError):
    """A repair can't go on now; its text is what operators read in the marker."""


class UnreadableEntryError(ReplicationError):
    """No replica gave an intact copy of an entry; it isn't proved that there is none."""


class NoTargetError(ReplicationError):
    """No bookie may take the place of the missing one; retry when others register."""


class TargetFailedError(ReplicationError):
    """The bookie that was to get the copies refused or failed."""

    def __init__(self, bookie: str, reason: str) -> None:
        super().__init__(f"bookie {bookie} did not take the copies: {reason}")
        self.bookie = bookie


class FragmentChangedError(ReplicationError):
    """Another client changed the segment that was copied, or the target was started again: nothing
    was written, look again."""


class RepairStoppedError(ReplicationError):
    """The lock is lost, auto-recovery was switched off, or the worker closes."""


class BookieRegisteredError(ReplicationError):
    """The bookie is registered: stop it first."""
