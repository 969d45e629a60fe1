"""Starting a bookie: lock, cookie, storage, limbo where data was lost, registration."""

import asyncio
import functools
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from magnetar.bookkeeper.bookie import cookie as cookies
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig, StorageConfig
from magnetar.bookkeeper.bookie.limbo import enter_limbo
from magnetar.bookkeeper.bookie.metadata_commit_check import follow_metadata
from magnetar.bookkeeper.bookie.registration import Registration, wait_until_free
from magnetar.bookkeeper.bookie.storage import entry_log as entry_log
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.disk_space import storage_fitting
from magnetar.bookkeeper.bookie.storage.index_rebuild import forget_lost_logs, rebuild_index
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.storage_startup import open_storage
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.errors import (
    CorruptFileError,
    DirectoryLockedError,
    MissingFileError,
    StaleMetadataError,
)
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.service_info import ServiceInfo
from magnetar.bookkeeper.storage.file_system import DirectoryLock, FileSystem
from magnetar.bookkeeper.storage.lmdb_store import LmdbStore
from magnetar.bookkeeper.storage.ordered_store import OrderedStore
from magnetar.metadata.store import MetadataStore

_log = logging.getLogger(__name__)

T = TypeVar("T")
BeforeRegister = Callable[[Bookie], Awaitable[None]]


async def open_bookie(
    config: BookieConfig,
    file_system: FileSystem,
    store: MetadataStore,
    *,
    index: OrderedStore | None = None,
    new_nonce: Callable[[], int] = lambda: secrets.randbits(32),
    before_register: BeforeRegister | None = None,
    layout: Layout | None = None,
) -> Bookie:
    """Check the data directory's cookie, replay the journal, register.

    Args:
        index: None: LMDB below ``config.data_dir``.
        before_register: makes the bookie reachable: once registered it may be asked at once.
        layout: of the cluster; None: our own.

    Raises:
        DirectoryLockedError: another process serves the directory.
        CookieMismatchError: the directory is not this bookie's.
        StaleMetadataError: the embedded metadata are older than the directory.
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
            config,
            file_system,
            store,
            layout or JsonLayout(),
            lock,
            index,
            new_nonce,
            before_register,
        )
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(config.data_dir)) from error


async def _open_locked(
    config: BookieConfig,
    file_system: FileSystem,
    store: MetadataStore,
    layout: Layout,
    lock: DirectoryLock,
    index: OrderedStore | None,
    new_nonce: Callable[[], int],
    before_register: BeforeRegister | None,
) -> Bookie:
    """What is left of opening once the directory is ours; gives the lock back on an error."""
    opened: OrderedStore | None = None
    try:
        checked = await cookies.check_cookie(
            file_system,
            store,
            config.bookie_id,
            accept_data_loss=config.accept_data_loss,
            layout=layout,
        )
        is_known = checked.state is cookies.DirectoryState.COMPLETE
        if not is_known:
            await wait_until_free(store, config.bookie_id, layout)
        if index is None:
            opened = await _in_thread(lambda: _open_index(config), LmdbStore.close)
        used = index or opened
        assert used is not None
        storage = await _open_storage(config, file_system, used, new_nonce, is_known=is_known)
        try:
            follow_metadata(storage, store, config.data_dir)
        except StaleMetadataError:
            _close_files(storage)
            raise
        bookie = Bookie(config, storage, lock)
    except BaseException:  # also of a cancelled start
        if opened is not None:
            opened.close()
        lock.release()
        raise
    try:
        if checked.has_lost_data or storage.limbo_phase == index_format.LIMBO_ENTERING:
            await cookies.catch_up(store, config.bookie_id, layout)
            await enter_limbo(bookie, LedgerStore(store, layout))
        cookie = await cookies.complete_cookie(
            file_system, store, checked, config.network_location, config.directories, layout
        )
        if before_register is not None:
            await before_register(bookie)
        started_ms = time.time_ns() // 1_000_000
        info = ServiceInfo(
            config.bookie_id,
            config.network_location,
            config.advertised,
            started_ms,
            rpc_address=config.rpc_advertised,
            web_address=config.web_advertised,
        )
        check = functools.partial(cookies.check_still_ours, store, cookie, layout)
        await bookie.register(Registration(store, info, check, bookie.give_up, layout))
    except BaseException:  # also of a cancelled start
        await bookie.close()
        raise
    return bookie


def _open_index(config: BookieConfig) -> LmdbStore:
    """One that isn't readable at all is put aside, if that was accepted."""
    path = config.data_dir / "index"
    try:
        return LmdbStore(path)
    except CorruptFileError as error:
        if not config.accept_data_loss:
            raise
        numbers = (path.with_name(f"index.damaged-{number}") for number in itertools.count())
        aside = next(each for each in numbers if not each.exists())
        _log.error("%s: %s; it is kept as %s", path, error, aside)
        path.rename(aside)
        return LmdbStore(path)


async def _open_storage(
    config: BookieConfig,
    file_system: FileSystem,
    index: OrderedStore,
    new_nonce: Callable[[], int],
    *,
    is_known: bool,
) -> LedgerStorage:
    """The storage, without what can't be read of it if that was accepted.

    Args:
        is_known: a bookie has worked with this directory, so an empty one isn't new, but lost.
    """
    settings = storage_fitting(config, file_system)
    stop = threading.Event()

    def open_it() -> LedgerStorage:
        if is_known and index.get(index_format.FORMAT_KEY) is None:
            raise MissingFileError(f"index: it is empty, and {cookies.FILE} is of a used directory")
        return open_storage(file_system, index, settings, new_nonce, is_stopped=stop.is_set)

    def open_what_is_left() -> LedgerStorage:
        return open_damaged(file_system, index, settings, new_nonce)

    try:
        return await _in_thread(open_it, _close_files, stop)
    except (CorruptFileError, MissingFileError) as error:
        if not config.accept_data_loss:
            raise
        _log.error("starting although data is lost: %s", error)
        return await _in_thread(open_what_is_left, _close_files)


async def _in_thread(
    work: Callable[[], T], undo: Callable[[T], object], stop: threading.Event | None = None
) -> T:
    """What ``work`` returns. Also when cancelled it waits for the thread's end: the caller closes
    what the thread works with, and gives the directory back.

    Args:
        undo: of a result whose caller was cancelled.
        stop: set when cancelled.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        await asyncio.wait((future,))
        if future.exception() is None:
            undo(future.result())
        raise


def _close_files(storage: LedgerStorage) -> None:
    for writer in storage.writers:
        writer.close()
    storage.logs.close()


def open_damaged(
    file_system: FileSystem,
    index: OrderedStore,
    config: StorageConfig,
    new_nonce: Callable[[], int],
) -> LedgerStorage:
    """Open what is left, once an operator has accepted the loss.

    ``limbo_phase`` of the result says what must follow.

    Least first: entry logs that are gone concern the ledgers that were in them, a damaged journal
    or index concerns every ledger.

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
