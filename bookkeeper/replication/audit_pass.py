"""One walk over the metadata of all ledgers, in bounded memory and small turns of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final, Protocol

from bookkeeper.client.ledger_store import LedgerStore
from bookkeeper.errors import LedgerMetadataError
from bookkeeper.ledger_metadata import LedgerMetadata

_log = logging.getLogger(__name__)

_READS: Final = 32  # ledgers at a time: about a millisecond of work between two turns of the loop


class Judge(Protocol):
    """Whose ledgers are to be marked."""

    @property
    def is_enabled(self) -> bool:
        """False: nothing may be marked at the moment, by nobody's loss."""
        ...

    def may_mark(self, bookie: str) -> bool: ...

    def is_known(self, bookie: str) -> bool: ...

    async def refresh(self) -> None:
        """Learn who there is now."""
        ...

    async def mark(self, ledger_id: int, bookies: list[str]) -> None: ...


class WalkFigures:
    """What a walk met."""

    def __init__(self) -> None:
        self.ledgers = 0
        self.unreadable = 0


async def walk_ledgers(
    ledgers: LedgerStore, figures: WalkFigures
) -> AsyncIterator[list[LedgerMetadata]]:
    """Metadata of all ledgers, in lists of at most 32. Ledgers that are deleted meanwhile and those
    whose metadata can't be read are left out.

    Raises:
        MetadataError: the store failed.
    """
    async for part in ledgers.ranges():
        ids = part.ledger_ids
        for start in range(0, len(ids), _READS):
            batch = ids[start : start + _READS]
            found = await asyncio.gather(*(read_ledger(ledgers, ledger_id) for ledger_id in batch))
            figures.ledgers += len(batch)
            figures.unreadable += sum(isinstance(each, str) for each in found)
            yield [each for each in found if isinstance(each, LedgerMetadata)]
            # A store in this process answers without waiting, so nothing else would get a turn.
            await asyncio.sleep(0)


async def read_ledger(ledgers: LedgerStore, ledger_id: int) -> LedgerMetadata | str | None:
    """None: there is none. Text: why its metadata can't be read."""
    try:
        found = await ledgers.read(ledger_id)
    except LedgerMetadataError as error:
        _log.warning("ledger %d can't be checked: %s", ledger_id, error)
        return str(error)
    return None if found is None else found.metadata


def members_of(metadata: LedgerMetadata) -> set[str]:
    """Every bookie of every segment."""
    return {bookie for segment in metadata.segments for bookie in segment.bookies}


class AuditPass:
    """Marks the ledgers of lost bookies: those the judge would mark at the moment it is asked.

    Not an index bookie -> ledgers, which a million ledgers would make large: each ledger is judged
    when its metadata is at hand.
    """

    def __init__(self, ledgers: LedgerStore, judge: Judge) -> None:
        self.figures = WalkFigures()
        self.marked = 0
        self._ledgers, self._judge = ledgers, judge
        self._strangers: set[str] = set()  # unknown, and asked for in this pass

    async def run(self) -> bool:
        """The whole walk; False: it was given up, as nothing may be marked any more.

        Raises:
            MetadataError: the store failed; what was marked stays so.
        """
        judge = self._judge
        async for batch in walk_ledgers(self._ledgers, self.figures):
            marks = []
            for metadata in batch:
                members = members_of(metadata)
                await self._meet(members)
                lost = sorted(bookie for bookie in members if judge.may_mark(bookie))
                if lost:
                    marks.append(judge.mark(metadata.ledger_id, lost))
            if marks:
                self.marked += len(marks)
                await asyncio.gather(*marks)
            if not judge.is_enabled:
                return False
        return True

    async def _meet(self, members: set[str]) -> None:
        """One nobody knows may just have come: look again before it is called lost."""
        unknown = {each for each in members if not self._judge.is_known(each)} - self._strangers
        if unknown:
            self._strangers |= unknown
            await self._judge.refresh()
