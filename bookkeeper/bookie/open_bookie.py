"""Starting a bookie: lock, cookie, storage, limbo where data was lost, registration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bookkeeper.bookie import cookie as cookies
from bookkeeper.bookie.bookie import Bookie
from bookkeeper.bookie.config import BookieConfig
from bookkeeper.bookie.garbage import LedgerRegistry
from bookkeeper.bookie.ledger_storage import LedgerStorage
from bookkeeper.bookie.registration import Registration
from bookkeeper.bookie.start import forget_journal, open_storage
from bookkeeper.client.ledger_store import LedgerStore
from bookkeeper.errors import CorruptFileError, DirectoryLockedError, MissingFileError
from bookkeeper.service_info import ServiceInfo
from bookkeeper.storage.file_system import DirectoryLock, FileSystem
from bookkeeper.storage.lmdb_store import LmdbStore
from bookkeeper.storage.ordered_store import OrderedStore
from metadata.store import MetadataStore

_log = logging.getLogger(__name__)

BeforeRegister = Callable[[Bookie], Awaitable[None]]


async def open_bookie(
    config: BookieConfig,
    file_system: FileSystem,
    store: MetadataStore,
    *,
    index: OrderedStore | None,
    new_nonce: Callable[[], int],
    before_register: BeforeRegister | None = None,
) -> Bookie:
    """Open the data directory and register.

    Args:
        index: None: LMDB below ``config.data_dir``.
        before_register: makes the bookie reachable: whoever finds it registered may ask at once.

    Raises:
        DirectoryLockedError: another process serves the directory.
        CookieMismatchError: the directory is not this bookie's.
        CorruptFileError, MissingFileError: acknowledged bytes are damaged or gone, and
            ``accept_data_loss`` is off.
        OSError: the disk failed or is full; it names a path.
    """
    try:
        lock = file_system.lock("lock")
    except BlockingIOError as error:
        raise DirectoryLockedError(f"{config.data_dir}: another process uses it") from error
    try:
        return await _open_locked(
            config, file_system, store, lock, index, new_nonce, before_register
        )
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(config.data_dir)) from error


async def _open_locked(
    config: BookieConfig,
    file_system: FileSystem,
    store: MetadataStore,
    lock: DirectoryLock,
    index: OrderedStore | None,
    new_nonce: Callable[[], int],
    before_register: BeforeRegister | None,
) -> Bookie:
    """What is left of opening once the directory is ours; gives the lock back on an error."""
    opened: OrderedStore | None = None
    try:
        checked = await cookies.check_cookie(
            file_system, store, config.bookie_id, accept_empty_disk=config.accept_data_loss
        )
        loop = asyncio.get_running_loop()
        if index is None:
            opened = await loop.run_in_executor(None, LmdbStore, config.data_dir / "index")
        used = index or opened
        assert used is not None
        storage, journal_lost = await _open_storage(config, file_system, used, new_nonce)
        bookie = Bookie(config, storage, lock)
    except BaseException:
        if opened is not None:
            opened.close()
        lock.release()
        raise
    try:
        if checked.state is cookies.DirectoryState.REPLACING or journal_lost:
            await _enter_limbo(bookie, LedgerStore(store))
        await cookies.complete_cookie(file_system, store, checked, config.network_location)
        if before_register is not None:
            await before_register(bookie)
        info = ServiceInfo(config.bookie_id, config.network_location, config.advertised)
        await bookie.register(Registration(store, info))
    except BaseException:
        await bookie.close()
        raise
    return bookie


async def _open_storage(
    config: BookieConfig,
    file_system: FileSystem,
    index: OrderedStore,
    new_nonce: Callable[[], int],
) -> tuple[LedgerStorage, bool]:
    """The storage, and whether its journal had to be given up."""
    loop = asyncio.get_running_loop()

    def open_it() -> LedgerStorage:
        return open_storage(file_system, index, config.storage, new_nonce)

    try:
        return await loop.run_in_executor(None, open_it), False
    except (CorruptFileError, MissingFileError) as error:
        if not config.accept_data_loss:
            raise
        _log.error("starting although data is lost: %s", error)
        await loop.run_in_executor(None, forget_journal, file_system, index)
        return await loop.run_in_executor(None, open_it), True


async def _enter_limbo(bookie: Bookie, registry: LedgerRegistry) -> None:
    """Every ledger that this bookie may have held answers "unknown" until it is repaired.

    Listed before the bookie answers or registers; a ledger created later has lost nothing here.
    """
    async for found in registry.ranges():
        for ledger_id in found.ledger_ids:
            bookie.storage.set_limbo(ledger_id)
    for ledger_id in list(bookie.storage.ledgers):
        bookie.storage.set_limbo(ledger_id)
    await bookie.flush()
