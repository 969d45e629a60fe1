"""Which bookies a new ledger gets, and which one replaces a failed one."""

from collections.abc import Callable, Collection

from magnetar.bookkeeper.client.placement.config import (
    RACK_AWARE,
    REGION_AWARE,
    ZONE_AWARE,
    PlacementConfig,
    RackRules,
    RegionRules,
    ZoneRules,
)
from magnetar.bookkeeper.client.placement.isolation import (
    GroupsOf,
    IsolationGroups,
    IsolationPlacement,
)
from magnetar.bookkeeper.client.placement.node_location import Locate
from magnetar.bookkeeper.client.placement.policy import (
    Adherence,
    EnsemblePlacementPolicy,
    PlacementRandom,
    choose_replacements,
)
from magnetar.bookkeeper.client.placement.rack_aware import RackAwarePlacement
from magnetar.bookkeeper.client.placement.random_placement import RandomPlacement
from magnetar.bookkeeper.client.placement.region_aware import RegionAwarePlacement
from magnetar.bookkeeper.client.placement.weighted_selection import Weigh, WeightedRandomSelection
from magnetar.bookkeeper.client.placement.wrappers import (
    OpportunisticStripingPlacement,
    QuarantinePlacement,
)
from magnetar.bookkeeper.client.placement.zone_aware import ZoneAwarePlacement

__all__ = [
    "Adherence",
    "EnsemblePlacementPolicy",
    "IsolationGroups",
    "PlacementConfig",
    "PlacementRandom",
    "RackAwarePlacement",
    "RackRules",
    "RandomPlacement",
    "RegionAwarePlacement",
    "RegionRules",
    "ZoneAwarePlacement",
    "ZoneRules",
    "choose_replacements",
    "make_placement",
]


def make_placement(
    config: PlacementConfig,
    rng: PlacementRandom,
    locate: Locate,
    quarantined: Callable[[], Collection[str]],
    weigh: Weigh | None = None,
    groups_of: GroupsOf | None = None,
) -> EnsemblePlacementPolicy:
    """The policy of these settings.

    Args:
        locate: a bookie's path; asked at each choice, as bookies may move.
        quarantined: bookies that are chosen only when others don't suffice.
        weigh: free bytes by bookie; asked only if ``by_free_space`` is set.
        groups_of: a bookie's groups; asked only for ledgers that are kept on some.
    """
    selection = WeightedRandomSelection(
        rng, weigh if config.by_free_space else None, config.max_weight_multiple
    )
    policy: EnsemblePlacementPolicy
    if config.policy == ZONE_AWARE:
        policy = ZoneAwarePlacement(config.zones, locate, selection)
    elif config.policy == RACK_AWARE:
        policy = RackAwarePlacement(config.racks, locate, selection)
    elif config.policy == REGION_AWARE:
        policy = RegionAwarePlacement(config.regions, locate, selection)
    else:
        policy = RandomPlacement(selection)
    policy = QuarantinePlacement(policy, quarantined)
    if groups_of is not None:
        policy = IsolationPlacement(policy, config.isolation, groups_of)
    return OpportunisticStripingPlacement(policy) if config.opportunistic_striping else policy
