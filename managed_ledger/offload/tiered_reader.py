"""Reads a ledger that is in bookies and elsewhere: the one copy, and where it fails the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from magnetar.bookkeeper.client.ledger_reader import EntryRun
from magnetar.bookkeeper.errors import (
    BookieTooManyRequestsError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from magnetar.managed_ledger.logger import logger
from magnetar.managed_ledger.offload.interfaces import EntryReader
from magnetar.metadata.errors import MetadataError

_DENIALS = (NoSuchEntryError, NoSuchLedgerError)


class TieredReader:
    """See ``EntryReader``; opens a copy when it is first needed."""

    def __init__(
        self, ledger_id: int, openers: Sequence[Callable[[], Awaitable[EntryReader]]]
    ) -> None:
        """Args:
        openers: of the copies, the preferred one first.
        """
        self._ledger_id = ledger_id
        self._openers = openers
        self._readers: list[EntryReader | None] = [None] * len(openers)

    async def read(self, first: int, last: int, bytes_max: int, head_bytes: int) -> EntryRun:
        """See ``EntryReader``. Raises the preferred copy's error if none has it; but never
        "no such entry" where the other one couldn't be asked.
        """
        failure: LedgerError | MetadataError | None = None
        for place, opener in enumerate(self._openers):
            try:
                reader = self._readers[place]
                if reader is None:
                    reader = self._readers[place] = await opener()
                return await reader.read(first, last, bytes_max, head_bytes)
            except BookieTooManyRequestsError:
                raise  # says nothing about the copy
            except (LedgerError, MetadataError) as error:
                logger.warning("ledger %d: entry %d: %s", self._ledger_id, first, error)
                self._readers[place] = None
                if failure is None or isinstance(failure, _DENIALS):
                    failure = error
        assert failure is not None, "there is at least one copy"
        raise failure
