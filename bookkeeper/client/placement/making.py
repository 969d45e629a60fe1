"""From settings to a policy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from bookkeeper.client.placement.choice import Chooser, Weigh
from bookkeeper.client.placement.config import RACK_AWARE, ZONE_AWARE, PlacementConfig
from bookkeeper.client.placement.location import Locate
from bookkeeper.client.placement.policy import Placement, Rng
from bookkeeper.client.placement.rack_aware import RackAwarePlacement
from bookkeeper.client.placement.random_placement import RandomPlacement
from bookkeeper.client.placement.wrappers import AvoidingPlacement, ShrinkingPlacement
from bookkeeper.client.placement.zone_aware import ZoneAwarePlacement


def make_placement(
    config: PlacementConfig,
    rng: Rng,
    locate: Locate,
    quarantined: Callable[[], Collection[str]],
    weigh: Weigh | None = None,
) -> Placement:
    """The policy of these settings.

    Args:
        locate: a bookie's path; asked at each choice, as bookies may move.
        quarantined: bookies that are chosen only when others don't suffice.
        weigh: free bytes by bookie; asked only if ``by_free_space`` is set.
    """
    chooser = Chooser(rng, weigh if config.by_free_space else None, config.max_weight_multiple)
    policy: Placement
    if config.policy == ZONE_AWARE:
        policy = ZoneAwarePlacement(config.zones, locate, chooser)
    elif config.policy == RACK_AWARE:
        policy = RackAwarePlacement(config.racks, locate, chooser)
    else:
        policy = RandomPlacement(chooser)
    avoiding = AvoidingPlacement(policy, quarantined)
    return ShrinkingPlacement(avoiding) if config.opportunistic_striping else avoiding
