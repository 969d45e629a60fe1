"""A placement policy that goes by what a pool of bookies knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.bookkeeper.client.free_space import FreeSpace
from magnetar.bookkeeper.client.placement import (
    EnsemblePlacementPolicy,
    PlacementConfig,
    PlacementRandom,
    make_placement,
)
from magnetar.bookkeeper.client.pool import BookiePool


@asynccontextmanager
async def placement_for(
    config: PlacementConfig, bookies: BookiePool, rng: PlacementRandom
) -> AsyncIterator[EnsemblePlacementPolicy]:
    """The policy of these settings, with the pool's places and quarantine.

    Asks for the bookies' free space in the background if the policy goes by it; the pool has been
    started.
    """
    if not config.by_free_space:
        yield make_placement(config, rng, bookies.location, bookies.health.quarantined)
        return
    space = FreeSpace(bookies, config.info_interval_s, config.info_retry_s)
    space.start()
    try:
        yield make_placement(
            config, rng, bookies.location, bookies.health.quarantined, space.free_bytes
        )
    finally:
        await space.close()
