"""Bookies whose zone is down and waits for an operator: workers leave them alone."""

from __future__ import annotations

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.replication.cluster_watch import read_zones
from magnetar.bookkeeper.replication.zone_store import ZoneStore
from magnetar.bookkeeper.replication.zones import ZonePhase
from magnetar.metadata.store import MetadataStore

_HELD = (ZonePhase.DOWN, ZonePhase.HELD)


async def read_suspended_bookies(store: MetadataStore) -> frozenset[str]:
    """Of all zones that are held, as an auditor stored it; one small read while there is none.
    Those whose zone can't be read may be in one.

    Raises:
        MetadataError: the store can't tell.
    """
    try:
        phases = await ZoneStore(store).read()
    except LedgerMetadataError:  # its next writer mends it
        return frozenset()
    held = {name for name, phase in phases.items() if phase in _HELD}
    if not held:
        return frozenset()
    zones = await read_zones(store)
    return frozenset(bookie for bookie, zone in zones.items() if zone in held or not zone)
