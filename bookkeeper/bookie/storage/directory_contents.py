"""What a bookie's directory holds, read while no bookie uses it. Blocks; changes nothing."""

from dataclasses import dataclass, field
from pathlib import Path

from magnetar.bookkeeper.bookie.cookie import CheckedCookie, read_local_cookie
from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.journal.journal_reader import JournalRecord, read_journal
from magnetar.bookkeeper.bookie.metadata_commit_check import decode_mark
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.errors import MissingFileError
from magnetar.bookkeeper.packet import PACKET_HEADER
from magnetar.bookkeeper.storage.lmdb_store import LmdbStore
from magnetar.bookkeeper.storage.ordered_store import OrderedStore, iterate
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.metadata.store import CommitMark


@dataclass(slots=True)
class DirectoryContents:
    """
    Attributes:
        ledgers: ids of those that aren't deleted.
        last_ledger: highest id it knows of, deleted or not; -1: none.
        metadata_mark: newest state of embedded metadata that it has seen.
    """

    ledgers: set[int] = field(default_factory=set)
    last_ledger: int = -1
    metadata_mark: CommitMark | None = None
    cookie: CheckedCookie | None = None


def read_holdings(directory: Path) -> DirectoryContents:
    """REQUIRES: the directory's lock, and all of the bookie in it: one journal.

    Raises:
        StorageError: index or journal are damaged, or the cookie.
        OSError: they can't be read.
    """
    files, holdings = OsFileSystem(directory), DirectoryContents()
    holdings.cookie = read_local_cookie(files)
    if not (directory / "index").is_dir():
        raise MissingFileError(f"{directory / 'index'} is missing")
    index = LmdbStore(directory / "index")
    try:
        deleted = _read_index(holdings, index)
        value = index.get(index_format.MARK_KEY)
    finally:
        index.close()
    mark = None if value is None else index_format.decode_mark(value)
    for record in read_journal(files, mark):
        _read_record(holdings, record, deleted)
    return holdings


def _read_index(holdings: DirectoryContents, index: OrderedStore) -> set[int]:
    """Ids of deleted ledgers."""
    ids = {
        kind: {index_format.id_of_key(key) for key, _ in iterate(index, *kind)}
        for kind in (index_format.LEDGERS, index_format.DELETED, index_format.CREATORS)
    }
    holdings.last_ledger = max(set[int]().union(*ids.values()), default=-1)
    deleted = ids[index_format.DELETED]
    holdings.ledgers = ids[index_format.LEDGERS] - deleted
    if (value := index.get(index_format.METADATA_KEY)) is not None:
        body = index_format.unseal(index_format.METADATA_KEY, value)
        holdings.metadata_mark = decode_mark(body)
    return deleted


def _read_record(holdings: DirectoryContents, record: JournalRecord, deleted: set[int]) -> None:
    if record.kind == record_format.METADATA_MARK:
        holdings.metadata_mark = decode_mark(record.body)
        return
    if record.kind == record_format.ENTRY:
        start = record.start + record_format.RECORD_HEADER_BYTES
        ledger_id = PACKET_HEADER.unpack_from(record.data, start)[0]
    else:
        (ledger_id,) = journal_format.LEDGER_ID.unpack_from(record.body)
    holdings.last_ledger = max(holdings.last_ledger, ledger_id)
    if ledger_id not in deleted:
        holdings.ledgers.add(ledger_id)
