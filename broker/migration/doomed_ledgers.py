"""Ledgers that nobody names after the way back: noted before a node that names them is overwritten.

A run that goes on after another one has ended early finds the nodes as they are by then. What is
noted is read again, and what is doomed is deleted also after Pulsar's brokers may have started:
they name new ledgers only.
"""

from collections.abc import Iterable
from typing import Final

import orjson

from magnetar.broker.migration.ledger_access import LedgerAccess
from magnetar.metadata.paths import join
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

PATH: Final = "/migration-ledgers"
_NOTED: Final = f"{PATH}/noted"
_DOOMED: Final = f"{PATH}/doomed"
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
