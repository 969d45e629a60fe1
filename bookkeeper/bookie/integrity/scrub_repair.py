"""Putting sound copies in the place of damaged records. Steps for the maintenance thread.

A copy is appended to the newest entry log, synced, named by the index in one commit, and read back.
Until that commit the damaged record is what the index names, so a repair that is cut short leaves
everything as it was.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogAppender
from magnetar.bookkeeper.bookie.storage.flush import overlapping_runs, replace_runs
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun, overlay
from magnetar.bookkeeper.bookie.storage.record_format import (
    RECORD_HEADER_BYTES,
    crc_seed,
    encode_entry,
)
from magnetar.bookkeeper.errors import CorruptFileError
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.storage.ordered_store import StoreTransaction


@dataclass(slots=True)
class RepairCopies:
    """Sound packets for entries of one ledger that are damaged here.

    Attributes:
        owned: all entries that should be here, where it isn't known which were: a run may be
            dropped whose value can't be read, if all of these are among the packets.
        stored: ids that were written and read back.
    """

    ledger_id: int
    packets: Mapping[int, bytes]
    tag: int
    owned: Collection[int] = ()
    stored: list[int] = field(default_factory=list)


def repair_steps(storage: LedgerStorage, copies: RepairCopies) -> Iterator[None]:
    """Store the copies.

    Raises:
        OSError: the disk failed or is full; nothing was changed.
    """
    ledger_id, packets = copies.ledger_id, copies.packets
    if ledger_id not in storage.ledgers or not packets:
        return  # deleted meanwhile: nothing may bring it back
    first, end = min(packets), max(packets) + 1
    changes = StoreTransaction()
    unreadable = _unreadable_runs(storage, ledger_id, first, end)
    if unreadable and not set(copies.owned) <= packets.keys():
        return  # what else was in them is unknown: they must go on saying so
    changes.deletes += unreadable
    live_delta: dict[int, int] = {}
    appender = EntryLogAppender(storage.logs)
    try:
        runs = list(_append(storage, appender, copies))
        appender.finish()
    except OSError:
        appender.abandon()
        raise
    old = overlapping_runs(storage.index, ledger_id, first, end)
    replace_runs(ledger_id, old, overlay(old, runs), changes, live_delta)
    appender.changes(changes, live_delta)
    # A crash may undo it: then the damage is found again.
    storage.index.commit(changes, sync_point=None)
    appender.committed(live_delta)
    yield
    copies.stored += [id_ for id_ in sorted(packets) if _reads_back(storage, copies, id_)]


def _unreadable_runs(storage: LedgerStorage, ledger_id: int, first: int, end: int) -> list[bytes]:
    """Keys of runs in this range whose values don't fit their CRC."""
    keys: list[bytes] = []
    low, high = index_format.run_key(ledger_id, first), index_format.run_key(ledger_id, end)
    for key, value in storage.index.range(low, high):
        try:
            index_format.decode_run(key, value)
        except CorruptFileError:
            keys.append(key)
    return keys


def _append(
    storage: LedgerStorage, appender: EntryLogAppender, copies: RepairCopies
) -> Iterator[LocationRun]:
    """Append the copies in runs without holes."""
    config, seed = storage.config, crc_seed(copies.tag)
    pending: list[tuple[int, bytes]] = []
    pending_bytes = 0

    def write() -> LocationRun:
        records = [
            encode_entry(
                copies.tag, seed, packet[:PACKET_HEADER_BYTES], packet[PACKET_HEADER_BYTES:]
            )
            for _, packet in pending
        ]
        log_id, offset = appender.append(records, sum(map(len, records)))
        return LocationRun(pending[0][0], log_id, offset, [len(packet) for _, packet in pending])

    for entry_id, packet in sorted(copies.packets.items()):
        size = len(packet) + RECORD_HEADER_BYTES
        if pending and (
            entry_id != pending[-1][0] + 1
            or len(pending) >= config.run_entries_max
            or pending_bytes + size > config.run_bytes_max
        ):
            yield write()
            pending, pending_bytes = [], 0
        pending.append((entry_id, packet))
        pending_bytes += size
    if pending:
        yield write()


def _reads_back(storage: LedgerStorage, copies: RepairCopies, entry_id: int) -> bool:
    try:
        found = storage.read_stored(copies.ledger_id, entry_id, 1, 1)
    except (CorruptFileError, OSError):
        return False
    return bool(found) and bytes(found[0]) == copies.packets[entry_id]
