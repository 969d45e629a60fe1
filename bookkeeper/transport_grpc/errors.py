"""Errors of the bytes between client and bookie.

::

    magnetar.bookkeeper.errors.BookkeeperError
    +-- FrameError    a frame can't be what the other side meant to send
"""

from magnetar.bookkeeper.errors import BookkeeperError


class FrameError(BookkeeperError):
    """A truncated, oversized or senseless frame; the call that carried it ends with this text."""
