"""Metadata of a stopped cluster, from our own layout into Apache BookKeeper's.

Values are written over those of the old layout one by one, and each tells its form. So a
conversion that was cut short is begun again and goes on; until its end, no process starts.
Bookies keep their directories: what they hold has the same form in both layouts.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from magnetar.bookkeeper.client.ledger_store import LedgerStore, ledger_path
from magnetar.bookkeeper.errors import CookieMismatchError, LedgerMetadataError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.cookie_format import decode_cookie, location_of
from magnetar.bookkeeper.layout.find_layout import (
    CONVERSION_PATH,
    find_layout,
    make_bookkeeper_nodes,
)
from magnetar.bookkeeper.layout.layout import JsonLayout
from magnetar.bookkeeper.replication.ledger_checker import gather_all
from magnetar.bookkeeper.replication.registrations import read_registered
from magnetar.bookkeeper.replication.under_replication import (
    AUDITORS_DELAY,
    CHECK_ALL_LEDGERS,
    PLACEMENT_CHECK,
    REPLICAS_CHECK,
    UnderReplicationStore,
)
from magnetar.bookkeeper.service_info import (
    COOKIES_PATH,
    LEDGERS_ROOT,
    UNDER_REPLICATION_ROOT,
)
from magnetar.metadata.errors import BadVersionError, NotFoundError
from magnetar.metadata.paths import decode_name
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

K = TypeVar("K")
T = TypeVar("T")

_PARALLEL: Final = 64
_COUNTER: Final = f"{LEDGERS_ROOT}/idgen"
_LONG_IDS: Final = f"{LEDGERS_ROOT}/idgen-long"


@dataclass(slots=True)
class Conversion:
    """What a cluster has, and what of it was, or is to be, written anew.

    Attributes:
        is_needed: False: the cluster's metadata are in BookKeeper's form, or there is no cluster.
        ledgers, cookies, marks: how many are in our own form still.
        first_id: what the next new ledger has at least.
        problems: why it can't be done; nothing was changed.
    """

    is_needed: bool
    ledgers: int = 0
    cookies: int = 0
    marks: int = 0
    first_id: int = 0
    problems: tuple[str, ...] = ()


async def look_at_conversion(store: MetadataStore) -> Conversion:
    """What ``convert`` would do; changes nothing.

    Raises:
        MetadataError: the store failed.
    """
    is_begun = await store.exists(CONVERSION_PATH)
    if not is_begun and not isinstance(await find_layout(store), JsonLayout):
        return Conversion(is_needed=False)
    found = Conversion(is_needed=True, first_id=await _first_id(store))
    problems = [f"bookie {each} is registered: stop it" for each in await read_registered(store)]
    layout = BookKeeperLayout()
    async for ledger_ids in _ledger_ids(store):
        for ledger_id, value in await _values(store, map(ledger_path, ledger_ids), ledger_ids):
            if not value.startswith(b"{"):
                continue
            found.ledgers += 1
            try:
                metadata = JsonLayout().decode_ledger(ledger_id, value)
                for segment in metadata.segments:
                    for bookie in segment.bookies:
                        layout.node_name(bookie)
                layout.encode_ledger(metadata)
            except (LedgerMetadataError, ValueError) as error:
                problems.append(f"ledger {ledger_id}: {error}")
    for name in await store.children(COOKIES_PATH):
        node = await store.get(f"{COOKIES_PATH}/{name}")
        if node is not None and node.value.startswith(b"{"):
            found.cookies += 1
            try:
                layout.node_name(decode_cookie(node.value, node.path).cookie.bookie_id)
            except (CookieMismatchError, ValueError) as error:
                problems.append(f"{node.path}: {error}")
    async for ledger_ids in _marks(store).ledger_ids():
        paths = map(_marks(store).marker_path, ledger_ids)
        found.marks += sum(v.startswith(b"{") for _, v in await _values(store, paths, ledger_ids))
    found.problems = tuple(problems)
    return found


async def convert(store: MetadataStore, on_ledgers: Callable[[int], None]) -> None:
    """Go from the beginning, or from where it was cut short, to the end.

    REQUIRES: ``look_at_conversion`` has found no problem, and no process was started since.

    Args:
        on_ledgers: told how many more ledgers were looked at.
    Raises:
        LedgerMetadataError: a value can't be read.
        MetadataError: the store failed; call it again.
    """
    await _create(store, CONVERSION_PATH, b"")
    await _reserve_ids(store)
    async for ledger_ids in _ledger_ids(store):
        await _each(ledger_ids, lambda ledger_id: _convert_ledger(store, ledger_id))
        on_ledgers(len(ledger_ids))
    await _each(await store.children(COOKIES_PATH), lambda name: _convert_cookie(store, name))
    async for ledger_ids in _marks(store).ledger_ids():
        await _each(ledger_ids, lambda ledger_id: _convert_mark(store, ledger_id))
    await _convert_switches(store)
    await make_bookkeeper_nodes(store)
    # Not before LAYOUT is there: one of both must tell, also if this is the last that is done.
    await _rewrite(store, _COUNTER, lambda _: b"")
    with suppress(NotFoundError):
        await store.delete(CONVERSION_PATH)


async def _convert_ledger(store: MetadataStore, ledger_id: int) -> None:
    def change(value: bytes) -> bytes:
        if not value.startswith(b"{"):
            return value
        return BookKeeperLayout().encode_ledger(JsonLayout().decode_ledger(ledger_id, value))

    await _rewrite(store, ledger_path(ledger_id), change)


async def _convert_cookie(store: MetadataStore, name: str) -> None:
    path = f"{COOKIES_PATH}/{name}"
    node = await store.get(path)
    if node is None or not node.value.startswith(b"{"):
        return
    cookie, layout = decode_cookie(node.value, path).cookie, BookKeeperLayout()
    # Its directories are named when the bookie is started next.
    value = layout.encode_cookie(cookie, location_of(node.value), None)
    new_path = layout.cookie_path(decode_name(name))
    if new_path == path:
        await store.put(path, value, node.stat.version)
        return
    await _create(store, new_path, value)
    with suppress(NotFoundError):
        await store.delete(path, node.stat.version)


async def _convert_mark(store: MetadataStore, ledger_id: int) -> None:
    old, new = JsonLayout().under_replication, BookKeeperLayout().under_replication
    path = _marks(store).marker_path(ledger_id)
    node = await store.get(path)
    if node is not None and node.value.startswith(b"{"):
        value = new.encode_marker(old.decode_marker(ledger_id, node))
        await store.put(path, value, node.stat.version)


async def _convert_switches(store: MetadataStore) -> None:
    old, new = JsonLayout().under_replication, BookKeeperLayout().under_replication

    def check_time(value: bytes) -> bytes:
        return new.encode_check_time(old.decode_check_time(value)) if value.isdigit() else value

    for name in (CHECK_ALL_LEDGERS, PLACEMENT_CHECK, REPLICAS_CHECK):
        await _rewrite(store, f"{UNDER_REPLICATION_ROOT}/{name}", check_time)

    def delay(value: bytes) -> bytes:
        sign = AUDITORS_DELAY if value.startswith(AUDITORS_DELAY) else b""
        return sign + new.encode_delay(float(value))

    await _rewrite(store, f"{UNDER_REPLICATION_ROOT}/lostBookieRecoveryDelay", delay)


async def _reserve_ids(store: MetadataStore) -> None:
    """BookKeeper's counter is a number of nodes, which can't be set; its long ids begin above."""
    if first := await _first_id(store):
        await _create(store, f"{_LONG_IDS}/HOB-{first >> 32:010d}", b"")


async def _first_id(store: MetadataStore) -> int:
    node = await store.get(_COUNTER)
    given = int(node.value) if node is not None and node.value.isdigit() else 0
    return ((given >> 32) + 1) << 32 if given else 0


def _marks(store: MetadataStore) -> UnderReplicationStore:
    return UnderReplicationStore(store, lambda: 0)


async def _rewrite(store: MetadataStore, path: str, change: Callable[[bytes], bytes]) -> None:
    node = await store.get(path)
    if node is not None and (value := change(node.value)) != node.value:
        await store.put(path, value, node.stat.version)


async def _create(store: MetadataStore, path: str, value: bytes) -> None:
    with suppress(BadVersionError):  # by the conversion that was cut short
        await store.put(path, value, CREATE_ONLY)


async def _ledger_ids(store: MetadataStore) -> AsyncIterator[list[int]]:
    async for found in LedgerStore(store).ranges():
        yield found.ledger_ids


async def _values(
    store: MetadataStore, paths: Iterable[str], keys: Iterable[int]
) -> list[tuple[int, bytes]]:
    """Of those nodes that are there."""
    nodes = await _each(paths, store.get)
    return [(k, node.value) for k, node in zip(keys, nodes, strict=True) if node is not None]


async def _each(items: Iterable[K], run: Callable[[K], Coroutine[Any, Any, T]]) -> list[T]:
    """Some at a time. One that fails ends it, when those beside it have ended."""
    results: list[T] = []
    every = list(items)
    for start in range(0, len(every), _PARALLEL):
        results += await gather_all(map(run, every[start : start + _PARALLEL]))
    return results
