"""Opening a storage of which something is lost, once somebody has accepted that.

Least first: entry logs that are gone concern the ledgers that were in them, a damaged journal or
index concerns every ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from magnetar.bookkeeper.bookie.config import StorageConfig
from magnetar.bookkeeper.bookie.storage import entry_log as entry_log
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.index_rebuild import rebuild_index
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.missing_entry_logs import forget_lost_logs
from magnetar.bookkeeper.bookie.storage.storage_startup import open_storage
from magnetar.bookkeeper.errors import CorruptFileError, MissingFileError
from magnetar.bookkeeper.storage.file_system import FileSystem
from magnetar.bookkeeper.storage.ordered_store import OrderedStore

_log = logging.getLogger(__name__)


def open_damaged(
    file_system: FileSystem,
    index: OrderedStore,
    config: StorageConfig,
    new_nonce: Callable[[], int],
) -> LedgerStorage:
    """Open what is left; ``limbo_phase`` of the result says what must follow.

    Raises:
        OSError: a disk failed.
    """
    file_system.make_directory(entry_log.DIRECTORY)
    try:
        if index.get(index_format.FORMAT_KEY) is None:
            raise CorruptFileError("index", 0, "it is empty")
        lost = forget_lost_logs(file_system, index)
        if lost:
            _log.error("%d entry logs have lost something", lost)
        return open_storage(file_system, index, config, new_nonce)
    except (CorruptFileError, MissingFileError) as error:
        if isinstance(error, CorruptFileError) and error.path.startswith("index"):
            _log.error("the index is made anew from the entry logs: %s", error)
            rebuild_index(file_system, index, config)
        else:
            _log.error("what is intact of the journal is kept: %s", error)
    return open_storage(file_system, index, config, new_nonce, damaged=True)
