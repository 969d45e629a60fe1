"""Embedded metadata must not be older than what a bookie holds beside them.

A bookie in one process with its metadata notes in its journal, and in its index when the journal is
trimmed, the newest state of the metadata that something in it may rest on. Metadata that are behind
it have lost something: they would give out ledger ids again, and let ledgers that they don't know
be collected. A copy of the whole data directory has both, so it fits.
"""

from collections.abc import Callable

from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.errors import StaleMetadataError
from magnetar.bookkeeper.storage.ordered_store import OrderedStore
from magnetar.metadata.store import CommitMark, MetadataStore


def decode_mark(body: bytes) -> CommitMark | None:
    return CommitMark(*journal_format.METADATA_MARK_BODY.unpack(body)) if body else None


def encode_mark(mark: CommitMark | None) -> bytes:
    if mark is None:
        return b""
    return journal_format.METADATA_MARK_BODY.pack(mark.store_id, mark.commit)


def load_mark(storage: LedgerStorage, index: OrderedStore) -> None:
    """What the index has of it. Raises CorruptFileError."""
    value = index.get(index_format.METADATA_KEY)
    if value is not None:
        keep_mark(storage, index_format.unseal(index_format.METADATA_KEY, value))


def keep_mark(storage: LedgerStorage, body: bytes) -> None:
    """Of two states of one store the newer one, else the one that is read later."""
    known, found = decode_mark(storage.metadata_mark()), decode_mark(body)
    same = known is not None and found is not None and known.store_id == found.store_id
    if not same or (known is not None and found is not None and found.commit > known.commit):
        storage.note_metadata(lambda: body)


def follow_metadata(storage: LedgerStorage, store: MetadataStore, directory: object) -> None:
    """Compares, then notes the store's state from now on; nothing if it isn't embedded.

    Args:
        directory: the bookie's, for the error.

    Raises:
        StaleMetadataError: the metadata are older, or another store's.
    """
    now, noted = store.commit_mark, decode_mark(storage.metadata_mark())
    if now is None:
        return
    if noted is not None and noted.store_id != now.store_id:
        raise StaleMetadataError(
            f"the metadata ({store.place}) are not those with which the bookie in {directory} "
            f"has worked: {_REMEDY}"
        )
    if noted is not None and noted.commit > now.commit:
        raise StaleMetadataError(
            f"the metadata ({store.place}) are at commit {now.commit}, and the bookie in "
            f"{directory} has seen {noted.commit}: they are older, {_REMEDY}"
        )
    storage.note_metadata(_encoded(store))


def _encoded(store: MetadataStore) -> Callable[[], bytes]:
    """The store's mark; each group of the journal asks, and it is the same nearly always."""
    known, body = store.commit_mark, encode_mark(store.commit_mark)

    def encoded() -> bytes:
        nonlocal known, body
        if (mark := store.commit_mark) is not known:
            known, body = mark, encode_mark(mark)
        return body

    return encoded


_REMEDY = (
    "bring back a copy of both directories from one moment, or see what going on without it would "
    "lose (magnetar metadata recover)"
)
