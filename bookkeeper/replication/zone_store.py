"""Phases of zones in the metadata store: what an auditor leaves for the next one."""

from collections.abc import Callable, Mapping
from typing import Final

import orjson

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.replication.zones import ZonePhase
from magnetar.bookkeeper.service_info import UNDER_REPLICATION_ROOT
from magnetar.metadata.recipes import update
from magnetar.metadata.store import MetadataStore, Watch

_FORMAT: Final = 1


class ZoneStore:
    """One small node: the zones that aren't up."""

    def __init__(self, store: MetadataStore, root: str = UNDER_REPLICATION_ROOT) -> None:
        self._store, self._path = store, f"{root}/zones"

    async def read(self) -> dict[str, ZonePhase]:
        """Zones that were down when an auditor last wrote.

        Raises:
            LedgerMetadataError: the stored bytes can't be read.
        """
        found = await self._store.get(self._path)
        return {} if found is None else _decode(found.value, self._path)

    async def write(self, phases: Mapping[str, ZonePhase]) -> None:
        """What an auditor sees; but what an operator has released meanwhile stays so."""

        def change(value: bytes | None) -> bytes:
            try:
                stored = {} if value is None else _decode(value, self._path)
            except LedgerMetadataError:
                stored = {}
            return _encode(
                {
                    name: stored[name]
                    if phase is ZonePhase.HELD and stored.get(name) is ZonePhase.RELEASED
                    else phase
                    for name, phase in phases.items()
                }
            )

        await update(self._store, self._path, change)

    async def release(self) -> None:
        """An operator lets all zones be copied that are held. Without any, nothing happens."""

        def change(value: bytes | None) -> bytes | None:
            try:
                stored = {} if value is None else _decode(value, self._path)
            except LedgerMetadataError:  # so it holds no zone
                return None
            if ZonePhase.HELD not in stored.values():
                return None
            released = {ZonePhase.HELD: ZonePhase.RELEASED}
            return _encode({name: released.get(phase, phase) for name, phase in stored.items()})

        await update(self._store, self._path, change)

    def watch(self, on_change: Callable[[], None]) -> Watch:
        """Calls ``on_change`` when phases were written."""
        return self._store.watch(self._path, lambda _: on_change())


def _encode(phases: Mapping[str, ZonePhase]) -> bytes:
    zones = {name: phase.value for name, phase in sorted(phases.items())}
    return orjson.dumps({"format": _FORMAT, "zones": zones})


def _decode(value: bytes, path: str) -> dict[str, ZonePhase]:
    try:
        document = orjson.loads(value)
        if document["format"] != _FORMAT:
            raise LedgerMetadataError(f"{path}: format {document['format']!r} is unknown")
        return {str(name): ZonePhase(phase) for name, phase in document["zones"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerMetadataError(f"{path}: unreadable: {error!r}") from error
