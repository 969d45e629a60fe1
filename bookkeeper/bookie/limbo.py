"""Limbo, a state of a ledger in BookKeeper (BP-46): its bookie knows that it lost data.

Rules: docs/spec/storage.md, "Limbo".

Its "no" would be taken for the truth: together with others it ends a ledger below entries that were
acknowledged, or lets a fenced writer go on. So a ledger in limbo gets positive answers only; every
negative one is "unknown", and counts for nothing. Which ledgers: all that the metadata places here,
whatever their state, and all that are here. Ledgers that this bookie has no trace of are unknown up
to the highest id of that moment, because a recovery may have copied entries here before it put this
bookie into the metadata.

The order makes it safe to end anywhere: a durable note that data is lost, then the marks, then the
note that all are marked, then the cookie, then the registration.
"""

import asyncio
import logging
from collections.abc import Iterator

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.storage.ordered_store import StoreTransaction

_log = logging.getLogger(__name__)

_READS_AT_ONCE = 128


def lives_on(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """The metadata names the bookie in some segment."""
    return any(bookie_id in segment.bookies for segment in metadata.segments)


async def enter_limbo(bookie: Bookie, ledgers: LedgerStore) -> None:
    """Mark every ledger that may have lost something; durable on return.

    REQUIRES: nothing was answered yet since the loss, and ``ledgers`` shows everything that was
    stored before it.

    Raises:
        MetadataError: the store failed; nothing may be answered.
    """
    storage = bookie.storage
    last, count = max(storage.lost_below - 1, max(storage.ledgers, default=-1)), 0
    async for found in ledgers.ranges():
        for start in range(0, len(found.ledger_ids), _READS_AT_ONCE):
            ids = found.ledger_ids[start : start + _READS_AT_ONCE]
            last = max(last, ids[-1])
            concerned = await asyncio.gather(*(_read(bookie, ledgers, id_) for id_ in ids))
            for ledger_id, known in zip(ids, concerned, strict=True):
                if known is not None:
                    storage.set_limbo(ledger_id, *known)
                    count += 1
    _log.warning("data was lost: %d ledgers are in limbo until they are repaired", count)
    await bookie.flush()
    await bookie.run_maintenance(note_steps(storage, index_format.LIMBO_CHECKING, last))


async def _read(bookie: Bookie, ledgers: LedgerStore, ledger_id: int) -> tuple[bytes, int] | None:
    """The ledger's master key (empty: not known) and creator; None: it never was here, or is
    gone.
    """
    try:
        found = await ledgers.read(ledger_id)
    except LedgerError as error:  # its place is unknown: here, for all we know
        _log.error("ledger %d: %s", ledger_id, error)
        return b"", 0
    if found is None:
        return None
    is_here = ledger_id in bookie.storage.ledgers or lives_on(found.metadata, bookie.bookie_id)
    return (found.metadata.master_key, found.metadata.creator_token) if is_here else None


def note_steps(storage: LedgerStorage, phase: int, last_ledger: int) -> Iterator[None]:
    """Note durably how far limbo is; phase 0: it is over."""
    if phase:
        storage.lost_below = max(storage.lost_below, last_ledger + 1)
        changes = StoreTransaction(puts=[index_format.encode_limbo(phase, last_ledger)])
        changes.puts.append(index_format.encode_number(index_format.LOST_KEY, storage.lost_below))
    else:
        changes, last_ledger = StoreTransaction(deletes=[index_format.LIMBO_KEY]), -1
    storage.index.commit(changes, "index.limbo")
    storage.limbo_phase, storage.limbo_last = phase, last_ledger
    yield
