"""The cookie: proof that a data directory belongs to this bookie of this cluster.

Kept in the directory (``cookie.json``) and in the metadata store, there in the cluster's form. They
must agree, because a bookie with the wrong or an empty disk would deny entries it acknowledged. The
network location is left out of the comparison: it may change when a bookie is rescheduled.

Each start counts up a generation in both, here first and then in the store. So a store that is
ahead has seen a start that this directory doesn't know of: it is an old copy, a snapshot that was
restored. (One taken since the last start can't be told from the directory itself.)

A first start writes the local cookie as *pending*, opens the storage, puts the stored cookie and
completes the local one last, so it can be cut short anywhere and begun again.
"""

import uuid
from dataclasses import replace
from typing import Final

from magnetar.bookkeeper.errors import CookieMismatchError
from magnetar.bookkeeper.layout.cookie_format import (
    LAYOUT_VERSION,
    Directories,
    decode_cookie,
)
from magnetar.bookkeeper.layout.cookie_format import CheckedCookie as CheckedCookie
from magnetar.bookkeeper.layout.cookie_format import Cookie as Cookie
from magnetar.bookkeeper.layout.cookie_format import DirectoryState as DirectoryState
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.storage.file_system import FileSystem
from magnetar.metadata.errors import BadVersionError
from magnetar.metadata.store import MetadataStore

FILE: Final = "cookie.json"
INSTANCE_ID_PATH: Final = "/ledgers/INSTANCEID"


def read_local_cookie(file_system: FileSystem) -> CheckedCookie | None:
    if not file_system.exists(FILE):
        return None
    file = file_system.open(FILE)
    try:
        return decode_cookie(file.pread(file.size(), 0), FILE)
    finally:
        file.close()


def write_local_cookie(file_system: FileSystem, data: bytes) -> None:
    """Durably, and all or nothing."""
    write_durably(file_system, FILE, data)


def write_durably(file_system: FileSystem, path: str, data: bytes) -> None:
    """Put a small file into the root directory, or replace it: all or nothing."""
    temporary = f"{path}.new"
    if file_system.exists(temporary):
        file_system.remove(temporary)
    file = file_system.create(temporary)
    try:
        file.pwritev([data], 0, sync_point="cookie.data")
    finally:
        file.close()
    file_system.rename(temporary, path)
    file_system.sync_dir("", "cookie.name")


async def read_instance_id(store: MetadataStore) -> str:
    """Name of the cluster; made up by the first bookie that asks."""
    while True:
        found = await store.get(INSTANCE_ID_PATH)
        if found is not None:
            return found.value.decode()
        try:
            await store.put(INSTANCE_ID_PATH, str(uuid.uuid4()).encode(), -1)
        except BadVersionError:
            continue  # another bookie was first


async def check_cookie(
    file_system: FileSystem,
    store: MetadataStore,
    bookie_id: str,
    *,
    accept_data_loss: bool,
    layout: Layout | None = None,
) -> CheckedCookie:
    """Compare the directory's cookie with the stored one; an empty directory gets a pending one.

    Args:
        accept_data_loss: a registered bookie may come back with an empty directory, or an old one.

    Raises:
        CookieMismatchError: the directory isn't this bookie's; the text says what to do.
    """
    instance_id = await read_instance_id(store)
    path = (layout or JsonLayout()).cookie_path(bookie_id)
    found = await store.get(path)
    stored = None if found is None else decode_cookie(found.value, path).cookie
    local = read_local_cookie(file_system)
    if local is not None:
        _check_local(local.cookie, bookie_id, instance_id)
        if local.state is DirectoryState.COMPLETE:
            if stored is None:
                raise CookieMismatchError(
                    f"{path} is missing: bookie {bookie_id} was decommissioned"
                )
            if stored != local.cookie:
                raise CookieMismatchError(f"{FILE} and {path} differ: the disk was swapped")
            return _check_generation(local.cookie, stored, path, accept=accept_data_loss)
        if local.state is DirectoryState.REPLACING or stored in (None, local.cookie):
            return local
        raise CookieMismatchError(f"{FILE} and {path} differ: bookie {bookie_id} started elsewhere")
    if file_system.list("journal") or file_system.list("entry-log"):
        raise CookieMismatchError(f"{FILE} is missing in a data directory that holds data")
    if stored is not None and not accept_data_loss:
        raise CookieMismatchError(
            f"bookie {bookie_id} is registered ({path}), but its data directory is empty: mount "
            "the right disk, or decommission the bookie, or start with accept_data_loss"
        )
    state = DirectoryState.NEW if stored is None else DirectoryState.REPLACING
    checked = CheckedCookie(Cookie(bookie_id, instance_id, str(uuid.uuid4())), state)
    write_local_cookie(file_system, checked.cookie.encode(state=state))
    return checked


async def complete_cookie(
    file_system: FileSystem,
    store: MetadataStore,
    checked: CheckedCookie,
    network_location: str,
    directories: Directories | None = None,
    layout: Layout | None = None,
) -> Cookie:
    """Begin a new generation: this directory is the bookie's from now on; what was stored."""
    path = (layout or JsonLayout()).cookie_path(checked.cookie.bookie_id)
    found = await store.get(path)
    generation = checked.cookie.generation
    if found is not None:
        generation = max(generation, decode_cookie(found.value, path).cookie.generation)
    completed = replace(checked.cookie, generation=generation + 1)
    data = completed.encode(network_location)
    is_known = checked.state in (DirectoryState.COMPLETE, DirectoryState.ROLLED_BACK)
    if is_known:  # the store must never be ahead of it
        write_local_cookie(file_system, data)
    value = (layout or JsonLayout()).encode_cookie(completed, network_location, directories)
    await store.put(path, value, -1 if found is None else found.stat.version)
    if not is_known:  # it isn't in use before the store says so
        write_local_cookie(file_system, data)
    return completed


async def check_still_ours(
    store: MetadataStore, cookie: Cookie, layout: Layout | None = None
) -> None:
    """Nobody has started as this bookie since ``complete_cookie`` returned ``cookie``.

    Raises:
        CookieMismatchError: another process has, or the bookie was decommissioned. MetadataError.
    """
    path = (layout or JsonLayout()).cookie_path(cookie.bookie_id)
    found = await store.get(path)
    if found is None:
        raise CookieMismatchError(f"{path} is gone: bookie {cookie.bookie_id} was decommissioned")
    stored = decode_cookie(found.value, path).cookie
    if stored != cookie or stored.generation != cookie.generation:
        raise CookieMismatchError(
            f"{path} has changed: another process was started as bookie {cookie.bookie_id}"
        )


async def catch_up(store: MetadataStore, bookie_id: str, layout: Layout | None = None) -> None:
    """Let this session see everything that was stored before this call.

    A server of the store may lag behind the others; a session never reads what is older than its
    own last write. The value stays as it is.
    """
    path = (layout or JsonLayout()).cookie_path(bookie_id)
    found = await store.get(path)
    if found is not None:
        await store.put(path, found.value, found.stat.version)


def _check_generation(local: Cookie, stored: Cookie, path: str, *, accept: bool) -> CheckedCookie:
    if stored.generation <= local.generation:
        return CheckedCookie(local, DirectoryState.COMPLETE)
    if not accept:
        raise CookieMismatchError(
            f"{FILE} is of start {local.generation}, but {path} of start {stored.generation}: the "
            "data directory is an old copy; use the newest one, or start with accept_data_loss"
        )
    return CheckedCookie(local, DirectoryState.ROLLED_BACK)


def _check_local(local: Cookie, bookie_id: str, instance_id: str) -> None:
    if local.layout_version != LAYOUT_VERSION:
        raise CookieMismatchError(f"{FILE}: layout version {local.layout_version} is not supported")
    if local.bookie_id != bookie_id:
        raise CookieMismatchError(f"{FILE} belongs to bookie {local.bookie_id}, not {bookie_id}")
    if local.instance_id != instance_id:
        raise CookieMismatchError(
            f"{FILE} belongs to cluster {local.instance_id}, not {instance_id}"
        )
