"""Ledgers that nobody names after the way back: noted before a node that names them is overwritten.

A run that goes on after another one has ended early finds the nodes as they are by then. What is
noted is read again, and what is doomed is deleted also after Pulsar's brokers may have started:
they name new ledgers only.

Ledgers that the way back makes are told before: until a node names them nobody else knows of them.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final
from uuid import uuid4

import orjson

from magnetar.broker.migration.ledger_access import LedgerAccess
from magnetar.metadata.paths import join
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

PATH: Final = "/migration-ledgers"
_NOTED: Final = f"{PATH}/noted"
_DOOMED: Final = f"{PATH}/doomed"
_MADE: Final = f"{PATH}/made"
_IDS_MAX: Final = 20_000
"""Of a node: below 400 KB."""


async def note(store: MetadataStore, ledger_ids: Iterable[int]) -> None:
    """Nodes that name these are about to be overwritten."""
    await _put(store, _NOTED, ledger_ids)


async def noted(store: MetadataStore) -> set[int]:
    """By this run and those that ended early."""
    return await _read(store, _NOTED)


async def doom(store: MetadataStore, ledger_ids: Iterable[int]) -> None:
    """No node names these any more."""
    await _put(store, _DOOMED, ledger_ids)


async def is_doomed(store: MetadataStore) -> bool:
    """Whether there are some that a run has left."""
    return bool(await store.children(_DOOMED))


async def begin_making(store: MetadataStore, path: str) -> str:
    """Ledgers with this mark are about to be made, for the node at ``path`` to name them."""
    mark = uuid4().hex
    await store.put(join(_MADE, mark), path.encode(), CREATE_ONLY)
    return mark


async def end_making(store: MetadataStore, mark: str) -> None:
    """The node names them."""
    await store.delete(join(_MADE, mark))


async def begun_making(store: MetadataStore) -> Mapping[str, str]:
    """By runs that ended early: marks, and the paths of the nodes."""
    found = dict[str, str]()
    for mark in await store.children(_MADE):
        if (stored := await store.get(join(_MADE, mark))) is not None:
            found[mark] = stored.value.decode()
    return found


async def end_all_making(store: MetadataStore) -> None:
    """Nodes name all that were made, or those were deleted."""
    await store.delete_recursive(_MADE)


async def delete_unnamed(
    store: MetadataStore,
    ledgers: LedgerAccess,
    named_at: Callable[[str], Awaitable[Collection[int]]],
) -> None:
    """Ledgers that a run has made which ended before a node named them.

    Args:
        named_at: ids that the node at a path names.
    """
    if paths := await begun_making(store):
        for ledger_id, mark in (await ledgers.marked(paths)).items():
            if ledger_id not in await named_at(paths[mark]):
                await ledgers.delete([ledger_id])


async def nothing_named(_: str) -> Collection[int]:
    """For ``delete_unnamed``: the nodes are given up, too."""
    return ()


async def delete_doomed(store: MetadataStore, ledgers: LedgerAccess) -> None:
    """They go, and then what tells of them. May be repeated."""
    await ledgers.delete(sorted(await _read(store, _DOOMED)))
    await store.delete_recursive(PATH)


async def _put(store: MetadataStore, path: str, ledger_ids: Iterable[int]) -> None:
    ids = sorted(ledger_ids)
    for start in range(0, len(ids), _IDS_MAX):
        value = orjson.dumps(ids[start : start + _IDS_MAX])
        await store.put(f"{path}/-", value, CREATE_ONLY, sequential=True)


async def _read(store: MetadataStore, path: str) -> set[int]:
    found = set[int]()
    for name in await store.children(path):
        stored = await store.get(join(path, name))
        if stored is not None:
            found.update(orjson.loads(stored.value))
    return found
