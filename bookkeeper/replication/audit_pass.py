"""One walk over the metadata of all ledgers, in bounded memory and small turns of the loop."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from magnetar.bookkeeper.client.ledger_store import LedgerStore, VersionedLedger
from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.item_errors import ItemPass

_READS: Final = 32  # ledgers at a time: about a millisecond of work between two turns of the loop
_UNANSWERED_MAX: Final = 100  # more than that is the store's failure, not that of single ledgers


class MarkPredicate(Protocol):
    """Whose ledgers are to be marked."""

    @property
    def is_enabled(self) -> bool:
        """False: nothing may be marked at the moment, whichever bookie is lost."""
        ...

    def may_mark(self, bookie: str) -> bool: ...

    def is_known(self, bookie: str) -> bool: ...

    async def refresh(self) -> None:
        """Read which bookies are registered now."""
        ...

    async def mark(self, ledger_id: int, bookies: list[str]) -> None: ...


class LedgerWalk:
    """What one walk met: a page or a ledger that fails keeps no other from its turn.

    Attributes:
        unreadable: ledgers whose stored metadata can't be read.
        unanswered: pages and ledgers that the store didn't answer for: a retry may succeed.
    """

    def __init__(self, each: ItemPass) -> None:
        self.ledgers = self.unreadable = 0
        self.unanswered: set[str] = set()
        self._each = each

    @contextmanager
    def item(self, name: str) -> Iterator[None]:
        """Enter it for each page and ledger.

        Raises:
            MetadataError: the store failed for too many.
        """
        failed: MetadataError | None = None
        with self._each.item(name):
            try:
                yield
                self.unanswered.discard(name)
            except LedgerMetadataError:
                self.unreadable += 1
                raise
            except MetadataError as error:
                failed = error
                self.unanswered.add(name)
                raise
        if failed is not None and len(self.unanswered) > _UNANSWERED_MAX:
            raise failed


async def walk_ledgers(
    ledgers: LedgerStore, walk: LedgerWalk
) -> AsyncIterator[list[LedgerMetadata]]:
    """Metadata of all ledgers, in lists of at most 32. Ledgers that are deleted meanwhile and those
    whose metadata can't be read are left out.

    Raises:
        MetadataError: the store failed for too many.
    """
    async for part in ledgers.ranges(walk.item):
        ids = part.ledger_ids
        for start in range(0, len(ids), _READS):
            batch = ids[start : start + _READS]
            reads = (read_ledger(ledgers, ledger_id, walk) for ledger_id in batch)
            found = await asyncio.gather(*reads)
            walk.ledgers += len(batch)
            yield [each for each in found if each is not None]
            # A store in this process answers without waiting, so nothing else would get a turn.
            await asyncio.sleep(0)


async def read_ledger(
    ledgers: LedgerStore, ledger_id: int, walk: LedgerWalk
) -> LedgerMetadata | None:
    """None: there is none, or it can't be read."""
    found: VersionedLedger | None = None
    with walk.item(f"ledger {ledger_id}"):
        found = await ledgers.read(ledger_id)
    return None if found is None else found.metadata


def members_of(metadata: LedgerMetadata) -> set[str]:
    """Every bookie of every segment."""
    return {bookie for segment in metadata.segments for bookie in segment.bookies}


class AuditPass:
    """Marks the ledgers of lost bookies: those the judge would mark at the moment it is asked.

    Not an index bookie -> ledgers, which a million ledgers would make large: each ledger is judged
    when its metadata is at hand.
    """

    def __init__(self, ledgers: LedgerStore, predicate: MarkPredicate, each: ItemPass) -> None:
        self.walk = LedgerWalk(each)
        self.marked = 0
        self._ledgers, self._predicate = ledgers, predicate
        self._asked_for: set[str] = set()  # unknown, and asked for in this pass

    async def run(self) -> bool:
        """The whole walk; False: it was given up, as nothing may be marked any more, or the store
        didn't answer for all of it.

        Raises:
            MetadataError: the store failed for too many; what was marked stays so.
        """
        predicate = self._predicate
        async for batch in walk_ledgers(self._ledgers, self.walk):
            marks = []
            for metadata in batch:
                members = members_of(metadata)
                with self.walk.item(f"ledger {metadata.ledger_id}"):
                    await self._meet(members)
                    lost = sorted(bookie for bookie in members if predicate.may_mark(bookie))
                    if lost:
                        marks.append(self._mark(metadata.ledger_id, lost))
            await asyncio.gather(*marks)
            if not predicate.is_enabled:
                return False
        return not self.walk.unanswered

    async def _mark(self, ledger_id: int, lost: list[str]) -> None:
        with self.walk.item(f"ledger {ledger_id}"):
            await self._predicate.mark(ledger_id, lost)
            self.marked += 1

    async def _meet(self, members: set[str]) -> None:
        """An unknown bookie may just have come: look again before it is called lost."""
        unknown = {each for each in members if not self._predicate.is_known(each)} - self._asked_for
        if unknown:
            await self._predicate.refresh()
            self._asked_for |= unknown
