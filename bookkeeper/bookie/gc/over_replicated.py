"""Ledgers that this bookie holds, but need not any more: closed, and none of it is told to be here.

Replicas move to other bookies by repairs; what stays behind is found here, about once a day. A
ledger is emptied under the lock that repairs of it take, after its metadata was read again under
that lock: no worker copies entries of it to this bookie then. Should the lock be lost on the way,
adds and listings of the ledger are refused until it is empty; and what was written of late, or told
to a client to be here, stays, because a repair leaves out what the target has.

What remains is the ledger's key and a fence: a writer that was paused before all this still gets
no acknowledgement from here.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from magnetar.bookkeeper.bookie.gc.garbage_scan import (
    GarbageReport,
    remove_runs,
    remove_unreferenced_logs,
)
from magnetar.bookkeeper.bookie.storage.index_format import encode_ledger
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.client.ledger_store import VersionedLedger
from magnetar.bookkeeper.ledger_metadata import LedgerState

LISTED_S_MIN: Final = 3600.0  # after a listing nothing of the ledger is removed for so long


class LedgerLock(Protocol):
    """Held until it is released, or lost with the session."""

    @property
    def held(self) -> bool: ...

    async def release(self) -> None: ...


class LedgerLocks(Protocol):
    """Locks of repairs (``replication.under_replication.UnderReplicationStore``)."""

    async def lock(self, ledger_id: int) -> LedgerLock | None:
        """None: another has it."""
        ...


class LedgerMetadataReader(Protocol):
    """``client.ledger_store.LedgerStore``."""

    async def read(self, ledger_id: int) -> VersionedLedger | None: ...


class OverReplicatedLedgers:
    """Says what one bookie need not hold."""

    def __init__(self, bookie_id: str, ledgers: LedgerMetadataReader, locks: LedgerLocks) -> None:
        self._bookie_id = bookie_id
        self._ledgers = ledgers
        self._locks = locks

    async def names_others(self, ledger_id: int, creator: int) -> bool:
        """The ledger is closed, and no segment of it names this bookie.

        A deleted one is left to the collection of deleted ledgers.

        Raises:
            LedgerError, MetadataError: nothing is known.
        """
        found = await self._ledgers.read(ledger_id)
        if found is None or found.metadata.state is not LedgerState.CLOSED:
            return False
        if creator not in (0, found.metadata.creator_token):
            return False  # another ledger with this id; what is here may be the last of its own
        return all(self._bookie_id not in segment.bookies for segment in found.metadata.segments)

    async def lock(self, ledger_id: int) -> LedgerLock | None:
        return await self._locks.lock(ledger_id)


def empty_steps(
    storage: LedgerStorage, ledger_ids: Sequence[int], report: list[GarbageReport]
) -> Iterator[None]:
    """Remove all entries of ledgers from the index; unlink logs that hold nothing else.

    REQUIRES: ``storage.empty`` said yes to each, on the loop.

    Args:
        report: gets one item when done.
    """
    for ledger_id in ledger_ids:
        state = storage.ledgers.get(ledger_id)
        if state is not None:  # else deleted meanwhile
            record = encode_ledger(ledger_id, state.to_record(-1))
            # Lost by a crash, it is repeated by a later round.
            remove_runs(storage, [ledger_id], [record], sync_point=None)
            state.flushed_last = -1
        yield
    removed, freed = yield from remove_unreferenced_logs(storage)
    report.append(GarbageReport(len(ledger_ids), removed, freed))
