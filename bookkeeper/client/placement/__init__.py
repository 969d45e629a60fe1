"""Which bookies a new ledger gets, and who replaces one that failed."""

from magnetar.bookkeeper.client.placement.config import PlacementConfig, RackRules, ZoneRules
from magnetar.bookkeeper.client.placement.factory import make_placement
from magnetar.bookkeeper.client.placement.policy import (
    Adherence,
    EnsemblePlacementPolicy,
    PlacementRandom,
    choose_replacements,
)
from magnetar.bookkeeper.client.placement.rack_aware import RackAwarePlacement
from magnetar.bookkeeper.client.placement.random_placement import RandomPlacement
from magnetar.bookkeeper.client.placement.zone_aware import ZoneAwarePlacement

__all__ = [
    "Adherence",
    "EnsemblePlacementPolicy",
    "PlacementConfig",
    "PlacementRandom",
    "RackAwarePlacement",
    "RackRules",
    "RandomPlacement",
    "ZoneAwarePlacement",
    "ZoneRules",
    "choose_replacements",
    "make_placement",
]
